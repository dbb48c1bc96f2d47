"""Rate caps: exact windows, counted with the money, by calls that ask and by leases that do not."""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.core import wire
from guard.gateway.domain.commands import GateCommand, LeaseCommand
from guard.gateway.domain.rate_window import EXACT_MAX, PARTS, CapUse, RateWindow
from guard.gateway.domain.waiting import Place
from guard.gateway.storage.port import Storage
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.unit.state import within
from tests.support import postgres
from tests.support.store import Store, decide, opened_store, update_lease

MINUTE = 60_000
USES = (CapUse("b", 12, MINUTE),)
_numbers = itertools.count()


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        yield store


async def ask(
    store: Store,
    uses: tuple[CapUse, ...] = USES,
    *,
    cost: int = 0,
    lease: wire.LeaseAsk | None = None,
    key: str | None = None,
    **command: Any,
) -> tuple[int, dict[str, Any]]:
    number = key or f"call {next(_numbers)}"
    call = wire.GateRequest(call_id=number, kind="call", function="f", lease=lease)
    given_command = {"declared_nanousd": cost, "caps": uses, **command}
    if lease is not None:
        given_command |= {"grants_lease": True, "lane_caps": uses}
    answer = await decide(
        store.storage, GateCommand(request=store.request(number), call=call, **given_command)
    )
    return answer.status, wire.decode(answer.body, dict[str, Any])


async def wait_ms(store: Store, uses: tuple[CapUse, ...] = USES) -> int | None:
    """Ask for one call; return the wait that a refusal names, and ``None`` for an allowed call."""
    status, body = await ask(store, uses)
    if status == 200:
        return None
    assert (status, body["error_code"]) == (429, "GD-R001")
    return int(body["retry_after_ms"])


async def free(store: Store, uses: tuple[CapUse, ...] = USES) -> int:
    """Use up what is left, and return how much that was."""
    count = 0
    while await wait_ms(store, uses) is None:
        count += 1
    return count


async def lent(store: Store, wanted: int, **fields: Any) -> tuple[str, int]:
    """Ask for a call with a lease of so many; return the lease and the calls that it allows."""
    _, body = await ask(store, lease=wire.LeaseAsk(demand_calls=wanted, **fields))
    return body["lease"]["lease_id"], body["lease"]["calls"]


async def give_back(store: Store, lease_id: str, calls: int, *, close: bool = False) -> None:
    update = wire.LeaseUpdate(lease_id, calls_left=calls, close=close)
    request = store.request(f"update {next(_numbers)}")
    await update_lease(store.storage, LeaseCommand(request=request, update=update))


@pytest.mark.asyncio
async def test_calls_count_for_one_window(store: Store) -> None:
    for number in range(12):
        store.clock.now += 1000
        assert await wait_ms(store) is None, number
    assert await wait_ms(store) == MINUTE - 11_000
    store.clock.now += MINUTE - 11_000
    assert await free(store) == 1


@pytest.mark.asyncio
async def test_a_call_counts_under_every_cap_or_under_none(store: Store) -> None:
    wide, narrow = CapUse("wide", 3, MINUTE), CapUse("narrow", 1, 1000)
    assert await wait_ms(store, (wide, narrow)) is None
    assert await wait_ms(store, (wide, narrow)) == 1000
    assert await wait_ms(store, (wide,)) is None
    assert await wait_ms(store, (wide,)) is None, "the refused one did not count"
    assert await wait_ms(store, (wide,)) == MINUTE
    assert await wait_ms(store, (CapUse("none", 0, MINUTE),)) == 1000


@pytest.mark.asyncio
async def test_a_call_that_money_refuses_does_not_count(store: Store) -> None:
    await store.budget(10)
    for _ in range(20):
        assert (await ask(store, cost=11))[0] == 402
    assert await free(store) == 12


@pytest.mark.asyncio
async def test_a_repeated_question_counts_once(store: Store) -> None:
    for _ in range(20):
        assert (await ask(store, key="the same"))[0] == 200
    assert await free(store) == 11


@pytest.mark.asyncio
async def test_a_call_that_waits_in_line_counts_when_it_gets_its_place(store: Store) -> None:
    few = (CapUse("b", 3, MINUTE),)
    await store.budget(10)
    assert (await ask(store, few, cost=10))[0] == 200
    place = Place(store.clock.now, store.clock.now, MINUTE)
    for _ in range(2):
        assert (await ask(store, few, cost=5, place=place))[1]["decision"] == "waiting"
    for _ in range(5):  # the gatekeeper names no caps for one that has a place
        assert (await ask(store, (), cost=5, place=place))[1]["decision"] == "waiting"
    assert await wait_ms(store, few) == MINUTE


@pytest.mark.asyncio
async def test_a_call_that_may_wait_for_its_turn_is_told_when_that_is(store: Store) -> None:
    pacing = (CapUse("paced", 1, MINUTE, waits=True), *USES)
    assert (await ask(store, pacing))[1]["decision"] == "allow"
    store.clock.now += 1000
    for _ in range(20):
        _, body = await ask(store, pacing)
        assert (body["decision"], body["retry_after_ms"]) == ("waiting", MINUTE - 1000)
    assert await free(store) == 11, "one that waits for its turn counts under no cap"


@pytest.mark.asyncio
async def test_calls_at_once_never_exceed_the_cap(store: Store) -> None:
    waits = await asyncio.gather(*(wait_ms(store) for _ in range(60)))
    assert waits.count(None) == 12


@pytest.mark.asyncio
async def test_lent_calls_count_until_they_are_given_back(store: Store) -> None:
    first, calls = await lent(store, 100)
    assert calls == 1 + 5, "itself, and half of what is left, for one to come"
    second, calls = await lent(store, 2)
    assert calls == 2
    await give_back(store, first, 4)
    await give_back(store, first, 4)
    assert await free(store) == 12 - 2 - 2
    await give_back(store, second, 1, close=True)
    assert await free(store) == 1
    assert (await store.storage.verify_ledger()).problems == []


@pytest.mark.asyncio
async def test_a_question_gives_back_what_its_lease_has_left(store: Store) -> None:
    lease_id, calls = await lent(store, 5)
    assert calls == 5
    again, calls = await lent(store, 3, lease_id=lease_id, calls_left=4)
    assert (again, calls) == (lease_id, 3)
    assert await free(store) == 12 - 2 - 2


@pytest.mark.asyncio
async def test_lent_calls_may_be_made_until_the_lease_ends(store: Store) -> None:
    await lent(store, 6)
    store.clock.now += 29_999
    assert await free(store) == 6
    store.clock.now += MINUTE - 30_000  # the first call and the others leave the window
    await store.storage.sweep()
    store.clock.now += 30_000
    assert await free(store) == 12 - 5, "those of the lease count from its end"
    store.clock.now += MINUTE
    assert await free(store) == 12


@pytest.mark.asyncio
async def test_a_failed_command_counts_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    assert await wait_ms(store) is None
    with monkeypatch.context() as patch:
        patch.setattr("guard.gateway.ledger.idempotency.keep", fails)
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                await ask(store)
    assert await free(store) == 11


@pytest.mark.asyncio
async def test_what_was_counted_outlives_the_process(store: Store) -> None:
    assert await free(store) == 12
    await store.reopen()
    assert await wait_ms(store) == MINUTE


@pytest.mark.asyncio
async def test_windows_that_have_ended_are_deleted(store: Store) -> None:
    def windows(unit: Any) -> int:
        return int(unit.row("SELECT count(*) FROM rate_windows")[0])

    for number in range(5):
        await ask(store, (CapUse(f"agent {number}", 1, MINUTE),))
    await lent(store, 3)
    assert await store.storage.write(within(store.org), windows) == 6
    store.clock.now += 3_600_000 + MINUTE
    await store.storage.sweep()
    store.clock.now += MINUTE
    await store.storage.sweep()
    assert await store.storage.write(within(store.org), windows) <= 1


@pytest.mark.asyncio
async def test_replicas_count_together(store: Store, tmp_path: Any) -> None:
    if not isinstance(store.storage, PostgresStorage):
        pytest.skip("a SQLite file has one gateway")
    other = postgres.store(tmp_path, clock_ms=store.clock)
    await other.open(lambda _: None)
    there = Store(other, store.clock, store.org, store.reopen, [])
    found = [await wait_ms(each) for _ in range(7) for each in (store, there)]
    assert found == [None] * 12 + [MINUTE] * 2
    await other.close()


# -- the window ------------------------------------------------------------------------------------

_steps = st.lists(
    st.tuples(st.integers(0, 1500), st.integers(1, 3), st.integers(1, 40)), max_size=300
)


@settings(max_examples=200, deadline=None)
@given(steps=_steps)
def test_no_window_has_more_calls_than_the_cap(steps: list[tuple[int, int, int]]) -> None:
    """Few calls are exact; of many each counts a part of the window too long at most."""
    per_ms, now = 6400, 1_000_000
    window, made = RateWindow(per_ms), collections.deque[int]()
    most = 0
    for passed, calls, cap in steps:
        now += passed
        window = window.at(now, per_ms)
        for _ in range(calls):
            wait = window.wait_ms(CapUse("", cap, per_ms), now)
            inside = sum(1 for each in made if each > now - per_ms)
            if wait == 0:
                assert inside < cap
                window = window.plus(1, now)
                made.append(now)
            elif len(window.times) < EXACT_MAX and most < EXACT_MAX:
                assert inside >= cap, "it had room"
                assert wait == made[-cap] + per_ms - now
            else:
                late = per_ms // PARTS + 1
                assert sum(1 for each in made if each > now - per_ms - late) >= cap
        most = max(most, len(window.times))
    assert most <= EXACT_MAX + PARTS + 2


def test_a_window_of_many_calls_stays_small() -> None:
    window = RateWindow(MINUTE)
    for now in range(200_000):
        window = window.at(now, MINUTE).plus(1, now)
    assert window.made >= MINUTE
    assert len(window.times) <= EXACT_MAX + PARTS + 2
