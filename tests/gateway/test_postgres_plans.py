"""How PostgreSQL finds rows when tables grow faster than it looks how large they are."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from benchmarks._many_events import DAY, fill
from guard.core import wire
from guard.gateway.domain.commands import IngestCommand, PricedEvent
from guard.gateway.ledger import directory
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.storage.sql import spend_series
from guard.gateway.unit.state import ALL_ORGANISATIONS, NO_ORGANISATION
from tests.support import postgres
from tests.support.store import ACTOR, Clock, Store, ingest

ROWS = 20_000
_numbers = itertools.count()
_GROWN = (
    (
        "INSERT INTO idempotency_{} SELECT 'r' || n, '\\x00', 200, '\\x00'"
        " FROM generate_series(1, {}) n"
    ),
    (
        "INSERT INTO reservations SELECT 'r' || n, '{}', 'k', 'c', '1', 1, 0, 1, 1, 1, 'settled',"
        " 'declared', NULL, NULL, NULL, NULL, NULL, 'f', NULL FROM generate_series(1, {}) n"
    ),
)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    clock = Clock()
    storage = postgres.store(tmp_path, clock_ms=clock)
    await storage.open(lambda _: None)
    own = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    yield Store(storage, clock, own, lambda: None, [])
    await storage.close()


async def a_round(store: Store) -> None:
    """Decide calls together, then charge and settle them together."""
    answers = await asyncio.gather(
        *(store.gate(10, f"g{next(_numbers)}", workflow_id="w", run_id="r") for _ in range(8))
    )
    events = []
    for answer in answers:
        reservation = wire.decode(answer.body, wire.GateReply).reservation_id
        name = f"e{next(_numbers)}"
        event = wire.Event(event_id=name, type="llm", at_ms=1, reservation_id=reservation)
        events.append(PricedEvent(event, b"{}", cost=5, model="m", response_id=name, final=True))
    request = store.request(f"i{next(_numbers)}")
    await ingest(store.storage, IngestCommand(request=request, events=events))


async def rows_read(storage: Any) -> int:
    """Return how many rows were read by going through tables from end to end."""

    def flush(unit: Any) -> None:
        unit.connection.psycopg.execute("SELECT pg_stat_force_next_flush()")

    await storage.write(ALL_ORGANISATIONS, flush)
    await storage.write(ALL_ORGANISATIONS, lambda unit: None)
    sql = (
        "SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables"
        " WHERE schemaname = current_schema()"
    )
    return int((await storage.look_up(lambda reading: reading.rows(sql)))[0][0])


def grow(dsn: str, own: str) -> None:
    """Add rows, as minutes of traffic do."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.info.server_version < 150_000:
            pytest.skip("before version 15 it does not tell at once what was read")
        for number in (0, 1):
            connection.execute(_GROWN[0].format(number, ROWS).encode())
        connection.execute(_GROWN[1].format(own, ROWS).encode())


@pytest.mark.asyncio
async def test_plans_that_were_made_for_small_tables_do_not_read_large_ones(
    store: Store, tmp_path: Path
) -> None:
    storage = store.storage
    assert isinstance(storage, PostgresStorage)
    await store.budget(10**12)
    for _ in range(20):  # from the tenth time on, PostgreSQL keeps a plan
        await a_round(store)
    grow(postgres.dsn_of(tmp_path), store.org)
    before = await rows_read(storage)
    for _ in range(20):
        await a_round(store)
    assert await rows_read(storage) - before < ROWS


@pytest.mark.asyncio
async def test_a_page_of_one_agent_reads_the_rows_of_that_agent(tmp_path: Path) -> None:
    dsn, now_ms = postgres.url_of(tmp_path), 1_795_000_000_000
    edges = [now_ms - now_ms % DAY + day * DAY for day in range(-90, 2)]
    storage = PostgresStorage(dsn)
    await storage.open(lambda _: None)
    own = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    await storage.close()
    await asyncio.to_thread(fill, dsn, own, ROWS, now_ms, 7)

    def read(reading: Any) -> tuple[int, int]:
        counted = (
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
            " WHERE relid = 'usage'::regclass"
        )
        with reading.snapshot():
            before = reading.rows(counted)[0][0]
            found = spend_series.spend_of(reading, own, "agent", "a7", edges)
            return found.total.cost_nanousd, reading.rows(counted)[0][0] - before

    storage = PostgresStorage(dsn)
    await storage.open(lambda _: None)
    cost, rows = await storage.look_up(read)
    await storage.close()
    assert cost > 0
    assert rows <= 7 * 96 + 2  # its quarter hours; all agents have twenty times as many
