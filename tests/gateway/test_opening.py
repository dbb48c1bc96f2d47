"""What a window has already cost: the right sum, from a bounded number of rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core import wire
from guard.gateway.domain import windows
from guard.gateway.domain.commands import PricedEvent
from guard.gateway.storage.sqlite import schema as sqlite_schema
from guard.gateway.unit.state import SCOPE_KINDS
from guard.gateway.unit.tables import UnitBase
from guard.gateway.unit.usage import UsageTable

NOW = 1_800_000_000_000
HOUR = windows.HOUR_MS


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("opening") / "g.sqlite3"
    connection = sqlite_schema.connect(str(path), durable=False)
    sqlite_schema.migrate(connection)
    yield connection
    connection.close()


def insert(connection: sqlite3.Connection, number: int, row: dict[str, Any]) -> None:
    full = {"organisation_id": "o", "event_id": f"e{number}", "type": "llm", "at_ms": 1,
            "received_at_ms": NOW, "input_tokens": 0, "output_tokens": 0, "flags": "",
            "balance_ids": "[]", "data": "{}", **row}  # fmt: skip
    places = ",".join("?" * len(full))
    connection.execute(
        f"INSERT INTO events ({','.join(full)}) VALUES ({places})", list(full.values())
    )


def count(table: UsageTable, row: dict[str, Any]) -> None:
    event = wire.Event(event_id="e", type="llm", at_ms=1)
    keys = (row["workflow_id"], row["agent"], row["chain_id"], row["user_id"], row["key_id"],
            (), (row["model"],) if row["model"] else ())  # fmt: skip
    priced = PricedEvent(event, b"{}", cost=row["cost_nanousd"], model=row["model"])
    table.count(row["organisation_id"], keys, row["charged_at_ms"], priced)


ids = st.sampled_from(["a", "b"])
events = st.lists(
    st.fixed_dictionaries({
        "organisation_id": st.sampled_from(["o", "other"]), "key_id": ids,
        "workflow_id": ids | st.none(), "agent": ids | st.none(), "chain_id": ids | st.none(),
        "user_id": ids | st.none(),
        "model": ids | st.none(), "cost_nanousd": st.integers(0, 9),
        "age": st.integers(-20, 70 * 24), "fate": st.sampled_from(["stays", "flushed", "undone"]),
    }), max_size=30,
)  # fmt: skip
kinds = st.sampled_from(["organisation", *SCOPE_KINDS, "model"])
every_window = st.sampled_from(["hour", "day", "week", "month", "total"])


@given(events, kinds, every_window)
def test_the_sum_is_that_of_the_windows_events(
    connection: sqlite3.Connection, found: list[dict[str, Any]], kind: str, window: Any
) -> None:
    """In whatever order they come, written or not yet, and by a clock that was ahead by hours."""
    column = {"workflow": "workflow_id", "chain": "chain_id", "user": "user_id",
              "key": "key_id"}.get(kind, kind)  # fmt: skip
    start_ms, end_ms = windows.period_of(window, NOW)
    scope_id = "" if kind == "organisation" else "a"
    tables = UnitBase(connection)
    tables.now_ms = NOW
    table = UsageTable(tables)
    expected = 0
    connection.execute("BEGIN")
    try:
        for number, drawn in enumerate(found):
            row = {key: value for key, value in drawn.items() if key not in ("age", "fate")}
            row["charged_at_ms"] = NOW - drawn["age"] * HOUR
            tables.savepoint()
            count(table, row)
            if drawn["fate"] == "undone":
                tables.undo()
                continue
            insert(connection, number, row)
            if drawn["fate"] == "flushed":
                table.flush()
            if (
                row["organisation_id"] == "o"
                and start_ms <= row["charged_at_ms"] < (end_ms or 2**62)
                and (kind == "organisation" or row[column] == "a")
            ):
                expected += row["cost_nanousd"]
        assert table.used("o", kind, scope_id, start_ms, end_ms)[0] == expected
        table.flush()
        assert table.used("o", kind, scope_id, start_ms, end_ms)[0] == expected
    finally:
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("kind", ["user", "workflow", "organisation", "model", "tag"])
def test_a_month_is_opened_from_a_bounded_number_of_rows(
    connection: sqlite3.Connection, kind: str
) -> None:
    """However many others were in use, and however many events there were."""
    tables = UnitBase(connection)
    start_ms, end_ms = windows.period_of("month", NOW)
    tables.now_ms = NOW
    table = UsageTable(tables)

    def steps() -> int:
        count = [0]
        connection.set_progress_handler(lambda: count.__setitem__(0, count[0] + 1) or 0, 10)
        try:
            table.used("o", kind, {"model": "m", "tag": "team=a"}.get(kind, "a"), start_ms, end_ms)
        finally:
            connection.set_progress_handler(None, 0)
        return count[0]

    def use(scopes: int, events: int) -> None:
        for at in range(start_ms, NOW, 6 * HOUR):
            for number in range(scopes):
                name = f"other{number}" if number else "a"
                event = wire.Event("e", "llm", at, tags={"team": name})
                keys = (name, None, None, name, "k", (), ())
                for _ in range(events):
                    table.count("o", keys, at, PricedEvent(event, b"{}", cost=1, model="m"))
        table.flush()

    connection.execute("BEGIN")
    try:
        use(1, 1)
        few = steps()
        use(30, 10)
        assert steps() <= few * 1.1 + 10
    finally:
        connection.execute("ROLLBACK")
