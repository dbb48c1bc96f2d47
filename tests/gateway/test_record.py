"""Rows as structs: what is written for one row or for many is what is read, on both engines."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guard.core.wire import NANOUSD_MAX
from guard.gateway.domain import records
from guard.gateway.domain.estimates import Estimate
from guard.gateway.domain.ledger import Balance, MeteredHold, Reservation
from guard.gateway.storage.postgres.connection import WriteConnection
from guard.gateway.storage.postgres.migrations import PostgresMigrator
from guard.gateway.storage.postgres.silence_watchdog import AnswerWatch
from guard.gateway.storage.sqlite import schema
from guard.gateway.unit.record import StructTable, Table
from guard.gateway.unit.rows import BALANCES, BUDGETS, CHAINS, ESTIMATES, RESERVATIONS
from guard.gateway.unit.state import ChainState
from tests.support import postgres


@pytest.fixture(scope="module")
def postgres_connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WriteConnection]:
    url = postgres.url_of(tmp_path_factory.mktemp("record"))
    PostgresMigrator(url).up(dry_run=False)
    watch = AnswerWatch()
    watch.start()
    with contextlib.closing(WriteConnection(url, "test", watch)) as connection:
        yield connection
    watch.close()


@pytest.fixture(scope="module")
def sqlite_connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("record") / "gateway.sqlite3"
    with contextlib.closing(schema.connect(str(path), durable=False)) as connection:
        schema.migrate(connection)
        connection.execute("PRAGMA foreign_keys = OFF")
        yield connection


@pytest.fixture(params=["sqlite", "postgres"])
def connection(request: pytest.FixtureRequest) -> Iterator[Any]:
    found = request.getfixturevalue(f"{request.param}_connection")
    found.execute("BEGIN")
    yield found
    found.execute("ROLLBACK")


_NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_NUMBERS = st.integers(-(2**62), 2**62)
_MAYBE = st.none() | _NAMES
_HOLDS = st.builds(
    MeteredHold, st.sampled_from(["tokens", "calls"]), st.lists(st.integers(1, 9)).map(tuple),
    st.integers(0, 99), st.integers(0, 9), st.integers(0, 9),
)  # fmt: skip
RESERVATION = st.builds(
    Reservation, _NAMES, _NAMES, _NAMES, _NAMES, st.lists(st.integers(1, 2**40)).map(tuple),
    _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, st.sampled_from(["open", "settled"]),
    st.sampled_from(["declared", "lease"]), _MAYBE, _MAYBE, _MAYBE, _MAYBE, _MAYBE, _NAMES, _MAYBE,
    st.booleans(), _NUMBERS, st.booleans(), st.lists(_HOLDS, max_size=2).map(tuple),
)  # fmt: skip
_SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@_SETTINGS
@given(st.lists(RESERVATION, max_size=5, unique_by=lambda each: each.reservation_id))
def test_what_is_written_is_read(connection: Any, found: list[Reservation]) -> None:
    connection.execute("DELETE FROM reservations")
    connection.change(RESERVATIONS.insert(), map(RESERVATIONS.row, found))
    rows = connection.execute(RESERVATIONS.select()).fetchall()
    by_id = {each.reservation_id: each for each in map(RESERVATIONS.read, rows)}
    assert by_id == {each.reservation_id: each for each in found}
    for each in found:
        each.held, each.metered, each.closing = 7, (), not each.closing
    names = ("held", "metered", "closing")
    values = RESERVATIONS.values(*names, "reservation_id")
    connection.change(RESERVATIONS.update(names), map(values, found))
    rows = connection.execute(RESERVATIONS.select()).fetchall()
    assert {each.reservation_id: each for each in map(RESERVATIONS.read, rows)} == by_id | {
        each.reservation_id: each for each in found
    }
    connection.change(RESERVATIONS.delete(), [(each.reservation_id,) for each in found[1:]])
    assert len(connection.execute(RESERVATIONS.select()).fetchall()) == len(found[:1])


def test_one_row_and_many_are_written_alike(connection: Any) -> None:
    organisation = ("o", "name", 1, "{}", 0, None)
    connection.execute(Table("organisations").insert().one, organisation)
    for record, apart in (
        (Balance(4, "b", "s", 0, None, exhausted=True), ()),
        (ChainState(1, 2, True, "w"), ("o", "c")),
        (Estimate(3, 0.25, 1e-9, None, 5), ("o", "s")),
        (records.BudgetRule(budget_id="b", organisation_id="o", scope_kind="tag", scope_id="*",
                            window="day", limit=9, unit="calls", counts=['a"b', "é"]), ()),
    ):  # fmt: skip
        table: StructTable[Any] = {
            Balance: BALANCES, ChainState: CHAINS, Estimate: ESTIMATES,
            records.BudgetRule: BUDGETS,
        }[type(record)]  # fmt: skip
        row = table.row(record, *apart)
        connection.execute(table.insert().one, row)
        (one,) = connection.execute(table.select()).fetchall()
        connection.change(table.delete(), [tuple(row[list(table.columns).index(k)]
                                                 for k in table.key)])  # fmt: skip
        connection.change(table.insert(), [row])
        (many,) = connection.execute(table.select()).fetchall()
        assert tuple(one) == tuple(many)
        assert table.read(many) == record


def test_an_upsert_sets_keeps_and_adds(connection: Any) -> None:
    paces = Table("channel_pace")
    change = paces.upsert(
        keep=("digest_id",), add=("pace_told", "pace_from_ms"), sets={"digest_due_ms": "7"}
    )
    connection.change(change, [("c", 1, 2, "first", 3), ("other", 1, 2, "first", 3)])
    connection.change(change, [("c", NANOUSD_MAX, 5, "second", 4)])
    found = connection.execute(f"{paces.select()} WHERE channel_id = ?", ("c",)).fetchone()
    # No sum passes the largest amount.
    assert tuple(found) == ("c", NANOUSD_MAX, 7, "first", 7)


def test_rows_that_are_there_can_be_ignored(connection: Any) -> None:
    nonces = Table("nonces")
    assert connection.change(nonces.insert(ignore=True), [("k", "n", 1)]).rowcount == 1
    assert (
        connection.change(nonces.insert(ignore=True), [("k", "n", 2), ("k", "m", 2)]).rowcount == 1
    )
    connection.change(nonces.update((), add=("expires_at_ms",), by=("key_id",)), [(5, "k")])
    rows = connection.execute("SELECT nonce, expires_at_ms FROM nonces ORDER BY nonce").fetchall()
    assert [tuple(row) for row in rows] == [("m", 7), ("n", 6)]


def test_the_schema_is_read_as_it_stands() -> None:
    assert Table("budgets").key == ("budget_id",)
    assert Table("directives").key == ("organisation_id", "target", "run_id", "slot")
    assert list(Table("facts").columns) == ["name", "value"]
    assert '"window"' in BUDGETS.select()
