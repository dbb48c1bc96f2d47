"""Pages, files and reports in the time zone of an organisation, or of a budget."""

from __future__ import annotations

import csv
import datetime as dt
import io
import time
import zoneinfo
from typing import Any

import pytest

from guard.gateway.dashboard import charts
from guard.gateway.dashboard.time_ranges import PRESETS, time_range
from guard.gateway.domain import windows
from guard.gateway.domain.usage import UsagePoint
from guard.gateway.domain.windows import Calendar, period_of

DAY = 86_400_000


def in_zone(at_ms: int, zone: str) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, zoneinfo.ZoneInfo(zone))


def test_a_budget_of_a_zone_is_set_shown_and_downloaded(visitor: Any, tenant: Any) -> None:
    common = {"scope_kind": "organisation", "unit": "usd", "limit": "5", "do": "save"}
    visitor.post("/budgets", **common, window="week", zone="Asia/Kathmandu")
    visitor.post("/budgets", **common, window="day", length="300m")
    tenant.spend("w", 10**9)
    found = {each["window"]: each for each in tenant.admin.ledger()}
    assert {*found} == {"week", "5h"}
    ends = in_zone(found["week"]["ends_ms"], "Asia/Kathmandu")
    assert (ends.weekday(), ends.hour, ends.minute) == (0, 0, 0)
    text = visitor.get("/budgets").text
    assert "per week in Asia/Kathmandu" in text
    assert "within 5h of the first charge" in text
    assert "00:00</time> in Asia/Kathmandu." in text
    assert "within 5h of the first charge" in visitor.get("/").text
    (budget,) = [each for each in tenant.admin.budgets() if each["window"] == "week"]
    assert 'value="Asia/Kathmandu"' in visitor.get("/budgets/edit", id=budget["budget_id"]).text
    rows = csv.DictReader(io.StringIO(visitor.get("/export/budgets.csv").text))
    by_window = {row["window"]: row for row in rows}
    assert by_window["week"]["zone"] == "Asia/Kathmandu"
    assert by_window["week"]["ends"] == ends.isoformat(timespec="seconds")
    assert by_window["5h"]["ends"].endswith("+00:00")


def test_what_is_no_zone_is_said_on_the_page(visitor: Any) -> None:
    reply = visitor.post("/budgets", scope_kind="organisation", unit="usd", limit="5", do="save",
                         window="day", zone="Mars/Olympus")  # fmt: skip
    assert reply.status_code == 400
    assert "there is no time zone" in reply.text
    assert "Nothing was saved" in visitor.post("/settings", zone="Mars/Olympus").text


def test_pages_and_reports_have_the_organisations_days(visitor: Any, tenant: Any) -> None:
    zone = "Pacific/Kiritimati"  # a day ahead of most
    tenant.admin.change_settings(zone=zone)
    tenant.spend("w", 10**9)
    now_ms = time.time_ns() // 10**6
    visitor.http.cookies.set("guard_zone", "Asia/Kolkata")
    assert f"Times in {zone}" in visitor.get("/spend").text
    today = f"{in_zone(now_ms, zone):%a %-d %b}"
    overview = visitor.get("/", range="30d").text
    assert f"Times in {zone}" in overview
    assert f'data-label="{today}" data-value="$1.00"' in overview
    rows = visitor.get("/export/spend.json", range="7d").json()
    spent = [row for row in rows if row["cost_nanousd"]]
    assert [row["starts_at_ms"] for row in spent] == [period_of("day", now_ms, Calendar(zone))[0]]
    assert spent[0]["starts"].endswith("T00:00+14:00")
    (day,) = tenant.admin.usage("day")
    assert day["group"] == f"{in_zone(now_ms, zone):%Y-%m-%d}"
    assert day["cost_nanousd"] == 10**9


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])
def test_the_steps_of_a_range_are_whole_and_begin_with_the_zones_days(
    preset: str, zone: str
) -> None:
    for hour in range(0, 400 * 24, 7):
        now_ms = 1_800_000_000_000 + hour * DAY // 24
        shown = time_range(preset, "", "", zoneinfo.ZoneInfo(zone), now_ms)
        edges = shown.edges()
        assert shown.within() == (edges[0], edges[-1])
        assert edges == sorted({*edges})
        assert all(at_ms % 900_000 == 0 for at_ms in edges), "sums are kept by quarter hours"
        assert edges[-2] <= now_ms < edges[-1]
        if preset.endswith("d"):
            days = [in_zone(at_ms, zone).date() for at_ms in edges[:-1]]
            assert edges[:-1] == [windows.day_begins(day, zone) for day in days]
            assert len(days) == int(preset[:-1])


@pytest.mark.parametrize(("zone", "window", "first", "days"), [
    ("Asia/Kathmandu", "week", "2027-03-08", 7), ("Europe/Berlin", "month", "2027-03-01", 31),
    ("Europe/Berlin", "month", "2027-10-01", 31), ("America/New_York", "day", "2027-11-07", 25),
    ("America/New_York", "day", "2027-03-14", 23),
])  # fmt: skip
def test_the_chart_of_a_window_has_its_zones_days_and_all_of_its_cost(
    zone: str, window: str, first: str, days: int
) -> None:
    start = dt.datetime.fromisoformat(first).replace(tzinfo=zoneinfo.ZoneInfo(zone))
    since_ms, ends_ms = period_of(window, int(start.timestamp()) * 1000, Calendar(zone))
    assert ends_ms is not None
    points = [
        UsagePoint(start_ms=at, cost_nanousd=10**9, llm_calls=1, tool_calls=0, input_tokens=0,
                   output_tokens=0)
        for at in range(since_ms, ends_ms, 900_000)
    ]  # fmt: skip
    chart = charts.spend_against_limit(
        points, since_ms=since_ms, ends_ms=ends_ms, now_ms=ends_ms, zone=zone,
        step_ms=charts.burn_step(window), committed_nanousd=len(points) * 10**9,
        limit_nanousd=10**13,
    )  # fmt: skip
    assert len(chart.bars) == days
    assert chart.bars[-1].value == f"${len(points):,}.00"
    assert chart.zone == zone
    if window != "day":
        names = [f"{start + dt.timedelta(days=at):%a %-d %b}" for at in range(days)]
        assert [bar.label for bar in chart.bars] == names
