"""Budgets that ask: a call that they do not pay for waits for a raise, which comes once, or not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from guard.core import wire
from guard.gateway.admin import AdminError
from guard.gateway.domain.commands import GateCommand, IngestCommand, PricedEvent, RequestOrigin
from guard.gateway.domain.records import BudgetRule
from guard.gateway.domain.waiting import Place
from guard.gateway.ledger import catalogue
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.gateway.conftest import Tenant, examples_of
from tests.gateway.test_waiting_line import WORST, ask, end
from tests.support.storage_machine import ACTOR, StorageMachine, run_model
from tests.support.store import decide, ingest
from tests.support.waiting import until

LEFT: Final = 5000
LIMIT: Final = WORST + LEFT


@pytest.fixture(name="tenant")
def patient_tenant(tenant: Tenant, lasting_places: None) -> Tenant:
    """One whose calls wait on."""
    return tenant


def asking(tenant: Tenant, **fields: Any) -> str:
    """Set a budget that asks, and spend nearly all of it; return its id."""
    budget = tenant.admin.set_budget(limit_nanousd=LIMIT, on_exhausted="ask", **fields)
    end(tenant, ask(tenant, "first"), cost=WORST)
    return str(budget["budget_id"])


def actions(tenant: Tenant, prefix: str = "budget.") -> list[str]:
    entries = tenant.admin.audit()
    return [each["action"] for each in entries if each["action"].startswith(prefix)]


def test_a_call_that_a_budget_does_not_pay_for_waits_until_it_is_raised(tenant: Tenant) -> None:
    budget_id = asking(tenant)
    waiting = ask(tenant, "a", workflow_id="nightly", user="ada")
    assert (waiting["decision"], waiting["asks"]) == ("waiting", True)
    [asked] = tenant.admin.budget_asks()
    assert (asked["budget_id"], asked["workflow_id"], asked["user"]) == (
        budget_id, "nightly", "ada",
    )  # fmt: skip
    assert (asked["needed"], asked["lacking"]) == (WORST, WORST - LEFT)
    assert asked["deadline_ms"] - asked["asked_at_ms"] == 300_000
    raised = tenant.admin.raise_budget(budget_id, WORST, "k")
    assert raised["budget"]["limit"] == LIMIT + WORST
    assert ask(tenant, "a", 1, workflow_id="nightly", user="ada")["decision"] == "allow"
    assert tenant.admin.budget_asks() == []
    [shown] = tenant.admin.budget_raises(budget_id)
    assert (shown["by"], shown["limit"]) == (WORST, LIMIT + WORST)
    assert shown["raised_by"]
    assert "budget.raise" in actions(tenant)


def test_who_waits_on_after_a_raise_for_another_is_asked_for(tenant: Tenant) -> None:
    """Else the one notice was the first call's, and nobody heard of the others."""

    def notices() -> int:
        sent = tenant.admin.request("GET", "/webhooks/deliveries")
        return sum(each["type"] == "budget.asks" for each in sent)

    tenant.admin.request("PUT", "/webhooks", {"url": "https://example.invalid/"})
    budget_id = asking(tenant)
    for name in "abc":
        assert ask(tenant, name)["decision"] == "waiting"
    assert notices() == 1
    before = {each["call_id"]: each for each in tenant.admin.budget_asks()}
    tenant.admin.raise_budget(budget_id, WORST, "k")
    raised = ask(tenant, "a", 1)
    assert raised["decision"] == "allow"
    end(tenant, raised, cost=WORST)
    for attempt in (1, 2):
        for name in "bc":
            assert ask(tenant, name, attempt)["decision"] == "waiting"
        assert notices() == 2, "once for both"
    for each in tenant.admin.budget_asks():
        assert each["limit"] == LIMIT + WORST
        assert each["deadline_ms"] == before[each["call_id"]]["deadline_ms"]


def test_a_raise_happens_once_for_its_key(tenant: Tenant) -> None:
    budget_id = asking(tenant)
    first = tenant.admin.raise_budget(budget_id, 500, "k")
    again = tenant.admin.raise_budget(budget_id, 500, "k")
    assert again == first
    with pytest.raises(AdminError, match="used before"):
        tenant.admin.raise_budget(budget_id, 501, "k")
    assert tenant.admin.raise_budget(budget_id, 500)["budget"]["limit"] == LIMIT + 1000
    assert tenant.admin.raise_budget(budget_id, 500)["budget"]["limit"] == LIMIT + 1500
    assert actions(tenant).count("budget.raise") == 3
    with pytest.raises(AdminError, match="counted"):
        tenant.admin.raise_budget(budget_id, wire.NANOUSD_MAX)
    with pytest.raises(AdminError, match="no such budget"):
        tenant.admin.raise_budget("none", 1)


def test_many_raise_at_once_and_each_key_counts_once(tenant: Tenant) -> None:
    budget_id = asking(tenant)

    def push(number: int) -> None:
        tenant.admin.raise_budget(budget_id, 1, f"key-{number % 5}")

    threads = [threading.Thread(target=push, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [budget] = tenant.admin.budgets()
    assert budget["limit"] == LIMIT + 5


def test_without_an_answer_in_time_it_is_refused(tenant: Tenant) -> None:
    asking(tenant, ask_ms=300)
    began_s = time.monotonic()
    assert ask(tenant, "a")["decision"] == "waiting"
    problems: list[dict[str, Any]] = []

    def refused() -> bool:
        reply = ask(tenant, "a", 1 + len(problems))
        problems.append(reply)
        return reply.get("error_code") == "GD-B004"

    until(refused)
    assert time.monotonic() - began_s > 0.29, "it waited first"
    assert "budget.unanswered" in actions(tenant)
    assert tenant.admin.budget_asks() == []


def test_who_does_not_wait_is_refused_at_once(tenant: Tenant) -> None:
    asking(tenant)
    assert ask(tenant, "a", wait_ms=0)["error_code"] == "GD-B004"
    assert tenant.admin.budget_asks() == []


def test_a_budget_beside_it_that_does_not_ask_refuses(tenant: Tenant) -> None:
    asking(tenant)
    tenant.admin.set_budget(limit_nanousd=10, scope_kind="user", scope_id="ada")
    assert ask(tenant, "a", user="ada")["error_code"] == "GD-B004"
    assert tenant.admin.budget_asks() == []


def test_one_that_asks_no_longer_refuses_who_waits(tenant: Tenant) -> None:
    asking(tenant)
    assert ask(tenant, "a")["decision"] == "waiting"
    tenant.admin.set_budget(limit_nanousd=LIMIT)
    assert ask(tenant, "a", 1)["error_code"] == "GD-B004"


def test_smaller_calls_go_on_while_a_large_one_asks(tenant: Tenant) -> None:
    """Money that comes back would not help the large one."""
    asking(tenant)
    assert ask(tenant, "a", waited_ms=50_000)["decision"] == "waiting"
    small = {"max_input_tokens": 1, "max_output_tokens": 0}
    assert ask(tenant, "b", **small)["decision"] == "allow"


def test_its_exhaustion_stops_no_program_without_a_question(tenant: Tenant) -> None:
    """Where it is told that it does refuse, it stops programs at once, and the other way round."""
    budget = {"limit_nanousd": 1000}
    tenant.admin.set_budget(**budget, on_exhausted="ask")
    reply = tenant.send(tenant.llm(2000)).json()
    assert reply["decision"] == "allow"

    def told() -> list[bool]:
        found = tenant.http.get("/api/v1/control").json()["messages"]
        return [each["exhausted"] for each in found if each["type"] == "budget"]

    assert True not in told()
    tenant.admin.set_budget(**budget)
    assert True in told()
    assert tenant.send(tenant.llm(1)).json()["decision"] == "exhausted"
    tenant.admin.set_budget(**budget, on_exhausted="ask")
    assert True not in told()


UNITS: Final[dict[str, dict[str, Any]]] = {
    "tokens": {"limit_tokens": 900},
    "calls": {"limit_calls": 1, "counts": ["gpt*"]},
}


@pytest.mark.parametrize("unit", UNITS)
def test_budgets_of_tokens_and_calls_ask_and_are_raised(tenant: Tenant, unit: str) -> None:
    budget = tenant.admin.set_budget(**UNITS[unit], on_exhausted="ask")
    budget_id, limit = budget["budget_id"], budget["limit"]
    end(tenant, ask(tenant, "a"))
    waits = ask(tenant, "b", max_output_tokens=900)
    assert (waits["decision"], waits["asks"]) == ("waiting", True)
    [asked] = tenant.admin.budget_asks()
    assert (asked["unit"], asked["counts"]) == (unit, UNITS[unit].get("counts", []))
    assert asked["needed"] == (1000 if unit == "tokens" else 1)
    with pytest.raises(AdminError, match=f"raised in {unit}"):
        tenant.admin.raise_budget(budget_id, 1)
    with pytest.raises(AdminError, match=f"by_{unit}"):
        tenant.admin.raise_budget(budget_id, 1, unit="calls" if unit == "tokens" else "tokens")
    lacking = asked["lacking"]
    raised = tenant.admin.raise_budget(budget_id, lacking, "k", unit=unit)
    assert raised == tenant.admin.raise_budget(budget_id, lacking, "k", unit=unit)
    assert raised["budget"]["limit"] == limit + lacking
    assert raised["raised"]["unit"] == unit
    assert tenant.admin.budget_raises(budget_id) == [raised["raised"]]
    assert ask(tenant, "b", 1, max_output_tokens=900)["decision"] == "allow"
    assert tenant.admin.budget_asks() == []


def test_a_call_that_asks_for_tokens_is_refused_when_its_time_is_over(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_tokens=900, on_exhausted="ask", ask_ms=1)
    assert ask(tenant, "a", max_output_tokens=900)["decision"] == "waiting"
    until(lambda: ask(tenant, "a", max_output_tokens=900).get("error_code") == "GD-B004")
    assert "budget.unanswered" in actions(tenant)


@pytest.mark.parametrize(
    ("body", "why"), [
        ({}, "exactly one"), ({"by_nanousd": 1, "by_tokens": 1}, "exactly one"),
        ({"by_tokens": 0}, "by_tokens"),
    ],
)  # fmt: skip
def test_a_raise_is_in_one_unit(tenant: Tenant, body: dict[str, Any], why: str) -> None:
    budget_id = asking(tenant)
    with pytest.raises(AdminError, match=why):
        tenant.admin.request("POST", f"/budgets/{budget_id}/raise", body)


class AskingMachine(StorageMachine):
    """One budget, calls that ask in any order, raises, and time that passes."""

    ASK_MS: Final = 3000
    WAIT_MS: Final = 1500

    def __init__(self, make_storage: Callable[..., Storage]) -> None:
        super().__init__(make_storage, {"org": 100})
        self.committed = 0
        self.open: dict[str, int] = {}
        self.reservations: dict[str, str] = {}
        self.first: dict[str, int] = {}
        self.deadlines: dict[str, int] = {}
        self.names = 0
        self.unanswered = 0

    def set_limits(self) -> None:
        rule = BudgetRule(
            budget_id="", organisation_id=self.org, scope_kind="organisation", scope_id="",
            window="total", limit=self.limits["org"], on_exhausted="ask",
            ask_ms=self.ASK_MS,
        )  # fmt: skip
        made = self.run(self.storage.write(within(self.org), catalogue.put_budget, ACTOR, rule))
        self.budget_ids["org"] = {made.budget_id}

    @property
    def reserved(self) -> int:
        return sum(self.open.values())

    @rule(data=st.data(), amount=st.sampled_from([1, 30, 60, 100, 101, 150]), new=st.booleans())
    def ask_for(self, data: Any, amount: int, new: bool) -> None:
        name = f"call-{self.names}-{amount}"
        if self.first and not new:
            name = data.draw(st.sampled_from(sorted(self.first)))
            amount = int(name.rpartition("-")[2])
        else:
            self.names += 1
        first = self.first.setdefault(name, self.now)
        call = wire.GateRequest(
            call_id=name, kind="call", function="f", max_output_tokens=1, wait_ms=self.WAIT_MS
        )
        request = RequestOrigin(organisation_id=self.org, key_id="k")
        place = Place(first, first, self.WAIT_MS)
        command = GateCommand(
            request=request, call=call, declared_nanousd=amount, worst_case=True, place=place
        )
        answer = self.run(decide(self.storage, command))
        limit = self.limits["org"]
        if self.committed + self.reserved + amount <= limit:
            assert answer.status == 200
            assert answer.waits is None
            reply = wire.decode(answer.body, wire.GateReply)
            self.open[name] = amount
            self.reservations[name] = str(reply.reservation_id)
            self.forget(name)
            return
        comes_back = self.committed + amount <= limit and self.reserved > 0
        if comes_back and self.now < first + self.WAIT_MS:
            assert answer.waits is not None
            assert not answer.waits.asks
            return
        deadline = self.deadlines.setdefault(name, self.now + self.ASK_MS)
        if self.now < deadline:
            assert answer.waits is not None
            assert answer.waits.asks
        else:
            assert answer.status == 402
            self.unanswered += 1
            self.forget(name)

    def forget(self, name: str) -> None:
        self.first.pop(name, None)
        self.deadlines.pop(name, None)

    @rule(data=st.data(), cost=st.integers(0, 60))
    def settle(self, data: Any, cost: int) -> None:
        if not self.open:
            return
        name = data.draw(st.sampled_from(sorted(self.open)))
        held = self.open.pop(name)
        event = wire.Event(
            event_id=f"e-{name}", type="llm", at_ms=1, reservation_id=self.reservations[name]
        )
        priced = PricedEvent(event, b"{}", cost=min(cost, held), final=True)
        request = RequestOrigin(organisation_id=self.org, key_id="k")
        self.run(ingest(self.storage, IngestCommand(request=request, events=[priced])))
        self.committed += min(cost, held)

    @rule(ms=st.sampled_from([1, 1000, 1500, 3000]))
    def wait(self, ms: int) -> None:
        self.now += ms

    def the_model_agrees(self) -> None:
        for balance in self.balances():
            assert balance.committed == self.committed
            assert balance.reserved == self.reserved
            assert self.committed + self.reserved <= self.limits["org"]
        entries = self.run(self.storage.audit(self.org, 0, 1000))
        unanswered = [each for each in entries if each.action == "budget.unanswered"]
        assert len(unanswered) == self.unanswered


def test_asks_and_raises_against_their_model(
    storage_factory: Callable[..., Storage], proof_scale: float
) -> None:
    run_model(lambda: AskingMachine(storage_factory), examples_of(storage_factory, proof_scale), 40)
