"""What fails is taken back, and only that: in the database, and in what is cached of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guard.core import wire
from guard.gateway.domain.commands import (
    EncodedAnswer,
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
    RequestOrigin,
)
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.records import (
    BudgetRule,
    DoubtSettlement,
    OrganisationSettings,
    Webhook,
)
from guard.gateway.ledger import (
    catalogue,
    charge,
    control,
    directory,
    doubt,
    expiring,
    expiry,
    gate,
    idempotency,
    leases,
    webhooks,
)
from guard.gateway.storage.sql.retention import Retention
from guard.gateway.storage.sqlite import schema
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.storage.sqlite.unit_of_work import SqliteUnitOfWork
from guard.gateway.unit.doubts import list_doubts
from guard.gateway.unit.state import ALL_ORGANISATIONS, NO_ORGANISATION, Touches, within
from tests.support.store import ACTOR, DAY, Clock, Store

HOUR = 3_600_000
Work = Callable[[SqliteUnitOfWork], Any]


class Breakdown(Exception):
    """A command that fails after its work."""


class Machine:
    """Commands on a unit of work, and what a fresh look at its file says."""

    def __init__(self, folder: str) -> None:
        self.path = str(Path(folder) / "g.sqlite3")
        self.clock = Clock()
        connection = schema.connect(self.path, durable=False)
        schema.migrate(connection)
        self.unit = SqliteUnitOfWork(connection, self.clock, self.clock)
        self.numbers = itertools.count()
        self.retention = Retention(40, 0)
        self.org = ""
        self.held: list[str] = []
        self.run([lambda unit: self.set_up(unit)], "commit")

    def set_up(self, unit: SqliteUnitOfWork) -> None:
        self.org = directory.create_organisation(unit, ACTOR, "o").organisation_id
        short = OrganisationSettings(reservation_ttl_ms=HOUR // 2, default_hold_nanousd=5)
        directory.update_organisation(unit, ACTOR, self.org, short)
        hook = Webhook(webhook_id="", organisation_id=self.org, url="https://hooks.example/")
        webhooks.put(unit, ACTOR, hook, "secret")
        for kind, scope_id, window in (("organisation", "", "total"), ("workflow", "*", "hour")):
            self.put_budget(unit, kind, scope_id, window, 100)

    def put_budget(
        self, unit: SqliteUnitOfWork, kind: Any, scope_id: str, window: Any, limit: int
    ) -> None:
        wanted = BudgetRule(budget_id="", organisation_id=self.org, scope_kind=kind,
                            scope_id=scope_id, window=window, limit=limit)  # fmt: skip
        catalogue.put_budget(unit, ACTOR, wanted)

    def request(self) -> RequestOrigin:
        key = f"request-{next(self.numbers)}"
        return RequestOrigin(organisation_id=self.org, key_id="k", idempotency_key=key)

    def work(self, step: tuple[str, int]) -> Work:
        name, size = step
        number, workflow = next(self.numbers), f"w{size % 2}"
        held = self.held[size % len(self.held)] if self.held and size % 3 else None
        if name in ("gate", "lease", "question"):
            call = wire.GateRequest(
                call_id=f"c{number}", kind="call" if size % 3 else "llm", function="f",
                workflow_id=workflow, run_id="r", chain=wire.Chain(id=workflow, op="continue"),
                renewed=size % 2 == 0,
            )  # fmt: skip
            if name != "gate":
                call.lease = wire.LeaseAsk(demand_nanousd=size * 3, lease_id=held)
            asks = name == "question"
            asked = GateCommand(
                request=self.request(), call=call, grants_lease=name != "gate", recalls=asks,
                declared_nanousd=max(1, size) if asks else None,
            )  # fmt: skip
            return lambda unit: gate.gate(unit, asked)
        if name == "charge":
            event = wire.Event(
                event_id=f"e{number % 7}", type="llm", at_ms=1, reservation_id=held,
                workflow_id=None if held else workflow,
            )  # fmt: skip
            flags = "estimated in_doubt" if size % 5 == 0 else ""
            priced = PricedEvent(event, b"{}", cost=size, final=size % 2 == 0, flags=flags)
            told = IngestCommand(request=self.request(), events=[priced])
            return lambda unit: charge.ingest(unit, told)
        if name == "release":
            freed = ReleaseCommand(request=self.request(), reservation_id=held or "none")
            return lambda unit: expiry.release(unit, freed)
        if name == "renew":
            named = [*self.held[-5:], held or "none"]
            update = wire.LeaseUpdate(named[0], under_way_nanousd=size, also=named[1:])
            renewed = LeaseCommand(request=self.request(), update=update)
            return lambda unit: leases.update(unit, renewed)
        if name == "directive":
            kind = ("kill", "revive", "pause", "resume")[size % 4]
            draft = wire.ControlMessage(seq=0, type=kind, workflow_id=workflow)  # type: ignore[arg-type]
            return lambda unit: control.issue_directive(unit, ACTOR, self.org, draft)
        if name == "budget":
            return lambda unit: self.put_budget(unit, "organisation", "", "total", size * 2)
        if name == "organisation":
            return lambda unit: directory.create_organisation(unit, ACTOR, f"o{number}")
        if name == "settle":
            return lambda unit: self.settle(unit, size)
        return self.retention.step if name == "retention" else expiring.sweep

    def settle(self, unit: SqliteUnitOfWork, size: int) -> None:
        """End the doubt about one of what is in doubt: freed, as charged, or at another cost."""
        found = list_doubts(unit, self.org, 10)  # type: ignore[arg-type]
        if found:
            body = DoubtSettlement(cost_nanousd=(None, 0, size)[size % 3])
            named = found[size % len(found)].event_id
            doubt.settle(unit, ACTOR, self.org, body, named)

    def run(self, group: list[Work], ending: str) -> list[Any]:
        unit, answers = self.unit, []
        unit.begin([Touches() for _ in group])
        for work in group:
            unit.savepoint()
            try:
                answer = work(unit)
            except Breakdown:
                unit.undo()
            else:
                self.note(answer)
                answers.append(answer)
        if ending == "commit":
            unit.commit()
        else:
            if ending == "flush":
                unit.flush()
            unit.rollback()
        return answers

    def note(self, answer: Any) -> None:
        if getattr(answer, "status", 0) == 200 and b"reserved_nanousd" in answer.body:
            found = wire.decode(answer.body, wire.GateReply).reservation_id
            if found is not None:
                self.held.append(found)

    def compare(self) -> None:
        """What is cached is what a unit of work sees that has just read the file."""
        connection = schema.connect(self.path, durable=False)
        fresh, unit = SqliteUnitOfWork(connection, self.clock, self.clock), self.unit
        fresh.begin([])
        try:
            assert unit.reservations == fresh.reservations
            counts, truth = unit.counts, fresh.counts
            assert (counts.leases, counts.leased_nanousd) == (truth.leases, truth.leased_nanousd)
            expired = "SELECT count(*) FROM reservations WHERE state = 'expired'"
            assert counts.expired >= fresh.row(expired)[0], "retention may have deleted some"
            due: dict[str, int] = {}
            for at_ms, name in unit._expiries:
                due[name] = min(at_ms, due.get(name, at_ms))
            late = [name for name, each in unit.reservations.items()
                    if due.get(name, math.inf) > each.expires_at_ms]  # fmt: skip
            assert not late, "the sweep comes to none of these in time"
            assert unit.exhausted == fresh.exhausted
            assert unit.balances == {number: fresh.balance(number) for number in unit.balances}
            for ours, theirs in zip(unit.kept, fresh.kept, strict=True):
                for own, rows in ours.cached.items():
                    assert rows == {name: theirs.find(own, name) for name in rows}
            if fresh.row("SELECT min(event_seq) FROM events")[0] in (None, 1):  # none was deleted
                in_all = fresh.row(
                    "SELECT coalesce(sum(doubt_nanousd), 0) FROM usage"
                    " WHERE scope_kind = 'organisation' AND size_ms = 0"
                )
                assert in_all == fresh.row(
                    "SELECT coalesce(sum(cost_nanousd), 0) FROM events"
                    " WHERE flags LIKE '%in_doubt%'"
                )
            assert unit.orgs.keys() == fresh.orgs.keys()
            for own, org in unit.orgs.items():
                assert org.settings == fresh.orgs[own].settings
                assert org.control_seq == fresh.orgs[own].control_seq
                for workflow in ("w0", "w1"):
                    states = [each.orgs[own].directives.state_of(workflow, None, unit.now_ms)
                              for each in (unit, fresh)]  # fmt: skip
                    assert states[0] == states[1]
                for _, accounts in org.accounts.values():
                    assert all(unit.balances[a.balance.balance_id] is a.balance for a in accounts)
        finally:
            fresh.rollback()
            connection.close()


@contextlib.contextmanager
def new_machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(folder)
        try:
            yield machine
        finally:
            machine.unit.connection.close()


steps = st.tuples(
    st.sampled_from(["gate", "gate", "lease", "charge", "charge", "release", "directive", "budget",
                     "organisation", "renew", "renew", "retention", "sweep", "settle"]),
    st.integers(0, 60), st.booleans(),
)  # fmt: skip
groups = st.tuples(
    st.builds(
        # A sweep at the end meets what its own group has closed, renewed or expired.
        lambda group, swept: [*group, ("sweep", 0, False)] if swept else group,
        st.lists(steps, min_size=1, max_size=5),
        st.booleans(),
    ),
    st.sampled_from(["commit", "commit", "rollback", "flush"]),
    st.sampled_from([1000, 1000, HOUR, 50 * DAY]),
)

grants = st.tuples(st.sampled_from(["gate", "lease"]), st.integers(0, 60), st.just(False))
overdue = st.tuples(
    # What is granted is due when the next group begins.
    st.tuples(st.lists(grants, min_size=1, max_size=3), st.just("commit"), st.just(HOUR)),
    groups,
)


def histories(longest: int) -> st.SearchStrategy[list[Any]]:
    """Return groups one after another."""
    parts = st.lists(st.one_of(st.tuples(groups), overdue), min_size=1, max_size=longest)
    return parts.map(lambda found: list(itertools.chain.from_iterable(found)))


LATE = [  # a part of what a lease had under way is reported after it has expired
    ([("gate", 0, False), ("gate", 0, False), ("lease", 0, False)], "commit", HOUR),
    ([("charge", 0, False)], "commit", 1000),
    ([("gate", 0, False)] * 4, "commit", 1000),
    ([*[("gate", 0, False)] * 3, ("charge", 16, False)], "commit", 1000),
    ([("settle", 0, False)] * 3, "commit", 1000),
]


@settings(max_examples=40)
@given(rounds=histories(6))
@example(rounds=LATE)
def test_caches_are_what_the_file_says_whatever_fails(rounds: list[Any]) -> None:
    _check_caches(rounds)


@pytest.mark.long
@settings(max_examples=500)
@given(rounds=histories(9))
def test_caches_are_what_the_file_says_after_longer_runs(rounds: list[Any]) -> None:
    _check_caches(rounds)


def _check_caches(rounds: list[Any]) -> None:
    with new_machine() as machine:
        for group, ending, passes_ms in rounds:
            works = []
            for name, size, fails in group:
                work = machine.work((name, size))
                works.append(broken(work) if fails else work)
            machine.run(works, ending)
            machine.compare()
            machine.clock.now += passes_ms


def broken(work: Work) -> Work:
    def fail(unit: SqliteUnitOfWork) -> None:
        work(unit)
        raise Breakdown

    return fail


@pytest.mark.parametrize("step", ["release", "renew"])
@pytest.mark.parametrize("ending", ["rollback", "flush"])
def test_what_a_failed_group_has_closed_or_renewed_still_expires(step: str, ending: str) -> None:
    """The group's own sweep took it out of the queue of expiries."""
    with new_machine() as machine:
        machine.run([machine.work(("gate", 2))], "commit")
        (held,) = machine.held
        machine.clock.now += HOUR
        machine.run([machine.work((step, 2)), expiring.sweep], ending)
        machine.compare()
        assert machine.unit.reservations[held].state == "open"
        machine.run([expiring.sweep], "commit")
        assert held not in machine.unit.reservations


# -- a group that runs again -------------------------------------------------------------------


def said(answer: Any) -> Any:
    """What an answer says, but for the names that every run makes up."""
    if not isinstance(answer, EncodedAnswer):
        return None
    body = json.loads(answer.body) if answer.body else {}
    for part in (body, body.get("lease") or {}):
        part.pop("reservation_id", None)
        part.pop("lease_id", None)
    recalled = {key: len(leases) for key, leases in answer.recall.items()}
    return answer.status, answer.replay, recalled, body


def balances(machine: Machine) -> list[Any]:
    rows = machine.unit.connection.execute(
        "SELECT scope_id, period_start_ms, committed, reserved, overspend, authorized_max, leases,"
        " exhausted FROM balances ORDER BY 1, 2, 3, 4"
    )
    return rows.fetchall()


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(st.tuples(st.sampled_from(["gate", "lease", "lease"]), st.integers(0, 60)),
                    max_size=4),
    group=st.lists(
        st.tuples(st.sampled_from(["gate", "lease", "question", "question", "charge", "release"]),
                  st.integers(0, 60), st.booleans()),
        min_size=1, max_size=5,
    ),
    ending=st.sampled_from(["rollback", "flush"]),
)  # fmt: skip
def test_a_group_that_is_run_again_has_the_outcome_of_one_run(
    before: list[Any], group: list[Any], ending: str
) -> None:
    """As the group writer does it: together first, and after a failure one by one."""
    with new_machine() as once, new_machine() as again:
        said_by = []
        for machine in (once, again):
            for step in before:
                machine.run([machine.work(step)], "commit")
            works = []
            for name, size, is_repeated in group:
                works += [machine.work((name, size))] * (1 + is_repeated)
            if machine is again:
                machine.run(works, ending)
            said_by.append(
                [said(answer) for work in works for answer in machine.run([work], "commit")]
            )
        assert said_by[1] == said_by[0]
        assert balances(again) == balances(once)
        again.compare()


def test_a_question_still_asks_for_a_recall_when_its_group_has_failed() -> None:
    """Its repeat in the same group was decided without one, and was undone with it."""
    with new_machine() as machine:
        machine.run([machine.work(("lease", 30))], "commit")  # takes half of the room
        question = machine.work(("question", 90))
        first, repeat = machine.run([question, question], "rollback")
        assert (first.status, repeat.status) == (idempotency.UNDECIDED, 402)
        (answer,) = machine.run([question], "commit")
        assert answer.status == idempotency.UNDECIDED
        assert answer.recall


# -- one tenant's failures ---------------------------------------------------------------------


@pytest.mark.asyncio
async def test_failing_requests_of_one_tenant_read_nothing_again(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "g.sqlite3")
    await storage.open(lambda events: None)
    own = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "good")
    ).organisation_id
    other = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "failing")
    ).organisation_id
    store = Store(storage, Clock(), own, lambda: None, [])
    await store.budget(10**9)
    for _ in range(50):
        assert (await store.gate(1)).status == 200
    statements: list[str] = []
    known = await storage.write(
        ALL_ORGANISATIONS, lambda unit: (unit, dict(unit.orgs), dict(unit.reservations))
    )
    unit, orgs, reservations = known
    unit.connection.set_trace_callback(statements.append)
    answers = await asyncio.gather(
        *itertools.chain.from_iterable(
            (
                store.gate(1),
                storage.write(within(other), catalogue.delete_budget, ACTOR, other, "nothing"),
            )
            for _ in range(30)
        ),
        return_exceptions=True,
    )
    unit.connection.set_trace_callback(None)
    assert [answer.status for answer in answers[::2]] == [200] * 30  # type: ignore[union-attr]
    assert all(isinstance(answer, NotFoundError) for answer in answers[1::2])
    assert all(unit.orgs[each] is orgs[each] for each in orgs)
    assert all(unit.reservations[each] is reservations[each] for each in reservations)
    read = [sql for sql in statements if sql.startswith("SELECT")]
    tables = ("FROM reservations", "FROM organisations", "FROM directives", "FROM balances")
    assert not [sql for sql in read if any(table in sql for table in tables)]
    assert [sql for sql in statements if sql.startswith("ROLLBACK")] == []
    assert (await storage.verify_ledger()).problems == []
    await storage.close()


def test_a_run_is_written_when_it_has_spent_or_was_not_seen_for_a_second() -> None:
    with new_machine() as machine:
        _check_runs(machine)


def _check_runs(machine: Machine) -> None:
    unit = machine.unit
    statements: list[str] = []
    unit.connection.set_trace_callback(statements.append)

    def writes(spent: int = 0, ending: str = "commit") -> int:
        statements.clear()
        machine.run([lambda unit: unit.see_run("o", "r", None, spent=spent)], ending)
        return sum(each.startswith("INSERT INTO usage") for each in statements)

    assert writes(ending="flush") == 1  # and rolled back
    assert [writes(), writes(), writes(spent=3), writes()] == [1, 0, 1, 0]
    machine.clock.now += 1000
    assert writes() == 1
    assert unit.row("SELECT last_ms - first_ms FROM usage") == (1000,)
