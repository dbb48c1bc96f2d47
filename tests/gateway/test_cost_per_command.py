"""What a command costs does not grow with the rows of its organisation, nor of another one.

Time says nothing on a busy machine, so rows are counted: the steps of SQLite's machine, the rows
that PostgreSQL reads and writes, and the lines of the gateway's own code that run.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import psycopg
import pytest
import pytest_asyncio

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.domain.commands import (
    ApprovalNeed,
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
    RequestOrigin,
)
from guard.gateway.domain.records import (
    BudgetRule,
    OrganisationSettings,
    Policy,
    PolicyDocument,
    Price,
    Rates,
    Webhook,
)
from guard.gateway.ledger import (
    approvals,
    asks,
    catalogue,
    charge,
    control,
    directory,
    expiring,
    expiry,
    gate,
    leases,
    webhooks,
)
from guard.gateway.services.keys import make_key
from guard.gateway.storage.port import Storage
from guard.gateway.storage.postgres.connection import _SERVER_SETTINGS, _SETTINGS_OF_WRITERS
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import ALL_ORGANISATIONS, NO_ORGANISATION, Touches, touches_of, within
from tests.support import large_tenant, postgres
from tests.support.store import ACTOR, Clock

_numbers = itertools.count(1)
_PACKAGE = str(Path(gate.__file__).parents[1])
GROWTH_MAX = 3
"""How many times as much a command may cost with a hundred times the rows."""

SIZES = pytest.mark.parametrize(("few", "many"), [
    pytest.param(300, 6_000, id="small"),
    pytest.param(1_000, 100_000, id="full", marks=pytest.mark.long),
])  # fmt: skip
SLACK = 400
"""Lines, rows or hundreds of steps by which small numbers may differ."""


class _Lines:
    """Counts the lines of the gateway that run, on this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, what: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if what == "line":
            self.count += 1
        return self


@attrs.define
class Costs:
    """What one command costs."""

    lines: int
    rows: int


class Tenants:
    """A large organisation and its neighbour in a store, whose unit of work is used directly."""

    def __init__(self, storage: Storage, measure: Callable[[], int]) -> None:
        self.storage: Any = storage
        self.own = self.neighbour = ""
        self._measure = measure

        # On PostgreSQL a replica publishes what it has not seen yet.
        feed = getattr(storage, "_feed", None)
        self._deliver: Callable[[Any], Any] = list if feed is None else feed.fresh

    @property
    def unit(self) -> Any:
        return self.storage._unit

    def run(self, scopes: Touches, work: Any, *arguments: Any, **more: Any) -> Any:
        unit = self.unit
        unit.begin([scopes])
        unit.savepoint()
        found = work(unit, *arguments, **more)
        self._deliver(unit.commit())
        return found

    def cost(self, command: Callable[[], Any]) -> Costs:
        lines, before = _Lines(), self._measure()
        sys.settrace(lines)
        try:
            command()
        finally:
            sys.settrace(None)
        return Costs(lines.count, self._measure() - before)

    # -- commands --------------------------------------------------------------------------------

    def request(self, own: str = "") -> RequestOrigin:
        return RequestOrigin(organisation_id=own or self.own, key_id="k")

    def gate(self, amount: int = 1, own: str = "", **fields: Any) -> Any:
        options = {
            name: fields.pop(name)
            for name in ("approval", "recalls", "grants_lease")
            if name in fields
        }
        fields = {"workflow_id": "w1", "call_id": f"c{next(_numbers)}", **fields}
        call = wire.GateRequest(kind="call", function="f", **fields)
        command = GateCommand(
            request=self.request(own), call=call, declared_nanousd=amount, **options
        )
        answer = self.run(touches_of(command), gate.gate, command)
        return answer, (wire.decode(answer.body, wire.GateReply) if answer.status == 200 else None)

    def event(self, cost: int = 1, own: str = "", **fields: Any) -> Any:
        name = f"e{next(_numbers)}"
        fields = {"workflow_id": "w1", "run_id": "r1", **fields}
        event = wire.Event(event_id=name, type="llm", at_ms=1, **fields)
        priced = PricedEvent(event, b"{}", cost=cost, model="m", response_id=name, final=True)
        command = IngestCommand(request=self.request(own), events=[priced])
        return self.run(touches_of(command), charge.ingest, command)

    def lease(self, lease_id: str, **fields: Any) -> Any:
        command = LeaseCommand(
            request=self.request(), update=wire.LeaseUpdate(lease_id=lease_id, **fields)
        )
        return self.run(touches_of(command), leases.update, command)

    def open_lease(self) -> str:
        ask = wire.LeaseAsk(demand_nanousd=5)
        _, reply = self.gate(grants_lease=True, lease=ask)
        return str(reply.lease.lease_id)

    def admin(self, work: Any, *arguments: Any, **more: Any) -> Any:
        return self.run(within(self.own), work, ACTOR, *arguments, **more)

    def budget(self, limit: int, scope_id: str = "new", kind: Any = "workflow") -> Any:
        rule = BudgetRule(budget_id="", organisation_id=self.own, scope_kind=kind,
                          scope_id=scope_id, window="total", limit=limit)  # fmt: skip
        return self.admin(catalogue.put_budget, rule)

    def direct(self, kind: Any, target: str) -> Any:
        draft = wire.ControlMessage(seq=0, type=kind, workflow_id=target, reason="r")
        return self.admin(control.issue_directive, self.own, draft)

    def settle(self) -> None:
        _, reply = self.gate()
        self.event(reservation_id=reply.reservation_id)

    def released(self) -> None:
        _, reply = self.gate()
        command = ReleaseCommand(request=self.request(), reservation_id=reply.reservation_id)
        self.run(touches_of(command), expiry.release, command)

    def other_key(self, organisation_id: str) -> None:
        """Make a second key, with which the first has to share."""
        made = make_key(
            IdFactory(), self.unit.now_ms, role="sdk", organisation_id=organisation_id,
            name="n", signed=False, owner_id=None,
        )  # fmt: skip
        self.run(within(organisation_id), directory.create_key, ACTOR, made.key, made.key_hash,
                 made.hmac_secret)  # fmt: skip

    def large_lease(self) -> None:
        """Ask for all that there is: beside other keys it is weighed what the key has already."""
        ask = wire.LeaseAsk(demand_nanousd=10**15)
        _, reply = self.gate(grants_lease=True, lease=ask)
        self.lease(str(reply.lease.lease_id), close=True)

    def refused(self) -> None:
        answer, _ = self.gate(amount=200_000, recalls=True)
        assert answer.status == 402 or answer.recall, answer
        assert sum(map(len, answer.recall.values())) <= leases.RECALL_MAX
        again, _ = self.gate(amount=200_000, recalls=False)
        assert again.status == 402

    def refused_in_workflow(self) -> None:
        answer, _ = self.gate(amount=2_000_000, recalls=True, workflow_id="w7")
        assert answer.status == 402 or answer.recall

    def lease_life(self) -> None:
        found = self.open_lease()
        self.lease(found, unused_nanousd=1)
        self.event(reservation_id=found)
        self.lease(found, close=True)

    def approval(self) -> None:
        _, reply = self.gate(approval=ApprovalNeed(tool_name="t", timeout_ms=60_000))
        self.admin(approvals.answer, self.own, reply.approval_id, approved=True, reason="")

    def withdrawn(self) -> None:
        _, reply = self.gate(approval=ApprovalNeed(tool_name="t", timeout_ms=60_000))
        assert self.run(within(self.own), approvals.leave, self.request(), reply.approval_id,
                        stays=False)  # fmt: skip

    def left_and_taken_over(self) -> None:
        need = ApprovalNeed(tool_name=f"left{next(_numbers)}", timeout_ms=60_000)
        _, reply = self.gate(approval=need)
        assert self.run(within(self.own), approvals.leave, self.request(), reply.approval_id,
                        stays=True)  # fmt: skip
        _, again = self.gate(approval=need)
        assert again.approval_id == reply.approval_id

    def budget_life(self) -> None:
        name = f"new{next(_numbers)}"
        self.budget(10, name)
        self.gate(workflow_id=name)
        found = self.budget(20, name)
        self.admin(asks.raise_budget, self.own, found.budget_id, by=1, raise_key=name)
        self.gate(workflow_id=name)
        self.admin(catalogue.delete_budget, self.own, found.budget_id)
        self.gate(workflow_id=name)

    def threshold(self) -> None:
        """Cross a threshold, which webhooks are told."""
        name = f"new{next(_numbers)}"
        rule = BudgetRule(budget_id="", organisation_id=self.own, scope_kind="workflow",
                          scope_id=name, window="total", limit=10,
                          thresholds=[0.5])  # fmt: skip
        self.admin(catalogue.put_budget, rule)
        self.event(cost=6, workflow_id=name)

    def policy(self) -> None:
        name = f"p{next(_numbers)}"
        wanted = Policy(policy_id="", organisation_id=self.own, name=name,
                        document=PolicyDocument())  # fmt: skip
        self.admin(catalogue.put_policy, wanted)
        self.admin(catalogue.delete_policy, self.own, name)

    def price(self) -> None:
        wanted = Price(price_id="", organisation_id=self.own, provider="p",
                       model=f"m{next(_numbers)}",
                       rates=Rates(input_per_mtok=1, output_per_mtok=1))  # fmt: skip
        found = self.admin(catalogue.put_price, wanted)
        self.admin(catalogue.delete_price, self.own, found.price_id)

    def webhook_life(self) -> None:
        wanted = Webhook(webhook_id="", organisation_id=self.own,
                         url="https://hooks.example/1")  # fmt: skip
        self.admin(webhooks.put, wanted, "secret")

    def sending(self) -> None:
        found = self.run(NO_ORGANISATION, webhooks.due, 16, {})
        for each in found:
            self.run(NO_ORGANISATION, webhooks.attempted, each.delivery_id, status=200,
                     delivered=True, retry_in_ms=None)  # fmt: skip

    def settings(self) -> None:
        wanted = OrganisationSettings(default_hold_nanousd=next(_numbers))
        self.admin(directory.update_organisation, self.own, wanted)

    def commands(self) -> dict[str, Callable[[], Any]]:
        """Every command of the large organisation, and of its neighbour."""
        return {
            "gate": self.gate,
            "gate of a new workflow": lambda: self.gate(workflow_id=f"new{next(_numbers)}"),
            "settle": self.settle,
            "release": self.released,
            "refusal": self.refused,
            "refusal by a workflow's budget": self.refused_in_workflow,
            "lease": self.lease_life,
            "large lease": self.large_lease,
            "event": self.event,
            "kill": lambda: self.direct("kill", f"new{next(_numbers)}"),
            "pause": lambda: self.direct("pause", "w3"),
            "resume": lambda: self.direct("resume", "w3"),
            "kill of a glob": lambda: self.direct("kill", "nobody*"),
            "budget": self.budget_life,
            "threshold": self.threshold,
            "policy": self.policy,
            "price": self.price,
            "approval": self.approval,
            "withdrawn approval": self.withdrawn,
            "approval that is taken over": self.left_and_taken_over,
            "webhook": self.webhook_life,
            "deliveries": self.sending,
            "settings": self.settings,
            "sweep": lambda: self.run(ALL_ORGANISATIONS, expiring.sweep),
            "neighbour's gate": lambda: self.gate(own=self.neighbour),
            "neighbour's event": lambda: self.event(own=self.neighbour),
        }

    def costs(self) -> dict[str, Costs]:
        """Return what each command costs, once what can be cached is."""
        found = {}
        for name, command in self.commands().items():
            command()
            command()
            found[name] = self.cost(command)
        return found


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction lasts as long as it takes to fill a store, and to count lines."""
    for name in ("idle_in_transaction_session_timeout", "lock_timeout"):
        monkeypatch.setitem(_SERVER_SETTINGS, name, 600_000)
    monkeypatch.setitem(_SETTINGS_OF_WRITERS, "statement_timeout", 600_000)


def _sqlite(folder: Path, clock: Clock) -> Storage:
    return SqliteStorage(folder / "g.sqlite3", clock_ms=clock)


def _postgres(folder: Path, clock: Clock) -> Storage:
    return postgres.store(folder, clock_ms=clock)


def _steps(tenants: list[Tenants]) -> Callable[[], int]:
    """Return a count of hundreds of steps of SQLite's machine."""
    count = [0]
    counted: list[sqlite3.Connection] = []

    def add() -> int:
        count[0] += 1
        return 0

    def measure() -> int:
        connection = tenants[0].unit.connection
        if connection not in counted:
            counted.append(connection)
            connection.set_progress_handler(add, 100)
        return count[0]

    return measure


def _rows(tenants: list[Tenants], looking: psycopg.Connection[Any]) -> Callable[[], int]:
    """Return a count of the rows that PostgreSQL has read and written."""
    if looking.info.server_version < 150_000:
        pytest.skip("before version 15 it does not tell at once what was read")

    def measure() -> int:
        # Of every replica: what another has read before would be told in the middle of a command.
        for each in tenants:
            each.unit.connection.psycopg.execute("SELECT pg_stat_force_next_flush()")
        row = looking.execute(
            "SELECT (SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd"
            " + n_tup_del) FROM pg_stat_user_tables WHERE schemaname = current_schema())"
            " + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
            " WHERE schemaname = current_schema())"
        ).fetchone()
        assert row is not None
        return int(row[0])

    return measure


Make = Callable[[int], Any]


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """Make a store with a large organisation of so many rows."""
    opened: list[Storage] = []
    ended = contextlib.ExitStack()

    async def made(rows: int) -> Tenants:
        folder = tmp_path / str(rows)
        folder.mkdir()
        clock, found = Clock(), list[Tenants]()
        if request.param == "sqlite":
            factory, measure = _sqlite, _steps(found)
        else:
            looking = psycopg.connect(postgres.dsn_of(folder), autocommit=True)
            ended.callback(looking.close)
            factory, measure = _postgres, _rows(found, looking)
        storage = factory(folder, clock)
        await storage.open(lambda _: None)
        found.append(Tenants(storage, measure))
        names = [
            found[0].run(NO_ORGANISATION, directory.create_organisation, ACTOR, each)
            for each in "ab"
        ]
        large_tenant.fill(found[0].unit, names[0].organisation_id, rows)
        found[0].other_key(names[0].organisation_id)
        await storage.close()
        storage = factory(folder, clock)
        await storage.open(lambda _: None)
        opened.append(storage)
        found[0] = tenants = Tenants(storage, measure)
        tenants.own, tenants.neighbour = (each.organisation_id for each in names)
        return tenants

    yield made
    for each in opened:
        await each.close()
    ended.close()


@pytest_asyncio.fixture
async def make_postgres(tmp_path: Path) -> AsyncIterator[Callable[[int], Any]]:
    """Make two replicas with a large organisation of so many rows."""
    opened: list[Storage] = []
    with contextlib.ExitStack() as ended:

        async def made(rows: int) -> list[Tenants]:
            folder = tmp_path / str(rows)
            folder.mkdir()
            clock, found = Clock(), list[Tenants]()
            looking = psycopg.connect(postgres.dsn_of(folder), autocommit=True)
            ended.callback(looking.close)
            measure = _rows(found, looking)
            filling = _postgres(folder, clock)
            await filling.open(lambda _: None)
            first = Tenants(filling, measure)
            names = [
                first.run(NO_ORGANISATION, directory.create_organisation, ACTOR, each)
                for each in "ab"
            ]
            large_tenant.fill(first.unit, names[0].organisation_id, rows)
            await filling.close()
            # Opened after that: their listeners would read, beside the commands, all that they
            # have not heard of.
            for _ in range(2):
                storage = _postgres(folder, clock)
                await storage.open(lambda _: None)
                opened.append(storage)
                found.append(Tenants(storage, measure))
            for each in found:
                each.own, each.neighbour = (name.organisation_id for name in names)
            found[1].gate()
            return found

        yield made
        for each in opened:
            await each.close()


@pytest.mark.asyncio
@pytest.mark.generator("commands beside many rows")
@pytest.mark.timeout(600)
@SIZES
async def test_no_command_costs_more_beside_more_rows(
    make: Make, few: int, many: int, count_cases: Callable[[int], None]
) -> None:
    before, after = (await make(few)).costs(), (await make(many)).costs()
    assert_flat(before, after)
    count_cases(len(before))


def assert_flat(before: dict[str, Costs], after: dict[str, Costs]) -> None:
    grown = {
        (name, what): (getattr(known, what), getattr(after[name], what))
        for name, known in before.items()
        for what in ("lines", "rows")
        if getattr(after[name], what) > GROWTH_MAX * getattr(known, what) + SLACK
    }
    assert not grown, "\n".join(map(str, sorted(grown.items())))


@pytest.mark.asyncio
@pytest.mark.generator("take-overs beside many rows")
@pytest.mark.timeout(600)
@SIZES
async def test_no_replica_takes_over_at_a_cost_that_grows(
    make_postgres: Make, few: int, many: int, count_cases: Callable[[int], None]
) -> None:
    found = []
    for rows in (few, many):
        own, other = await make_postgres(rows)
        costs = {}
        before: dict[str, Callable[[], Any]] = {
            "gate": other.gate,
            "kill": lambda other=other: other.direct("kill", f"new{next(_numbers)}"),
            "budget": other.budget_life,
            "neighbour's gate": lambda other=other: other.gate(own=other.neighbour),
        }
        for name, taken in before.items():
            for number in range(300):  # what it has cached, and drops: each has paid for its own
                own.gate(workflow_id=f"w{number + 1}")
            taken()
            asks = own.neighbour if "neighbour" in name else own.own
            costs[name] = own.cost(lambda own=own, asks=asks: own.gate(own=asks))
        found.append(costs)
    assert_flat(*found)
    count_cases(len(found[0]))
