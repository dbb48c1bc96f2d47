"""Leases that are topped up in the background, so that a steady caller does not wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import guard
from guard.breaker.refusals import Refusal
from guard.core import wire
from guard.core.leases import LeaseRequest
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import Entry, Scope
from tests.support.waiting import WAIT_S, until

MODEL = "test-model"
COST = 1_000_000
BOUND = RequestBound("openai", MODEL, input_tokens=500, output_tokens=500)
USED = Usage(model=MODEL, input_tokens=250, output_tokens=250)
SCOPE = Scope(workflow_id="w", run_id="r", entry=Entry(Scope()))


@pytest.fixture
def leasing(start: Callable[..., GuardRuntime], tenant: Any) -> GuardRuntime:
    """A runtime that may hold leases; a request costs at most a tenth of a cent."""
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    runtime = start(timeout_ms=60_000)
    until(lambda: runtime.link.session is not None and runtime.link.session.asks.can_lease, WAIT_S)
    return runtime


def request(runtime: GuardRuntime, usage: Usage = USED) -> bool:
    """Make one request; return whether it was covered without asking."""
    hold = runtime.requests.hold(SCOPE, BOUND)
    covered = hold is not None
    hold = hold or runtime.requests.ask(SCOPE, BOUND)
    data = wire.LlmData(
        model=MODEL, provider="openai", input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens, source="auto",
    )  # fmt: skip
    fields = (*SCOPE.event_fields[:-1], hold.reservation_id)
    runtime.events.record("llm", data, msgspec.structs.replace(SCOPE, _event_fields=fields))
    runtime.leases.metered.clear()  # unlike an event that no hold covers
    hold.settle(usage)
    return covered


def steady(runtime: GuardRuntime, seconds: float) -> list[bool]:
    """Make a request each 20 ms."""
    covered = []
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        covered.append(request(runtime))
        time.sleep(0.02)
    return covered


def until_refused(runtime: GuardRuntime, tenant: Any) -> int:
    """Make requests under a budget for 100 of them, by their worst case; return how many ran."""
    tenant.admin.set_budget(limit_nanousd=100 * COST, scope_kind="workflow", scope_id="w")
    ran = 0

    def agent() -> None:
        nonlocal ran
        while ran < 1000:
            request(runtime)
            ran += 1
            time.sleep(0.01)

    with pytest.raises(Refusal) as refused:
        agent()
    assert isinstance(refused.value.error, guard.GuardBudgetError)
    return ran


def test_a_steady_caller_does_not_wait(leasing: GuardRuntime, tenant: Any) -> None:
    first = steady(leasing, 1.5)
    assert not all(first), "until it is known how much is spent"
    then: list[bool] = []

    def was_covered() -> bool:
        covered = steady(leasing, 6.0)
        then.extend(covered)
        return sum(not each for each in covered) <= 2

    # Without topping up it would be each hundredth. A busy machine tops up late now and then.
    assert any(was_covered() for _ in range(5)), "but for those that a pause has hit"
    leasing.flush()
    assert tenant.spent_nanousd("w") == (len(first) + len(then)) * COST // 2
    # Fewer where one that was not covered has waited for a lease that was on its way.
    assert int(tenant.admin.workflow("w")["calls"]) <= sum(not each for each in first + then)


def test_nothing_is_overspent_and_the_rest_of_a_budget_is_used(
    leasing: GuardRuntime, tenant: Any
) -> None:
    ran = until_refused(leasing, tenant)
    leasing.flush()
    assert 198 <= ran <= 199, "each has cost half of its worst case"
    assert tenant.spent_nanousd("w") == ran * COST // 2


def test_no_room_is_missed_while_an_answer_is_under_way(
    leasing: GuardRuntime, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call waits for what its lane is being granted, instead of asking beside it."""
    courier = leasing.gate._courier
    topped_up = courier._topped_up
    late: list[LeaseRequest] = []

    def later(session: Any, asked: LeaseRequest, told: wire.SocketAnswer | None) -> None:
        late.append(asked)
        asyncio.get_running_loop().call_later(1.0, topped_up, session, asked, told)

    monkeypatch.setattr(courier, "_topped_up", later)
    ran = until_refused(leasing, tenant)
    assert late, "it came when the budget would have been used up"
    assert 198 <= ran <= 199, "each has cost half of its worst case"


def test_what_is_not_used_comes_back(leasing: GuardRuntime) -> None:
    steady(leasing, 1.5)
    assert leasing.status().leased_nanousd > 0
    until(lambda: leasing.status().leases == 0, WAIT_S)


def test_a_gateway_that_does_not_know_it_is_not_asked(leasing: GuardRuntime) -> None:
    leasing.gate._courier._desk.tops_up = False
    asked: list[bool] = []
    low = leasing.leases.low
    leasing.leases.low = lambda now_s: asked.append(True) or low(now_s)  # type: ignore[method-assign, func-returns-value]
    steady(leasing, 1.0)
    assert asked == []
