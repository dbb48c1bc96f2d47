"""Budgets of tokens and calls against a model of them, through the storage port, step by step.

Money is limited beside them. A share of money and tokens is kept for winding down, and every limit
is raised now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar, cast

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, multiple, rule

from guard.core import wire
from guard.gateway.domain.commands import (
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
    RequestOrigin,
)
from guard.gateway.domain.records import BudgetRule, BudgetUnit, OrganisationSettings
from guard.gateway.ledger import catalogue
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.gateway.conftest import examples_of
from tests.support.storage_machine import ACTOR, StorageMachine, run_model
from tests.support.store import decide, ingest, release, update_lease

HOUR = 3_600_000
LIFE = 30_000
BUDGETS: dict[str, tuple[str, list[str], str, str]] = {
    "all tokens": ("tokens", [], "organisation", "total"),
    "tokens": ("tokens", [], "workflow", "hour"),
    "searches": ("calls", ["Search*"], "organisation", "total"),
    "calls": ("calls", [], "workflow", "hour"),
    "dollars": ("usd", [], "agent", "total"),
}
"""Unit, what is counted, scope and window, by a name of the model's own."""
KEEP = 30
"""Percent of the limits of tokens and money that are kept for winding down."""
SPENDER = "spender"
"""The agent whose money is limited."""
BOUND, COST = 5, 1
"""What a request holds of money, and what it costs."""

Key = tuple[str, str, int]
"""Budget, scope and beginning of the period."""


@attrs.define
class Count:
    """What the model thinks of one balance."""

    committed: int = 0
    reserved: int = 0
    authorized: int = 0


@attrs.define
class Sent:
    """What the model thinks of one LLM request."""

    id: str
    workflow: str
    model: str
    keys: dict[Key, int]
    expires: int
    held: dict[Key, int]
    state: str = "open"
    in_doubt: bool = False

    def tokens(self) -> int:
        return next(amount for (name, _, _), amount in self.keys.items() if "tokens" in name)


class MeteredMachine(StorageMachine):
    """Tokens of the organisation for ever, and of each workflow by the hour; calls likewise."""

    requests = Bundle("requests")
    events = Bundle("events")
    of_organisation: ClassVar = OrganisationSettings(lease_ttl_ms=LIFE, lease_grace_ms=0)

    def __init__(self, make_storage: Callable[..., Storage]) -> None:
        super().__init__(
            make_storage,
            {"all tokens": 1000, "tokens": 600, "searches": 4, "calls": 9, "dollars": 30},
        )
        self.counts: dict[Key, Count] = {}
        self.sent: list[Sent] = []
        # Whose last request was let through, by balance and run.
        self.last: set[tuple[Key, str]] = set()
        self.known: set[str] = set()

    def set_limits(self) -> None:
        for name, (unit, counts, scope, window) in BUDGETS.items():
            budget = BudgetRule(
                budget_id="", organisation_id=self.org, scope_kind=scope,  # type: ignore[arg-type]
                scope_id="" if scope == "organisation" else "*", window=window,  # type: ignore[arg-type]
                limit=self.limits[name], unit=unit, counts=counts,  # type: ignore[arg-type]
                wind_down_percent=KEEP if unit != "calls" else 0,
            )  # fmt: skip
            made = self.run(
                self.storage.write(within(self.org), catalogue.put_budget, ACTOR, budget)
            )
            self.budget_ids[name] = {made.budget_id}
        for (name, _, epoch), count in self.counts.items():
            if not epoch or epoch + HOUR > self.now:
                count.authorized = max(count.authorized, self.limits[name])

    # -- the model -----------------------------------------------------------------------------

    def over(
        self, workflow: str, called: str, tokens: int, *, spender: bool = False
    ) -> dict[Key, int]:
        """Return what a call takes of each balance."""
        found: dict[Key, int] = {}
        for name, (unit, counts, scope, window) in BUDGETS.items():
            if unit == "usd" and not spender:
                continue
            amount = {"tokens": tokens, "usd": BOUND, "calls": 1}[unit]
            own = {"organisation": "", "agent": SPENDER}.get(scope, workflow)
            key = (name, own, self.now - self.now % HOUR if window == "hour" else 0)
            self.counts.setdefault(key, Count(authorized=self.limits[name]))
            if amount and (not counts or called.startswith("search")):
                found[key] = amount
        return found

    def kept(self, name: str) -> int:
        return self.limits[name] * KEEP // 100 if BUDGETS[name][0] != "calls" else 0

    def short(self, needs: dict[Key, int], *, winding: bool) -> list[Key]:
        """Return the balances that a call does not fit into."""
        return [
            key for key, amount in needs.items()
            if self.counts[key].committed + self.counts[key].reserved + amount
            > self.limits[key[0]] - (0 if winding else self.kept(key[0]))
        ]  # fmt: skip

    def decided(
        self, answer: Any, needs: dict[Key, int], *, winding: bool = False, last_of: str = ""
    ) -> bool:
        """Compare a decision with the model's.

        Args:
            answer: the decision.
            needs: what the call takes.
            winding: whether it winds down.
            last_of: the run whose last request it may be.
        """
        short = self.short(needs, winding=winding)
        if short:
            self.expire()
            short = self.short(needs, winding=winding)
        lacking = [key for key in short if self.kept(key[0])]
        is_last = (
            bool(lacking and last_of)
            and not self.short(needs, winding=True)
            and not any((key, last_of) in self.last for key in lacking)
        )
        expected = not short or is_last
        assert answer.status == (200 if expected else 402)
        if is_last:
            self.last |= {(key, last_of) for key in lacking}
        if expected:
            assert wire.decode(answer.body, wire.GateReply).winding_down == is_last
            return True
        problem = wire.decode(answer.body, wire.Problem)
        assert problem.error_code == "GD-B004"
        of_money = [each for each in short if each[0] == "dollars"]
        if of_money:  # it is looked at first
            assert problem.budget is not None
            assert problem.budget.spent_nanousd == self.counts[of_money[0]].committed
            return False
        counted = problem.details["counted"]
        assert (counted["limit"], counted["used"]) in [
            (self.limits[each[0]], self.counts[each].committed) for each in short
        ]
        return False

    def unit_of(self, name: str) -> BudgetUnit:
        return cast("BudgetUnit", BUDGETS[name][0])

    def changed(self, names: Collection[str]) -> None:
        """Forget last requests: a limit that changes begins anew."""
        self.last = {each for each in self.last if each[0][0] not in names}

    def commit(self, key: Key, amount: int) -> None:
        count = self.counts[key]
        count.committed += amount
        count.authorized = max(count.authorized, self.limits[key[0]])

    def close(self, sent: Sent, state: str) -> None:
        if sent.state != "open":
            return
        sent.state = state
        for key, held in sent.held.items():
            self.counts[key].reserved -= held
            if held and BUDGETS[key[0]][0] == "calls" and state != "released":
                self.commit(key, held)
        sent.held = dict.fromkeys(sent.held, 0)

    def expire(self) -> None:
        for sent in self.sent:
            if sent.state == "open" and sent.expires <= self.now:
                self.close(sent, "expired")
                sent.in_doubt = True
                self.over(sent.workflow, sent.model, 1)
                for key, amount in sent.keys.items():
                    if BUDGETS[key[0]][0] != "calls":
                        self.commit(key, amount)

    def end_doubt(self, sent: Sent) -> None:
        if sent.in_doubt:
            sent.in_doubt, sent.state = False, "settled"
            for key, amount in sent.keys.items():
                if BUDGETS[key[0]][0] != "calls":
                    self.commit(key, -amount)

    def request(self) -> RequestOrigin:
        return RequestOrigin(organisation_id=self.org, key_id="k")

    # -- steps ---------------------------------------------------------------------------------

    @rule(
        target=requests, workflow=st.sampled_from("ab"),
        model=st.sampled_from(["m", "search-preview"]), tokens=st.sampled_from([1, 150, 300]),
        winding=st.booleans(), takes_last=st.booleans(), spender=st.booleans(),
    )  # fmt: skip
    def send(
        self, workflow: str, model: str, tokens: int, winding: bool, takes_last: bool,
        spender: bool,
    ) -> Any:  # fmt: skip
        call = wire.GateRequest(
            call_id=f"c{next(self.serial)}", kind="llm", function="openai", model=model,
            workflow_id=workflow, max_input_tokens=tokens // 3,
            max_output_tokens=tokens - tokens // 3, renewed=True,
            lease=wire.LeaseAsk(), winding_down=winding, takes_last=takes_last,
            agent=SPENDER if spender else None,
        )  # fmt: skip
        command = GateCommand(
            request=self.request(), call=call, declared_nanousd=BOUND, grants_lease=True
        )
        answer = self.run(decide(self.storage, command))
        needs = self.over(workflow, model, tokens, spender=spender)
        last_of = workflow if takes_last and not winding else ""
        if not self.decided(answer, needs, winding=winding, last_of=last_of):
            return multiple()
        reply = wire.decode(answer.body, wire.GateReply)
        assert reply.lease is None
        assert reply.reservation_id is not None
        for key, amount in needs.items():
            self.counts[key].reserved += amount
        sent = Sent(reply.reservation_id, workflow, model, needs, self.now + LIFE, {**needs})
        self.sent.append(sent)
        return sent

    @rule(workflow=st.sampled_from("ab"), tool=st.sampled_from(["SEARCH_web", "pay"]))
    def call_tool(self, workflow: str, tool: str) -> None:
        call = wire.GateRequest(
            call_id=f"c{next(self.serial)}", kind="call", function=f"agent.{tool}",
            tool_name=tool, workflow_id=workflow, gates_requests=True,
        )  # fmt: skip
        answer = self.run(decide(self.storage, GateCommand(request=self.request(), call=call)))
        needs = self.over(workflow, tool.lower(), 0)
        if self.decided(answer, needs):
            for key, amount in needs.items():
                self.commit(key, amount)

    @rule(target=events, sent=requests, tokens=st.sampled_from([0, 1, 150, 400]))
    def answer(self, sent: Sent, tokens: int) -> Any:
        return self.report(f"e{next(self.serial)}", sent.workflow, sent.model, tokens, sent)

    @rule(
        target=events, workflow=st.sampled_from("ab"),
        model=st.sampled_from(["m", "search-preview"]), tokens=st.sampled_from([1, 150]),
    )  # fmt: skip
    def answer_without_a_hold(self, workflow: str, model: str, tokens: int) -> Any:
        return self.report(f"e{next(self.serial)}", workflow, model, tokens, None)

    @rule(event=events)
    def answer_again(self, event: tuple[str, str, str, int, Sent | None]) -> None:
        self.report(*event)

    def report(
        self, event_id: str, workflow: str, model: str, tokens: int, sent: Sent | None
    ) -> Any:
        given = (event_id, workflow, model, tokens, sent)
        event = wire.Event(
            event_id=event_id, type="llm", at_ms=1, workflow_id=workflow,
            reservation_id=None if sent is None else sent.id,
        )  # fmt: skip
        flags = "" if tokens else "estimated in_doubt"
        priced = PricedEvent(
            event, b"{}", cost=COST, price_source="vendor", model=model, input_tokens=tokens // 2,
            output_tokens=tokens - tokens // 2, flags=flags,
        )  # fmt: skip
        command = IngestCommand(request=self.request(), events=[priced])
        reply = wire.decode(self.run(ingest(self.storage, command)).body, wire.EventsReply)
        if event_id in self.known:
            assert reply.duplicates == 1
            return multiple()
        assert reply.accepted == 1
        self.known.add(event_id)
        over = self.over(workflow, model, 1)
        if sent is None:
            for key in over:
                self.commit(key, 1 if BUDGETS[key[0]][0] == "calls" else tokens)
            return given
        tokens = tokens or sent.tokens()
        self.end_doubt(sent)
        for key, held in sent.held.items():
            if key[0] == "dollars":
                self.commit(key, COST)
            elif BUDGETS[key[0]][0] == "tokens":
                self.commit(key, tokens)
            elif held or sent.state == "released":
                self.commit(key, 1)
            self.counts[key].reserved -= held
        sent.held = dict.fromkeys(sent.held, 0)
        if sent.state == "open":
            sent.state = "settled"
        return given

    @rule(sent=requests)
    def give_back(self, sent: Sent) -> None:
        command = ReleaseCommand(request=self.request(), reservation_id=sent.id)
        assert self.run(release(self.storage, command)).status == 200
        self.close(sent, "released")
        self.end_doubt(sent)

    @rule(sent=requests)
    def renew(self, sent: Sent) -> None:
        """Its holder lives; it may have been taken for gone."""
        command = LeaseCommand(request=self.request(), update=wire.LeaseUpdate(sent.id))
        answer = self.run(update_lease(self.storage, command))
        if sent.state == "expired":
            state = wire.decode(answer.body, wire.LeaseState)
            assert state.over == [sent.id], "what it may have cost is charged"
        if sent.state == "open":
            sent.expires = self.now + LIFE

    @rule(step=st.sampled_from([1000, LIFE, HOUR]))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule()
    def sweep(self) -> None:
        self.run(self.storage.sweep())
        self.expire()

    @rule(
        all_tokens=st.integers(0, 2000), calls=st.integers(0, 12), dollars=st.integers(0, 40)
    )  # fmt: skip
    def change_limits(self, all_tokens: int, calls: int, dollars: int) -> None:
        wanted = {"all tokens": all_tokens, "calls": calls, "dollars": dollars}
        self.changed([name for name, limit in wanted.items() if limit != self.limits[name]])
        self.limits |= wanted
        self.set_limits()

    @rule(data=st.data(), by=st.sampled_from([1, 2, 150, 400]), again=st.booleans())
    def raise_limit(self, data: Any, by: int, again: bool) -> None:
        self.changed([self.raise_one(data, by, again)])

    # -- what always holds ---------------------------------------------------------------------

    def the_model_agrees(self) -> None:
        names = {
            (unit, tuple(counts), scope): name for name, (unit, counts, scope, _) in BUDGETS.items()
        }
        seen = {}
        for view in self.balances():
            name = names[view.unit, tuple(view.counts), view.scope_kind]
            seen[name, view.scope_id, view.epoch_ms] = view
        for key, count in self.counts.items():
            view = seen.pop(key)
            assert (view.committed, view.reserved) == (
                count.committed, count.reserved,
            ), key  # fmt: skip
            # Only what was reported beyond what was held can be above the limit.
            assert count.committed + count.reserved <= count.authorized + view.overshoot
        assert all(not (v.committed or v.reserved) for v in seen.values())


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_tokens_and_calls_against_a_model(
    storage_factory: Callable[..., Storage], proof_scale: float
) -> None:
    examples = examples_of(storage_factory, proof_scale)
    run_model(lambda: MeteredMachine(storage_factory), examples, steps=40)
