"""Leases against a model of them, through the storage port: several holders, scopes and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    multiple,
    precondition,
    rule,
)

from guard.core import wire
from guard.gateway.domain.commands import (
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    RequestOrigin,
)
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.domain.waiting import Place
from guard.gateway.storage.port import Storage
from tests.gateway.conftest import examples_of
from tests.support.storage_machine import StorageMachine, run_model
from tests.support.store import decide, ingest, update_lease

HOUR = 3_600_000
TTL = 30_000
GRACE = 10_000
ALL = 2**60
CLOSING = 5_000
LONG = HOUR // 4
AMOUNTS = (1, 50, 99, 100, 101, 400)
DATED = "gpt-4o-2024-08-06"

Key = tuple[str, str, int]


@attrs.define
class Account:
    committed: int = 0
    reserved: int = 0
    leases: int = 0


@attrs.frozen
class Lane:
    """What a lease belongs to, besides its key."""

    holder: str
    workflow: str
    model: str | None
    chain: str | None
    user: str | None


@attrs.define
class Held:
    """A lease or a reservation: what the gateway holds, and what the holder knows of it."""

    id: str
    lane: Lane
    keys: list[Key]
    held: int
    expires: int
    created: int
    is_lease: bool
    free: int = 0
    open: bool = True
    known: bool = True  # to its holder
    overspent: int = 0  # by the gateway's word
    under_way: list[int] = attrs.Factory(list)
    sends: int = 0  # the most of it that may be under way: all, once LLM requests were granted
    in_doubt: int = 0  # charged at its end, and neither reported nor given back since
    in_doubt_on: list[Key] = attrs.Factory(list)


@attrs.define
class Paid:
    """An event that is on its way, or was delivered."""

    id: str
    held: Held
    cost: int
    answered_by: str | None


class LeaseMachine(StorageMachine):
    """Holders take from their leases by themselves; the gateway hears of it by events."""

    on_their_way = Bundle("on_their_way")

    of_organisation: ClassVar = OrganisationSettings(
        reservation_ttl_ms=LONG, lease_ttl_ms=TTL - GRACE, lease_grace_ms=GRACE
    )

    def __init__(self, make_storage: Callable[..., Storage]) -> None:
        super().__init__(
            make_storage,
            {"organisation": 2000, "workflow": 900, "model": 700, "chain": 500, "user": 600},
        )
        self.accounts: dict[Key, Account] = {}
        self.all_held: list[Held] = []
        self.delivered: dict[str, int] = {}
        self.paid: list[Paid] = []
        self.answers: dict[str, tuple[str, int]] = {}
        self.charged_unseen = 0

    def set_limits(self) -> None:
        self.put_budgets(
            [("organisation", "", "total", "organisation"), ("workflow", "*", "hour", "workflow"),
             ("model", "gpt-4o", "total", "model"), ("model", DATED, "total", "model"),
             ("chain", "*", "total", "chain"), ("user", "u*", "hour", "user")]
        )  # fmt: skip

    # -- what the gateway should think -----------------------------------------------------------

    def keys(self, lane: Lane, answered_by: str | None = None) -> list[Key]:
        found: list[Key] = [("organisation", "", 0),
                            ("workflow", lane.workflow, self.now - self.now % HOUR)]  # fmt: skip
        if lane.chain is not None:
            found.append(("chain", lane.chain, 0))
        if lane.user is not None:
            found.append(("user", lane.user, self.now - self.now % HOUR))
        names = {lane.model, answered_by}
        if names - {None}:
            found.append(("model", "gpt-4o", 0))
        if DATED in names:
            found.append(("model", DATED, 0))
        for key in found:
            self.accounts.setdefault(key, Account())
        return found

    def expected_to_answer(self, asked: str | None) -> str | None:
        known = self.answers.get(asked or "")
        return known[0] if known is not None and self.now - known[1] < HOUR else None

    def room(self, key: Key, lane: Lane) -> int:
        limit = self.limits[key[0]]
        if lane.chain is not None and key[0] != "chain":
            limit += limit // 5
        return limit - self.accounts[key].committed - self.accounts[key].reserved

    def move(self, held: Held, amount: int) -> None:
        held.held += amount
        for key in held.keys:
            self.accounts[key].reserved += amount

    def close(self, held: Held) -> None:
        self.move(held, -held.held)
        held.open = False
        for key in held.keys:
            self.accounts[key].leases -= held.is_lease

    def expire(self, held: Held) -> None:
        amount = min(held.sends, held.held)
        self.close(held)
        if amount:
            own = {key[:2]: key for key in held.keys}
            held.in_doubt_on = [own.get(key[:2], key) for key in self.keys(held.lane)]
            self.doubt(held, amount)

    def doubt(self, held: Held, left: int) -> None:
        by = left - held.in_doubt
        held.in_doubt = left
        self.charged_unseen += by
        for key in held.in_doubt_on:
            self.accounts[key].committed += by

    def coming(self, held: Held) -> int:
        return sum(
            paid.cost for paid in self.paid if paid.held is held and paid.id not in self.delivered
        )

    def give_back(self, held: Held) -> int:
        """The holder gives back what is free; return how much it says that is."""
        unused = max(0, held.free)
        held.free -= unused
        if held.open:
            self.move(held, -min(unused, held.held))
        return unused

    def renewed(self, held: Held) -> None:
        """The holder names a lease in a question or an update: it is alive."""
        if held.open:
            held.expires = self.now + TTL

    def request(self, holder: str, key: str | None = None) -> RequestOrigin:
        return RequestOrigin(organisation_id=self.org, key_id=holder, idempotency_key=key)

    def question(self, key: str, lane: Lane, lease: wire.LeaseAsk | None) -> wire.GateRequest:
        return wire.GateRequest(
            call_id="c", kind="llm" if lane.holder == "y" else "call", function=key,
            gates_requests=True,
            workflow_id=lane.workflow, user=lane.user, model=lane.model or wire.UNKNOWN_MODEL,
            chain=None if lane.chain is None else wire.Chain(lane.chain, "start"), lease=lease,
        )  # fmt: skip

    def lease_of(self, lane: Lane) -> Held | None:
        known = [h for h in self.all_held if h.is_lease and h.known and h.lane == lane]
        return known[-1] if known else None

    # -- steps ---------------------------------------------------------------------------------

    @rule(
        lane=st.builds(
            Lane, st.sampled_from("xy"), st.sampled_from("ab"),
            st.sampled_from([None, "gpt-4o", DATED]), st.sampled_from([None, "n"]),
            st.sampled_from([None, "u1", "u2"]),
        ),
        amount=st.sampled_from(AMOUNTS),
        demand=st.sampled_from([0, 150, 600]),
        leased=st.sampled_from([True, True, False]),
        repeated=st.booleans(),
        tops_up=st.booleans(),
        waits=st.booleans(),
    )  # fmt: skip
    def ask(
        self, lane: Lane, amount: int, demand: int, leased: bool, repeated: bool, tops_up: bool,
        waits: bool = False,
    ) -> None:  # fmt: skip
        known = [held for held in self.all_held if held.is_lease and held.known]
        if tops_up and known:
            lane = known[-1].lane
        lease = self.lease_of(lane) if leased else None
        asked = wire.LeaseAsk(demand_nanousd=demand)
        if lease is not None:
            asked.lease_id = lease.id
            asked.unused_nanousd = self.give_back(lease)
            self.renewed(lease)
        key = f"ask-{next(self.serial)}"
        place = Place(self.now, self.now, TTL) if waits else None

        def command() -> GateCommand:
            call = self.question(key, lane, msgspec.structs.replace(asked) if leased else None)
            return GateCommand(
                request=self.request(lane.holder, key), call=call, declared_nanousd=amount,
                grants_lease=leased, recalls=True, place=place,
            )  # fmt: skip

        given = command()
        answer = self.run(decide(self.storage, given))
        if answer.recall:
            self.recall([each for ids in answer.recall.values() for each in ids])
            given = msgspec.structs.replace(given, is_rerun=True)
            answer = self.run(decide(self.storage, given))
        self.decided(lane, lease, answer, amount, demand, leased)
        if repeated and answer.waits is None:
            again = self.run(decide(self.storage, command()))
            assert (again.status, again.body, again.replay) == (answer.status, answer.body, True)

    def recall(self, lease_ids: list[str]) -> None:
        """Those that live give back what they do not use."""
        for held in self.all_held:
            if held.id in lease_ids:
                assert held.open
                assert held.held
                if held.known:
                    self.update(held)

    def decided(
        self, lane: Lane, lease: Held | None, answer: Any, amount: int, demand: int, leased: bool
    ) -> None:
        keys = self.keys(lane, self.expected_to_answer(lane.model))
        rooms = {key: self.room(key, lane) for key in keys}
        if any(room < amount for room in rooms.values()):
            assert answer.status == 402 or answer.waits is not None
            # Justified: what is spent, under way, or in the hands of who does not answer.
            short = {key for key, room in rooms.items() if room < amount}
            for held in self.all_held:
                if held.open and held.is_lease and held.known and short & set(held.keys):
                    assert held.free <= 0
            return
        assert answer.status == 200, (rooms, amount)
        reply = wire.decode(answer.body, wire.GateReply)
        assert reply.reservation_id is not None
        is_current = (
            lease is not None
            and lease.open
            and lease.keys == keys
            and self.now - lease.created < HOUR
        )
        granted = amount
        if leased:
            own = int(is_current)
            share = min(
                room // (self.accounts[key].leases - own + 2) for key, room in rooms.items()
            )
            granted = max(amount, min(demand, share))
            assert reply.lease is not None
            assert reply.lease.granted_nanousd == granted
        if is_current:
            assert lease is not None
            assert reply.reservation_id == lease.id
            held = lease
        else:
            ttl = TTL if leased else LONG
            held = Held(reply.reservation_id, lane, keys, 0, self.now + ttl, self.now, leased)
            self.all_held.append(held)
            if lease is not None:
                lease.known = False  # replaced
            for key in keys:
                self.accounts[key].leases += leased
        self.move(held, granted)
        if lane.holder == "y":  # it sends requests, the other one makes calls
            held.sends = ALL
        held.free += granted - amount
        if leased:
            assert reply.lease is not None
            assert reply.lease.overspent_nanousd >= held.overspent
            held.free += reply.lease.overspent_nanousd - held.overspent
            held.overspent = reply.lease.overspent_nanousd
        held.under_way.append(amount)

    @rule(
        amount=st.sampled_from(AMOUNTS), demand=st.sampled_from([0, 150, 600]),
        cost=st.integers(1, 150),
    )  # fmt: skip
    def call(self, amount: int, demand: int, cost: int) -> None:
        """A serial caller asks, is answered, and its event arrives."""
        lane = Lane("x", "a", None, None, None)
        self.ask(lane, amount, demand, leased=True, repeated=False, tops_up=False)
        lease = self.lease_of(lane)
        if lease is not None and lease.under_way:
            self.deliver(self.pay(lease, cost, None))

    @rule(waits=st.booleans(), times=st.integers(1, 3))
    def ask_again(self, waits: bool, times: int) -> None:
        """One of several callers wants what does not fit; the others go on with what they hold."""
        for _ in range(times):
            lane = Lane("x", "a", None, None, None)
            self.ask(lane, 5000, 0, leased=True, repeated=False, tops_up=False, waits=waits)
            self.time_passes(TTL // 2)

    @precondition(lambda self: any(h.known and h.is_lease for h in self.all_held))
    @rule(data=st.data(), demand=st.sampled_from([1, 150, 600]), repeated=st.booleans())
    def ask_ahead(self, data: Any, demand: int, repeated: bool) -> None:
        """A holder tops its lease up before a call has to wait; it may be open no longer."""
        known = [h for h in self.all_held if h.known and h.is_lease]
        held = data.draw(st.sampled_from(known))
        lane, key = held.lane, f"ahead-{next(self.serial)}"

        def command() -> GateCommand:
            lease = wire.LeaseAsk(held.id, demand_nanousd=demand, ahead=True)
            call = self.question(key, lane, lease)
            return GateCommand(
                request=self.request(lane.holder, key), call=call, grants_lease=True
            )  # fmt: skip

        keys = self.keys(lane, self.expected_to_answer(lane.model))
        rooms = {each: self.room(each, lane) for each in keys}
        self.renewed(held)
        answer = self.run(decide(self.storage, command()))
        if repeated:
            again = self.run(decide(self.storage, command()))
            assert (again.status, again.body) == (answer.status, answer.body)
        if not held.open or held.keys != keys or self.now - held.created >= HOUR:
            assert answer.status in (402, 404), "nothing is granted to one that is over, or too old"
            return
        if min(rooms.values()) < 1:
            assert answer.status == 402
            return
        share = min(room // (self.accounts[each].leases + 1) for each, room in rooms.items())
        granted = max(1, min(demand, share))
        reply = wire.decode(answer.body, wire.GateReply)
        assert reply.lease is not None
        assert (reply.lease.lease_id, reply.lease.granted_nanousd) == (held.id, granted)
        self.move(held, granted)
        held.sends = ALL if lane.holder == "y" else 0
        held.free += granted + reply.lease.overspent_nanousd - held.overspent
        held.overspent = reply.lease.overspent_nanousd

    @precondition(lambda self: any(h.under_way for h in self.all_held))
    @rule(
        target=on_their_way, data=st.data(), cost=st.integers(0, 150),
        answered_by=st.sampled_from([None, "gpt-4o", DATED]),
    )  # fmt: skip
    def settle(self, data: Any, cost: int, answered_by: str | None) -> Any:
        """A call ends; its holder knows what it cost, the gateway does not yet."""
        held = data.draw(st.sampled_from([h for h in self.all_held if h.under_way]))
        if not cost:
            held.free += held.under_way.pop()
            return multiple()
        return self.pay(held, cost, answered_by)

    def pay(self, held: Held, cost: int, answered_by: str | None) -> Paid:
        held.free += held.under_way.pop() - cost
        paid = Paid(f"e{next(self.serial)}", held, cost, answered_by)
        self.paid.append(paid)
        return paid

    @rule(paid=on_their_way)
    def deliver(self, paid: Paid) -> None:
        """An event arrives: in time, late, after its holder's end, or again."""
        held = paid.held
        event = wire.Event(
            event_id=paid.id, type="llm", at_ms=1, workflow_id=held.lane.workflow,
            reservation_id=held.id,
        )  # fmt: skip
        priced = PricedEvent(
            event, b"{}", cost=paid.cost, model=paid.answered_by, final=True, observed=True
        )
        command = IngestCommand(request=self.request(held.lane.holder), events=[priced])
        reply = wire.decode(self.run(ingest(self.storage, command)).body, wire.EventsReply)
        keys = self.keys(held.lane, paid.answered_by)
        if paid.id in self.delivered:
            assert reply.duplicates == 1
            return
        assert reply.accepted == 1
        asked = held.lane.model
        cost = paid.cost
        self.doubt(held, max(0, held.in_doubt - cost) if held.is_lease else 0)
        self.delivered[paid.id] = cost
        if held.is_lease and asked is not None and paid.answered_by is not None:
            known, at = self.answers.get(asked, ("", 0))
            if known != paid.answered_by or self.now - at >= HOUR // 2:
                self.answers[asked] = (paid.answered_by, self.now)
        own = {key[:2]: key for key in held.keys}
        taken = min(held.held, cost) if held.open else 0
        self.move(held, -taken)
        for key in keys:
            self.accounts[own.get(key[:2], key)].committed += cost
        if held.open and not held.is_lease:
            self.close(held)  # by its final span; a lease goes on

    def update(self, held: Held, *, close: bool = False) -> None:
        unused = self.give_back(held)
        change = wire.LeaseUpdate(held.id, unused_nanousd=unused, close=close)
        if close and held.lane.holder == "y":
            change.under_way_nanousd = sum(held.under_way) + self.coming(held)
            held.sends = min(held.sends, change.under_way_nanousd)
            self.doubt(held, min(held.in_doubt, held.sends))
        answer = self.run(
            update_lease(
                self.storage, LeaseCommand(request=self.request(held.lane.holder), update=change)
            )
        )
        if not held.open:
            assert answer.status == 404
            held.known = False
            return
        state = wire.decode(answer.body, wire.LeaseState)
        if close:
            held.known = False
            held.expires = min(held.expires, self.now + CLOSING)
            if not held.held:
                self.close(held)
        else:
            self.renewed(held)
        assert state.held_nanousd == held.held
        assert (state.state == "open") == held.open

    @precondition(lambda self: any(h.known and h.is_lease for h in self.all_held))
    @rule(data=st.data(), close=st.booleans())
    def renew_or_close(self, data: Any, close: bool) -> None:
        known = [h for h in self.all_held if h.known and h.is_lease]
        self.update(data.draw(st.sampled_from(known)), close=close)

    @rule(holder=st.sampled_from("xy"))
    def crash(self, holder: str) -> None:
        """What was under way may still arrive by the spool."""
        for held in self.all_held:
            if held.lane.holder == holder:
                held.known = False

    @rule(step=st.sampled_from([1000, CLOSING, TTL // 2, TTL, HOUR]))
    def time_passes(self, step: int) -> None:
        self.now += step
        self.run(self.storage.sweep())
        for held in self.all_held:
            if held.open and held.expires <= self.now:
                self.expire(held)

    @rule(
        organisation=st.sampled_from([300, 2000, 4000]), workflow=st.sampled_from([99, 900, 2000]),
        model=st.sampled_from([0, 700, 1500]), chain=st.sampled_from([0, 500, 1500]),
        user=st.sampled_from([0, 600, 1500]),
    )  # fmt: skip
    def change_limits(self, **limits: int) -> None:
        self.limits = limits
        self.set_limits()

    # -- what always holds ---------------------------------------------------------------------

    def the_model_agrees(self) -> None:
        seen = {(v.scope_kind, v.scope_id, v.epoch_ms): v for v in self.balances()}
        for key, account in self.accounts.items():
            view = seen.get(key)
            if view is None:
                assert account == Account(), key
                continue
            assert (view.committed, view.reserved) == (
                account.committed, account.reserved,
            ), key  # fmt: skip
        for held in self.all_held:
            if held.open and held.is_lease and held.known:
                coming = self.coming(held)
                assert held.held <= max(0, held.free) + sum(held.under_way) + coming, (
                    "nothing is held that its holder neither uses nor gives back"
                )
        total = self.accounts.get(("organisation", "", 0), Account()).committed
        assert total == sum(self.delivered.values()) + self.charged_unseen

    def teardown(self) -> None:
        if hasattr(self, "org"):
            self.crash("x")
            self.crash("y")
            self.time_passes(HOUR)
            assert all(view.reserved == 0 for view in self.balances()), "nothing is held for ever"
        super().teardown()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_leases_against_their_model(
    storage_factory: Callable[..., Storage], proof_scale: float
) -> None:
    examples = examples_of(storage_factory, proof_scale)
    run_model(lambda: LeaseMachine(storage_factory), examples, steps=50)
