"""Reservations that are renewed, and what was under way at a holder that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

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
from guard.gateway.domain.records import OrganisationSettings
from guard.gateway.domain.waiting import Place
from guard.gateway.ledger import directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.support.store import (
    ACTOR,
    Store,
    decide,
    ingest,
    opened_store,
    release,
    update_lease,
)

LIFE = 30_000
LONG = 900_000

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        await store.budget(100)
        await settings(store, lease_grace_ms=0)
        yield store


async def settings(store: Store, **changed: Any) -> None:
    wanted = OrganisationSettings(**changed)
    own = within(store.org)
    await store.storage.write(own, directory.update_organisation, ACTOR, store.org, wanted)


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


async def test_money_stays_set_aside_a_little_longer_than_its_holder_may_use_it(
    store: Store,
) -> None:
    await settings(store)
    reply = await held(store, 50, renewed=True)
    assert reply.renew_ms == LIFE
    leased = await held(store, 50, lease=wire.LeaseAsk())
    assert leased.lease is not None
    assert leased.lease.ttl_ms == LIFE
    await pass_(store, LIFE + 9_999)
    assert (await totals(store))[1] == 100
    state = await renew(store, reply)
    assert (state.state, state.ttl_ms) == ("open", LIFE), "it can still be renewed"
    assert await renew(store, leased) == wire.LeaseState(leased.lease.lease_id, "open", 50, LIFE)
    await pass_(store, LIFE + 10_000)
    assert await totals(store) == (0, 0)


async def test_what_was_under_way_is_charged_once(store: Store) -> None:
    reply = await request(store, 80, renewed=True)
    await pass_(store, LIFE)
    assert await totals(store) == (80, 0)
    (event,) = await events(store)
    assert (event.cost_nanousd, event.flags) == (80, ["estimated", "in_doubt"])
    assert (await renew(store, reply)).state == "expired"
    # The holder has lived after all, and was just not heard.
    await store.charge("late", 50, reservation_id=reply.reservation_id)
    assert await totals(store) == (50, 0)
    await store.charge("late", 50, reservation_id=reply.reservation_id)
    await store.charge("later", 40, reservation_id=reply.reservation_id)
    assert await totals(store) == (90, 0)
    found = {each.event_id: each.cost_nanousd for each in await events(store)}
    assert (found["late"], found["later"]) == (50, 40)
    assert await store.storage.doubts(store.org, 10) == []


async def test_what_was_not_sent_after_all_is_taken_back(store: Store) -> None:
    reply = await request(store, 80, renewed=True)
    await pass_(store, LIFE)
    assert reply.reservation_id is not None
    command = ReleaseCommand(request=store.request(), reservation_id=reply.reservation_id)
    await release(store.storage, command)
    assert await totals(store) == (0, 0)
    assert (await renew(store, reply)).state == "settled"


async def test_what_has_ended_is_not_under_way(store: Store) -> None:
    reply = await request(store, 80, renewed=True)
    await store.charge("e", 30, reservation_id=reply.reservation_id)
    await pass_(store, LIFE)
    await store.charge("more", 20, reservation_id=reply.reservation_id)
    assert await totals(store) == (50, 0)


async def test_a_model_on_the_callers_machine_leaves_no_doubt(store: Store) -> None:
    await request(store, 1, renewed=True, local=True)
    await pass_(store, LIFE)
    assert await totals(store) == (0, 0)


@pytest.mark.parametrize("told", [None, 60, 45, 0])
async def test_of_a_lease_all_that_it_still_holds_is_charged(
    store: Store, told: int | None
) -> None:
    """Of one that its holder has closed, what that says is still under way."""
    reply = await request(store, 60, lease=wire.LeaseAsk(demand_nanousd=100))
    assert reply.renew_ms == 0
    if told is not None:
        await renew(store, reply, close=True, under_way_nanousd=told)
    spare = (await totals(store))[1]
    await pass_(store, LIFE)
    assert await totals(store) == (spare if told is None else told, 0)


async def test_a_lease_for_calls_holds_room_only(store: Store) -> None:
    reply = await held(store, 60, lease=wire.LeaseAsk(demand_nanousd=60))
    await pass_(store, LIFE)
    assert await totals(store) == (0, 0)
    await request(store, 60, lease=wire.LeaseAsk(reply.reservation_id))
    await pass_(store, LIFE)
    assert await totals(store) == (60, 0), "one that requests were granted by does not"


@pytest.mark.parametrize("waits", [False, True])
async def test_a_question_that_names_a_lease_renews_it_also_where_it_waits(
    store: Store, waits: bool
) -> None:
    reply = await request(store, 60, lease=wire.LeaseAsk(demand_nanousd=60))
    for _ in range(4):
        await pass_(store, LIFE - 1)
        call = wire.GateRequest(
            call_id="c2", kind="llm", function="openai", model="m", max_input_tokens=0,
            max_output_tokens=90, lease=wire.LeaseAsk(reply.reservation_id),
        )  # fmt: skip
        place = Place(store.clock.now, store.clock.now, LIFE) if waits else None
        command = GateCommand(
            request=store.request(), call=call, rates=RATES, grants_lease=True, place=place
        )
        answer = await decide(store.storage, command)
        assert (answer.waits is not None) == waits
        assert waits or answer.status == 402
    assert await totals(store) == (0, 60)


async def test_a_late_event_and_its_holders_word_lower_the_doubt(store: Store) -> None:
    reply = await request(store, 60, lease=wire.LeaseAsk(demand_nanousd=60))
    await pass_(store, LIFE)
    await store.charge("late", 15, reservation_id=reply.reservation_id)
    assert await totals(store) == (60, 0)
    (doubt,) = await store.storage.doubts(store.org, 10)
    assert (doubt.doubt_nanousd, doubt.holder_gone, doubt.provider) == (45, True, "openai")
    assert await renew(store, reply, close=True, under_way_nanousd=20) == 404
    assert await totals(store) == (35, 0)
    assert await renew(store, reply, close=True, under_way_nanousd=30) == 404
    assert await totals(store) == (35, 0), "it is never raised"
    await store.charge("last", 5, reservation_id=reply.reservation_id)
    assert await renew(store, reply, close=True) == 404
    assert await totals(store) == (20, 0)
    assert await store.storage.doubts(store.org, 10) == []


@pytest.mark.parametrize("has_expired", [False, True])
async def test_the_journal_of_a_dead_holder_says_that_no_more_comes(
    store: Store, has_expired: bool
) -> None:
    reply = await request(store, 60, lease=wire.LeaseAsk(demand_nanousd=60))
    if has_expired:
        await pass_(store, LIFE)
    await store.charge("journal", 15, reservation_id=reply.reservation_id)
    event = wire.Event("gone", "span", 1, reservation_id=reply.reservation_id)
    priced = PricedEvent(event, b"{}", ends_holder=True)
    await ingest(store.storage, IngestCommand(request=store.request(), events=[priced]))
    await pass_(store, LIFE)
    assert await totals(store) == (15, 0)


async def test_a_refusal_says_what_of_the_limit_is_in_doubt(store: Store) -> None:
    await request(store, 80, renewed=True)
    await pass_(store, LIFE)
    call = wire.GateRequest(call_id="c", kind="call", function="f")
    command = GateCommand(request=store.request(), call=call, declared_nanousd=50)
    refused = wire.decode((await decide(store.storage, command)).body, wire.Problem)
    assert "charged in doubt" in (refused.reason or "")
    assert "guard gateway doubt list" in (refused.reason or "")
    assert refused.details["in_doubt"] == 80


async def test_the_life_is_the_organisations_setting(store: Store) -> None:
    await settings(store, lease_ttl_ms=2000, lease_grace_ms=0)
    assert (await held(store, renewed=True)).renew_ms == 2000
    await pass_(store, 2000)
    assert await totals(store) == (0, 0)
