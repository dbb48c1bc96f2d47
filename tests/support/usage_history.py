"""Thirteen months of usage, and every report over it, which a change of the totals must not change.

Events of all kinds with tags and doubt, bills that resolve doubt and adjust, late and deleted
events. The same seed makes the same history on every engine.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain.commands import IngestCommand, PricedEvent
from guard.gateway.domain.records import Billed
from guard.gateway.ledger import reconciliation
from guard.gateway.unit.state import within
from tests.support.store import ACTOR, Store, ingest

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR
BEGIN: Final = 1_800_000_000_000
MONTHS: Final = 13
EVENTS: Final = 600
KINDS: Final = ("workflow", "agent", "chain", "user", "key", "run")
DIVISIONS: Final = ("model", "provider", "type", "day", "hour", "total", *KINDS)
TOOLS: Final = ('"a\\', "é", "c")
_TAGS: Final[list[dict[str, str]]] = [
    {}, {}, {"team": "search"}, {"team": "ads", "tier": "free"}, {"tier": "paid", 'a="b': "=é, \\"},
]  # fmt: skip


def _maybe(pick: random.Random, prefix: str, count: int) -> str | None:
    number = pick.randrange(count + 1)
    return f"{prefix}{number}" if number else None


def _event(pick: random.Random, store: Store, number: int) -> PricedEvent:
    kind = pick.choice(["llm"] * 6 + ["tool", "span"])
    workflow = _maybe(pick, "w", 5)
    event = wire.Event(
        event_id=f"e{number}", type=kind, at_ms=store.clock.now, workflow_id=workflow,
        run_id=f"{workflow}-r{number // 7}" if workflow else None, agent=_maybe(pick, "a", 3),
        chain_id=_maybe(pick, "c", 20), user=_maybe(pick, "u", 12), call_id=f"call{number}",
        tags=pick.choice(_TAGS),
    )  # fmt: skip
    if kind != "llm":
        cost = pick.choice([0, 0, 17])
        if kind == "tool":
            event.data = {"tool_name": f"tool {TOOLS[number % 3]}"}
        return PricedEvent(event, wire.encode(event.data), cost=cost)
    in_doubt = pick.random() < 0.15
    flags = " ".join(
        flag for flag, is_set in (("in_doubt", in_doubt), ("unpriced", pick.random() < 0.1))
        if is_set
    )  # fmt: skip
    return PricedEvent(
        event, b"{}", cost=pick.randrange(1, 10**9), flags=flags, provider=pick.choice(["p", "q"]),
        model=f"m{pick.randrange(4)}-2025-01-0{pick.randrange(1, 3)}",
        input_tokens=pick.randrange(5000), output_tokens=pick.randrange(500),
    )  # fmt: skip


async def build(store: Store, seed: int = 1, events: int = EVENTS) -> list[tuple[int, PricedEvent]]:
    """Charge the events, month by month, with budgets that are set in the middle of it.

    Returns:
        When each was charged, and the event.
    """
    pick = random.Random(seed)
    store.clock.now = BEGIN
    step = MONTHS * 30 * DAY // events
    batch: list[PricedEvent] = []
    charged: list[tuple[int, PricedEvent]] = []
    for number in range(events):
        store.clock.now += pick.randrange(2 * step)
        batch.append(_event(pick, store, number))
        if pick.random() < 0.5:
            command = IngestCommand(
                request=store.request(f"b{number}", key_id=pick.choice(["k", "k.below", "other"])),
                events=batch,
            )
            await ingest(store.storage, command)
            charged += [(store.clock.now, each) for each in batch]
            batch = []
        if number == events // 2:
            for kind, scope_id in (("workflow", "*"), ("user", "u3"), ("agent", "*"),
                                   ("organisation", ""), ("model", "*"), ("chain", "*"),
                                   ("key", "*")):  # fmt: skip
                for window in ("total", "month", "day"):
                    await store.budget(10**15, scope_kind=kind, scope_id=scope_id, window=window)
        if number and number % (events // 6) == 0:
            await _reconcile(store, pick)
    return charged


async def _reconcile(store: Store, pick: random.Random) -> None:
    day = store.clock.now - store.clock.now % DAY - pick.randrange(20) * DAY
    billed = [
        Billed(start_ms=day, width_ms=DAY, model=f"m{number}", cost_nanousd=pick.randrange(10**9))
        for number in range(4)
    ]
    charged = await store.storage.charged_hours(store.org, *reconciliation.span_of(billed), "p")
    await store.storage.write(
        within(store.org), reconciliation.book, ACTOR, store.org,
        reconciliation.judged(billed, charged), "p", "bill.csv", 1, 1,
    )  # fmt: skip


def ranges(now_ms: int) -> dict[str, tuple[int, int]]:
    hour = now_ms - now_ms % HOUR
    return {
        "all": (0, 2**53),
        "a year": (hour - 365 * DAY, hour),
        "a month of days": (BEGIN - BEGIN % DAY + 90 * DAY, BEGIN - BEGIN % DAY + 120 * DAY),
        "hours": (hour - 100 * HOUR, hour - 3 * HOUR),
        "of a day": (hour - 20 * DAY - 5 * HOUR, hour - 19 * DAY),
    }


async def reports(store: Store) -> dict[str, Any]:
    """Return every report, as JSON has it."""
    storage, own = store.storage, store.org
    found: dict[str, Any] = {}
    for name, (since_ms, until_ms) in ranges(store.clock.now).items():
        for group_by in DIVISIONS:
            if group_by in ("hour", "day") and name == "all":
                continue
            rows = await storage.usage(own, group_by, since_ms, until_ms, 40)
            found[f"usage by {group_by}, {name}"] = rows
        if name == "all":
            continue
        steps = (until_ms - since_ms) // HOUR
        width = -(-steps // 300) * HOUR
        edges = [*range(since_ms, until_ms, width), until_ms]
        for group_by in ("model", "workflow", "user", "agent", "tag:team", 'tag:a="b', "tag:none"):
            found[f"spend by {group_by}, {name}"] = await storage.spend_by(own, group_by, edges, 3)
        found[f"spend of a user, {name}"] = await storage.spend_of(own, "user", "u3", edges)
        for size_ms in (HOUR, DAY):
            for workflow_id in (None, "w2") if size_ms == HOUR else (None,):
                found[f"over time by {size_ms} of {workflow_id}, {name}"] = (
                    await storage.spend_over_time(
                        own, size_ms, since_ms - since_ms % DAY, until_ms, size_ms, workflow_id
                    )
                )  # fmt: skip
    for group_by in ("workflow", "user", "agent", "organisation"):
        scope_id = {"workflow": "w1", "user": "u3", "agent": "a1", "organisation": ""}[group_by]
        found[f"lately {group_by}"] = await storage.used_lately(own, group_by, scope_id)
    found["workflows"] = await storage.workflows(own, "", 100)
    for sort in ("seen", "spend", "name"):
        found[f"workflows by {sort}"] = await storage.workflow_page(own, "", sort, 0, 3)
    found["runs"] = await storage.runs(own, None, "", 1000)
    found["runs of w3"] = await storage.newest_runs(own, "w3", 20, (0, 2**53))
    found["balances"] = await storage.balances(own, current_only=False)
    found["fullest"] = await storage.fullest_balances(own, 100)
    found["tags"] = await storage.tag_names(own, 10)
    keys = ("w1", "a1", None, "u3", "k", (), ("m1-2025-01-01", "m1"))
    found["spend of w1"] = await storage.spend(own, keys, None)
    return {name: _shown(name, value) for name, value in found.items()}


def _shown(name: str, value: Any) -> Any:
    """Return a report as JSON, without ids, and without steps in which nothing was used."""
    shown = msgspec.to_builtins(value)
    if name.startswith("over time"):
        shown = [
            row for row in shown if row["cost_nanousd"] or row["llm_calls"] + row["tool_calls"]
        ]
    for row in shown if isinstance(shown, list) else [shown]:
        if not isinstance(row, dict):
            continue
        for each in (row, *row.get("budgets", [])):
            for key in ("budget_id", "balance_id"):
                each.pop(key, None)
    return shown
