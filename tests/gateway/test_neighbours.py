"""No operation, however large, is one long unit of work: what others wait for has a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

from benchmarks._many_events import fill
from guard.gateway.bootstrap import first_run
from guard.gateway.dashboard import exports, site, tables
from guard.gateway.domain import policy
from guard.gateway.domain.records import Policy, Rates
from guard.gateway.embedded import run_gateway
from guard.gateway.services import catalogue
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.storage.group_writer import HEAVY_WEIGHT_MAX, GroupWriter
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.rows import wall_clock_ms
from tests.support import postgres
from tests.support.neighbour import PASSWORD, Neighbour, told

ROWS_MAX = 30 * HEAVY_WEIGHT_MAX
"""Rows that one unit of work may write: an event has a row of its own and a few of each sum."""


class Units:
    """What each unit of work had to do, each step of an export, and each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weights: list[int] = []
        self.rows: list[int] = []
        self.lines: list[int] = []
        self.pieces: list[int] = []
        self.policies: list[int] = []
        generate, compiled = jinja2.Template.generate, policy.compiled
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

        def of_page(template: jinja2.Template, *values: Any) -> Iterator[str]:
            loop, counting = asyncio._get_running_loop(), list[bool]()
            for piece in generate(template, *values):
                if loop is not None and not counting:
                    self.pieces.append(0)
                    counting.append(True)
                    loop.call_soon(counting.clear)  # at its next turn
                if loop is not None:
                    self.pieces[-1] += 1
                yield piece

        def at_once(template: jinja2.Template, *values: Any) -> str:
            return "".join(of_page(template, *values))

        def of_rules(policies: Iterable[Policy]) -> list[policy.Rules]:
            found = compiled(policies)
            if asyncio._get_running_loop() is not None:
                self.policies.append(len(found))
            return found

        monkeypatch.setattr(jinja2.Template, "generate", of_page)
        monkeypatch.setattr(jinja2.Template, "render", at_once)
        monkeypatch.setattr(policy, "compiled", of_rules)
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
    bounds = {"weights": HEAVY_WEIGHT_MAX, "rows": ROWS_MAX,
              "lines": exports.BATCH + 1,  # and one that says that there are more
              "pieces": site.PIECES, "policies": catalogue.COMPILED}  # fmt: skip
    long: dict[str, dict[str, int]] = {}
    most = dict.fromkeys(bounds, 0)
    operations = neighbour.operations()
    for name, operation in operations.items():
        if name.startswith("page"):
            operation()  # compiles it, in a thread
        for what in bounds:
            getattr(units, what).clear()
        answer = operation()
        assert answer.status_code in (200, 202), told(name, answer)
        largest = {what: max(getattr(units, what), default=0) for what in bounds}
        most = {what: max(most[what], largest[what]) for what in bounds}
        if any(largest[what] > bounds[what] for what in bounds):
            long[name] = largest
    assert all(most.values()), f"nothing was measured of some: {most}"
    assert not long
    count_cases(len(operations))


@pytest.mark.asyncio
async def test_one_of_many_who_wait_for_a_view_reads_it(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "gateway.sqlite3")
    await storage.open(lambda _: None)
    made = await first_run(storage, wall_clock_ms())
    assert made is not None
    cache = CatalogueCache(storage, Rates(input_per_mtok=1, output_per_mtok=1), wall_clock_ms)
    read, times = storage.policies, list[str]()

    async def counted(organisation_id: str) -> list[Policy]:
        times.append(organisation_id)
        found = await read(organisation_id)
        if len(times) == 1:
            cache.forget("another")  # changes nothing of this one
        return found

    storage.policies = counted  # type: ignore[method-assign]
    views = await asyncio.gather(*(cache.view(made.organisation_id) for _ in range(20)))
    await storage.close()
    assert times == [made.organisation_id]
    assert all(view is views[0] for view in views)
