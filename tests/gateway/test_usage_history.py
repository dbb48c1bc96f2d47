"""Every report over thirteen months of usage is what it was before usage was kept in one table."""

from __future__ import annotations

import collections
import gzip
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import IngestCommand, PricedEvent
from guard.gateway.storage.port import Storage
from tests.support import usage_history
from tests.support.store import Store, ingest, opened_store

_EXPECTED = Path(__file__).parent / "data" / "usage_history.json.gz"


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        yield store


def _comparable(name: str, report: Any) -> Any:
    """Leave out what was not known, or not exact, before.

    Which doubts belong to no scope of a kind is what is left of all, of which bills have resolved
    some; doubt was not known by tag; and an adjustment had a key without a name. A budget for each
    key showed the doubts of the keys below one, which it does not count.
    """
    if name.startswith("usage by "):
        report = [{key: row[key] for key in row if key != "model"} for row in report]
    if name.startswith("usage by ") and name.split(",")[0][9:] in usage_history.KINDS:
        rows = [{**row, "group": row["group"] or None} for row in report]
        return [
            {key: row[key] for key in row if row["group"] or "uncertain" not in key}
            for row in rows
        ]  # fmt: skip
    if name.startswith("spend by "):
        parts = [*report["series"], report["total"]]
        return [{key: each[key] for key in each if "uncertain" not in key} for each in parts]
    if name in ("balances", "fullest", "spend of w1"):
        for row in report["budgets"] if name == "spend of w1" else report:
            row.pop("zone", None)
            if row.get("scope_kind", row.get("scope", "")).startswith("key"):
                row.update(dict.fromkeys((key for key in row if "uncertain" in key), None))
    if name in ("balances", "fullest"):  # amounts were called after money, whatever they count
        report = [{key.removesuffix("_nanousd"): row[key] for key in row} for row in report]
    if name.startswith("workflow"):
        return [{key: row[key] for key in row if key != "llm_calls"} for row in report]
    if name == "balances":  # those without spending are kept some days longer
        return [row for row in report if row["committed"]]
    return report


LATE = {("user", "u3", "month")}


@pytest.mark.asyncio
async def test_every_report_is_what_it_was(store: Store) -> None:
    charged = await usage_history.build(store)
    kept = json.loads(gzip.decompress(_EXPECTED.read_bytes()))
    expected = {name: each for name, each in kept.items() if not name.startswith("in doubt")}
    found = await usage_history.reports(store)
    assert found.keys() == expected.keys()
    for name, report in found.items():
        said, wanted = _comparable(name, report), _comparable(name, expected[name])
        if name == "balances":  # of budgets that are set late: no call had shown them then
            late = [row for row in said if row not in wanted]
            assert {(row["scope_kind"], row["scope_id"], row["window"]) for row in late} == LATE
            said = [row for row in wanted if row in said]  # and those are made sooner
        assert said == wanted, name
    first_ms = usage_history.BEGIN - usage_history.BEGIN % usage_history.DAY
    month = (first_ms + 90 * usage_history.DAY, first_ms + 120 * usage_history.DAY)
    page = await store.storage.workflow_page(store.org, "", "spend", 0, 50, month)
    spent = [workflow.spent_nanousd for workflow in page]
    assert spent == sorted(spent, reverse=True)
    assert spent[0] > 0
    for workflow in page:
        used = await store.storage.spend_of(store.org, "workflow", workflow.workflow_id, month)
        calls = sum(used.total.llm_calls)
        assert (workflow.spent_nanousd, workflow.llm_calls) == (used.total.cost_nanousd, calls)
    llm = collections.Counter(e.event.workflow_id for _, e in charged if e.event.type == "llm")
    named = {workflow_id: count for workflow_id, count in llm.items() if workflow_id}
    assert {row["workflow_id"]: row["llm_calls"] for row in found["workflows"]} == named


@pytest.mark.asyncio
async def test_usage_by_tool_is_the_sum_of_its_events_in_any_time(store: Store) -> None:
    charged = await usage_history.build(store)
    ranges = usage_history.ranges(store.clock.now)
    middle = charged[len(charged) // 2][0]
    ranges["from and to a moment"] = (middle - 100 * usage_history.DAY, middle)
    ranges["less than a quarter hour"] = (middle, middle + 1)
    for name, (since_ms, until_ms) in ranges.items():
        expected: dict[str, list[int]] = {}
        for at_ms, event in charged:
            if event.event.type == "tool" and since_ms <= at_ms < until_ms:
                own = expected.setdefault(event.event.data["tool_name"], [0, 0])
                own[0] += 1
                own[1] += event.cost
        rows = await store.storage.usage(store.org, "tool", since_ms, until_ms, 40)
        found = {row.group: [row.events, row.cost_nanousd] for row in rows if row.group}
        assert found == expected, name
        assert all(row.tool_calls == row.events for row in rows if row.group)
        total = await store.storage.usage(store.org, "total", since_ms, until_ms, 1)
        for number in ("events", "llm_calls", "tool_calls", "input_tokens", "cost_nanousd"):
            whole = sum(getattr(row, number) for row in rows)
            assert whole == sum(getattr(row, number) for row in total), (name, number)


@pytest.mark.asyncio
async def test_of_what_costs_the_same_the_most_used_comes_first(store: Store) -> None:
    """A limit leaves out the tools that are used least, not those late in the alphabet."""
    events = [
        PricedEvent(wire.Event(f"e{at}", "tool", 1, data={"tool_name": tool}), b"{}")
        for at, tool in enumerate(["a", "b", "c", "b", "c", "c"])
    ]
    await ingest(store.storage, IngestCommand(request=store.request("i"), events=events))
    rows = await store.storage.usage(store.org, "tool", 0, 2**53, 2)
    assert [(row.group, row.events) for row in rows] == [("c", 3), ("b", 2)]
