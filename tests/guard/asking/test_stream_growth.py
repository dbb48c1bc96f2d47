"""A stream that grows holds what all of it can cost, at the rates that its request can meet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from guard.asking.request_hold import RequestHold, granted_nanousd
from guard.breaker.exceptions import GuardError, GuardTransportError
from guard.core.call_options import Ceiling
from guard.core.leases import Grant, Hold, Lease, LeaseBook, Question, worst_case
from guard.core.rates import Terms
from guard.core.request_bound import RequestBound
from guard.core.wire import GateReply, GateRequest, ModelRates, RateRow
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import Entry, Scope

ROWS = [
    RateRow("", -1, 2_000, 10_000, 200, 2_500, 4_000, 10_000, 0),
    RateRow("", 200_000, 4_000, 15_000, 400, 5_000, 8_000, 15_000, 0),
    RateRow("priority", -1, 5_000, 25_000, 500, 6_000, 9_000, 25_000, 0),
    RateRow("priority", 200_000, 7_000, 33_000, 700, 7_000, 9_900, 33_000, 0),
]
RATES = ModelRates(2_000, 10_000, 200, 2_500, 10_000, 10_000, 9_900, 33_000, rows=ROWS,
                   context_tokens=1_000_000)  # fmt: skip


class Asked:
    """Notes what is asked for, and grants nothing."""

    def __init__(self) -> None:
        self.bounds: list[RequestBound] = []
        self.are_rates_wrong = False

    def begin(self, reservation_id: str, amount: int, model: str | None) -> None:
        return None

    def release(self, grant: Grant) -> None:
        raise AssertionError

    def lets_grow(self, scope: Scope, error: Any) -> bool:
        raise AssertionError

    def rates_changed(self, scope: Scope) -> None:
        self.are_rates_wrong = True

    def ask_more(self, scope: Scope, bound: RequestBound, answered: Callable[..., None]) -> None:
        self.bounds.append(bound)


def held(
    bound: RequestBound, asked: Asked, free: int, ceiling: Ceiling | None = None
) -> RequestHold:
    worst = worst_case(RATES, bound)
    assert worst is not None
    lease = Lease("lease-1", ("w", None, None, None, "m"), 0.0)
    lease.is_current, lease.free = True, free
    lease.take(0, 0.0)
    hold = Hold(LeaseBook(), lease, worst[0])
    return RequestHold(
        asked, Scope(workflow_id="w", run_id="r", entry=Entry(Scope())), bound,
        Grant(None, hold, RATES, bound.output_tokens), ceiling,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_a_lease_is_drawn_on_for_all_of_it(seed: int) -> None:
    rng = random.Random(seed)
    asked = Asked()
    bound = RequestBound(
        "openai",
        "m",
        rng.choice([None, 1, 1_000, 200_000, 200_001, 900_000]),
        rng.choice([256, 4096]),
        streams=True,
        fees=rng.choice([None, {"openai.search": 1}]),
        terms=Terms(rng.choice(["", "priority", "flex"]), rng.choice([0, 1, 2]),
                    rng.choice([True, False]), rng.choice([1000, 1100])),
    )  # fmt: skip
    hold = held(bound, asked, 10**15)
    for _ in range(rng.randrange(1, 4)):
        hold.grow((hold.output_tokens or 0) * 9 // 10)
    whole = worst_case(RATES, msgspec.structs.replace(bound, output_tokens=hold.output_tokens))
    assert whole is not None
    assert hold.amount_nanousd is not None
    assert hold.amount_nanousd >= whole[0]
    assert (hold.output_tokens or 0) > (bound.output_tokens or 0)
    assert asked.bounds == []


def test_the_gateway_is_asked_at_the_same_terms() -> None:
    asked = Asked()
    terms = Terms("priority", 0, True)
    hold = held(RequestBound("openai", "m", 10, 256, streams=True, terms=terms), asked, 0)
    hold.grow(250)
    (more,) = asked.bounds
    assert more.terms == terms
    assert granted_nanousd(hold._grant) > 0


class EndedWhileItGrows(Asked):
    """Answers a question for more between the first and the last step of the hold's end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, more: Grant) -> None:
        super().__init__()
        keep = Hold.keep

        def answered_first(hold: Hold) -> bool:
            self.answered(more)
            return keep(hold)

        monkeypatch.setattr(Hold, "keep", answered_first)

    def release(self, grant: Grant) -> None:
        return None

    def ask_more(self, scope: Scope, bound: RequestBound, answered: Callable[..., None]) -> None:
        self.answered = answered


def test_what_is_granted_while_its_cost_is_lost_is_not_charged_to_its_limit_and_the_rest_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = Grant(GateReply("allow", "more", reservation_id="more", reserved_nanousd=500))
    ceiling = Ceiling(10**12)
    bound = RequestBound("openai", "m", 10, 256, streams=True)
    hold = held(bound, EndedWhileItGrows(monkeypatch, more), 0, ceiling)
    amount = hold.amount_nanousd
    assert amount
    assert ceiling.take(amount)
    hold.grow(250)
    hold.keep()
    assert (ceiling.spent_nanousd, ceiling.held_nanousd) == (amount, 0)


def test_a_question_that_could_not_be_put_ends_the_stream_like_one_without_an_answer(
    runtime: GuardRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asking(Asked):
        def ask_more(self, scope: Scope, bound: RequestBound, answered: Any) -> None:
            request = GateRequest(call_id="c", kind="llm", function="openai")
            runtime.gate.ask_soon(Question(request), answered)

        def lets_grow(self, scope: Scope, error: GuardError) -> bool:
            return False

    def put(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runtime.gate._courier, "put", put)
    hold = held(RequestBound("openai", "m", 10, 256, streams=True), Asking(), 0)
    hold.grow(250)
    assert isinstance(hold.refusal, GuardTransportError)
    assert "can't start new thread" in str(hold.refusal)
    assert not hold._growing
