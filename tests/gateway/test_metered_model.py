"""Budgets of tokens and calls against a model of them, through the storage port, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

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
from guard.gateway.domain.records import BudgetRule, OrganisationSettings
from guard.gateway.ledger import catalogue
from guard.gateway.ledger.state import within
from guard.gateway.storage.port import Storage
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
}
"""Unit, what is counted, scope and window, by a name of the model's own."""

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
    unjournaled: bool
    expires: int
    held: dict[Key, int]
    state: str = "open"
    prepaid: int = 0

    def tokens(self) -> int:
        return next(amount for (name, _, _), amount in self.keys.items() if "tokens" in name)


class MeteredMachine(StorageMachine):
    """Tokens of the organisation for ever, and of each workflow by the hour; calls likewise."""

    requests = Bundle("requests")
    events = Bundle("events")
    of_organisation: ClassVar = OrganisationSettings(lease_ttl_ms=LIFE)

    def __init__(self, make_storage: Callable[..., Storage]) -> None:
        super().__init__(
            make_storage, {"all tokens": 1000, "tokens": 600, "searches": 4, "calls": 9}
        )
        self.counts: dict[Key, Count] = {}
        self.sent: list[Sent] = []
        self.known: set[str] = set()

    def set_limits(self) -> None:
        for name, (unit, counts, scope, window) in BUDGETS.items():
            budget = BudgetRule(
                budget_id="", organisation_id=self.org, scope_kind=scope,  # type: ignore[arg-type]
                scope_id="" if scope == "organisation" else "*", window=window,  # type: ignore[arg-type]
                limit_nanousd=self.limits[name], unit=unit, counts=counts,  # type: ignore[arg-type]
            )  # fmt: skip
            self.run(self.storage.write(within(self.org), catalogue.put_budget, ACTOR, budget))
        for (name, _, epoch), count in self.counts.items():
            if not epoch or epoch + HOUR > self.now:
                count.authorized = max(count.authorized, self.limits[name])

    # -- the model -----------------------------------------------------------------------------

    def over(self, workflow: str, called: str, tokens: int) -> dict[Key, int]:
        """Return what a call takes of each balance."""
        found: dict[Key, int] = {}
        for name, (unit, counts, scope, window) in BUDGETS.items():
            amount = tokens if unit == "tokens" else 1
            own = "" if scope == "organisation" else workflow
            key = (name, own, self.now - self.now % HOUR if window == "hour" else 0)
            self.counts.setdefault(key, Count(authorized=self.limits[name]))
            if amount and (not counts or called.startswith("search")):
                found[key] = amount
        return found

    def decided(self, answer: Any, needs: dict[Key, int]) -> bool:
        """Compare a decision with the model's."""

        def fits() -> bool:
            return all(
                self.counts[key].committed + self.counts[key].reserved + amount
                <= self.limits[key[0]]
                for key, amount in needs.items()
            )

        expected = fits()
        if not expected:
            self.expire()
            expected = fits()
        assert answer.status == (200 if expected else 402)
        if not expected:
            problem = wire.decode(answer.body, wire.Problem)
            assert problem.error_code == "GD-B004"
            counted = problem.details["counted"]
            short = [
                each for each, amount in needs.items()
                if self.counts[each].committed + self.counts[each].reserved + amount
                > self.limits[each[0]]
            ]  # fmt: skip
            assert (counted["limit"], counted["used"]) in [
                (self.limits[each[0]], self.counts[each].committed) for each in short
            ]
        return expected

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
                if sent.unjournaled:
                    sent.prepaid = sent.tokens()
                    self.over(sent.workflow, sent.model, 1)
                    for key, amount in sent.keys.items():
                        if BUDGETS[key[0]][0] == "tokens":
                            self.commit(key, amount)

    def request(self) -> RequestOrigin:
        return RequestOrigin(organisation_id=self.org, key_id="k")

    # -- steps ---------------------------------------------------------------------------------

    @rule(
        target=requests, workflow=st.sampled_from("ab"),
        model=st.sampled_from(["m", "search-preview"]), tokens=st.sampled_from([1, 150, 300]),
        unjournaled=st.booleans(),
    )  # fmt: skip
    def send(self, workflow: str, model: str, tokens: int, unjournaled: bool) -> Any:
        call = wire.GateRequest(
            call_id=f"c{next(self.serial)}", kind="llm", function="openai", model=model,
            workflow_id=workflow, max_input_tokens=tokens // 3,
            max_output_tokens=tokens - tokens // 3, renewed=True, unjournaled=unjournaled,
            lease=wire.LeaseAsk(),
        )  # fmt: skip
        command = GateCommand(
            request=self.request(), call=call, declared_nanousd=5, grants_lease=True
        )
        answer = self.run(decide(self.storage, command))
        needs = self.over(workflow, model, tokens)
        if not self.decided(answer, needs):
            return multiple()
        reply = wire.decode(answer.body, wire.GateReply)
        assert reply.lease is None
        assert reply.reservation_id is not None
        for key, amount in needs.items():
            self.counts[key].reserved += amount
        sent = Sent(
            reply.reservation_id, workflow, model, needs, unjournaled, self.now + LIFE, {**needs}
        )
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
            event, b"{}", cost=1, price_source="vendor", model=model, input_tokens=tokens // 2,
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
        paid = min(tokens, sent.prepaid)
        sent.prepaid -= paid
        for key, held in sent.held.items():
            if BUDGETS[key[0]][0] == "tokens":
                self.commit(key, tokens - paid)
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

    @rule(sent=requests)
    def renew(self, sent: Sent) -> None:
        """Its holder lives; it may have been taken for gone."""
        command = LeaseCommand(request=self.request(), update=wire.LeaseUpdate(sent.id))
        answer = self.run(update_lease(self.storage, command))
        if sent.state == "expired" and not sent.unjournaled:
            state = wire.decode(answer.body, wire.LeaseState)
            if state.state != "open":  # its money was spent by late events
                return
            sent.state = "open"
            tokens = {k: n for k, n in sent.keys.items() if BUDGETS[k[0]][0] == "tokens"}
            room = min(
                self.limits[k[0]] - self.counts[k].committed - self.counts[k].reserved
                for k in tokens
            )
            if room > 0:
                for key, amount in tokens.items():
                    sent.held[key] = min(amount, room)
                    self.counts[key].reserved += sent.held[key]
        if sent.state == "open":
            sent.expires = self.now + LIFE

    @rule(step=st.sampled_from([1000, LIFE, HOUR]))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule()
    def sweep(self) -> None:
        self.run(self.storage.sweep())
        self.expire()

    @rule(all_tokens=st.integers(0, 2000), calls=st.integers(0, 12))
    def change_limits(self, all_tokens: int, calls: int) -> None:
        self.limits |= {"all tokens": all_tokens, "calls": calls}
        self.set_limits()

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
            assert (view.committed_nanousd, view.reserved_nanousd) == (
                count.committed, count.reserved,
            ), key  # fmt: skip
            # Only what was reported beyond what was held can be above the limit.
            assert count.committed + count.reserved <= count.authorized + view.overshoot_nanousd
        assert all(not (v.committed_nanousd or v.reserved_nanousd) for v in seen.values())


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_tokens_and_calls_against_a_model(
    storage_factory: Callable[..., Storage], proof_scale: float
) -> None:
    examples = examples_of(storage_factory, proof_scale)
    run_model(lambda: MeteredMachine(storage_factory), examples, steps=40)
