"""Spend over time, what a search finds, and what is known of one scope, on both engines."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import IngestCommand, PricedEvent
from guard.gateway.domain.records import EventSearch
from guard.gateway.domain.spend_series import GROUPS
from guard.gateway.domain.usage import DAY_MS, HOUR_MS
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sql import finding
from guard.gateway.storage.sql.usage_report import COLUMNS, OF_KEYS
from tests.support.store import Store, ingest, opened_store

NOON = 1_800_000_000_000 - 1_800_000_000_000 % DAY_MS + 5 * DAY_MS + 12 * HOUR_MS
LOCAL_DAYS = [NOON - 12 * HOUR_MS - 5 * HOUR_MS + at * DAY_MS for at in range(-3, 2)]
UTC_DAYS = [NOON - 12 * HOUR_MS + at * DAY_MS for at in range(-3, 2)]
HOURS = [NOON - 24 * HOUR_MS + at * HOUR_MS for at in range(26)]
LATE_HOURS = [NOON - 40 * HOUR_MS + at * HOUR_MS for at in range(31)]
MORNING = [NOON - 31 * HOUR_MS + at * HOUR_MS for at in range(5)]
HOSTILE = 'a": "b\\", "team'


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        yield store


async def fill(store: Store, number: int) -> list[tuple[wire.Event, PricedEvent, int]]:
    """Charge events over three days; return them with their time."""
    pick = random.Random(7)
    made = []
    store.clock.now = NOON - 3 * DAY_MS
    for batch in range(number // 10):
        store.clock.now = NOON - 3 * DAY_MS + batch * 3 * DAY_MS // (number // 10)
        events = []
        for at in range(10):
            kind = pick.choice(["llm", "llm", "tool"])
            event = wire.Event(
                event_id=f"e{batch}-{at}", type=kind, at_ms=store.clock.now,
                workflow_id=pick.choice(["w0", "w1", "w2"]), run_id=f"r{batch}",
                agent=pick.choice([None, "a0", "a1"]),
                user=pick.choice([None, *(f"u{n}" for n in range(20))]),
                call_id=f"c{batch}-{at}", tags=pick.choice(TAGS),
            )  # fmt: skip
            cost = pick.randrange(10**6) if kind == "llm" else 0
            model = f"m{pick.randrange(12)}" if kind == "llm" else None
            events.append(PricedEvent(event, b"{}", cost=cost, model=model))
            made.append((event, events[-1], store.clock.now))
        command = IngestCommand(request=store.request(f"i{batch}"), events=events)
        await ingest(store.storage, command)
    store.clock.now = NOON
    return made


TAGS: list[dict[str, str]] = [
    {}, {"team": "search"}, {"team": "ads", "tier": "free"}, {"tier": "paid", HOSTILE: HOSTILE},
    {"team": HOSTILE},
]  # fmt: skip


def scope_of(event: wire.Event, priced: PricedEvent, group_by: str) -> str | None:
    if group_by.startswith("tag:"):
        return event.tags.get(group_by.removeprefix("tag:"))
    if group_by == "model":
        return priced.model
    if group_by in ("key", "team", "person"):
        return "k" if group_by == "key" else None
    found: str | None = getattr(event, {"workflow": "workflow_id"}.get(group_by, group_by))
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "edges",
    [LOCAL_DAYS, UTC_DAYS, HOURS, LATE_HOURS, MORNING],
    ids=["local", "utc", "hours", "late", "morning"],
)
async def test_every_division_agrees_with_the_events(store: Store, edges: list[int]) -> None:
    made = await fill(store, 400)
    groups = [*GROUPS, "tag:team", "tag:tier", f"tag:{HOSTILE}", "tag:none"]
    for group_by in groups:
        expected: dict[str | None, list[int]] = {}
        calls: dict[str | None, int] = {}
        for event, priced, at_ms in made:
            step = next((n for n, end in enumerate(edges[1:]) if edges[0] <= at_ms < end), None)
            if step is not None:
                name = scope_of(event, priced, group_by)
                expected.setdefault(name, [0] * (len(edges) - 1))[step] += priced.cost
                calls[name] = calls.get(name, 0) + (event.type == "llm")
        nobody = expected.pop(None, None)
        ranked = sorted(expected, key=lambda name: (-sum(expected[name]), name or ""))
        ranked = [name for name in ranked if sum(expected[name])]
        for limit in (2, 30):
            found = await store.storage.spend_by(store.org, group_by, edges, limit)
            named = [each for each in found.series if each.scope_id is not None]
            assert [each.scope_id for each in named] == ranked[:limit], group_by
            for each in named:
                assert each.costs_nanousd == expected[each.scope_id]
                assert sum(each.llm_calls) == calls[each.scope_id]
            left = [each for each in found.series if each.scope_id is None]
            others = [expected[name] for name in ranked[limit:]]
            others += [nobody] if nobody else []
            sums = [sum(step) for step in zip(*others, strict=True)]
            assert [each.costs_nanousd for each in left] == ([sums] if sum(sums) else [])
        for name in [*ranked[:3], "unknown"]:
            one = await store.storage.spend_of(store.org, group_by, str(name), edges)
            assert one.total.costs_nanousd == expected.get(name, [0] * (len(edges) - 1))


@pytest.mark.asyncio
async def test_the_names_of_tags_are_known(store: Store) -> None:
    await fill(store, 100)
    assert await store.storage.tag_names(store.org, 10) == sorted({HOSTILE, "team", "tier"})
    assert await store.storage.tag_names(store.org, 1) == [HOSTILE]
    assert await store.storage.tag_names("another", 10) == []


@pytest.mark.asyncio
async def test_steps_that_are_no_quarter_hours_are_refused(store: Store) -> None:
    for edges in ([0], [0, 5], [at * HOUR_MS for at in range(500)]):
        with pytest.raises(ValueError, match="whole quarter hours"):
            await store.storage.spend_by(store.org, "model", edges, 5)


@pytest.mark.asyncio
async def test_a_search_finds_what_begins_so_and_nothing_of_others(store: Store) -> None:
    await fill(store, 100)

    async def kinds(text: str, limit: int = 50) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for each in await store.storage.find(store.org, text, limit):
            found.setdefault(each.kind, []).append(each.id)
        return found

    assert await kinds("w") == {"workflow": ["w0", "w1", "w2"]}
    assert await kinds("r3") == {"run": ["r3"]}
    assert (await kinds("c3-"))["call"] == [f"c3-{at}" for at in range(10)]
    assert (await kinds("e3-", 4))["event"] == [f"e3-{at}" for at in range(4)]
    assert set((await kinds("u1"))["user"]) <= {"u1", *(f"u1{n}" for n in range(10))}
    assert (await kinds("a"))["agent"] == ["a0", "a1"]
    assert "m0" in (await kinds("m"))["model"]
    for text in ("", "%", "_", "W", "w0%", "nothing", "\U0010ffff"):
        assert await kinds(text) == {}, text
    assert await store.storage.find("another", "w", 5) == []


@pytest.mark.asyncio
async def test_a_refused_call_is_found(store: Store) -> None:
    await store.budget(1)
    answer = await store.gate(10, "i1", workflow_id="w")
    assert answer.status == 402
    (found,) = [f for f in await store.storage.find(store.org, "", 5) if f.kind == "call"] or [None]
    assert found is None
    rows = await store.storage.refusals(store.org, None, 2**62, 5)
    (call,) = await store.storage.find(store.org, rows[0].call_id, 5)
    assert (call.kind, call.id, call.workflow_id) == ("call", rows[0].call_id, "w")


@pytest.mark.asyncio
async def test_the_events_of_a_scope_and_what_they_were_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await fill(store, 200)
    for group_by in (*GROUPS, "tag:team", f"tag:{HOSTILE}"):
        for name in {scope_of(*each[:2], group_by) for each in made} - {None}:
            own = [each for each in made if scope_of(*each[:2], group_by) == name]
            found = await store.storage.events_of_scope(store.org, group_by, str(name), 5)
            assert [e.event_id for e in found.events] == [e.event_id for e, *_ in own[:-6:-1]]
            assert (found.counted, found.is_cut) == (len(own), False)
            assert sum(use.cost_nanousd for use in found.uses) == sum(p.cost for _, p, _ in own)
            assert found.since_ms == own[0][2]
    monkeypatch.setattr(finding, "SCAN_MAX", 50)
    monkeypatch.setattr(finding, "USES_MAX", 3)
    found = await store.storage.events_of_scope(store.org, "user", "u1", 5)
    assert (found.counted, found.is_cut) == (3, True)
    assert (await store.storage.events_of_scope(store.org, "workflow", "w1", 5)).is_cut
    events = await store.storage.newest_events(store.org, 2**62, 5, EventSearch(call_id="c3-4"))
    assert [each.event_id for each in events.events] == ["e3-4"]


@pytest.mark.asyncio
async def test_the_balances_of_a_scope_are_found_among_many(store: Store) -> None:
    await store.budget(10**9, scope_kind="user", scope_id="*")
    await fill(store, 100)
    found = await store.storage.balances_of(store.org, [("user", "u3"), ("user", "nobody")], 5)
    assert [(each.scope_kind, each.scope_id) for each in found] == [("user", "u3")]


@pytest.mark.asyncio
async def test_latency_counts_what_events_say(store: Store) -> None:
    def priced(number: int, kind: str, data: Any, **fields: Any) -> PricedEvent:
        event = wire.Event(event_id=f"e{number}", type=kind, at_ms=1, run_id="r", **fields)
        model = "m" if kind == "llm" else None
        return PricedEvent(event, json.dumps(data).encode(), model=model)

    events = [
        *(priced(at, "llm", {"latency_ms": at}, span_id=f"s{at}") for at in range(1, 21)),
        priced(30, "llm", {"latency_ms": "soon"}),
        priced(31, "llm", {"estimate": "bound", "latency_ms": True}),
        priced(32, "llm", {"estimate": ["odd"]}),
        priced(40, "span", {"kind": "call", "outcome": "error"}, span_id="s1"),
        priced(41, "span", {"kind": "call", "outcome": "ok"}, span_id="s2"),
        priced(42, "span", {"kind": "call", "outcome": {}}, span_id="elsewhere"),
        priced(43, "span", {"kind": "span", "outcome": "error"}, span_id="s3"),
        priced(44, "span", [], span_id="s4"),
    ]
    await ingest(store.storage, IngestCommand(request=store.request("i"), events=events))
    report = await store.storage.latency(store.org, 0, 2**53)
    (found,) = report.models
    assert (report.looked_at, report.is_cut) == (len(events), False)
    assert (found.requests, found.measured, found.lost) == (23, 20, 1)
    assert (found.p50_ms, found.p95_ms) == (10, 19)
    assert (found.calls, found.failed) == (2, 1)
    assert (await store.storage.latency("another", 0, 2**53)).models == []


def test_every_kind_of_scope_has_a_column() -> None:
    assert set(GROUPS) <= {*COLUMNS, *OF_KEYS}
