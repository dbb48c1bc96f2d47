"""What is old leaves the record, and the books still add up."""

from __future__ import annotations

import asyncio
import doctest
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain import rulesets
from guard.gateway.domain.commands import GateCommand, ReleaseCommand
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.embedded import run_gateway
from guard.gateway.ledger import catalogue, control, directory, webhooks
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sql import retention as sqlite_retention
from guard.gateway.storage.sql.engine import SqlEngine
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import NO_ORGANISATION, within
from tests.support import postgres
from tests.support.store import ACTOR, DAY, Clock, Store, decide, release
from tests.support.waiting import until

HOUR = 3_600_000
QUARTER_MS = 900_000
LISTED = "size_ms = 0 AND start_ms = 0 AND first_ms IS NOT NULL"
"""Which rows of usage have when a workflow or a run was seen."""
KEEP_DAYS = 40
MID_MONTH = 1_800_000_000_000 - 1_800_000_000_000 % DAY  # 2027-01-15T00:00Z


@pytest_asyncio.fixture
async def store(sqlite_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    clock = Clock(MID_MONTH)
    options = {"clock_ms": clock, "retention_days": KEEP_DAYS}
    made = sqlite_factory(tmp_path, **options)
    post_commit_events: list[Any] = []
    await made.open(post_commit_events.extend)
    org = (
        await made.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id

    async def reopen() -> None:
        await store.storage.close()
        store.storage = sqlite_factory(tmp_path, **options)
        await store.storage.open(post_commit_events.extend)

    store = Store(made, clock, org, reopen, post_commit_events)
    yield store
    assert (await store.storage.verify_ledger()).problems == []
    await store.storage.close()


@pytest.mark.parametrize("module", [sqlite_retention, rulesets], ids=lambda m: m.__name__)
def test_the_examples_in_the_docstrings(module: Any) -> None:
    outcome = doctest.testmod(module)
    assert (outcome.failed, outcome.attempted > 0) == (0, True)


async def prune(store: Store) -> None:
    """Let every part of the retention have its turn, and then another one."""
    for _ in range(3):
        for _ in range(30):
            await store.storage.sweep()
        store.clock.now += HOUR


def counts(tmp_path: Path, *tables: str) -> list[int]:
    connection = sqlite3.connect(tmp_path / "gateway.sqlite3")
    try:
        return [connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables]
    finally:
        connection.close()


async def hold(store: Store, amount: int = 10, **fields: Any) -> str:
    answer = await store.gate(amount, **fields)
    assert answer.status == 200
    reservation_id = wire.decode(answer.body, wire.GateReply).reservation_id
    assert reservation_id is not None
    return reservation_id


async def free(store: Store, reservation_id: str) -> Any:
    command = ReleaseCommand(request=store.request(), reservation_id=reservation_id)
    return await release(store.storage, command)


async def committed(store: Store) -> list[int]:
    views = await store.storage.balances(store.org, current_only=True)
    return [view.committed for view in views]


@pytest.mark.asyncio
async def test_old_rows_leave_and_the_sums_stay(store: Store, tmp_path: Path) -> None:
    await store.budget(10_000)
    await store.budget(10_000, scope_kind="workflow", scope_id="*")
    for number in range(20):
        fields: Any = {"workflow_id": f"w{number % 2}", "run_id": f"r{number}"}
        held = await hold(store, model="m", **fields)
        await store.charge(f"e{number}", 7, reservation_id=held, **fields)
        await free(store, held)
        store.clock.now += DAY
    await prune(store)
    # Day by day: the organisation, the workflow and the key have quarter hours, two have minutes.
    assert counts(tmp_path, f"usage WHERE size_ms = {QUARTER_MS}") == [60]
    tables = ("events", "reservations", f"usage WHERE scope_kind = 'run' AND {LISTED}",
              f"usage WHERE scope_kind = 'workflow' AND {LISTED}", "estimates")  # fmt: skip
    assert counts(tmp_path, *tables) == [20, 20, 20, 2, 4]
    before = await committed(store)
    store.clock.now += 30 * DAY  # the first ten days are older than the retention now
    await prune(store)
    events, reservations, runs, workflows, estimates = counts(tmp_path, *tables)
    assert 5 < events < 15
    assert events == reservations == runs
    assert (workflows, estimates) == (2, 4)
    assert await committed(store) == before == [140, 70, 70]
    assert (await store.storage.verify_ledger()).problems == []
    store.clock.now += 100 * DAY
    await prune(store)
    assert counts(tmp_path, *tables) == [1, 0, 0, 0, 2]  # the newest event stays
    of_keys = f"usage WHERE size_ms = {QUARTER_MS} AND scope_kind = 'key'"
    assert counts(tmp_path, of_keys) == [0]
    assert await committed(store) == before
    await store.reopen()
    assert (await store.storage.verify_ledger()).problems == []
    assert (await store.gate(10_000 - 140 + 1)).status == 402
    assert (await store.gate(10_000 - 140)).status == 200


@pytest.mark.asyncio
async def test_what_was_in_doubt_stays_as_long_as_the_spend(store: Store, tmp_path: Path) -> None:
    await store.charge("e1", 30, workflow_id="w", run_id="r", flags="estimated in_doubt")
    await store.charge("e2", 12, workflow_id="w", run_id="r")
    store.clock.now += 100 * DAY
    await store.charge("e3", 1, workflow_id="other")
    await prune(store)
    assert counts(tmp_path, "events", "usage WHERE scope_kind = 'run' AND scope_id > ''") == [1, 0]
    rows = await store.storage.usage(store.org, "key", 0, 2**53, 10)
    assert [(row.cost_nanousd, row.uncertain_nanousd) for row in rows] == [(43, 30)]


@pytest.mark.asyncio
async def test_a_budget_that_is_set_later_counts_what_has_left_the_record(
    store: Store, tmp_path: Path
) -> None:
    fields = {"workflow_id": "w", "agent": "a", "user": "u"}
    await store.charge("e1", 30, **fields)
    await store.charge("e2", 12, workflow_id="other")
    store.clock.now += 100 * DAY
    await store.charge("e3", 1, **fields)
    await prune(store)
    assert counts(tmp_path, "events") == [1]
    for kind, scope_id, spent in (
        ("organisation", "", 43), ("workflow", "w", 31), ("agent", "*", 31), ("user", "*", 31),
        ("key", "k", 43),
    ):  # fmt: skip
        budget = await store.budget(1000, scope_kind=kind, scope_id=scope_id)
        await store.gate(1, **fields)
        views = await store.storage.balances(store.org, current_only=True)
        found = [v.committed for v in views if v.budget_id == budget.budget_id]
        assert found == [spent], kind
    await store.budget(1000, window="month")
    await store.gate(1, **fields)
    assert (await committed(store))[-1] == 1


@pytest.mark.asyncio
async def test_the_current_month_stays_whole_however_short_the_retention(
    sqlite_factory: Callable[..., Storage], tmp_path: Path
) -> None:
    clock = Clock(MID_MONTH + 15 * DAY)  # the last but one of January
    storage = sqlite_factory(tmp_path, clock_ms=clock, retention_days=1)
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(storage, clock, org, lambda: None, [])
    await store.charge("january", 5)
    clock.now += 2 * DAY
    for number in range(25):
        await store.charge(f"february {number}", 1)
        clock.now += DAY
    await prune(store)
    assert counts(tmp_path, "events") == [25]
    await store.budget(1000, window="month")
    await store.gate(1)
    assert await committed(store) == [25]
    await storage.close()


@pytest.mark.asyncio
async def test_open_holds_and_what_they_hold_on_stay(store: Store, tmp_path: Path) -> None:
    await store.budget(100, window="hour")
    await store.budget(100)
    closed = await hold(store, 10)
    await free(store, closed)
    settings = OrganisationSettings(reservation_ttl_ms=300 * DAY)
    await store.storage.write(
        within(store.org), directory.update_organisation, ACTOR, store.org, settings
    )
    open_hold = await hold(store, 60)
    store.clock.now += 200 * DAY
    await hold(store, 1)
    await prune(store)
    assert counts(tmp_path, "reservations", "balances") == [2, 3]
    assert (await store.gate(40)).status == 402
    await store.reopen()
    assert (await store.gate(40)).status == 402
    await store.charge("cost", 50, reservation_id=open_hold)
    assert (await free(store, open_hold)).status == 200
    views = await store.storage.balances(store.org, current_only=False)
    assert [(v.committed, v.reserved) for v in views] == [
        (50, 0),
        (50, 1),
        (0, 1),
        (0, 0),
    ]
    assert (await free(store, closed)).status == 404


@pytest.mark.asyncio
async def test_what_has_run_out_stays_until_it_was_closed(store: Store, tmp_path: Path) -> None:
    """The retention never gets ahead of the sweep, which gives holds back and tells programs."""
    assert isinstance(store.storage, SqliteStorage)
    await store.budget(100, window="hour")
    await store.charge("all of it", 100)
    await store.budget(100)
    store.clock.now += HOUR
    held = await store.gate(1)
    assert held.status == 402
    await store.budget(200)
    await hold(store, 1)
    store.clock.now += 100 * DAY
    await store.charge("newer", 1)
    for _ in range(30):
        await store.storage.retain()
        store.clock.now += HOUR // 10
    assert counts(tmp_path, "events", "reservations", "balances") == [1, 1, 4]
    store.post_commit_events.clear()
    await prune(store)
    await prune(store)
    messages = [e.message for e in store.post_commit_events if e.message is not None]
    lifted = [message.exhausted for message in messages if message.type == "budget"]
    assert lifted == [False]
    assert counts(tmp_path, "reservations", "balances") == [0, 2]


@pytest.mark.asyncio
async def test_a_closed_hold_stays_until_its_time_and_so_does_its_window(
    store: Store, tmp_path: Path
) -> None:
    settings = OrganisationSettings(reservation_ttl_ms=200 * DAY)
    await store.storage.write(
        within(store.org), directory.update_organisation, ACTOR, store.org, settings
    )
    await store.budget(100, window="hour")
    held = await hold(store, 60)
    await free(store, held)
    store.clock.now += 100 * DAY
    await store.gate(1)
    await prune(store)
    await prune(store)
    assert counts(tmp_path, "reservations", "balances") == [2, 2]
    assert (await store.charge("late", 7, reservation_id=held)).status == 202
    newest = (await store.storage.newest_events(store.org, 2**62, 1)).events[0]
    assert newest.flags == ["late"]
    views = await store.storage.balances(store.org, current_only=False)
    assert [view.committed for view in views][:2] == [7, 0]


@pytest.mark.asyncio
async def test_windows_that_have_ended_leave_with_their_last_entry(
    store: Store, tmp_path: Path
) -> None:
    await store.budget(100, window="hour")
    for number in range(5):
        held = await hold(store, 10, workflow_id="w")
        await store.charge(f"e{number}", 100, reservation_id=held)  # used up: exhausted
        await free(store, held)
        store.clock.now += HOUR
    assert counts(tmp_path, "balances") == [5]
    store.clock.now += 100 * DAY
    late = await hold(store, 10)
    await prune(store)
    await prune(store)
    assert counts(tmp_path, "events", "reservations", "balances") == [1, 1, 2]
    await store.charge("much later", 3, reservation_id=late)
    await prune(store)
    await prune(store)
    # The charge has opened a balance for its own hour, too.
    assert counts(tmp_path, "events", "reservations", "balances") == [1, 1, 2]
    views = await store.storage.balances(store.org, current_only=False)
    assert [view.committed for view in views] == [3, 0]


@pytest.mark.asyncio
async def test_a_run_that_is_used_keeps_its_budget_and_one_that_is_not_leaves(
    store: Store, tmp_path: Path
) -> None:
    await store.budget(100, scope_kind="run", scope_id="*")

    async def use(run_id: str) -> list[int]:
        held = await hold(store, 5, run_id=run_id)
        await store.charge(f"{run_id} {store.clock.now}", 5, reservation_id=held, run_id=run_id)
        await free(store, held)
        return sorted(await committed(store))

    assert await use("left") == [5]
    for each in range(
        8
    ):  # it comes again within 30 days each time, for longer than events are kept
        store.clock.now += 20 * DAY
        assert (await use("resumed"))[-1] == 5 * (each + 1)
        await prune(store)
        await prune(store)
    assert counts(tmp_path, "balances") == [1]
    assert await use("left") == [5, 40], "it begins anew"


@pytest.mark.asyncio
async def test_a_removed_budget_without_a_window_leaves_with_its_last_entry(
    store: Store, tmp_path: Path
) -> None:
    kept = await store.budget(1000, window="total")
    removed = await store.budget(1000, window="total", scope_kind="workflow", scope_id="w")
    held = await hold(store, 10, workflow_id="w")
    await store.charge("e1", 7, reservation_id=held, workflow_id="w")
    await store.storage.write(
        within(store.org), catalogue.delete_budget, ACTOR, store.org, removed.budget_id
    )
    await prune(store)
    assert counts(tmp_path, "balances") == [2], "a hold is open on it"
    await free(store, held)
    await prune(store)
    assert counts(tmp_path, "balances") == [2], "its entry is in the record"
    await store.budget(1000, window="hour")
    for number in (2, 3):  # it ends in the first round, and leaves in the second
        store.clock.now += 100 * DAY
        late = await hold(store, 10, workflow_id="w")
        await store.charge(f"e{number}", 5, reservation_id=late, workflow_id="w")
        await free(store, late)
        await prune(store)
        await prune(store)
    # What is left is the kept budget's, and the newest one's.
    assert counts(tmp_path, "balances") == [2]
    views = await store.storage.balances(store.org, current_only=False)
    assert [view.committed for view in views if view.budget_id == kept.budget_id] == [17]
    assert (await store.storage.verify_ledger()).problems == []
    again = await store.budget(1000, window="total", scope_kind="workflow", scope_id="w")
    held = await hold(store, 10, workflow_id="w")
    views = await store.storage.balances(store.org, current_only=True)
    assert [view.committed for view in views if view.budget_id == again.budget_id] == [17]
    await free(store, held)


@pytest.mark.asyncio
async def test_an_event_that_comes_again_after_its_time_is_a_new_one(store: Store) -> None:
    await store.budget(1000)
    held = await hold(store, 10)
    await store.charge("again", 7, reservation_id=held)
    await free(store, held)
    await store.charge("again", 7, reservation_id=held)
    assert await committed(store) == [7]
    store.clock.now += 30 * DAY
    await store.charge("newer", 1)
    await prune(store)
    await store.charge("again", 7, reservation_id=held)
    assert await committed(store) == [8]
    store.clock.now += 60 * DAY
    await prune(store)
    reply = wire.decode(
        (await store.charge("again", 7, reservation_id=held)).body, wire.EventsReply
    )
    assert (reply.accepted, reply.duplicates) == (1, 0)
    assert await committed(store) == [15]
    newest = (await store.storage.newest_events(store.org, 2**62, 1)).events[0]
    assert newest.flags == ["unknown_reservation"]


@pytest.mark.asyncio
async def test_numbers_never_start_again(store: Store) -> None:
    """Whoever follows the record by number must never see one twice."""
    for number in range(3):
        await store.charge(f"e{number}", 1)
    store.clock.now += 100 * DAY
    await prune(store)
    await store.charge("next", 1)
    events = await store.storage.events(store.org, 0, 10, None, None)
    assert [event.event_seq for event in events] == [3, 4]


@pytest.mark.asyncio
async def test_a_chain_is_forgotten_with_its_budget_when_nothing_names_it(
    store: Store, tmp_path: Path
) -> None:
    await store.budget(100, scope_kind="chain", scope_id="*")

    async def step(chain_id: str, op: str, cost: int) -> None:
        held = await hold(store, cost, chain=wire.Chain(id=chain_id, op=op))  # type: ignore[arg-type]
        await store.charge(f"{chain_id} {store.clock.now}", cost, reservation_id=held)
        await free(store, held)

    await step("gone", "start", 60)
    await step("stays", "start", 60)
    store.clock.now += 30 * DAY
    await step("stays", "continue", 30)
    store.clock.now += 20 * DAY
    await step("newest", "start", 1)
    await prune(store)
    assert counts(tmp_path, "chains", "balances") == [2, 2]
    assert (await store.gate(11, chain=wire.Chain(id="stays", op="continue"))).status == 402
    await step("gone", "start", 60)
    assert (await store.gate(41, chain=wire.Chain(id="gone", op="continue"))).status == 402


@pytest.mark.asyncio
async def test_approvals_deliveries_and_refusals_leave(store: Store, tmp_path: Path) -> None:
    from guard.gateway.domain.commands import ApprovalNeed, CallRefusal
    from guard.gateway.domain.records import Webhook

    webhook = Webhook(webhook_id="", organisation_id=store.org, url="https://example.com/hook")
    await store.storage.write(
        within(webhook.organisation_id), webhooks.put, ACTOR, webhook, "whsec_secret"
    )

    async def ask(call_id: str, **more: Any) -> Any:
        call = wire.GateRequest(call_id=call_id, kind="call", function="f", tool_name="pay")
        return await decide(store.storage, GateCommand(request=store.request(), call=call, **more))

    await ask("old", approval=ApprovalNeed(tool_name="pay", timeout_ms=DAY))
    await ask("slow", approval=ApprovalNeed(tool_name="pay", timeout_ms=300 * DAY))
    refusal = CallRefusal(status=403, error_code="GD-T001", title="no", reason="no")
    await ask("refused", refusal=refusal)
    await ask("refused again", refusal=refusal)
    first, second = await store.storage.write(NO_ORGANISATION, webhooks.due, 10, {})
    await store.storage.write(
        NO_ORGANISATION,
        webhooks.attempted,
        first.delivery_id,
        status=200,
        delivered=True,
        retry_in_ms=None,
    )
    store.clock.now += 2 * DAY
    await store.storage.sweep()
    store.clock.now += 100 * DAY
    await prune(store)
    kept = await store.storage.approvals(store.org, None, 10)
    assert [(approval.call_id, approval.status) for approval in kept] == [("slow", "pending")]
    assert counts(tmp_path, "refusals") == [1]
    for call_id in ("refused now", "and now"):
        await ask(call_id, refusal=refusal)
    await prune(store)
    assert counts(tmp_path, "refusals") == [2], "the old one has left, these two stay"
    left = await store.storage.deliveries(store.org, 10)
    assert [delivery.delivery_id for delivery in left] == [second.delivery_id]


@pytest.mark.asyncio
async def test_a_step_is_small_and_a_long_backlog_keeps_no_table_out(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_retention, "STEP_ROWS", 10)
    monkeypatch.setattr(SqlEngine, "retention_steps", 1)
    await store.budget(10_000)
    for number in range(60):
        held = await hold(store, 1, run_id=f"r{number}")
        await store.charge(f"e{number}", 1, reservation_id=held, run_id=f"r{number}")
        await free(store, held)
    store.clock.now += 100 * DAY
    tables = ("events", "reservations", f"usage WHERE scope_kind = 'run' AND {LISTED}")
    seen = [counts(tmp_path, *tables)]
    for _ in range(40):
        await asyncio.gather(store.storage.sweep(), store.gate(1))
        seen.append(counts(tmp_path, *tables))
        gone = sum(seen[-2]) - sum(seen[-1])
        assert gone <= 10
    begun = [next(i for i, now in enumerate(seen) if now[at] < seen[0][at]) for at in (0, 2)]
    assert max(begun) < 12, "each table has its turn while the others have a backlog"
    assert seen[-1][0] == 1
    assert seen[-1][2] == 0


@pytest.mark.asyncio
async def test_rows_that_stay_hardly_delay_those_that_go(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk through live workflows, runs and totals costs little: the old events go meanwhile."""
    monkeypatch.setattr(sqlite_retention, "STEP_ROWS", 40)
    monkeypatch.setattr(SqlEngine, "retention_steps", 1)
    for number in range(300):
        await store.charge(f"old{number}", 1)
    store.clock.now += 100 * DAY
    for number in range(300):
        await store.charge(f"new{number}", 1, workflow_id=f"w{number}", run_id=f"r{number}")
    for _ in range(10):
        await store.storage.sweep()
    assert counts(tmp_path, "events")[0] < 300 + 100


@pytest.mark.asyncio
async def test_the_audit_log_stays_verifiable_when_old_entries_leave(
    sqlite_factory: Callable[..., Storage], tmp_path: Path
) -> None:
    clock = Clock(MID_MONTH)
    storage = sqlite_factory(tmp_path, clock_ms=clock, audit_retention_days=30)
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    kill = wire.ControlMessage(seq=0, type="kill", workflow_id="w")
    for _ in range(5):
        await storage.write(within(org), control.issue_directive, ACTOR, org, kill)
        clock.now += 10 * DAY
    await storage.sweep()
    assert await storage.verify_audit() == (4, None)
    entries = await storage.audit(None, 0, 100)
    assert [entry.seq for entry in entries] == [4, 5, 6, 7]
    assert [entry.action for entry in entries] == ["workflow.kill"] * 3 + ["audit.prune"]
    assert entries[-1].details["through"] == 3
    await storage.write(within(org), control.issue_directive, ACTOR, org, kill)
    clock.now += 300 * DAY
    await storage.sweep()
    assert await storage.verify_audit() == (2, None), "the newest entry stays"
    clock.now += DAY
    for _ in range(3):
        await storage.write(within(org), control.issue_directive, ACTOR, org, kill)
    await storage.sweep()
    count, bad = await storage.verify_audit()
    assert (count, bad) == (5, None)
    await storage.close()
    path = tmp_path / "gateway.sqlite3"
    anchor = "UPDATE facts SET value = (SELECT json_array(seq, hash) FROM audit WHERE seq = 9)"
    for number, change in enumerate((
        "DELETE FROM facts WHERE name = 'audit_anchor'",
        "UPDATE facts SET value = '[0, \"' || value || '\"]' WHERE name = 'audit_anchor'",
        "DELETE FROM audit WHERE seq = (SELECT min(seq) FROM audit)",
        f"{anchor} WHERE name = 'audit_anchor'; DELETE FROM audit WHERE seq <= 9",
        "UPDATE audit SET details = replace(details, '3', '4') WHERE action = 'audit.prune'",
    )):  # fmt: skip
        copy = tmp_path / str(number) / "gateway.sqlite3"
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
        connection = sqlite3.connect(copy)
        connection.executescript(change)
        connection.close()
        tampered = sqlite_factory(copy.parent, clock_ms=clock)
        await tampered.open(lambda events: None)
        assert (await tampered.verify_audit())[1] is not None, change
        await tampered.close()


@pytest.mark.asyncio
async def test_without_a_retention_everything_stays(
    sqlite_factory: Callable[..., Storage], tmp_path: Path
) -> None:
    clock = Clock(MID_MONTH)
    storage = sqlite_factory(tmp_path, clock_ms=clock, retention_days=0)
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(storage, clock, org, lambda: None, [])
    for number in range(3):
        await store.charge(f"e{number}", 1)
    clock.now += 4000 * DAY
    await prune(store)
    assert counts(tmp_path, "events") == [3]
    await storage.close()


def test_a_gateway_prunes_and_its_views_go_on(tmp_path: Path) -> None:
    """Over HTTP, with the sweep of a running gateway: usage, events, workflows, dashboard data."""
    clock = Clock(MID_MONTH)
    with run_gateway(
        tmp_path / "g.sqlite3", clock_ms=clock, retention_days=40, sweep_interval_ms=10
    ) as gateway:
        import httpx

        gateway.admin.set_budget(1000)
        headers = {"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3"}
        with httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False) as http:

            def send(event_id: str, workflow: str) -> None:
                event = {"event_id": event_id, "type": "llm", "at_ms": 1, "workflow_id": workflow,
                         "data": {"model": "m", "cost_nanousd": 1_000_000}}  # fmt: skip
                batch = {"batch_id": event_id, "sent_at_ms": 1, "events": [event]}
                reply = http.post("/api/v1/events", json=batch)
                assert reply.status_code == 202

            send("e1", "old")
            send("e2", "old")
            clock.now += 100 * DAY
            send("e3", "new")

            def kept() -> list[str]:
                clock.now += 60_000  # whatever a sweep saw in between, the next round comes
                return [event["event_id"] for event in gateway.admin.events()]

            until(lambda: kept() == ["e3"])
            until(lambda: [w["workflow_id"] for w in gateway.admin.workflows()] == ["new"])
            assert [row["events"] for row in gateway.admin.usage("total")] == [3]  # sums stay
            assert gateway.admin.ledger()[0]["committed"] == 3_000_000
            assert gateway.admin.verify_ledger()["problems"] == []
            gateway.admin.kill("old")
            assert gateway.admin.workflow("old")["state"] == "killed"


@pytest.mark.asyncio
async def test_a_workflow_that_left_is_not_found(store: Store) -> None:
    await store.gate(1, workflow_id="w")
    store.clock.now += 100 * DAY
    await prune(store)
    with pytest.raises(NotFoundError):
        await store.storage.workflow(store.org, "w")


@pytest.mark.asyncio
async def test_on_postgresql_a_sweep_deletes_a_little_and_lets_others_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_retention, "STEP_ROWS", 5)
    clock = Clock(MID_MONTH)
    storage = postgres.store(tmp_path, clock_ms=clock, retention_days=KEEP_DAYS)
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(storage, clock, org, lambda: None, [])
    await store.budget(10_000)
    for number in range(80):
        await store.charge(f"e{number}", 7)
    clock.now += 100 * DAY
    await store.charge("newest", 7)
    left = []
    for _ in range(12):
        sweeping = asyncio.create_task(storage.sweep())
        while not sweeping.done():
            assert (await store.gate(1)).status == 200
        report = await storage.verify_ledger()
        assert report.problems == []
        left.append(report.events)
    assert 81 - 5 * 10 <= left[0] < 81
    assert left[-1] == 1
    (balance,) = await storage.balances(org, current_only=True)
    assert balance.committed == 81 * 7
    await storage.close()
