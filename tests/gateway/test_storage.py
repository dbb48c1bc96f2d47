"""The conformance suite of the storage port, and what is special to SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import GateCommand
from guard.gateway.domain.errors import NotFoundError, StoreError
from guard.gateway.domain.policy import CapUse
from guard.gateway.domain.records import (
    Budget,
    OrganisationSettings,
    Policy,
    PolicyDocument,
    Price,
    Rates,
)
from guard.gateway.domain.rulesets import RuleSet
from guard.gateway.storage.memory_rates import MemoryRates
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sqlite.store import SqliteStorage
from tests.support.store import ACTOR, DAY, Clock, Store


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    clock = Clock()
    news: list[Any] = []
    made = storage_factory(tmp_path, clock_ms=clock)
    await made.open(news.extend)
    org = (await made.create_organisation(ACTOR, "o")).organisation_id

    async def reopen() -> None:
        await store.storage.close()
        store.storage = storage_factory(tmp_path, clock_ms=clock)
        await store.storage.open(news.extend)

    store = Store(made, clock, org, reopen, news)
    yield store
    assert (await store.storage.verify_ledger()).problems == []
    await store.storage.close()


@pytest.mark.asyncio
async def test_concurrent_grants_never_go_over(store: Store) -> None:
    await store.budget(100)
    answers = await asyncio.gather(*(store.gate(7) for _ in range(50)))
    assert sum(a.status == 200 for a in answers) == 14


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["declared", "guessed"])
async def test_a_hold_takes_the_last_nano_dollar_and_none_beyond(store: Store, mode: str) -> None:
    settings = OrganisationSettings(default_hold_nanousd=60)
    await store.storage.update_organisation(ACTOR, store.org, settings)
    await store.budget(100)

    async def ask(amount: int) -> int | None:
        call = wire.GateRequest(call_id="c", kind="llm", function="f")
        declared = amount if mode == "declared" else None
        command = GateCommand(request=store.request(), call=call, declared_nanousd=declared)
        answer = await store.storage.gate(command)
        if answer.status == 402:
            return None
        return wire.decode(answer.body, wire.GateReply).reserved_nanousd

    assert await ask(60) == 60
    if mode == "declared":
        assert await ask(41) is None
    assert await ask(40) == 40  # a guess of 60 shrinks to what is left
    assert await ask(1) is None
    await store.budget(101)
    assert await ask(1) == 1
    assert await ask(1) is None
    (balance,) = await store.storage.balances(store.org, current_only=True)
    assert (balance.reserved_nanousd, balance.remaining_nanousd) == (101, 0)


@pytest.mark.asyncio
async def test_replays_in_one_group_and_after_a_restart(store: Store) -> None:
    await store.budget(100)
    first, second = await asyncio.gather(store.gate(7, key="a"), store.gate(7, key="a"))
    assert (first.body, second.replay) == (second.body, True)
    await store.reopen()
    third = await store.gate(7, key="a")
    assert (third.body, third.replay) == (first.body, True)
    assert (await store.storage.balances(store.org, current_only=True))[0].reserved_nanousd == 7


@pytest.mark.asyncio
async def test_replays_live_for_half_a_day_and_not_for_ever(store: Store) -> None:
    first = await store.gate(7, key="a")
    store.clock.now += DAY // 2
    assert (await store.gate(7, key="a")).body == first.body
    store.clock.now += DAY
    assert not (await store.gate(7, key="a")).replay


@pytest.mark.asyncio
async def test_clock_never_runs_backwards(store: Store) -> None:
    await store.budget(100)
    reply = wire.decode((await store.gate()).body, wire.GateReply)
    await store.storage.sweep()
    store.clock.now -= DAY
    again = wire.decode((await store.gate()).body, wire.GateReply)
    assert again.expires_at_ms == reply.expires_at_ms
    await store.reopen()
    assert wire.decode((await store.gate()).body, wire.GateReply).expires_at_ms >= (
        reply.expires_at_ms or 0
    )


@pytest.mark.asyncio
async def test_orphans_expire_once_after_a_restart(store: Store) -> None:
    await store.budget(100)
    await store.gate(60)
    await store.reopen()
    assert (await store.gate(60)).status == 402
    store.clock.now += 900_001
    assert await store.storage.sweep() == 1
    assert await store.storage.sweep() == 0
    assert (await store.gate(60)).status == 200


@pytest.mark.asyncio
async def test_late_costs_go_to_the_epoch_of_their_reservation(store: Store) -> None:
    await store.budget(100, window="day")
    reply = wire.decode((await store.gate(10)).body, wire.GateReply)
    store.clock.now += DAY
    await store.gate(10)
    await store.charge("late", 9, reservation_id=reply.reservation_id)
    old, new = await store.storage.balances(store.org, current_only=False)
    assert (old.committed_nanousd, new.committed_nanousd) == (9, 0)


@pytest.mark.asyncio
async def test_a_failing_command_leaves_its_neighbours_alone(store: Store) -> None:
    await store.budget(100)
    results = await asyncio.gather(
        store.gate(10),
        store.storage.delete_budget(ACTOR, store.org, "nothing"),
        store.gate(10),
        return_exceptions=True,
    )
    assert isinstance(results[1], NotFoundError)
    assert [results[0].status, results[2].status] == [200, 200]  # type: ignore[union-attr]
    assert (await store.storage.balances(store.org, current_only=True))[0].reserved_nanousd == 20


@pytest.mark.asyncio
async def test_a_set_of_rules_comes_into_force_whole_or_not_at_all(store: Store) -> None:
    await store.budget(7, window="day")
    await store.storage.put_price(ACTOR, price(store.org, "old"))

    def budget(limit: int, organisation_id: str = "", **fields: Any) -> Budget:
        wanted = {"scope_kind": "organisation", "scope_id": "", "window": "total", **fields}
        own = organisation_id or store.org
        return Budget(budget_id="", organisation_id=own, limit_nanousd=limit, **wanted)

    policy = Policy(policy_id="", organisation_id=store.org, name="p", document=PolicyDocument())
    rules = RuleSet([budget(100), budget(5, "nobody", window="hour")], [policy],
                    [price(store.org, "new")])  # fmt: skip
    before = await everything(store)
    store.news.clear()
    neighbour = store.gate(1)
    failed, answer = await asyncio.gather(
        store.storage.apply(ACTOR, store.org, rules, dry_run=False, prune=True),
        neighbour,
        return_exceptions=True,
    )
    assert isinstance(failed, NotFoundError)
    assert answer.status == 200  # type: ignore[union-attr]
    assert store.news == []
    assert await everything(store) == before
    rules.budgets.pop()
    planned = await store.storage.apply(ACTOR, store.org, rules, dry_run=True, prune=True)
    assert await everything(store) == before
    done = await store.storage.apply(ACTOR, store.org, rules, dry_run=False, prune=True)
    assert planned == done
    assert [(c.kind, c.name, c.change) for c in done] == [
        ("budget", "organisation total", "create"), ("policy", "p", "create"),
        ("price", "*/new", "create"), ("budget", "organisation day", "delete"),
        ("price", "*/old", "delete"),
    ]  # fmt: skip
    after = await everything(store)
    again = await store.storage.apply(ACTOR, store.org, rules, dry_run=False, prune=True)
    assert {c.change for c in again} == {"unchanged"}
    assert await everything(store) == after
    assert (await store.gate(101)).status == 402
    assert (await store.gate(99)).status == 200


def price(organisation_id: str, model: str) -> Price:
    return Price(price_id="", organisation_id=organisation_id, provider="*", model=model,
                 rates=Rates(input_per_mtok=1, output_per_mtok=1))  # fmt: skip


async def everything(store: Store) -> list[Any]:
    storage, org = store.storage, store.org
    return [await storage.budgets(org), await storage.policies(org), await storage.prices(org),
            await storage.audit(None, 0, 100), await storage.control_seq(org)]  # fmt: skip


@pytest.mark.asyncio
async def test_lowered_limits_refuse_and_keep_what_was_granted(store: Store) -> None:
    budget = await store.budget(100)
    await store.gate(60)
    assert (await store.budget(50)).version == budget.version + 1
    assert (await store.gate(1)).status == 402
    assert (await store.budget(50)).version == budget.version + 1  # the same again


@pytest.mark.asyncio
async def test_nonces_count_once(store: Store) -> None:
    assert await store.storage.use_nonce("k", "n", 1000)
    assert not await store.storage.use_nonce("k", "n", 1000)
    assert await store.storage.use_nonce("other", "n", 1000)
    await store.reopen()
    assert not await store.storage.use_nonce("k", "n", 1000)
    store.clock.now += 2000
    await store.storage.sweep()
    assert await store.storage.use_nonce("k", "n", 1000)


@pytest.mark.asyncio
async def test_news_come_before_answers(store: Store) -> None:
    await store.budget(10)
    store.news.clear()
    await store.charge("e", 10)
    assert [n.message.type for n in store.news] == ["budget"]


@pytest.mark.asyncio
async def test_audit_notices_every_change(storage_factory: Any, tmp_path: Path) -> None:
    storage = storage_factory(tmp_path)
    await storage.open(lambda news: None)
    org = (await storage.create_organisation(ACTOR, "o")).organisation_id
    for n in range(3):
        await storage.issue_directive(
            ACTOR, org, wire.ControlMessage(seq=0, type="kill", workflow_id=str(n))
        )
    assert await storage.verify_audit() == (4, None)
    await storage.close()
    path = tmp_path / "gateway.sqlite3"
    for change, first_bad in (
        ("UPDATE audit SET target = 'x' WHERE seq = 2", 2),
        ("UPDATE audit SET at_ms = at_ms + 1 WHERE seq = 3", 3),
        ("DELETE FROM audit WHERE seq = 2", 3),
        ("UPDATE audit SET organisation_id = NULL WHERE seq = 4", 4),
    ):
        copy = tmp_path / f"copy{first_bad}{change[:6]}" / "gateway.sqlite3"
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
        connection = sqlite3.connect(copy)
        connection.execute(change)
        connection.commit()
        connection.close()
        tampered = storage_factory(copy.parent)
        await tampered.open(lambda news: None)
        assert (await tampered.verify_audit())[1] == first_bad
        await tampered.close()


@pytest.mark.asyncio
async def test_closed_store_refuses(storage_factory: Any, tmp_path: Path) -> None:
    storage = storage_factory(tmp_path)
    await storage.open(lambda news: None)
    await storage.close()
    await storage.close()
    assert not await storage.ready()
    with pytest.raises(StoreError):
        await storage.sweep()


# -- SQLite ------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("durable", [False, True])
async def test_full_disk_refuses_and_recovers(tmp_path: Path, durable: bool) -> None:
    storage = SqliteStorage(tmp_path / "g.sqlite3", durable=durable)
    await storage.open(lambda news: None)
    org = (await storage.create_organisation(ACTOR, "o")).organisation_id
    store = Store(storage, Clock(), org, lambda: None, [])
    await store.budget(1_000_000)
    (pages,) = await storage.write(
        lambda unit: unit.connection.execute("PRAGMA page_count").fetchone()
    )
    await storage.write(
        lambda unit: unit.connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    )
    results = await asyncio.gather(
        *(store.charge(f"e{n}" + "x" * 200, 1) for n in range(500)), return_exceptions=True
    )
    assert any(isinstance(r, StoreError) for r in results)
    await storage.write(
        lambda unit: unit.connection.execute("PRAGMA max_page_count = 1000000").fetchone()
    )
    assert await storage.ready()
    for n in range(500):
        await store.charge(f"e{n}" + "x" * 200, 1)
    (balance,) = await storage.balances(org, current_only=True)
    assert balance.committed_nanousd == 500
    assert (await storage.verify_ledger()).problems == []
    await storage.close()


@pytest.mark.asyncio
async def test_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(StoreError, match="newer"):
        await SqliteStorage(path).open(lambda news: None)


@pytest.mark.asyncio
async def test_rates_are_exact_over_a_sliding_window() -> None:
    clock = Clock(0)
    rates = MemoryRates(clock)
    use = [CapUse("a", 2, 1000), CapUse("b", 3, 5000)]
    assert [await rates.take("o", use) for _ in range(2)] == [None, None]
    assert await rates.take("o", use) == 1000
    clock.now = 1000
    assert await rates.take("o", use) is None
    clock.now = 2000
    assert await rates.take("o", use) == 3000  # the second cap; the first would allow it


@pytest.mark.asyncio
async def test_replays_are_bounded_by_what_still_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guard.gateway.ledger.control.CONTROL_KEEP", 5)
    storage = SqliteStorage(tmp_path / "g.sqlite3")
    await storage.open(lambda news: None)
    org = (await storage.create_organisation(ACTOR, "o")).organisation_id
    await storage.issue_directive(
        ACTOR, org, wire.ControlMessage(seq=0, type="kill", workflow_id="dead")
    )
    for _ in range(20):
        for kind in ("pause", "resume"):
            await storage.issue_directive(
                ACTOR, org, wire.ControlMessage(seq=0, type=kind, workflow_id="w")
            )
    await storage.sweep()
    kept = [stored.message for stored in await storage.control_after(org, 0, 100)]
    assert [m.seq for m in kept] == [1, 37, 38, 39, 40, 41]
    assert kept[0].workflow_id == "dead"
    await storage.close()


@pytest.mark.asyncio
async def test_holds_of_the_millisecond_of_a_sweep_are_found_again(store: Store) -> None:
    await store.budget(100)
    for _ in range(8):  # each process has ids of its own, above or below those of the one before
        await store.storage.sweep()
        await store.reopen()
        await store.gate(1)
    await store.reopen()
    assert (await store.storage.verify_ledger()).reservations_open == 8
    store.clock.now += 900_001
    assert await store.storage.sweep() == 8


@pytest.mark.asyncio
async def test_lookups_and_replays_do_not_wait_for_reports(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "g.sqlite3")
    await storage.open(lambda events: None)
    org = (await storage.create_organisation(ACTOR, "o")).organisation_id
    kill = wire.ControlMessage(seq=0, type="kill", workflow_id="w")
    await storage.issue_directive(ACTOR, org, kill)
    finish = threading.Event()
    started = threading.Semaphore(0)

    def slow_report(_: Any) -> None:
        started.release()
        finish.wait()

    reports = [asyncio.ensure_future(storage.report(slow_report)) for _ in range(8)]
    waiting = asyncio.ensure_future(storage.usage(org, "total", 0, 2**60, 10))
    try:
        for _ in range(2):
            await asyncio.to_thread(started.acquire)
        assert await storage.find_key(b"none") is None
        assert [stored.message.type for stored in await storage.control_after(org, 0, 10)] == [
            "kill"
        ]
        assert await storage.policies(org) == []
        assert await storage.ready()
        assert not waiting.done()
    finally:
        finish.set()
    await asyncio.gather(*reports, waiting)
    await storage.close()
