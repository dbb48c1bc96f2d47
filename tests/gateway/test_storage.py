"""The conformance suite of the storage port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import GateCommand
from guard.gateway.domain.errors import NotFoundError, StoreError
from guard.gateway.domain.records import (
    BudgetRule,
    OrganisationSettings,
    Policy,
    PolicyDocument,
    Price,
    Rates,
)
from guard.gateway.domain.rulesets import Change, RuleSet, plan
from guard.gateway.ledger import catalogue, directory
from guard.gateway.storage.port import Storage
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.storage.sql import read_pool
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.state import NO_ORGANISATION, within
from tests.support.store import ACTOR, DAY, Store, decide, opened_store


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        yield store


@pytest.mark.asyncio
async def test_concurrent_grants_never_go_over(store: Store) -> None:
    await store.budget(100)
    answers = await asyncio.gather(*(store.gate(7) for _ in range(50)))
    assert sum(a.status == 200 for a in answers) == 14


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["declared", "guessed"])
async def test_a_hold_takes_the_last_nano_dollar_and_none_beyond(store: Store, mode: str) -> None:
    settings = OrganisationSettings(default_hold_nanousd=60)
    await store.storage.write(
        within(store.org), directory.update_organisation, ACTOR, store.org, settings
    )
    await store.budget(100)

    async def ask(amount: int) -> int | None:
        call = wire.GateRequest(call_id="c", kind="call", function="f")
        declared = amount if mode == "declared" else None
        command = GateCommand(request=store.request(), call=call, declared_nanousd=declared)
        answer = await decide(store.storage, command)
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
    assert (balance.reserved, balance.remaining) == (101, 0)


@pytest.mark.asyncio
async def test_replays_in_one_group_and_after_a_restart(store: Store) -> None:
    await store.budget(100)
    first, second = await asyncio.gather(store.gate(7, key="a"), store.gate(7, key="a"))
    assert (first.body, second.replay) == (second.body, True)
    await store.reopen()
    third = await store.gate(7, key="a")
    assert (third.body, third.replay) == (first.body, True)
    assert (await store.storage.balances(store.org, current_only=True))[0].reserved == 7


@pytest.mark.asyncio
async def test_replays_live_for_half_a_day_and_not_for_ever(store: Store) -> None:
    first = await store.gate(7, key="a")
    store.clock.now += DAY // 2
    await store.storage.sweep()
    assert (await store.gate(7, key="a")).body == first.body
    for _ in range(2):
        store.clock.now += DAY // 2
        await store.storage.sweep()
    assert not (await store.gate(7, key="a")).replay


@pytest.mark.asyncio
async def test_clock_never_runs_backwards(store: Store) -> None:
    await store.budget(100)
    reply = wire.decode((await store.gate()).body, wire.GateReply)
    await store.storage.sweep()
    store.clock.now -= DAY
    again = wire.decode((await store.gate()).body, wire.GateReply)
    assert again.expires_at_ms == reply.expires_at_ms


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
    assert (old.committed, new.committed) == (9, 0)


@pytest.mark.asyncio
async def test_a_failing_command_leaves_its_neighbours_alone(store: Store) -> None:
    await store.budget(100)
    results = await asyncio.gather(
        store.gate(10),
        store.storage.write(
            within(store.org), catalogue.delete_budget, ACTOR, store.org, "nothing"
        ),
        store.gate(10),
        return_exceptions=True,
    )
    assert isinstance(results[1], NotFoundError)
    assert [results[0].status, results[2].status] == [200, 200]  # type: ignore[union-attr]
    assert (await store.storage.balances(store.org, current_only=True))[0].reserved == 20


async def activate(store: Store, rules: RuleSet, *, dry_run: bool = False) -> list[Change]:
    """Activate rules in one part."""
    own, storage = store.org, store.storage
    current = RuleSet(
        await storage.budgets(own), await storage.policies(own), await storage.prices(own)
    )
    steps = plan(current, rules, prune=True)
    await store.storage.write(
        within(store.org), catalogue.apply, ACTOR, store.org, RuleSet(), [] if dry_run else steps,
        dry_run=dry_run, prune=True,
    )  # fmt: skip
    return [step.change for step in steps]


@pytest.mark.asyncio
async def test_a_set_of_rules_comes_into_force_whole_or_not_at_all(store: Store) -> None:
    await store.budget(7, window="day")
    await store.storage.write(
        within(store.org), catalogue.put_price, ACTOR, price(store.org, "old")
    )

    def budget(limit: int, organisation_id: str = "", **fields: Any) -> BudgetRule:
        wanted = {"scope_kind": "organisation", "scope_id": "", "window": "total", **fields}
        own = organisation_id or store.org
        return BudgetRule(budget_id="", organisation_id=own, limit=limit, **wanted)

    policy = Policy(policy_id="", organisation_id=store.org, name="p", document=PolicyDocument())
    rules = RuleSet([budget(100), budget(5, "nobody", window="hour")], [policy],
                    [price(store.org, "new")])  # fmt: skip
    before = await everything(store)
    store.post_commit_events.clear()
    neighbour = store.gate(1)
    failed, answer = await asyncio.gather(
        activate(store, rules),
        neighbour,
        return_exceptions=True,
    )
    assert isinstance(failed, NotFoundError)
    assert answer.status == 200  # type: ignore[union-attr]
    assert store.post_commit_events == []
    assert await everything(store) == before
    rules.budgets.pop()
    planned = await activate(store, rules, dry_run=True)
    assert await everything(store) == before
    done = await activate(store, rules)
    assert planned == done
    assert [(c.kind, c.name, c.change) for c in done] == [
        ("budget", "organisation total", "create"), ("policy", "p", "create"),
        ("price", "*/new", "create"), ("budget", "organisation day", "delete"),
        ("price", "*/old", "delete"),
    ]  # fmt: skip
    after = await everything(store)
    again = await activate(store, rules)
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
    assert await store.storage.write(NO_ORGANISATION, directory.use_nonce, "k", "n", 1000)
    assert not await store.storage.write(NO_ORGANISATION, directory.use_nonce, "k", "n", 1000)
    assert await store.storage.write(NO_ORGANISATION, directory.use_nonce, "other", "n", 1000)
    await store.reopen()
    assert not await store.storage.write(NO_ORGANISATION, directory.use_nonce, "k", "n", 1000)
    store.clock.now += 2000
    await store.storage.sweep()
    assert await store.storage.write(NO_ORGANISATION, directory.use_nonce, "k", "n", 1000)


@pytest.mark.asyncio
async def test_post_commit_events_come_before_answers(store: Store) -> None:
    await store.budget(10)
    store.post_commit_events.clear()
    await store.charge("e", 10)
    assert [event.message.type for event in store.post_commit_events] == ["budget"]


@pytest.mark.asyncio
async def test_closed_store_refuses(storage_factory: Any, tmp_path: Path) -> None:
    storage = storage_factory(tmp_path)
    await storage.open(lambda events: None)
    await storage.close()
    await storage.close()
    assert not await storage.ready()
    with pytest.raises(StoreError):
        await storage.sweep()


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
async def test_a_report_that_does_not_end_holds_up_no_shutdown(
    storage_factory: Callable[..., Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pool, "CLOSE_WAIT_S", 0.0)
    made = storage_factory(tmp_path)
    await made.open(lambda _: None)
    endless = (
        "SELECT pg_sleep(600)"
        if isinstance(made, PostgresStorage)
        else "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"
    )
    running = threading.Event()

    def read(reading: Connection) -> Any:
        running.set()
        return reading.rows(endless)

    reports = [asyncio.ensure_future(made.report(read)) for _ in range(3)]  # one has to wait
    assert await asyncio.to_thread(running.wait, 60)
    async with asyncio.timeout(60):
        await made.close()
        answers = await asyncio.gather(*reports, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreError] * 3
