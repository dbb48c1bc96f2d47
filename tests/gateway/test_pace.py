"""What a scope has used in each hour of the last day, on both engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from guard.gateway.domain.records import ScopeKind
from guard.gateway.domain.usage import HOUR_MS
from guard.gateway.storage.port import Storage
from tests.support.store import Store, opened_store


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    """A store whose clock the test turns."""
    async with opened_store(storage_factory, tmp_path) as opened:
        yield opened


@pytest.mark.asyncio
async def test_each_kind_of_scope_tells_what_it_has_used(store: Store) -> None:
    start_ms = store.clock()
    keys = {"workflow_id": "w", "agent": "a", "user": "u"}
    await store.charge("old", 7, **keys)
    store.clock.now += 30 * HOUR_MS
    await store.charge("one", 10, **keys)
    store.clock.now += 2 * HOUR_MS
    await store.charge("two", 20, **keys)
    await store.charge("three", 5, workflow_id="other")
    cases: list[tuple[ScopeKind, str, list[int]]] = [
        ("organisation", "", [10, 25]), ("workflow", "w", [10, 20]), ("agent", "a", [10, 20]),
        ("user", "u", [10, 20]), ("user", "nobody", []), ("tag", "team=x", []), ("key", "k", []),
    ]  # fmt: skip
    for kind, scope_id, expected in cases:
        found = await store.storage.used_lately(store.org, kind, scope_id)
        assert [each.cost_nanousd for each in found] == expected, (kind, scope_id)
        assert all(each.since_ms > start_ms and each.since_ms % HOUR_MS == 0 for each in found)
    calls = await store.storage.used_lately(store.org, "workflow", "w")
    assert [each.calls for each in calls] == [1, 1]
