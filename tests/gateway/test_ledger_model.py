"""The ledger against a model of it, through the storage port, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    consumes,
    multiple,
    rule,
)

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.commands import (
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
    RequestOrigin,
)
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.ledger import doubt
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.gateway.conftest import examples_of
from tests.support.storage_machine import StorageMachine, run_model
from tests.support.store import ACTOR, decide, ingest, release, update_lease

HOUR = 3_600_000
TTL = HOUR // 2
LIFE = 30_000
GRACE = 10_000
KEEP_DAYS = 40
SEASON = 100 * 24 * HOUR
WEEK = 7 * 24 * HOUR
Who = tuple[str | None, str | None]
"""A user, and a tag with the name team."""
USERS: tuple[Who, ...] = (
    (None, None), ("user-1", None), ("user-2", "red"), ("guest", "red"), ("user-1", "blue"),
    (None, "blue"),
)  # fmt: skip
AMOUNTS = (1, 99, 100, 101, 200, 400)  # often just fit, or just do not


def _tags(user: Who) -> dict[str, str]:
    return {} if user[1] is None else {"team": user[1], "feature": "x"}


@attrs.define
class Account:
    """What the model thinks of one balance."""

    committed: int = 0
    reserved: int = 0
    overspend: int = 0
    authorized_max: int = 0


@attrs.define
class Hold:
    """What the model thinks of one reservation."""

    id: str
    workflow: str
    user: Who
    keys: list[tuple[str, int]]
    way: str
    amount: int
    held: int
    expires: int
    spent: int = 0
    open: bool = True
    expired: bool = False
    in_doubt: int = 0
    settled: int = 0  # by an operator: it pays for events
    forgotten: bool = False

    @property
    def life(self) -> int:
        return TTL if self.way == "call" else LIFE


class LedgerMachine(StorageMachine):
    """The organisation and one kind of users for ever, workflows by the hour, teams by the week."""

    holds = Bundle("holds")
    events = Bundle("events")

    options: ClassVar = {"retention_days": KEEP_DAYS}
    of_organisation: ClassVar = OrganisationSettings(
        reservation_ttl_ms=TTL, lease_ttl_ms=LIFE - GRACE, lease_grace_ms=GRACE
    )

    def __init__(self, make_storage: Callable[..., Storage]) -> None:
        super().__init__(make_storage, {"org": 1000, "flow": 600, "user": 500, "tag": 550})
        self.accounts: dict[tuple[str, int], Account] = {}
        self.all_holds: list[Hold] = []
        self.charged: set[str] = set()
        self.total = 0
        self.newest = ""
        self.either_way: set[str] = set()
        self.kept_from = 0

    def set_limits(self) -> None:
        self.put_budgets(
            [("organisation", "", "total", "org"), ("workflow", "*", "hour", "flow"),
             ("user", "user-*", "total", "user"), ("tag", "team=*", "week", "tag")]
        )  # fmt: skip
        for (name, epoch), account in self.accounts.items():
            if not epoch or epoch + (WEEK if name.startswith("team=") else HOUR) > self.now:
                account.authorized_max = max(account.authorized_max, self.limit((name, epoch)))

    def limit(self, key: tuple[str, int]) -> int:
        name = key[0]
        if name.startswith("team="):
            return self.limits["tag"]
        return self.limits["org" if name == "org" else "flow" if len(name) == 1 else "user"]

    def scopes(self, workflow: str, user: Who) -> list[tuple[str, int]]:
        keys = [("org", 0), (workflow, self.now - self.now % HOUR)]
        name, team = user
        if name is not None and name.startswith("user-"):
            keys.append((name, 0))
        if team is not None:  # weeks begin on Mondays, and time with a Thursday
            keys.append((f"team={team}", self.now - (self.now - 4 * 24 * HOUR) % WEEK))
        for key in keys:
            self.accounts.setdefault(key, Account(authorized_max=self.limit(key)))
        return keys

    def expire(self) -> None:
        for hold in self.all_holds:
            if hold.open and hold.expires <= self.now:
                left = hold.held
                self.close(hold)
                hold.expired = True
                if hold.way == "request" and left:
                    self.scopes(hold.workflow, hold.user)  # a cost opens the present epoch
                    hold.in_doubt = left
                    self.commit(hold, hold.keys, left, 0)

    def end_doubt(self, hold: Hold, left: int = 0) -> None:
        if not hold.forgotten and hold.in_doubt > left:
            self.commit(None, hold.keys, left - hold.in_doubt, 0)
            hold.in_doubt = left
            hold.expired = bool(left)

    def close(self, hold: Hold) -> None:
        if hold.open:
            for key in hold.keys:
                self.accounts[key].reserved -= hold.held
            hold.open, hold.held = False, 0

    def commit(self, hold: Hold | None, keys: list[tuple[str, int]], cost: int, taken: int) -> bool:
        """Charge a cost; tell whether a limit is exceeded by what was not held."""
        over = False
        self.total += cost
        if hold is not None:
            hold.spent += cost
        for key in keys:
            account = self.accounts[key]
            account.committed += cost
            account.reserved -= taken
            total = account.committed + account.reserved
            account.authorized_max = max(account.authorized_max, self.limit(key))
            account.overspend = max(account.overspend, total - account.authorized_max)
            over |= cost > taken and total > self.limit(key)
        return over

    def request(self) -> RequestOrigin:
        return RequestOrigin(organisation_id=self.org, key_id="k")

    # -- steps ---------------------------------------------------------------------------------

    @rule(
        target=holds,
        workflow=st.sampled_from("ab"),
        user=st.sampled_from(USERS),
        amount=st.sampled_from(AMOUNTS),
        way=st.sampled_from(["call", "renewed", "request"]),
    )
    def gate(self, workflow: str, user: Who, amount: int, way: str) -> Any:
        number = next(self.serial)
        call = wire.GateRequest(
            call_id=f"c{number}", kind="llm" if way == "request" else "call", function="f",
            workflow_id=workflow, user=user[0], renewed=way != "call", tags=_tags(user),
        )  # fmt: skip
        command = GateCommand(request=self.request(), call=call, declared_nanousd=amount)
        answer = self.run(decide(self.storage, command))
        keys = self.scopes(workflow, user)

        def fits() -> bool:
            accounts = [(self.accounts[key], self.limit(key)) for key in keys]
            return all(a.committed + a.reserved + amount <= limit for a, limit in accounts)

        expected = fits()
        if not expected:
            self.expire()
            expected = fits()
        assert answer.status == (200 if expected else 402)
        if not expected:
            return multiple()
        reply = wire.decode(answer.body, wire.GateReply)
        assert reply.reserved_nanousd == amount
        assert reply.reservation_id is not None
        for key in keys:
            account = self.accounts[key]
            account.reserved += amount
            account.authorized_max = max(account.authorized_max, self.limit(key))
        hold = Hold(reply.reservation_id, workflow, user, keys, way, amount, amount, self.now)
        hold.expires += hold.life
        self.all_holds.append(hold)
        return hold

    @rule(target=events, hold=holds, cost=st.integers(1, 500), final=st.booleans())
    def charge(self, hold: Hold, cost: int, final: bool) -> Any:
        number = next(self.serial)
        return self.ingest(f"e{number}", hold.workflow, hold.user, cost, hold, final)

    @rule(
        target=events, workflow=st.sampled_from("ab"), user=st.sampled_from(USERS),
        cost=st.integers(1, 200),
    )  # fmt: skip
    def charge_without_a_hold(self, workflow: str, user: Who, cost: int) -> Any:
        return self.ingest(f"e{next(self.serial)}", workflow, user, cost, None, False)

    @rule(event=events)
    def charge_again(self, event: tuple[str, str, Who, int, Hold | None, bool]) -> None:
        if event[0] not in self.either_way:
            self.ingest(*event)

    def ingest(
        self, event_id: str, workflow: str, user: Who, cost: int, hold: Hold | None,
        final: bool,
    ) -> Any:  # fmt: skip
        given = (event_id, workflow, user, cost, hold, final)
        event = wire.Event(
            event_id=event_id, type="llm", at_ms=1, workflow_id=workflow, user=user[0],
            reservation_id=None if hold is None else hold.id,
            tags={} if hold is not None and not hold.forgotten and cost % 2 else _tags(user),
        )  # fmt: skip
        priced = PricedEvent(event, b"{}", cost=cost, price_source="vendor", final=final)
        command = IngestCommand(request=self.request(), events=[priced])
        answer = self.run(ingest(self.storage, command))
        reply = wire.decode(answer.body, wire.EventsReply)
        if hold is not None and hold.forgotten:
            hold = None
        # It opens the present epoch, also when it is a repeat.
        current = self.scopes(workflow, user)
        if event_id in self.charged:
            assert (answer.status, reply.duplicates) == (202, 1)
            return multiple()
        assert reply.accepted == 1
        self.charged.add(event_id)
        self.newest = event_id
        keys = current if hold is None else hold.keys
        taken = 0
        if hold is not None:
            self.end_doubt(hold)
            paid = min(cost, hold.settled)
            self.commit(None, hold.keys, -paid, 0)
            hold.settled -= paid
        if hold is not None and hold.open:
            taken = min(hold.held, cost)
            hold.held -= taken
            hold.expires = self.now + hold.life
        over = self.commit(hold, keys, cost, taken)
        if hold is not None and (final or hold.way == "request"):
            self.close(hold)
        assert answer.status == (422 if over else 202)
        return given

    @rule(hold=consumes(holds))
    def release(self, hold: Hold) -> None:
        command = ReleaseCommand(request=self.request(), reservation_id=hold.id)
        expected = 404 if hold.forgotten else 200
        assert self.run(release(self.storage, command)).status == expected
        self.close(hold)
        self.end_doubt(hold)

    @rule(hold=holds, cost=st.sampled_from([None, 0, 1, 150]))
    def settle_doubt(self, hold: Hold, cost: int | None) -> None:
        """An operator says what a charge in doubt has cost."""
        body = records.DoubtSettlement(cost_nanousd=cost)
        listed = {each.event_id: each for each in self.run(self.storage.doubts(self.org, 1000))}
        of = f"expired-{hold.id}"
        assert sum(each.doubt_nanousd for each in listed.values()) == sum(
            each.in_doubt for each in self.all_holds if not each.forgotten
        )
        settled = self.storage.write(within(self.org), doubt.settle, ACTOR, self.org, body, of)
        if hold.forgotten or not hold.in_doubt:
            with pytest.raises(NotFoundError):
                self.run(settled)
            return
        assert listed[of].doubt_nanousd == hold.in_doubt
        was = hold.in_doubt
        self.run(settled)
        self.end_doubt(hold)
        hold.settled = was if cost is None else cost
        self.commit(None, hold.keys, hold.settled, 0)

    @rule(hold=holds)
    def renew(self, hold: Hold) -> None:
        """Its holder lives; it may have been taken for gone, and what it held given to others."""
        command = LeaseCommand(request=self.request(), update=wire.LeaseUpdate(hold.id))
        answer = self.run(update_lease(self.storage, command))
        if hold.forgotten or hold.way == "call":
            assert answer.status == 404
            return
        lost = hold.amount - hold.spent
        if not hold.open and hold.expired and not hold.in_doubt and lost > 0:
            limits = [(self.accounts[key], self.limit(key)) for key in hold.keys]
            room = min(limit - a.committed - a.reserved for a, limit in limits)
            if room > 0:
                hold.held = min(lost, room)
                hold.amount = hold.spent + hold.held
                hold.open, hold.expired = True, False
                for account, limit in limits:
                    account.reserved += hold.held
                    account.authorized_max = max(account.authorized_max, limit)
        state = wire.decode(answer.body, wire.LeaseState)
        assert (state.state == "open", state.held_nanousd) == (hold.open, hold.held)
        if hold.open:
            hold.expires = self.now + LIFE

    @rule(step=st.sampled_from([1000, LIFE, TTL, HOUR]))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule()
    def sweep(self) -> None:
        self.run(self.storage.sweep())
        self.expire()

    @rule()
    def a_season_passes(self) -> None:
        """Everything up to now leaves the record; the newest event with the next one."""
        self.now += SEASON
        self.kept_from = self.now
        self.run(self.storage.sweep())
        self.expire()
        for hold in self.all_holds:
            hold.forgotten = True
        self.charged.clear()
        self.either_way.add(self.newest)

    @rule(
        org=st.integers(0, 2000), flow=st.integers(0, 1000), user=st.integers(0, 1000),
        tag=st.integers(0, 1000),
    )  # fmt: skip
    def change_limits(self, **limits: int) -> None:
        self.limits = limits
        self.set_limits()

    # -- what always holds ---------------------------------------------------------------------

    def the_model_agrees(self) -> None:
        seen = {("org" if v.scope_kind == "organisation" else v.scope_id, v.epoch_ms): v
                for v in self.balances()}  # fmt: skip
        for key, account in list(self.accounts.items()):
            if key not in seen and 0 < key[1] < self.kept_from:
                assert account.reserved == 0
                del self.accounts[key]  # a window that has ended, without entries
                continue
            view = seen[key]
            assert (view.committed, view.reserved) == (
                account.committed, account.reserved,
            )  # fmt: skip
            assert view.overshoot == account.overspend
            assert (
                account.committed + account.reserved <= account.authorized_max + account.overspend
            )
        org_total = self.accounts.get(("org", 0), Account()).committed
        assert org_total == self.total


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ledger_against_its_model(
    storage_factory: Callable[..., Storage], proof_scale: float
) -> None:
    examples = examples_of(storage_factory, proof_scale)
    run_model(lambda: LedgerMachine(storage_factory), examples, steps=40)
