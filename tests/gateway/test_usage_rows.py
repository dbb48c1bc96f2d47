"""All rows of usage, page by page, are what the events come to, and together all that was used."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.gateway.domain.commands import PricedEvent
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.records import Key, UsageRow
from guard.gateway.ledger import directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.support import usage_history
from tests.support.store import ACTOR, Store, opened_store

QUARTER = 900_000
BY_MODEL = ("workflow", "user", "key", "team", "person", "tag:team", 'tag:a="b', "tag:none")
TEAMS = {"k": ("search", "ada"), "k.below": ("search", "grace"), "other": ("", "")}


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        yield store


async def all_rows(store: Store, limit: int, **query: Any) -> list[UsageRow]:
    found: list[UsageRow] = []
    after: dict[str, Any] = {}
    while True:
        page = await store.storage.usage_rows(store.org, **query, **after, limit=limit)
        found += page
        named = [row for row in page if row.group is not None]
        if len(named) < limit:
            return found
        after = {"after": named[-1].group, "after_model": named[-1].model or ""}


async def stored_events(store: Store) -> list[Any]:
    found: list[Any] = []
    while page := await store.storage.events(
        store.org, found[-1].event_seq if found else 0, 500, None, None
    ):
        found += page
    return found


def name_of(group_by: str, event: Any, priced: dict[str, PricedEvent]) -> str | None:
    if group_by.startswith("tag:"):
        return event.tags.get(group_by.removeprefix("tag:"))
    if group_by in ("team", "person"):
        return TEAMS.get(event.key_id, ("", ""))[group_by == "person"]
    if group_by == "provider":
        return priced[event.event_id].provider if event.event_id in priced else "p"
    if group_by == "tool":
        return event.data.get("tool_name") if event.type == "tool" else None
    column = {"workflow": "workflow_id", "key": "key_id"}.get(group_by, group_by)
    return getattr(event, column)


@pytest.mark.asyncio
@pytest.mark.generator("reports of all rows against their events")
@pytest.mark.parametrize("limit", [5, 1000])
async def test_the_pages_of_a_report_are_the_events(
    store: Store, limit: int, count_cases: Callable[[int], None]
) -> None:
    for key_id, (team, person) in TEAMS.items():
        key = Key(key_id=key_id, organisation_id=store.org, role="agent", name=key_id,
                  team=team, person=person)  # fmt: skip
        await store.storage.write(
            within(store.org), directory.create_key, ACTOR, key, key_id.encode(), None
        )
    charged = await usage_history.build(store)
    at_ms = {each.event.event_id: at for at, each in charged}
    priced = {each.event.event_id: each for _, each in charged}
    events = await stored_events(store)
    cases = 0
    for since_ms, until_ms in usage_history.ranges(store.clock.now).values():
        own = [e for e in events if since_ms <= at_ms.get(e.event_id, e.at_ms) < until_ms]
        total = (await store.storage.usage(store.org, "total", since_ms, until_ms, 1))[:1]
        for group_by in (*BY_MODEL, "model", "provider", "agent", "tool"):
            for by_model in (False, True)[: 1 + (group_by in BY_MODEL)]:
                rows = await all_rows(
                    store, limit, group_by=group_by, by_model=by_model, since_ms=since_ms,
                    until_ms=until_ms,
                )  # fmt: skip
                where = group_by, by_model, since_ms
                names = [(row.group or "", row.model or "") for row in rows]
                assert names == sorted(set(names)), where
                cost, count = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
                for event in own:
                    if name := name_of(group_by, event, priced):
                        of = (event.model or "") if by_model else ""
                        cost[name, of] += event.cost_nanousd
                        count[name, of] += 1
                found = {
                    (row.group, row.model or ""): (row.cost_nanousd, row.events)
                    for row in rows if row.group
                }  # fmt: skip
                assert found == {each: (cost[each], count[each]) for each in count}, where
                for number in ("events", "llm_calls", "cost_nanousd", "input_tokens"):
                    whole = sum(getattr(row, number) for row in rows)
                    assert whole == sum(getattr(row, number) for row in total), (where, number)
                cases += 1
    count_cases(cases)


@pytest.mark.asyncio
@pytest.mark.parametrize("group_by", ["agent", "model", "provider", "tool"])
async def test_a_kind_that_is_not_kept_by_model_is_refused(store: Store, group_by: str) -> None:
    with pytest.raises(ConflictError, match=f"usage by {group_by} is not kept by model"):
        await store.storage.usage_rows(store.org, group_by=group_by, by_model=True)
