"""Leases through the storage port: grants, top-ups, give-backs, ends, late events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import (
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
)
from guard.gateway.domain.rate_window import CapUse
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.domain.waiting import Place
from guard.gateway.ledger import directory, expiring
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sql.engine import SqlEngine
from guard.gateway.unit.state import within
from tests.support.store import (
    ACTOR,
    DAY,
    Store,
    decide,
    ingest,
    opened_store,
    release,
    update_lease,
)

GRACE = 10_000
TTL = 30_000 + GRACE


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        yield store


async def ask(
    store: Store, amount: int = 10, demand: int = 0, lease_id: str | None = None, unused: int = 0,
    key: str | None = None, key_id: str = "k", **fields: Any,
) -> Any:  # fmt: skip
    lease = wire.LeaseAsk(lease_id=lease_id, unused_nanousd=unused, demand_nanousd=demand)
    call = wire.GateRequest(call_id="c", kind="call", function="f", lease=lease, **fields)
    request = store.request(key, key_id=key_id)
    answer = await decide(
        store.storage,
        GateCommand(request=request, call=call, declared_nanousd=amount, grants_lease=True),
    )
    if answer.status == 200:
        return wire.decode(answer.body, wire.GateReply)
    return answer.status


async def granted(
    store: Store, amount: int = 10, demand: int = 0, **fields: Any
) -> wire.LeaseGrant:
    reply = await ask(store, amount, demand, **fields)
    assert isinstance(reply, wire.GateReply)
    assert reply.lease is not None
    assert reply.lease.lease_id == reply.reservation_id
    return reply.lease


async def update(
    store: Store, lease: wire.LeaseGrant, unused: int = 0, *, close: bool = False,
    key_id: str = "k", key: str | None = None,
) -> Any:  # fmt: skip
    request = store.request(key, key_id=key_id)
    change = wire.LeaseUpdate(lease.lease_id, unused_nanousd=unused, close=close)
    answer = await update_lease(store.storage, LeaseCommand(request=request, update=change))
    if answer.status == 200:
        return wire.decode(answer.body, wire.LeaseState)
    return answer.status


async def totals(store: Store) -> tuple[int, int]:
    (balance,) = await store.storage.balances(store.org, current_only=True)
    return balance.committed, balance.reserved


async def span(store: Store, event_id: str, reservation_id: str) -> None:
    event = wire.Event(event_id=event_id, type="span", at_ms=1, reservation_id=reservation_id)
    priced = PricedEvent(event, b"{}", final=True)
    await ingest(store.storage, IngestCommand(request=store.request(), events=[priced]))


@pytest.mark.asyncio
async def test_a_lease_holds_the_demand_within_a_share_of_the_room(store: Store) -> None:
    await store.budget(1000)
    assert (await granted(store, 10, 300)).granted_nanousd == 300
    # 700 are left: for the holder, this one and one to come.
    assert (await granted(store, 10, 900, workflow_id="b")).granted_nanousd == 700 // 3
    assert await totals(store) == (0, 300 + 233)


@pytest.mark.asyncio
async def test_near_the_limit_exactly_what_is_asked_for_is_granted(store: Store) -> None:
    await store.budget(100)
    assert (await granted(store, 60, 500)).granted_nanousd == 60
    assert (await granted(store, 40, 500, workflow_id="b")).granted_nanousd == 40
    assert await ask(store, 1, 500, workflow_id="c") == 402


@pytest.mark.asyncio
async def test_an_ask_gives_back_first_also_when_it_is_refused(store: Store) -> None:
    await store.budget(100)
    lease = await granted(store, 10, 50)
    again = await granted(store, 70, 70, lease_id=lease.lease_id, unused=40)
    assert (again.lease_id, again.granted_nanousd) == (lease.lease_id, 70)
    assert await totals(store) == (0, 80)
    assert await ask(store, 200, 200, lease_id=lease.lease_id, unused=30) == 402
    assert await totals(store) == (0, 50)
    await ask(store, 200, 200, lease_id=lease.lease_id, unused=10**9)
    assert await totals(store) == (0, 0)


@pytest.mark.asyncio
async def test_a_repeated_ask_changes_nothing(store: Store) -> None:
    await store.budget(1000)
    lease = await granted(store, 10, 100)
    first = await ask(store, 10, 100, lease_id=lease.lease_id, unused=50, key="again")
    assert await ask(store, 10, 100, lease_id=lease.lease_id, unused=50, key="again") == first
    assert await totals(store) == (0, 150)
    await update(store, lease, 30, key="gives")
    await update(store, lease, 30, key="gives")
    assert await totals(store) == (0, 120)


@pytest.mark.asyncio
@pytest.mark.parametrize("lane", ["key", "workflow", "agent", "chain", "user", "model", "unknown"])
async def test_a_lease_of_another_lane_counts_as_none(store: Store, lane: str) -> None:
    await store.budget(1000)
    lease = await granted(store, 10, 100, workflow_id="w")
    other: dict[str, Any] = {
        "key": {"key_id": "other", "workflow_id": "w"},
        "workflow": {"workflow_id": "x"},
        "agent": {"workflow_id": "w", "agent": "a"},
        "chain": {"workflow_id": "w", "chain": wire.Chain("n")},
        "user": {"workflow_id": "w", "user": "u"},
        "model": {"workflow_id": "w", "model": "m"},
        "unknown": {"workflow_id": "w"},
    }[lane]
    named = "nothing" if lane == "unknown" else lease.lease_id
    new = await granted(store, 10, 10, lease_id=named, unused=100, **other)
    assert new.lease_id != lease.lease_id
    assert await totals(store) == (0, 110)


@pytest.mark.asyncio
async def test_events_are_paid_by_their_lease_and_end_none(store: Store) -> None:
    await store.budget(1000)
    lease = await granted(store, 10, 100)
    for number in range(3):
        await store.charge(f"e{number}", 20, reservation_id=lease.lease_id)
        await span(store, f"s{number}", lease.lease_id)
    assert await totals(store) == (60, 40)
    state = await update(store, lease)
    assert (state.state, state.held_nanousd, state.ttl_ms) == ("open", 40, TTL - GRACE)


@pytest.mark.asyncio
async def test_many_reservations_expire_in_parts_between_which_calls_are_decided(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.budget(1000)
    await asyncio.gather(*(store.gate(1) for _ in range(250)))
    store.clock.now += DAY
    parts, expire = [0], expiring.expire
    # Of this store alone: a gateway of other tests in this process expires what is its own.
    own = cast("SqlEngine[Any]", store.storage)._writer
    assert own is not None
    attempt = own._attempt

    def expired(unit: Any, reservation: Any) -> None:
        parts[-1] += unit is own._unit
        expire(unit, reservation)

    def attempted(group: Any) -> Any:
        parts.append(0)
        return attempt(group)

    monkeypatch.setattr(expiring, "expire", expired)
    monkeypatch.setattr(own, "_attempt", attempted)
    swept = asyncio.create_task(store.storage.sweep())
    while not sum(parts):
        await asyncio.sleep(0)
    assert (await store.gate(1)).status == 200
    assert sum(parts) < 250, "decided between two parts"
    assert await swept == 250
    assert [each for each in parts if each] == [100, 100, 50]
    assert await totals(store) == (0, 1)


@pytest.mark.asyncio
async def test_a_lease_expires_unless_it_is_renewed(store: Store) -> None:
    await store.budget(1000)
    lease = await granted(store, 10, 100)
    store.clock.now += TTL - 1
    await store.charge("e", 5, reservation_id=lease.lease_id)  # is no sign of life
    await update(store, lease)
    store.clock.now += TTL - 1
    assert await store.storage.sweep() == 0
    store.clock.now += 1
    assert await store.storage.sweep() == 1
    assert await totals(store) == (5, 0)
    assert await update(store, lease) == 404
    await store.charge("late", 7, reservation_id=lease.lease_id)
    assert await totals(store) == (12, 0)
    new = await granted(store, 10, 10, lease_id=lease.lease_id, unused=50)
    assert new.lease_id != lease.lease_id


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", ["waiting", "its turn", "refused", "replaced", "not topped up"])
async def test_every_answer_to_a_question_renews_the_lease_that_it_names(
    store: Store, answer: str
) -> None:
    """The holder asks again and again, and has a request under way all the time."""
    await store.budget(100)
    lease = await granted(store, 60, 60)
    if answer == "replaced":
        await store.budget(1000, window="day")
    for number in range(4):
        store.clock.now += TTL - 1
        ask = wire.LeaseAsk(lease.lease_id, ahead=answer == "not topped up")
        command = GateCommand(
            request=store.request(str(number)),
            call=wire.GateRequest(call_id="c", kind="call", function="f", lease=ask),
            declared_nanousd=1 if answer == "replaced" else 50,
            grants_lease=True,
            place=Place(store.clock.now, store.clock.now, TTL) if answer == "waiting" else None,
            caps=[CapUse("none", 0, 1000, waits=True)] if answer == "its turn" else [],
        )
        found = await decide(store.storage, command)
        if found.status == 200:
            reply = wire.decode(found.body, wire.GateReply)
            is_waiting = answer in ("waiting", "its turn")
            assert reply.decision == ("waiting" if is_waiting else "allow")
        else:
            assert found.status == 402
    store.clock.now += TTL - 1
    await store.storage.sweep()
    assert (await update(store, lease)).held_nanousd >= 60


@pytest.mark.asyncio
async def test_a_lease_outlives_a_time_without_a_gateway(store: Store) -> None:
    await store.budget(100)
    lease = await granted(store, 60, 60)
    store.clock.now += 2 * TTL  # nobody could renew it
    assert await store.storage.resume() == 1
    assert await ask(store, 50, key="other", key_id="other") == 402
    await store.charge("spent meanwhile", 60, reservation_id=lease.lease_id)
    assert await totals(store) == (60, 0)
    store.clock.now += TTL
    assert await store.storage.sweep() == 1
    assert await store.storage.resume() == 0


@pytest.mark.asyncio
async def test_a_closed_lease_pays_for_what_is_on_its_way(store: Store) -> None:
    await store.budget(1000)
    lease = await granted(store, 10, 100)
    state = await update(store, lease, 90, close=True)
    assert (state.state, state.held_nanousd, state.ttl_ms) == ("open", 10, 5000)
    await store.charge("e", 4, reservation_id=lease.lease_id)
    assert await totals(store) == (4, 6)
    store.clock.now += 5000
    assert await store.storage.sweep() == 1
    assert await totals(store) == (4, 0)
    other = await granted(store, 10, 100)
    state = await update(store, other, 100, close=True)
    assert (state.state, state.held_nanousd, state.ttl_ms) == ("released", 0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("reopened", [False, True])
async def test_a_closed_lease_does_not_live_on(store: Store, reopened: bool) -> None:
    await store.budget(1000)
    lease = await granted(store, 10, 100)
    await update(store, lease, 80, close=True)
    if reopened:
        await store.reopen()
    assert await update(store, lease, 5) == 404
    assert await totals(store) == (0, 20), "nothing came back, either"
    state = await update(store, lease, 5, close=True)
    assert (state.state, state.held_nanousd, state.ttl_ms) == ("open", 15, 5000)
    new = await granted(store, 10, 10, lease_id=lease.lease_id, unused=20)
    assert new.lease_id != lease.lease_id
    assert await totals(store) == (0, 25)
    assert await store.storage.resume() == 2
    store.clock.now += 5000
    assert await store.storage.sweep() == 1, "not renewed by anything"
    assert await totals(store) == (0, 10)


@pytest.mark.asyncio
async def test_nobody_is_asked_for_a_closed_lease(store: Store) -> None:
    await store.budget(100)
    lease = await granted(store, 10, 50)
    await update(store, lease, 0, close=True)
    call = wire.GateRequest(call_id="c", kind="call", function="f")
    command = GateCommand(request=store.request(), call=call, declared_nanousd=70, recalls=True)
    answer = await decide(store.storage, command)
    assert (answer.status, answer.recall) == (402, {})


@pytest.mark.asyncio
async def test_a_lease_is_updated_by_its_own_key_only(store: Store) -> None:
    lease = await granted(store, 10, 100)
    assert await update(store, lease, key_id="other") == 404
    reply = await store.gate(10)
    plain = wire.decode(reply.body, wire.GateReply)
    assert await update(store, wire.LeaseGrant(plain.reservation_id or "", 0, 0)) == 404


@pytest.mark.asyncio
async def test_a_lease_is_released_like_any_reservation(store: Store) -> None:
    await store.budget(1000)
    lease = await granted(store, 10, 100)
    command = ReleaseCommand(request=store.request(), reservation_id=lease.lease_id)
    assert (await release(store.storage, command)).status == 200
    assert await totals(store) == (0, 0)


@pytest.mark.asyncio
async def test_leases_survive_a_restart_and_are_counted(store: Store) -> None:
    await store.budget(1000)
    lease = await granted(store, 10, 100)
    await store.reopen()
    again = await granted(store, 10, 100, lease_id=lease.lease_id, unused=100)
    assert again.lease_id == lease.lease_id
    assert (await granted(store, 1, 1000, workflow_id="b")).granted_nanousd == 900 // 3


@pytest.mark.asyncio
async def test_a_lease_of_an_ended_period_is_replaced(store: Store) -> None:
    store.clock.now += DAY - store.clock.now % DAY - 10_000
    await store.budget(1000, window="day")
    settings = OrganisationSettings(lease_ttl_ms=3_600_000)
    await store.storage.write(
        within(store.org), directory.update_organisation, ACTOR, store.org, settings
    )
    lease = await granted(store, 10, 100)
    store.clock.now += 20_000
    new = await granted(store, 10, 100, lease_id=lease.lease_id, unused=60)
    assert new.lease_id != lease.lease_id
    await store.charge("e", 40, reservation_id=lease.lease_id)
    balances = await store.storage.balances(store.org, current_only=False)
    assert [(b.committed, b.reserved) for b in balances] == [(40, 0), (0, 100)]


@pytest.mark.asyncio
async def test_costs_under_an_old_lease_count_in_their_own_day(store: Store) -> None:
    settings = OrganisationSettings(lease_ttl_ms=3_600_000)
    await store.storage.write(
        within(store.org), directory.update_organisation, ACTOR, store.org, settings
    )
    store.clock.now += DAY - store.clock.now % DAY - 1000
    lease = await granted(store, 10, 100)
    store.clock.now += 2000
    await store.charge("e", 40, reservation_id=lease.lease_id)
    await store.budget(1000, window="day")
    await store.gate(1)
    assert (await totals(store))[0] == 40
