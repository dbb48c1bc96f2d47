"""A unit of work by itself: how many decisions the store commits, by the size of the group.

Run: ``python -m benchmarks.unit_of_work [--groups 16 64 256] [--seconds 3] [--rounds 3]``
``[--postgres URI] [--results FOLDER]``

A group of decisions comes at once and the next when all are answered, without HTTP or sockets, on
one organisation's budget, so that all meet at one row. Rows, in turns round after round:

- *prototype*: the least that a unit can do, by hand and without an event loop: lock and read the
  balance, judge in Python, insert the reservations and update the balance by ``unnest``, commit.
- *store, a hold*: a decision of the gateway's store that names a function and nothing else.
- *store, as asked*: the same as an agent asks it: a request that can be repeated, with a workflow,
  a run and a model, of which the store keeps account.
- *SQLite, as asked*: the same in the embedded store.
- *store, events* and *SQLite, events*: a batch of as many events, each charged; in events a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks._cluster import fresh_database
from benchmarks.gateway import _BODY
from benchmarks.scale import POSTGRES
from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.domain.commands import (
    Actor,
    EncodedAnswer,
    GateCommand,
    IngestCommand,
    PricedEvent,
    RequestOrigin,
)
from guard.gateway.domain.records import BudgetRule
from guard.gateway.ledger import catalogue, charge, directory, gate
from guard.gateway.storage.port import Storage
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import NO_ORGANISATION, touches_of, within

AMOUNT: Final = 1000
LIMIT: Final = 2**60
_IDS = IdFactory()
_OPERATOR = Actor("benchmark")
_TABLES = (
    "CREATE TABLE balance (balance_id bigint PRIMARY KEY, room bigint, reserved bigint)",
    "INSERT INTO balance VALUES (1, 1152921504606846976, 0)",
    (
        "CREATE TABLE reservation (reservation_id text PRIMARY KEY, balance_id bigint, amount"
        " bigint, created_at_ms bigint, expires_at_ms bigint, state text)"
    ),
)


# -- the prototype -----------------------------------------------------------------------------


def prototype(dsn: str, group: int, seconds: float) -> float:
    """Commit groups of holds; return how many holds a second."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in ("DROP TABLE IF EXISTS balance, reservation", *_TABLES):
            connection.execute(statement)
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            _prototype_unit(connection, group)
            done += group
        return done / (time.perf_counter() - began)


def _prototype_unit(connection: psycopg.Connection[Any], group: int) -> None:
    with connection.pipeline():
        connection.execute("BEGIN")
        locked = connection.execute(
            "SELECT balance_id, room, reserved FROM balance WHERE balance_id = ANY(%s)"
            " ORDER BY balance_id FOR UPDATE", ([1],)
        )  # fmt: skip
        (balance_id, room, reserved), now_ms = (
            locked.fetchone() or (0, 0, 0),
            int(time.time() * 1e3),
        )
        granted = []
        for _ in range(group):
            if reserved + AMOUNT <= room:
                reserved += AMOUNT
                granted.append(_IDS.unguessable(now_ms))
        count = len(granted)
        connection.execute(
            "INSERT INTO reservation SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[],"
            " %s::bigint[], %s::bigint[], %s::text[])",
            (granted, [balance_id] * count, [AMOUNT] * count, [now_ms] * count,
             [now_ms + 60_000] * count, ["open"] * count),
        )  # fmt: skip
        connection.execute(
            "UPDATE balance b SET reserved = g.reserved FROM unnest(%s::bigint[], %s::bigint[])"
            " g(balance_id, reserved) WHERE b.balance_id = g.balance_id",
            ([balance_id], [reserved]),
        )
        connection.execute("COMMIT")


# -- the store ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def opened(store: Storage) -> AsyncIterator[str]:
    """Open a store with one organisation and its budget; give the organisation's id."""
    await store.open(lambda events: None)
    try:
        own = (
            await store.write(NO_ORGANISATION, directory.create_organisation, _OPERATOR, "o")
        ).organisation_id
        wanted = BudgetRule(
            budget_id="", organisation_id=own, scope_kind="organisation", scope_id="",
            window="month", limit=LIMIT,
        )  # fmt: skip
        await store.write(within(wanted.organisation_id), catalogue.put_budget, _OPERATOR, wanted)
        yield own
    finally:
        await store.close()


def hold(own: str) -> GateCommand:
    """Ask for a hold and nothing else."""
    call = wire.GateRequest(call_id="c", kind="call", function="f")
    return GateCommand(
        request=RequestOrigin(organisation_id=own, key_id="k"), call=call, declared_nanousd=AMOUNT
    )


def as_asked(own: str) -> GateCommand:
    """Ask as an agent does: with a name for repeats, a workflow, a run and a model."""
    name = _IDS.uuid7(time.time_ns() // 1_000_000)
    call = wire.decode(json.dumps({**_BODY, "call_id": name}).encode(), wire.GateRequest)
    request = RequestOrigin(
        organisation_id=own, key_id="k", idempotency_key=name, fingerprint=b"f" * 32
    )
    return GateCommand(request=request, call=call, declared_nanousd=AMOUNT)


def decided(store: Storage, command: GateCommand) -> Awaitable[EncodedAnswer]:
    """Decide one call."""
    return store.write(touches_of(command), gate.gate, command)


def batch(own: str, count: int) -> IngestCommand:
    """Report as many LLM requests, each of a call, a run and a user of its own."""
    now_ms = time.time_ns() // 1_000_000
    events = []
    for _ in range(count):
        name = _IDS.uuid7(now_ms)
        event = wire.Event(
            event_id=name, type="llm", at_ms=now_ms, call_id=name, workflow_id="w", run_id=name,
            agent="a", user=f"u{name[-3:]}", data={"latency_ms": 900},
        )  # fmt: skip
        events.append(
            PricedEvent(
                event=event, data_json=b'{"latency_ms": 900}', cost=AMOUNT,
                price_source="published", provider="openai", model="gpt-4o",
                input_tokens=100, output_tokens=50,
            )
        )  # fmt: skip
    return IngestCommand(request=RequestOrigin(organisation_id=own, key_id="k"), events=events)


async def ask(store: Storage, own: str, make: Callable[[str], GateCommand], group: int) -> None:
    """Have a group of calls decided."""
    answers = await asyncio.gather(*(decided(store, make(own)) for _ in range(group)))
    if any(answer.status != 200 for answer in answers):
        raise RuntimeError("a decision was refused")


async def report(store: Storage, own: str, group: int) -> None:
    """Have a batch of events charged."""
    command = batch(own, group)
    answer = await store.write(touches_of(command), charge.ingest, command)
    if json.loads(answer.body)["accepted"] != group:
        raise RuntimeError("an event was not accepted")


Group = Callable[[Storage, str, int], Awaitable[None]]


async def of_store(make: Callable[[], Storage], once: Group, group: int, seconds: float) -> float:
    """Give a store groups; return how many decisions or events it commits a second."""
    store = make()
    async with opened(store) as own:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            await once(store, own, group)
            done += group
        return done / (time.perf_counter() - began)


# -- all ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def rows_of(postgres: str) -> Iterator[dict[str, Callable[[int, float], float]]]:
    """Give the rows, each of which takes the group's size and seconds."""
    with tempfile.TemporaryDirectory() as folder:

        def asking(command: Callable[[str], GateCommand]) -> Group:
            return lambda store, own, group: ask(store, own, command, group)

        def of(database: str, once: Group) -> Callable[..., float]:
            def run(group: int, seconds: float) -> float:
                if database == "SQLite":
                    path = Path(folder) / f"{_IDS.uuid7(0)}.sqlite3"
                    made: Callable[[], Storage] = lambda: SqliteStorage(path)  # noqa: E731
                    return asyncio.run(of_store(made, once, group, seconds))
                with fresh_database(postgres) as dsn:
                    made = lambda: PostgresStorage(dsn)  # noqa: E731
                    return asyncio.run(of_store(made, once, group, seconds))

            return run

        def by_hand(group: int, seconds: float) -> float:
            with fresh_database(postgres) as dsn:
                return prototype(dsn, group, seconds)

        yield {
            "prototype": by_hand,
            "store, a hold": of("PostgreSQL", asking(hold)),
            "store, as asked": of("PostgreSQL", asking(as_asked)),
            "SQLite, as asked": of("SQLite", asking(as_asked)),
            "store, events": of("PostgreSQL", report),
            "SQLite, events": of("SQLite", report),
        }


def main() -> None:
    """Measure, print, and write a file of results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgres", default=POSTGRES, metavar="URI")
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    options = parser.parse_args()
    found: dict[tuple[str, int], list[float]] = {}
    with rows_of(options.postgres) as rows:
        for _ in range(options.rounds):
            for group in options.groups:
                for name, row in rows.items():
                    found.setdefault((name, group), []).append(row(group, options.seconds))
    middle = {key: statistics.median(rounds) for key, rounds in found.items()}
    print(f"{'decisions or events a second':32}" + "".join(f"{g:>16}" for g in options.groups))
    written: dict[str, dict[str, dict[str, float]]] = {}
    for name in rows:
        line = f"{name:32}"
        for group in options.groups:
            per_s, ratio = middle[name, group], middle[name, group] / middle["prototype", group]
            line += f"{per_s:10,.0f} {ratio:5.2f}"
            figures = {"per_s": round(per_s), "of_prototype": round(ratio, 3)}
            written.setdefault(name, {})[str(group)] = figures
        print(line)
    if options.results is not None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}"
        target = options.results / f"unit-of-work-{today}.json"
        target.write_text(
            json.dumps({"date": today, "machine": machine, "rows": written}, indent=1)
        )
        print(f"written to {target}")


if __name__ == "__main__":
    main()
