"""A share of a budget is kept for calls that wind down, and for the last request of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from guard.core import wire
from guard.gateway.admin import AdminError
from guard.gateway.domain.commands import (
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    RequestOrigin,
)
from guard.gateway.domain.ledger import BudgetBalance
from guard.gateway.domain.records import BudgetRule
from guard.gateway.ledger import catalogue
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.gateway.conftest import Tenant, examples_of
from tests.gateway.test_waiting_line import WORST, ask, end
from tests.support.storage_machine import ACTOR, StorageMachine, run_model
from tests.support.store import decide, ingest, update_lease

LIMIT: Final = 4 * WORST
NOW: Final = {"wait_ms": 0}


def keeping(tenant: Tenant, percent: int = 25, **fields: Any) -> None:
    tenant.admin.set_budget(limit_nanousd=LIMIT, wind_down_percent=percent, **fields)


def test_only_what_winds_down_may_use_the_share(tenant: Tenant) -> None:
    keeping(tenant)
    for name in "abc":
        end(tenant, ask(tenant, name), cost=WORST)
    problem = ask(tenant, "d", **NOW)
    assert problem["error_code"] == "GD-B004"
    assert "$0.00075 kept for winding down" in problem["reason"]
    assert problem["details"]["winding_down"] is True
    assert ask(tenant, "e", **NOW, winding_down=True)["decision"] == "allow"
    assert ask(tenant, "f", **NOW, winding_down=True)["error_code"] == "GD-B004"


def test_the_last_request_of_each_run_may_use_it_once(tenant: Tenant) -> None:
    keeping(tenant, 50)
    for name in "ab":
        end(tenant, ask(tenant, name, run_id="r"), cost=WORST)
    small: dict[str, Any] = {"max_output_tokens": 10, "takes_last": True, **NOW}
    last = ask(tenant, "c", run_id="r", **small)
    assert (last["decision"], last["winding_down"]) == ("allow", True)
    assert ask(tenant, "d", run_id="r", **small)["error_code"] == "GD-B004"
    assert ask(tenant, "e", run_id="other", **small)["winding_down"] is True
    assert ask(tenant, "f", run_id="third", **{**small, "takes_last": False})["error_code"]


def test_a_key_has_one_last_request_whatever_its_runs(tenant: Tenant) -> None:
    [key_id] = [k["key_id"] for k in tenant.admin.request("GET", "/keys") if k["name"] == "test"]
    keeping(tenant, 50, scope_kind="key", scope_id=key_id)
    end(tenant, ask(tenant, "a"), cost=2 * WORST)
    small: dict[str, Any] = {"max_output_tokens": 10, "takes_last": True, **NOW}
    assert ask(tenant, "b", run_id="r", **small)["winding_down"] is True
    assert ask(tenant, "c", run_id="s", **small)["error_code"] == "GD-B004"


def test_a_last_request_is_shortened_to_what_is_kept(tenant: Tenant) -> None:
    keeping(tenant)
    end(tenant, ask(tenant, "a"), cost=3 * WORST)
    large: dict[str, Any] = {
        "max_output_tokens": 5000,
        "least_output_tokens": 1,
        "takes_last": True,
        **NOW,
    }
    last = ask(tenant, "b", **large)
    assert last["winding_down"] is True
    assert last["max_output_tokens"] == 32
    assert last["reserved_nanousd"] <= WORST


def test_money_that_is_set_aside_is_waited_for_before_the_share_is_used(tenant: Tenant) -> None:
    keeping(tenant)
    held = [ask(tenant, name) for name in "abc"]
    assert ask(tenant, "d", takes_last=True)["decision"] == "waiting"
    end(tenant, held[0], cost=1)
    assert "winding_down" not in ask(tenant, "d", 1, takes_last=True)


def test_a_raise_ends_the_winding_down(tenant: Tenant) -> None:
    keeping(tenant)
    end(tenant, ask(tenant, "a"), cost=3 * WORST)
    small: dict[str, Any] = {"max_output_tokens": 10, "takes_last": True, "run_id": "r", **NOW}
    assert ask(tenant, "b", **small)["winding_down"] is True
    assert ask(tenant, "c", **small)["error_code"] == "GD-B004"
    [budget] = tenant.admin.budgets()
    tenant.admin.raise_budget(budget["budget_id"], 4 * WORST)
    assert ask(tenant, "d", run_id="r", **NOW)["decision"] == "allow"
    end(tenant, ask(tenant, "e", run_id="r", **NOW), cost=2 * WORST)
    assert ask(tenant, "f", **small)["winding_down"] is True


def test_a_budget_that_asks_asks_first(tenant: Tenant) -> None:
    keeping(tenant, on_exhausted="ask")
    end(tenant, ask(tenant, "a"), cost=3 * WORST)
    assert ask(tenant, "b", takes_last=True)["asks"] is True
    assert ask(tenant, "b", 1, winding_down=True)["decision"] == "allow"


def test_a_share_of_tokens_is_kept_and_a_limit_of_calls_has_none(tenant: Tenant) -> None:
    tenant.admin.set_budget(limit_tokens=1000, wind_down_percent=30)
    tenant.admin.set_budget(limit_calls=100)
    small: dict[str, Any] = {"max_output_tokens": 200, "workflow_id": "w", "run_id": "r", **NOW}
    held = ask(tenant, "a", **{**small, "max_output_tokens": 500})
    assert held["decision"] == "allow"

    def shown() -> dict[str, Any]:
        reply = tenant.http.get("/api/v1/spend", params={"workflow": "w", "run": "r"}).json()
        [tokens] = [each for each in reply["counted"] if each["unit"] == "tokens"]
        return dict(tokens)

    assert (shown()["kept"], shown()["left"], "winding_down" in shown()) == (300, 400, False)
    problem = ask(tenant, "b", **small)
    assert problem["error_code"] == "GD-B004"
    assert "300 kept for winding down" in problem["reason"]
    assert problem["details"]["winding_down"] is True
    assert shown()["winding_down"] is True
    last = ask(tenant, "c", **small, takes_last=True)
    assert (last["decision"], last["winding_down"]) == ("allow", True)
    assert ask(tenant, "d", **{**small, "max_output_tokens": 0}, takes_last=True)["error_code"]
    assert ask(tenant, "e", **{**small, "max_output_tokens": 0}, winding_down=True)["decision"]
    with pytest.raises(AdminError, match="a limit of calls keeps no share"):
        tenant.admin.set_budget(limit_calls=20, wind_down_percent=5)


def test_tokens_that_were_charged_in_doubt_are_shown(tenant: Tenant) -> None:
    budget = {"scope_kind": "workflow", "scope_id": "w"}
    tenant.admin.set_budget(limit_tokens=1000, **budget)
    held = ask(tenant, "a", workflow_id="w", run_id="r")
    lost = tenant.llm(5000, reservation_id=held["reservation_id"], workflow_id="w")
    lost["data"] |= {"estimated": True, "estimate": "bound"}
    for name in ("input_tokens", "output_tokens"):
        lost["data"].pop(name, None)
    tenant.send(lost)
    reply = tenant.http.get("/api/v1/spend", params={"workflow": "w"}).json()
    [tokens] = reply["counted"]
    assert (tokens["used"], tokens["uncertain"]) == (150, 150), "all that was set aside"
    [row] = [each for each in tenant.admin.ledger() if each["unit"] == "tokens"]
    assert (row["uncertain"], row["uncertain_cents"]) == (150, 0.0)


def test_spend_tells_what_is_kept_and_when_it_begins(tenant: Tenant) -> None:
    keeping(tenant)

    def shown() -> tuple[int, bool]:
        reply = tenant.http.get("/api/v1/spend", params={"workflow": "w", "run": "r"}).json()
        [budget] = reply["budgets"]
        return budget.get("kept_nanousd", 0), budget.get("winding_down", False)

    assert shown() == (WORST, False)
    end(tenant, ask(tenant, "a", workflow_id="w", run_id="r"), cost=2 * WORST + 5)
    assert shown() == (WORST, False)
    assert ask(tenant, "b", workflow_id="w", run_id="r", **NOW)["error_code"] == "GD-B004"
    assert shown() == (WORST, True)


@pytest.mark.parametrize("chain", [None, 200])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_the_share_is_of_hard_budgets(chain: int | None, mode: Any) -> None:
    rule = BudgetRule(
        budget_id="b", organisation_id="o", scope_kind="organisation", scope_id="",
        window="total", limit=1000, mode=mode, wind_down_percent=7,
    )  # fmt: skip
    assert rule.kept == (70 if mode == "hard" else 0)
    account = BudgetBalance(rule, None, rule.kept)  # type: ignore[arg-type]
    full = BudgetBalance(rule, None)  # type: ignore[arg-type]
    assert account.ceiling(chain) == full.ceiling(chain) - rule.kept


class WindingMachine(StorageMachine):
    """One budget with a share; leases, calls outside and inside of it, last requests, costs."""

    def __init__(self, make_storage: Callable[..., Storage]) -> None:
        super().__init__(make_storage, {"org": 200})
        self.percent = 25
        self.committed = self.reserved = 0
        self.holds: dict[str, list[int]] = {}
        self.last: set[str] = set()

    def set_limits(self) -> None:
        wanted = BudgetRule(
            budget_id="", organisation_id=self.org, scope_kind="organisation", scope_id="",
            window="total", limit=self.limits["org"], wind_down_percent=self.percent,
        )  # fmt: skip
        made = self.run(self.storage.write(within(self.org), catalogue.put_budget, ACTOR, wanted))
        self.budget_ids["org"] = {made.budget_id}

    @rule(data=st.data(), by=st.integers(1, 100), again=st.booleans())
    def raise_limit(self, data: Any, by: int, again: bool) -> None:
        super().raise_limit(data, by, again)
        if self.percent:
            self.last.clear()

    @rule(percent=st.sampled_from([0, 10, 25, 99]))
    def change_share(self, percent: int) -> None:
        if self.percent and percent != self.percent:
            self.last.clear()
        self.percent = percent
        self.set_limits()

    @rule(
        amount=st.sampled_from([1, 20, 49, 50, 51, 120]), winding=st.booleans(),
        takes_last=st.booleans(), leased=st.booleans(), run=st.sampled_from("rs"),
    )  # fmt: skip
    def ask_for(self, amount: int, winding: bool, takes_last: bool, leased: bool, run: str) -> None:
        call = wire.GateRequest(
            call_id=f"c{next(self.serial)}", kind="llm", function="f", run_id=run,
            winding_down=winding, takes_last=takes_last,
            lease=wire.LeaseAsk(demand_nanousd=1000) if leased else None,
        )  # fmt: skip
        request = RequestOrigin(organisation_id=self.org, key_id="k")
        command = GateCommand(
            request=request, call=call, declared_nanousd=amount, worst_case=True,
            grants_lease=leased,
        )  # fmt: skip
        answer = self.run(decide(self.storage, command))
        limit = self.limits["org"]
        kept = limit * self.percent // 100
        used = self.committed + self.reserved
        fits_outside = used + amount <= limit - kept
        fits = used + amount <= limit
        is_last = not winding and not fits_outside and takes_last and kept and run not in self.last
        if not (fits_outside or (fits and (winding or is_last))):
            assert answer.status == 402
            return
        assert answer.status == 200
        reply = wire.decode(answer.body, wire.GateReply)
        assert reply.winding_down == bool(is_last)
        if is_last:
            self.last.add(run)
        granted = amount
        if winding or is_last or not leased:
            assert reply.lease is None
        else:
            assert reply.lease is not None
            granted = reply.lease.granted_nanousd
            assert used + granted <= limit - kept, "a lease gives out nothing of the share"
        self.reserved += granted
        self.holds[str(reply.reservation_id)] = [granted, int(reply.lease is not None)]

    @rule(data=st.data(), cost=st.integers(0, 60))
    def settle(self, data: Any, cost: int) -> None:
        if not self.holds:
            return
        name = data.draw(st.sampled_from(sorted(self.holds)))
        held, is_lease = self.holds.pop(name)
        cost = min(cost, held)
        event = wire.Event(
            event_id=f"e{next(self.serial)}", type="llm", at_ms=1, reservation_id=name
        )
        priced = PricedEvent(event, b"{}", cost=cost, final=True)
        request = RequestOrigin(organisation_id=self.org, key_id="k")
        self.run(ingest(self.storage, IngestCommand(request=request, events=[priced])))
        if is_lease:
            change = wire.LeaseUpdate(name, unused_nanousd=held - cost, close=True)
            self.run(update_lease(self.storage, LeaseCommand(request=request, update=change)))
        self.committed += cost
        self.reserved -= held

    def the_model_agrees(self) -> None:
        for balance in self.balances():
            assert balance.committed == self.committed
            assert balance.reserved == self.reserved
        assert self.committed + self.reserved <= self.limits["org"]


def test_shares_against_their_model(
    storage_factory: Callable[..., Storage], proof_scale: float
) -> None:
    run_model(
        lambda: WindingMachine(storage_factory), examples_of(storage_factory, proof_scale), 40
    )
