"""Reservations that are renewed, and what was under way at a holder that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import GateCommand, LeaseCommand
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.ledger import directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.support.store import ACTOR, Store, decide, opened_store, update_lease

LIFE = 30_000
LONG = 900_000

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        await store.budget(100)
        yield store


RATES = wire.ModelRates(10**6, 10**6, 0, 0, 0, 0, 10**6, 10**6, largest_output_tokens=1000)


async def ask(store: Store, amount: int = 100, **fields: Any) -> wire.GateReply | int:
    call = wire.GateRequest(call_id="c", kind="call", function="f", **fields)
    command = GateCommand(
        request=store.request(),
        call=call,
        declared_nanousd=amount,
        grants_lease=call.lease is not None,
        rates=RATES,
    )
    answer = await decide(store.storage, command)
    return answer.status if answer.status != 200 else wire.decode(answer.body, wire.GateReply)


async def held(store: Store, amount: int = 100, **fields: Any) -> wire.GateReply:
    reply = await ask(store, amount, **fields)
    assert isinstance(reply, wire.GateReply)
    return reply


async def request(store: Store, amount: int = 100, **fields: Any) -> wire.GateReply:
    """Hold an amount for an LLM request."""
    asked = {"kind": "llm", "model": "m", "max_input_tokens": 0, "max_output_tokens": amount}
    call = wire.GateRequest(call_id="c", function="openai", **{**asked, **fields})
    command = GateCommand(
        request=store.request(), call=call, rates=RATES, grants_lease=call.lease is not None
    )
    answer = await decide(store.storage, command)
    assert answer.status == 200
    return wire.decode(answer.body, wire.GateReply)


async def renew(store: Store, first: wire.GateReply, *also: str, **fields: Any) -> Any:
    update = wire.LeaseUpdate(first.reservation_id or "", also=list(also), **fields)
    answer = await update_lease(store.storage, LeaseCommand(request=store.request(), update=update))
    return answer.status if answer.status != 200 else wire.decode(answer.body, wire.LeaseState)


async def totals(store: Store) -> tuple[int, int]:
    (balance,) = await store.storage.balances(store.org, current_only=True)
    return balance.committed, balance.reserved


async def pass_(store: Store, ms: int) -> None:
    store.clock.now += ms
    await store.storage.sweep()


async def events(store: Store) -> list[Any]:
    found = await store.storage.events(
        store.org, after=0, limit=100, workflow_id=None, event_type=None
    )
    return list(found)


async def test_who_does_not_renew_keeps_the_long_life(store: Store) -> None:
    reply = await held(store)
    assert (reply.renew_ms, reply.expires_at_ms) == (0, store.clock.now + LONG)
    await pass_(store, LONG - 1)
    assert await totals(store) == (0, 100)
    assert await renew(store, reply) == 404, "as an older gateway"


async def test_a_dead_holders_money_comes_back_soon(store: Store) -> None:
    reply = await held(store, renewed=True)
    assert reply.renew_ms == LIFE
    assert await ask(store) == 402
    store.clock.now += LIFE
    assert isinstance(await ask(store), wire.GateReply), "before any sweep"


async def test_a_living_holder_keeps_its_money(store: Store) -> None:
    first = await held(store, 40, renewed=True)
    second = await held(store, 60, renewed=True)
    for _ in range(4):
        await pass_(store, LIFE - 1)
        state = await renew(store, first, str(second.reservation_id))
        assert state == wire.LeaseState(str(first.reservation_id), "open", 40, LIFE)
    assert await totals(store) == (0, 100)


async def test_an_event_is_a_sign_of_life(store: Store) -> None:
    reply = await held(store, renewed=True)
    store.clock.now += LIFE - 1
    await store.charge("e", 10, reservation_id=reply.reservation_id)
    await pass_(store, LIFE - 1)
    assert await totals(store) == (10, 90)
    await pass_(store, 1)
    assert await totals(store) == (10, 0)


async def test_a_renewal_names_what_is_open_no_longer(store: Store) -> None:
    first, second = [await held(store, 10, renewed=True) for _ in range(2)]
    await store.charge("e", 10, reservation_id=second.reservation_id)
    state = await renew(store, first, "unknown", str(second.reservation_id))
    assert (state.state, state.over) == ("open", ["unknown"])
    await pass_(store, LIFE)
    gone = await renew(store, second)
    assert (gone.state, gone.over) == ("expired", [second.reservation_id]), "nothing was left"


async def test_after_a_restart_a_whole_life_is_left(store: Store) -> None:
    await held(store, renewed=True)
    store.clock.now += 10 * LIFE
    await store.reopen()
    await store.storage.resume()
    await pass_(store, LIFE - 1)
    assert await totals(store) == (0, 100)
    await pass_(store, 1)
    assert await totals(store) == (0, 0)


async def test_who_comes_back_late_holds_again_what_nobody_has(store: Store) -> None:
    first = await held(store, 70, renewed=True)
    await store.charge("e", 10, reservation_id=first.reservation_id)
    await pass_(store, LIFE)
    assert await totals(store) == (10, 0)
    await held(store, 50)
    state = await renew(store, first)
    assert (state.state, state.held_nanousd) == ("open", 40), "of 60, since others hold 50"
    assert await totals(store) == (10, 90)
    await store.reopen()
    await store.storage.resume()
    await pass_(store, LIFE)
    assert await totals(store) == (10, 50), "it expires again, also after a restart"


async def test_where_nothing_is_left_nothing_is_held_again(store: Store) -> None:
    first = await held(store, renewed=True)
    await pass_(store, LIFE)
    await held(store)
    state = await renew(store, first)
    assert (state.state, state.over) == ("expired", [first.reservation_id])
    assert await totals(store) == (0, 100)


async def test_without_a_journal_what_was_under_way_is_charged_once(store: Store) -> None:
    reply = await request(store, 80, renewed=True, unjournaled=True)
    await pass_(store, LIFE)
    assert await totals(store) == (80, 0)
    (event,) = await events(store)
    assert (event.cost_nanousd, event.flags) == (80, ["estimated", "in_doubt"])
    # The holder has lived after all, and was just not heard.
    await store.charge("late", 50, reservation_id=reply.reservation_id)
    assert await totals(store) == (80, 0)
    await store.charge("late", 50, reservation_id=reply.reservation_id)
    await store.charge("later", 40, reservation_id=reply.reservation_id)
    assert await totals(store) == (90, 0)
    flags = {each.event_id: (each.cost_nanousd, each.flags) for each in await events(store)}
    assert flags["late"] == (0, ["late", "prepaid"])
    assert flags["later"] == (10, ["late", "prepaid"])
    assert (await renew(store, reply)).state == "expired"


async def test_what_has_ended_is_not_under_way(store: Store) -> None:
    reply = await request(store, 80, renewed=True, unjournaled=True)
    await store.charge("e", 30, reservation_id=reply.reservation_id)
    await pass_(store, LIFE)
    await store.charge("more", 20, reservation_id=reply.reservation_id)
    assert await totals(store) == (50, 0)


async def test_with_a_journal_nothing_is_charged_here(store: Store) -> None:
    await request(store, 80, renewed=True)
    await pass_(store, LIFE)
    assert await totals(store) == (0, 0)


@pytest.mark.parametrize(("told", "charged"), [(None, 60), (45, 45), (0, 0), (1000, 100)])
async def test_a_lease_charges_what_its_last_update_said(
    store: Store, told: int | None, charged: int
) -> None:
    lease = wire.LeaseAsk(demand_nanousd=100)
    reply = await request(store, 60, unjournaled=True, lease=lease)
    assert reply.renew_ms == 0
    if told is not None:
        state = await renew(store, reply, under_way_nanousd=told)
        assert state.state == "open"
    spare = (await totals(store))[1]
    await pass_(store, LIFE)
    assert await totals(store) == (min(charged, spare), 0)


async def test_a_closed_lease_has_nothing_under_way(store: Store) -> None:
    reply = await request(store, 60, unjournaled=True, lease=wire.LeaseAsk(demand_nanousd=60))
    await renew(store, reply, close=True)
    await pass_(store, LIFE)
    assert await totals(store) == (0, 0)


async def test_the_life_is_the_organisations_setting(store: Store) -> None:
    settings = OrganisationSettings(lease_ttl_ms=2000)
    await store.storage.write(
        within(store.org), directory.update_organisation, ACTOR, store.org, settings
    )
    assert (await held(store, renewed=True)).renew_ms == 2000
    await pass_(store, 2000)
    assert await totals(store) == (0, 0)
