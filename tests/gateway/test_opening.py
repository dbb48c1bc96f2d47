"""What a window has already cost: the right sum, without going through the events of others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.gateway.domain import windows
from guard.gateway.storage.sqlite import schema as sqlite_schema
from guard.gateway.storage.sqlite.spending import spent_before

NOW = 1_800_000_000_000
DAY = 86_400_000
COLUMNS = ("workflow_id", "agent", "chain_id", "key_id", "model")
KINDS = ("workflow", "agent", "chain", "key", "model")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("opening") / "g.sqlite3"
    connection = sqlite_schema.connect(str(path), durable=False)
    sqlite_schema.migrate(connection)
    yield connection
    connection.close()


def insert(connection: sqlite3.Connection, rows: list[dict[str, Any]]) -> None:
    for number, row in enumerate(rows):
        full = {"organisation_id": "o", "event_id": f"e{number}", "type": "llm", "at_ms": 1,
                "key_id": "k", "input_tokens": 0, "output_tokens": 0, "flags": "",
                "balance_ids": "[]", "data": "{}", **row}  # fmt: skip
        places = ",".join("?" * len(full))
        connection.execute(
            f"INSERT INTO events ({','.join(full)}) VALUES ({places})",
            list(full.values()),
        )


ids = st.sampled_from(["a", "b"])
events = st.lists(
    st.fixed_dictionaries({
        "organisation_id": st.sampled_from(["o", "other"]), "key_id": ids,
        "workflow_id": ids | st.none(), "agent": ids | st.none(), "chain_id": ids | st.none(),
        "model": ids | st.none(), "cost_nanousd": st.integers(0, 9),
        "age": st.integers(0, 70 * 24), "delay": st.integers(0, 50),
    }), max_size=30,
)  # fmt: skip


kinds = st.sampled_from(["organisation", *KINDS])
every_window = st.sampled_from(["hour", "day", "month", "total"])


@given(events, kinds, every_window)
def test_the_sum_is_that_of_the_windows_events(
    connection: sqlite3.Connection, found: list[dict[str, Any]], kind: str, window: Any
) -> None:
    hour = windows.HOUR_MS
    rows = []
    for event in found:
        row = {name: value for name, value in event.items() if name not in ("age", "delay")}
        received = NOW - event["age"] * hour
        rows.append(row | {"received_at_ms": received,
                           "charged_at_ms": received - event["delay"] * hour})  # fmt: skip
    rows.sort(key=lambda row: row["received_at_ms"])
    period_start_ms, ends_ms = windows.period_of(window, NOW)
    scope_id = "" if kind == "organisation" else "a"
    expected = sum(
        row["cost_nanousd"]
        for row in rows
        if row["organisation_id"] == "o"
        and period_start_ms <= row["charged_at_ms"] < (ends_ms or 2**62)
        and (kind == "organisation" or row[COLUMNS[KINDS.index(kind)]] == "a")
    )
    connection.execute("BEGIN")
    try:
        insert(connection, rows)
        connection.execute("INSERT INTO archived_spend VALUES ('o', ?, ?, 1000)", (kind, scope_id))
        total = spent_before(connection, "o", kind, scope_id, period_start_ms, ends_ms)
    finally:
        connection.execute("ROLLBACK")
    assert total == expected + (1000 if window == "total" else 0)


@pytest.mark.parametrize("window", ["hour", "day", "month", "total"])
@pytest.mark.parametrize("kind", ["workflow", "chain"])
def test_a_new_scope_does_not_go_through_the_events_of_others(
    connection: sqlite3.Connection, kind: str, window: Any
) -> None:
    count = 20_000
    period_start_ms, ends_ms = windows.period_of(window, NOW)
    steps = 0

    def count_steps() -> int:
        nonlocal steps
        steps += 100
        return 0

    connection.execute("BEGIN")
    try:
        insert(connection, [
            {"received_at_ms": NOW + number, "charged_at_ms": NOW + number,
             "cost_nanousd": 1, "workflow_id": f"w{number % 500}", "chain_id": f"c{number % 500}"}
            for number in range(count)
        ])  # fmt: skip
        connection.set_progress_handler(count_steps, 100)
        try:
            for scope_id, expected in (("new", 0), (f"{kind[0]}7", 40)):
                found = spent_before(connection, "o", kind, scope_id, period_start_ms, ends_ms)
                assert found == expected
        finally:
            connection.set_progress_handler(None, 100)
    finally:
        connection.execute("ROLLBACK")
    assert 0 < steps + 100 < count / 4, "steps of the database's machine"


@pytest.mark.parametrize("window", ["hour", "day", "month"])
def test_a_busy_workflow_begins_a_window_without_its_past(
    connection: sqlite3.Connection, window: Any
) -> None:
    count, steps = 20_000, 0

    def count_steps() -> int:
        nonlocal steps
        steps += 100
        return 0

    period_start_ms, ends_ms = windows.period_of(window, NOW)
    times = [period_start_ms - count + number for number in range(count)] + [
        period_start_ms,
        period_start_ms + 1,
    ]
    times = [at if at >= period_start_ms else at - DAY for at in times]
    connection.execute("BEGIN")
    try:
        insert(connection, [
            {"received_at_ms": at, "charged_at_ms": at, "cost_nanousd": 1, "workflow_id": "w"}
            for at in times
        ])  # fmt: skip
        connection.set_progress_handler(count_steps, 100)
        try:
            found = spent_before(connection, "o", "workflow", "w", period_start_ms, ends_ms)
        finally:
            connection.set_progress_handler(None, 100)
    finally:
        connection.execute("ROLLBACK")
    assert found == 2
    assert steps < count / 4
