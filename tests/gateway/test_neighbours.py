"""No operation, however large, is one long unit of work: what others wait for has a bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks._many_events import fill
from guard.gateway.dashboard import exports, tables
from guard.gateway.embedded import run_gateway
from guard.gateway.storage.group_writer import HEAVY_WEIGHT_MAX, GroupWriter
from tests.support import postgres
from tests.support.neighbour import PASSWORD, Neighbour, told

ROWS_MAX = 30 * HEAVY_WEIGHT_MAX
"""Rows that one unit of work may write: an event has a row of its own and a few of each sum."""

WHOLE = ("apply", "apply and prune")
"""Rules take effect together or not at all, so they are one unit, as large as a request may be."""


class Units:
    """What each unit of work had to do, and each step of an export."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weights: list[int] = []
        self.rows: list[int] = []
        self.lines: list[int] = []
        attempt, csv_lines, json_rows = GroupWriter._attempt, tables.csv_lines, tables.json_rows

        def attempted(writer: Any, group: Any) -> Any:
            before = writer._unit.changed_rows
            found = attempt(writer, group)
            self.weights.append(sum(item.weight for item in group if item.begun))
            self.rows.append(writer._unit.changed_rows - before)
            return found

        def as_csv(columns: Any, found: Any) -> str:
            self.lines.append(len(found))
            return csv_lines(columns, found)

        def as_json(found: Any, *, is_first: bool) -> bytes:
            self.lines.append(len(found))
            return json_rows(found, is_first=is_first)

        monkeypatch.setattr(GroupWriter, "_attempt", attempted)
        monkeypatch.setattr(tables, "csv_lines", as_csv)
        monkeypatch.setattr(tables, "json_rows", as_json)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> Units:
    return Units(monkeypatch)


@pytest.fixture(params=["sqlite", "postgres"])
def neighbour(request: pytest.FixtureRequest, tmp_path: Path, units: Units) -> Iterator[Neighbour]:
    """An organisation that has had many events, and asks for more."""
    database = str(tmp_path / "gateway.sqlite3")
    if request.param == "postgres":
        database = postgres.url_of(tmp_path)
    with run_gateway(database) as gateway:
        own = gateway.admin.request("GET", "/organisations")[0]["organisation_id"]
        key = gateway.admin.create_key()
        gateway.admin.set_password("neighbour", PASSWORD)
        for kind, scope_id in (("organisation", ""), ("workflow", "*"), ("user", "*")):
            gateway.admin.set_budget(10**11, scope_kind=kind, scope_id=scope_id, window="month")
    now_ms = time.time_ns() // 1_000_000
    fill(database, own, 5000, now_ms, 10)
    with run_gateway(database) as gateway:
        made = Neighbour(gateway.base_url, gateway.admin_key, own, key, now_ms, 0, rules=100)
        made.sign_in(gateway.base_url, "neighbour")
        yield made
        made.close()


@pytest.mark.generator("operations at their largest: no long unit of work")
@pytest.mark.timeout(600)
def test_no_operation_is_one_long_unit_of_work(
    neighbour: Neighbour, units: Units, count_cases: Callable[[int], None]
) -> None:
    long: dict[str, tuple[int, int, int]] = {}
    operations = neighbour.operations()
    for name, operation in operations.items():
        for found in (units.weights, units.rows, units.lines):
            found.clear()
        answer = operation()
        assert answer.status_code in (200, 202), told(name, answer)
        weight, rows, lines = (max(each, default=0) for each in
                               (units.weights, units.rows, units.lines))  # fmt: skip
        if lines > exports.BATCH + 1:  # and one that says that there are more
            long[name] = weight, rows, lines
        if name not in WHOLE and (weight > HEAVY_WEIGHT_MAX or rows > ROWS_MAX):
            long[name] = weight, rows, lines
    assert not long
    count_cases(len(operations))
