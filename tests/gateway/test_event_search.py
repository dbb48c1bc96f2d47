"""Which events a search finds: every combination of its fields, on both engines, page by page."""

from __future__ import annotations

import random
from typing import Any

import pytest

from guard.core import wire
from guard.gateway.domain.commands import PricedEvent
from guard.gateway.domain.records import EventSearch
from guard.gateway.domain.usage import DAY_MS, HOUR_MS
from guard.gateway.storage.port import NEWEST
from guard.gateway.storage.sql import dashboard
from tests.gateway.test_spend_series import NOON, TAGS, fill, store  # noqa: F401  # a fixture
from tests.support.store import Store

EVENTS = 400


def fits(search: EventSearch, event: wire.Event, priced: PricedEvent, at_ms: int) -> bool:
    """The same in Python."""
    named = (
        (search.workflow_id, event.workflow_id), (search.type, event.type),
        (search.run_id, event.run_id), (search.call_id, event.call_id),
        (search.event_id, event.event_id), (search.user, event.user),
        (search.agent, event.agent), (search.model, priced.model),
    )  # fmt: skip
    return (
        all(wanted is None or wanted == own for wanted, own in named)
        and (search.tag is None or event.tags.get(search.tag[0]) == search.tag[1])
        and (search.cost_nanousd is None or priced.cost >= search.cost_nanousd)
        and (search.since_ms is None or at_ms >= search.since_ms)
        and (search.until_ms is None or at_ms < search.until_ms)
    )


def drawn(pick: random.Random) -> EventSearch:
    tags = [pair for tags in TAGS for pair in tags.items()]
    choices: dict[str, Any] = {
        "workflow_id": "w1", "type": pick.choice(["llm", "tool", "span"]), "agent": "a1",
        "run_id": f"r{pick.randrange(40)}", "user": f"u{pick.randrange(20)}",
        "model": f"m{pick.randrange(12)}",
        "tag": pick.choice([*tags, ("team", "none"), ("t", "%")]),
        "call_id": f"c{pick.randrange(40)}-3", "event_id": f"e{pick.randrange(40)}-7",
        "cost_nanousd": pick.randrange(10**6),
        "since_ms": NOON - pick.randrange(4 * DAY_MS),
        "until_ms": NOON - pick.randrange(4 * DAY_MS),
    }  # fmt: skip
    asked = pick.sample(sorted(choices), pick.choice([0, 1, 1, 2, 3]))
    return EventSearch(**{name: choices[name] for name in asked})


@pytest.mark.asyncio
@pytest.mark.parametrize("scanned", [37, 20_000])
async def test_a_search_finds_what_fits_and_no_more(
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    scanned: int,
) -> None:
    """Also where it looks at a part at a time: the pages together are the whole."""
    monkeypatch.setattr(dashboard, "SCAN_MAX", scanned)
    made = await fill(store, EVENTS)
    pick = random.Random(scanned)
    found_some = 0
    for _ in range(120):
        search = drawn(pick)
        expected = [e.event_id for e, priced, at_ms in made if fits(search, e, priced, at_ms)]
        before, found = NEWEST, list[str]()
        for _ in range(EVENTS):
            page = await store.storage.newest_events(store.org, before, 7, search)
            found += [each.event_id for each in page.events]
            after = page.events[-1].event_seq if len(page.events) == 7 else page.further
            if after is None:
                break
            before = after
        assert found == expected[::-1], search
        found_some += bool(found)
    assert found_some > 30


@pytest.mark.asyncio
async def test_a_time_long_ago_is_found_at_once(
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by way of all that was charged since."""
    monkeypatch.setattr(dashboard, "SCAN_MAX", 30)
    monkeypatch.setattr(dashboard, "_CLOCKS_MS", 0)
    made = await fill(store, EVENTS)
    since_ms, until_ms = NOON - 3 * DAY_MS, NOON - 3 * DAY_MS + 4 * HOUR_MS
    search = EventSearch(since_ms=since_ms, until_ms=until_ms, type="llm")
    found = await store.storage.newest_events(store.org, NEWEST, 5, search)
    expected = [e.event_id for e, priced, at_ms in made if fits(search, e, priced, at_ms)]
    assert [each.event_id for each in found.events] == expected[::-1][:5]
    # And what is over says so: nothing older is looked at.
    recent = EventSearch(since_ms=NOON - HOUR_MS, type="span")
    assert (await store.storage.newest_events(store.org, NEWEST, 5, recent)).further is None
