"""Windows of budgets in time zones: periods, charges at their edges, changes of a zone."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import zoneinfo
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import pytest_asyncio
from click.testing import CliRunner

from guard.core import wire
from guard.core.written_numbers import read_since
from guard.gateway.api.admin import bodies
from guard.gateway.api.admin.rules import as_budget
from guard.gateway.cli.main import gateway as command
from guard.gateway.domain import windows
from guard.gateway.domain.preview import preview_budget
from guard.gateway.domain.records import BudgetRule, OrganisationSettings
from guard.gateway.domain.usage import ChargedEvent
from guard.gateway.ledger import catalogue, directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import within
from tests.support import window_oracle as oracle
from tests.support.store import ACTOR, Clock, Store, opened_store

CHANGES = {
    "Europe/Berlin": (2012, "03-25", "10-28"),
    "America/New_York": (2013, "03-10", "11-03"),
    "Asia/Kolkata": (2014, "03-10", "10-10"),  # half an hour, and no change
    "Asia/Kathmandu": (2015, "03-10", "10-10"),  # three quarters of an hour
    "Australia/Lord_Howe": (2016, "04-03", "10-02"),  # a change by half an hour
    "America/St_Johns": (2010, "03-14", "11-07"),  # at one minute past midnight
    "America/Havana": (2017, "03-12", "11-05"),  # at midnight, and back to it
    "Africa/Cairo": (2024, "04-26", "10-31"),  # skips midnight
    "Pacific/Apia": (2011, "04-02", "12-30"),  # skips a day
    "America/Nuuk": (2025, "03-29", "10-25"),  # an hour before midnight
}
"""The year in which budgets of a zone are tried, and days of it about which clocks are changed."""

DAY = 86_400_000
ABOUT = 33 * DAY
BUDGETS = 17
"""About each change of clocks, others on each engine: a thousand on all three."""
"""About each change: a thousand in all."""


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path) as store:
        yield store


@pytest_asyncio.fixture
async def early(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    async with opened_store(storage_factory, tmp_path, Clock(at("2010-01-01"))) as store:
        yield store


def at(text: str, zone: str = "UTC") -> int:
    moment = dt.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return int(moment.timestamp()) * 1000


@pytest.mark.parametrize("zone", CHANGES)
def test_periods_are_what_a_clock_on_the_wall_shows(zone: str) -> None:
    year, *days = CHANGES[zone]
    for day in days:
        middle = at(f"{year}-{day}")
        wall = oracle.watched(zone, middle - 2 * ABOUT, middle + 3 * ABOUT)
        for window in ("day", "week", "month"):
            for begins in range(7) if window == "week" else (0,):
                edges = wall.periods(window, begins)
                assert len(edges) > 2
                calendar = windows.Calendar(zone, begins)
                for start, end in itertools.pairwise(edges):
                    for moment in (start, start + 1, (start + end) // 2, end - 1):
                        assert windows.period_of(window, moment, calendar) == (start, end)
                    assert start % 900_000 == 0


def test_every_zone_has_periods_of_quarter_hours() -> None:
    pick = random.Random(1)
    for zone in sorted(zoneinfo.available_timezones()) * 10:
        moment = pick.randrange(at("2000-01-01"), at("2037-01-01"))
        for window in ("day", "week", "month"):
            start, end = windows.period_of(window, moment, windows.Calendar(zone))
            assert end is not None
            assert start <= moment < end
            assert start % 900_000 == end % 900_000 == 0


@attrs.define
class Tried:
    """A budget of a user of its own, and by the oracle."""

    user: str
    rule: dict[str, Any]
    model: oracle.Budget
    moves_to: str
    held: list[tuple[Any, oracle.Row]] = attrs.Factory(list)


@pytest.mark.asyncio
@pytest.mark.timeout(1200)
@pytest.mark.generator("budgets' windows across changes of clocks, in ten zones")
async def test_a_thousand_budgets_across_changes_of_clocks(
    early: Store, count_cases: Callable[[int], None], request: pytest.FixtureRequest
) -> None:
    """Calls are held, charged, charged late and counted beforehand, most at the edges of windows.

    Every window has the oracle's beginning, end and sum to the nano-dollar, and the windows of a
    budget share no moment.
    """
    pick = random.Random(request.node.name)  # others on each engine
    store = early
    changes = sorted(
        (at(f"{year}-{day}"), zone) for zone, (year, *days) in CHANGES.items() for day in days
    )
    number = 0
    for middle, zone in changes:
        other = pick.choice([each for each in CHANGES if each != zone])
        edges: dict[tuple[str, str], list[int]] = {}
        for name in (zone, other):
            wall = oracle.watched(name, middle - 2 * ABOUT, middle + 3 * ABOUT)
            for window in ("day", "week", "month"):
                edges[name, window] = wall.periods(window, 0)
        found = [
            await _made(store, pick, f"u{number + at}", middle, zone, other, edges)
            for at in range(BUDGETS)
        ]
        number += BUDGETS
        await _spend(store, pick, found, middle, edges)
        await _compare(store, found)
    count_cases(number)
    assert number == 340


async def _made(
    store: Store, pick: random.Random, user: str, middle: int, zone: str, other: str,
    edges: dict[tuple[str, str], list[int]],
) -> Tried:  # fmt: skip
    window = pick.choice(["day", "day", "week", "month", *oracle.LENGTHS])
    rule = {"scope_kind": "user", "scope_id": user, "window": window}
    moves_to = ""
    if window not in oracle.LENGTHS:
        rule["zone"] = zone
        moves_to = other if pick.random() < 0.3 else ""
    store.clock.now = max(store.clock.now, middle - ABOUT)
    await store.budget(10**15, **rule)
    return Tried(user, rule, oracle.Budget(window, edges.get((zone, window), [])), moves_to)


async def _spend(
    store: Store, pick: random.Random, found: list[Tried], middle: int,
    edges: dict[tuple[str, str], list[int]],
) -> None:  # fmt: skip
    """Spend at moments about the change, in their order."""
    steps = []
    for tried in found:
        near = [edge for edge in tried.model.edges if abs(edge - middle) < ABOUT] or [middle]
        for _ in range(6):
            edge = pick.choice([*near, middle, min(near, key=lambda each: abs(each - middle))])
            moment = edge + pick.choice([-1, 0, 1, pick.randrange(-3 * DAY, 3 * DAY)])
            what = pick.choice(["charge", "charge", "hold"])
            steps.append((max(moment, middle - ABOUT), what, tried))
            if what == "hold":
                late = max(moment, middle - ABOUT) + pick.randrange(1, 800_000)
                steps.append((late, "late", tried))
        if tried.moves_to:
            steps.append((middle + pick.randrange(-5 * DAY, 5 * DAY), "move", tried))
    for count, (moment, what, tried) in enumerate(sorted(steps, key=lambda step: step[0])):
        store.clock.now = max(store.clock.now, moment)
        now, cost = store.clock.now, pick.randrange(1, 10**6)
        event = f"{tried.user}-{count}"
        if what == "charge":
            await store.charge(event, cost, user=tried.user)
            tried.model.charge(tried.model.row(now), now, cost)
        elif what == "hold":
            reply = wire.decode((await store.gate(10**7, user=tried.user)).body, wire.GateReply)
            tried.held.append((reply.reservation_id, tried.model.row(now)))
        elif what == "late":
            reservation_id, row = tried.held.pop(0)
            await store.charge(event, cost, user=tried.user, reservation_id=reservation_id)
            tried.model.row(now)  # its scope's own window of now is looked at too
            tried.model.charge(row, now, cost)
        else:
            tried.rule["zone"] = tried.moves_to
            await store.budget(10**15, **tried.rule)
            tried.model.edges = edges[tried.moves_to, tried.model.window]


async def _compare(store: Store, found: list[Tried]) -> None:
    rows: dict[str, list[tuple[int, int | None, int]]] = {}
    after = 0
    while batch := await store.storage.balances(
        store.org, current_only=False, after=after, limit=1000
    ):
        after = batch[-1].balance_id
        for each in batch:
            rows.setdefault(each.scope_id, []).append((each.epoch_ms, each.ends_ms, each.committed))
    for tried in found:
        own = sorted(rows.get(tried.user, []), key=lambda row: row[0])
        assert own == sorted(tried.model.used(), key=lambda row: row[0]), tried
        for one, following in itertools.pairwise(own):
            assert one[1] is not None
            assert one[1] <= following[0], tried


@pytest.mark.asyncio
async def test_a_limit_lasts_until_the_windows_end_in_its_zone_and_says_so(store: Store) -> None:
    await store.budget(100, window="day", zone="Asia/Kathmandu")
    store.clock.now = at("2027-03-02T23:59", "Asia/Kathmandu")
    await store.charge("e", 100)
    refused = await store.gate(10)
    assert refused.status == 402
    reason = msgspec.json.decode(refused.body)["detail"]
    assert "its window ends 2027-03-03 00:00 in Asia/Kathmandu" in reason
    store.clock.now = at("2027-03-03T00:00", "Asia/Kathmandu")
    assert (await store.gate(10)).status == 200


@pytest.mark.asyncio
async def test_the_organisations_zone_and_first_day_count_unless_a_budget_has_its_own(
    store: Store,
) -> None:
    settings = OrganisationSettings(zone="America/New_York", week_begins="sunday")
    await store.storage.write(
        within(store.org), directory.update_organisation, ACTOR, store.org, settings
    )
    store.clock.now = at("2027-03-14T12:00", "America/New_York")  # a Sunday of 23 hours
    for window, zone in (("day", ""), ("week", ""), ("month", "UTC"), ("hour", ""), ("5h", "")):
        await store.budget(1000, window=window, zone=zone)
    await store.charge("e", 7)
    found = await store.storage.balances(store.org, current_only=True, after=0, limit=10)
    assert {each.window: (each.epoch_ms, each.ends_ms, each.zone) for each in found} == {
        "day": (at("2027-03-14T05:00"), at("2027-03-15T04:00"), "America/New_York"),
        "week": (at("2027-03-14T05:00"), at("2027-03-21T04:00"), "America/New_York"),
        "month": (at("2027-03-01T00:00"), at("2027-04-01T00:00"), "UTC"),
        "hour": (at("2027-03-14T16:00"), at("2027-03-14T17:00"), "America/New_York"),
        "5h": (at("2027-03-14T16:00"), at("2027-03-14T21:00"), "America/New_York"),
    }
    assert {each.committed for each in found} == {7}


@pytest.mark.asyncio
async def test_a_length_opens_with_its_first_charge_not_with_a_call_that_costs_nothing(
    store: Store,
) -> None:
    await store.budget(100, window="5h")
    first = store.clock.now
    reply = wire.decode((await store.gate(50)).body, wire.GateReply)
    assert (await store.gate(60)).status == 402
    (pending,) = await store.storage.balances(store.org, current_only=True, after=0, limit=10)
    assert (pending.ends_ms, pending.reserved) == (None, 50)
    store.clock.now += 60_000
    await store.charge("e", 40, reservation_id=reply.reservation_id, data={"final": True})
    (opened,) = await store.storage.balances(store.org, current_only=True, after=0, limit=10)
    assert opened.balance_id == pending.balance_id
    assert (opened.epoch_ms, opened.ends_ms) == (first + 60_000, first + 60_000 + 5 * 3_600_000)
    store.clock.now = opened.ends_ms - 1
    assert (await store.gate(70)).status == 402
    store.clock.now += 1
    assert (await store.gate(70)).status == 200


@pytest.mark.asyncio
async def test_a_budget_set_in_the_middle_of_a_day_counts_that_day_of_its_zone(
    store: Store,
) -> None:
    zone = "Asia/Kathmandu"  # begins its days at a quarter past an hour of UTC
    store.clock.now = at("2027-03-02T23:59", zone)
    await store.charge("before", 1000)
    store.clock.now = at("2027-03-03T00:00", zone)
    await store.charge("in it", 7)
    await store.budget(50, window="day", zone=zone)
    assert (await store.gate(43)).status == 200
    assert (await store.gate(1)).status == 402


@pytest.mark.parametrize(("fields", "said"), [
    ({"window": "day", "zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus': give an"),
    ({"window": "day", "zone": "../../etc/passwd"}, "there is no time zone"),
    ({"window": "hour", "zone": "Asia/Tokyo"}, "zone belongs to a window of a day, a week"),
    ({"window": "5h", "zone": "Asia/Tokyo"}, "zone belongs to a window of a day, a week"),
    ({"window": "fortnight"}, "window is total, hour, day, week, month, or a length such as 5h"),
    ({"window": "32d"}, "up to 31d"),
    ({"window": "0h"}, "window is total"),
])  # fmt: skip
def test_what_is_no_window_is_said_in_one_sentence(fields: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("'", ".")) as raised:
        as_budget("o", bodies.BudgetBody(limit_nanousd=5, **fields))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("written", "stored"), [
    ("24h", "1d"), ("90m", "90m"), ("120m", "2h"), ("5h", "5h"), ("7d", "7d"), ("day", "day"),
])  # fmt: skip
def test_one_length_is_one_window(written: str, stored: str) -> None:
    assert as_budget("o", bodies.BudgetBody(limit_nanousd=5, window=written)).window == stored


def test_a_preview_replays_the_windows_of_the_zone_and_of_a_length() -> None:
    times = [at(f"2027-03-0{day}T{hour}:00") for day, hour in ((1, 17), (1, 19), (2, 17), (2, 20))]
    charges = [ChargedEvent(at_ms=each, scope_id="", cost_nanousd=6) for each in reversed(times)]

    def stopped(window: str, zone: str = "UTC") -> list[int]:
        rule = BudgetRule(budget_id="", organisation_id="o", scope_kind="organisation", scope_id="",
                          window=window, limit=10)  # fmt: skip
        found = preview_budget(rule, charges, windows.Calendar(zone))
        return sorted(each.period_start_ms for each in found.worst)

    assert stopped("day") == [at("2027-03-01"), at("2027-03-02")]
    # In Kolkata the second and the third are on one day.
    assert stopped("day", "Asia/Kolkata") == [at("2027-03-01T18:30")]
    assert stopped("3h") == [times[0]]


def test_the_command_takes_zones_and_lengths(tenant: Any) -> None:
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_ADMIN_KEY": tenant.gateway.admin_key}

    def run(*words: str, code: int = 0) -> str:
        words = (
            "budgets",
            "set",
            *words,
            "--limit",
            "$5",
            "--organisation",
            tenant.organisation_id,
        )
        result = CliRunner().invoke(command, words, env=env)
        assert result.exit_code == code, result.output
        return result.output

    run("--window", "day", "--zone", "Asia/Kathmandu")
    run("--window", "5h", "--from-first-use")
    run("--window", "300m")  # the same one
    run("--window", "week", "--from-first-use")
    found = [(each["window"], each["zone"]) for each in tenant.admin.budgets()]
    assert sorted(found) == [("5h", ""), ("7d", ""), ("day", "Asia/Kathmandu")]
    said = run("--window", "month", "--from-first-use", code=2)
    assert "--from-first-use takes a --window of a length, such as 5h or 30d" in said
    said = run("--window", "day", "--zone", "Mars/Olympus", code=1)
    assert "there is no time zone 'Mars/Olympus'" in said
    assert "window is total, hour, day, week, month, or a length" in run("--window", "fort", code=1)


def test_usage_since_a_date_begins_with_a_day_of_the_zone() -> None:
    assert read_since("2026-01-01", 0, zoneinfo.ZoneInfo("Asia/Kathmandu")) == at(
        "2026-01-01", "Asia/Kathmandu"
    )
    assert read_since("2026-01-01T00:00+00:00", 0, zoneinfo.ZoneInfo("Asia/Tokyo")) == at(
        "2026-01-01"
    )


@pytest.mark.asyncio
async def test_a_length_counts_nothing_of_the_time_under_a_budget_that_was_removed(
    store: Store,
) -> None:
    await store.charge("long ago", 40, user="ann")
    await store.budget(100, scope_kind="user", scope_id="*", window="5h")
    await store.gate(10, user="ann")  # makes a balance, which has no end yet
    own = await store.budget(100, scope_kind="user", scope_id="ann", window="5h")
    await store.charge("under its own", 30, user="ann")
    await store.storage.write(
        within(store.org), catalogue.delete_budget, ACTOR, store.org, own.budget_id
    )
    (left,) = await store.storage.balances(store.org, current_only=True, after=0, limit=10)
    assert (left.committed, left.ends_ms) == (0, None)
