"""Ranges of time, stacked charts, and the pages of spend without a browser."""

from __future__ import annotations

import datetime as dt
import doctest
import re
import zoneinfo
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from guard.gateway.dashboard import charts, tables, time_ranges
from guard.gateway.dashboard.time_ranges import TimeRange, time_range
from guard.gateway.domain import model_latency
from guard.gateway.domain.spend_series import SpendOverTime, SpendSeries, rest
from guard.gateway.domain.usage import DAY_MS, HOUR_MS
from guard.gateway.domain.windows import zone_of

NOW_MS = 1_800_000_000_000  # 2027-01-15 08:00 UTC
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe",
         "Pacific/Apia", "Asia/Kathmandu"]  # fmt: skip


def shown(zone: str, preset: str = "", first: str = "", last: str = "") -> TimeRange:
    return time_range(preset, first, last, zoneinfo.ZoneInfo(zone), NOW_MS)


@pytest.mark.parametrize("module", [tables, model_latency], ids=lambda m: m.__name__)
def test_the_examples_in_the_docstrings(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@given(
    st.sampled_from(ZONES), st.sampled_from([*time_ranges.PRESETS, ""]),
    st.dates(dt.date(2025, 1, 1), dt.date(2027, 1, 15)), st.integers(0, 399),
)  # fmt: skip
def test_steps_are_whole_quarter_hours_without_a_gap(
    zone: str, preset: str, first: dt.date, days: int
) -> None:
    last = first + dt.timedelta(days=days)
    found = shown(zone, preset, first.isoformat(), last.isoformat())
    assert found.error == ""
    edges = found.edges()
    assert len(edges) <= 101
    assert all(edge % (HOUR_MS // 4) == 0 for edge in edges)
    assert edges == sorted(edges)
    assert all(a.end_ms == b.start_ms for a, b in zip(found.steps, found.steps[1:], strict=False))
    again = shown(zone, **{{"range": "preset", "from": "first", "to": "last"}[name]: value
                           for name, value in found.query().items()})  # fmt: skip
    assert again == found


@pytest.mark.parametrize(("zone", "first", "hours"), [
    ("Europe/Berlin", "2026-03-27", [24, 24, 23, 24]),
    ("Europe/Berlin", "2026-10-23", [24, 24, 25, 24]),
    ("America/New_York", "2026-11-01", [25, 24, 24, 24]),
    ("UTC", "2026-03-27", [24, 24, 24, 24]),
    ("Australia/Lord_Howe", "2026-04-04", [24, 24.5, 24, 24]),
    ("Asia/Kathmandu", "2026-03-27", [24, 24, 24, 24]),
])  # fmt: skip
def test_days_are_the_viewers(zone: str, first: str, hours: list[float]) -> None:
    start = dt.date.fromisoformat(first)
    last = (start + dt.timedelta(days=3)).isoformat()
    found = shown(zone, first=first, last=last)
    assert [(s.end_ms - s.start_ms) / HOUR_MS for s in found.steps] == hours
    midnight = dt.datetime.combine(start, dt.time(), zoneinfo.ZoneInfo(zone))
    assert found.steps[0].start_ms == midnight.timestamp() * 1000
    assert found.steps[0].label == f"{start:%a %-d %b}"
    assert (found.notes, found.zone) == ([], zone)


def test_a_zone_between_the_hours_has_days_from_midnight() -> None:
    found = shown("Asia/Kolkata", "7d")
    assert found.steps[0].label == "Sat 9 Jan"
    assert found.steps[0].begins == "2027-01-09T00:00+05:30"
    assert found.notes == []
    assert shown("Asia/Kolkata", "24h").steps[-1].label == "Fri 15 Jan 13:30–14:30"


def test_before_hours_are_kept_days_are_those_of_utc() -> None:
    found = shown("Europe/Berlin", first="2025-11-01", last="2025-11-30")
    assert found.zone == "UTC"
    assert "days in UTC" in found.notes[0]
    assert all(edge % DAY_MS == 0 for edge in found.edges())


@pytest.mark.parametrize(("first", "last", "said"), [
    ("2026-02-01", "2026-01-01", "before the first"),
    ("2026-02-30", "", "2027-01-31"),
    ("x", "", "2027-01-31"),
    ("2020-01-01", "2026-01-01", "400 days"),
    ("0001-01-01", "0001-01-01", "nothing of that year"),
    ("9999-12-31", "9999-12-31", "nothing of that year"),
])  # fmt: skip
def test_days_that_make_no_range_are_explained(first: str, last: str, said: str) -> None:
    found = shown("UTC", first=first, last=last)
    assert said in found.error
    assert found.preset == "7d"


@pytest.mark.parametrize(
    "name", ["", "Nowhere/City", "../../etc/passwd", "/etc/localtime", "Europe", "a\0b",
             "Europe/" + "x" * 99, "UTC\n", "posixrules/../UTC"],
)  # fmt: skip
def test_an_unknown_zone_is_utc(name: str) -> None:
    assert zone_of(name).key == "UTC"
    assert zone_of("Europe/Berlin").key == "Europe/Berlin"


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=24, max_size=24), max_size=8))
def test_the_parts_of_a_bar_are_inside_the_plot_and_make_up_its_sum(rows: list[list[int]]) -> None:
    series = [SpendSeries(scope_id=f"s{at}", costs_nanousd=row, llm_calls=[1] * 24)
              for at, row in enumerate(rows)]  # fmt: skip
    sums = [sum(costs) + 5 for costs in zip(*rows, strict=True)] or [5] * 24
    total = SpendSeries(scope_id=None, llm_calls=[9] * 24, costs_nanousd=sums)
    spend = SpendOverTime(series=[*series, rest(total, series)], total=total)
    chart = charts.stacked(spend, shown("UTC", "24h"), "others")
    assert sum(layer.cost_nanousd for layer in chart.layers) == chart.total_nanousd
    assert [layer.colour for layer in chart.layers] == [*range(1, len(rows) + 1), 0]
    for stack in chart.stacks:
        assert stack.parts
        assert stack.x + stack.width <= 100.01
        ends = [part.y + part.height for part in stack.parts]
        assert ends[0] == pytest.approx(100, abs=0.01)
        assert min(part.y for part in stack.parts) == pytest.approx(stack.top, abs=0.01)
        assert stack.top >= -0.01
        assert all(a.y == pytest.approx(end, abs=0.01)
                   for a, end in zip(stack.parts, ends[1:], strict=False))  # fmt: skip


# -- pages -------------------------------------------------------------------------------------


def fill(tenant: Any) -> None:
    for at in range(12):
        data = {"model": f"model-{at % 10}", "cost_nanousd": (at + 1) * 10**8, "latency_ms": 1000}
        tenant.send("wide" if at % 2 else "narrow", {
            "type": "llm", "data": data, "user": f"user-{at % 3}", "agent": "one",
            "run_id": f"run-{at}", "call_id": f"ring-{at}", "tags": {"team": f"team-{at % 2}"},
        })  # fmt: skip
    tenant.spend("wide", 10**9)


def cells(text: str, caption: str) -> list[list[str]]:
    """Return the rows of a table by its caption, as text."""
    (table,) = [t for t in re.findall(r"<table.*?</table>", text, re.DOTALL)
                if re.search(f"<caption[^>]*>{caption}", t)]  # fmt: skip
    rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in
             re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows]  # fmt: skip


@pytest.mark.parametrize(("by", "dearest"), [
    ("model", ["model-1", "model-0", "gpt-4o", "model-9"]), ("workflow", ["wide", "narrow"]),
    ("user", ["user-2", "user-1", "user-0", "others, or for no user"]),
    ("agent", ["one", "others, or by no named agent"]),
    ("tag:team", ["team-1", "team-0", "others, or without this tag"]),
    ("nonsense", ["model-1"]), ("tag:", ["model-1"]),
    ("tag:none", ["others, or without this tag"]),
])  # fmt: skip
@pytest.mark.parametrize("preset", ["24h", "30d"])
def test_spend_is_divided_and_the_table_has_the_sums(
    visitor: Any, tenant: Any, by: str, dearest: list[str], preset: str
) -> None:
    fill(tenant)
    days = {f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"}
    reply = visitor.get("/spend", by=by, range=preset)
    days.add(f"{dt.datetime.now(dt.UTC):%Y-%m-%d}")
    assert reply.status_code == 200
    found = cells(reply.text, "Spend by")
    assert [row[0] for row in found[1:]][: len(dearest)] == dearest
    assert found[-1][:2] == ["All", "$8.80"]
    assert len(found) <= 1 + stacks_max() + 1
    steps = cells(reply.text, "Spend over time")
    assert steps[-1][0] == "All"
    assert steps[-1][-1] == "$8.80"
    names = [row[0] for row in found[1:-1]]
    if len(names) > 1:
        assert steps[0][1:-1] == names
    assert any(f"Times in UTC; as of {day}" in reply.text for day in days)


def test_spend_is_divided_by_keys_and_their_teams(visitor: Any, tenant: Any) -> None:
    tenant.spend("wide", 10**9)
    made = tenant.admin.create_key_full("crawler", team="search & ads")
    below = tenant.admin.create_key_full("below", owner_id=made["key"]["key_id"])
    for each in (made, below):
        tenant.http.headers["X-API-Key"] = each["api_key"]
        tenant.spend("wide", 3 * 10**9)
    tenant.admin.revoke_key(made["key"]["key_id"])
    by_team = cells(visitor.get("/spend", by="team", range="24h").text, "Spend by")
    assert [row[:2] for row in by_team[1:]] == [
        ["search &amp; ads", "$6.00"], ["others, or of no team", "$1.00"], ["All", "$7.00"]
    ]  # fmt: skip
    by_key = cells(visitor.get("/spend", by="key", range="24h").text, "Spend by")
    names = [f"{each['key']['name']} ({each['api_key'][:12]}…)" for each in (below, made)]
    assert {row[0] for row in by_key[1:3]} == {*names}
    assert [row[1] for row in by_key[1:]] == ["$3.00", "$3.00", "$1.00", "$7.00"]
    rows = visitor.get("/export/spend.json", by="team", range="24h").json()
    assert sum(row["cost_nanousd"] for row in rows if row["name"] == "search & ads") == 6 * 10**9
    by_id = {each["key"]["key_id"]: each["key"]["name"] for each in (below, made)}
    rows = visitor.get("/export/spend.json", by="key", range="24h").json()
    assert {row["name"]: row["key_name"] for row in rows if row["name"] in by_id} == by_id
    tenant.admin.set_budget(limit_nanousd=1, scope_kind="key", scope_id=made["key"]["key_id"])
    (row,) = visitor.get("/export/budgets.json").json()
    assert row["key_name"] == made["key"]["name"]


def stacks_max() -> int:
    from guard.gateway.dashboard.spend import SHOWN_MAX

    return SHOWN_MAX + 1


def test_days_and_notes_follow_the_cookie(visitor: Any, tenant: Any) -> None:
    fill(tenant)
    visitor.http.cookies.set("guard_zone", "Asia/Kolkata")
    text = visitor.get("/spend").text
    assert "Times in Asia/Kolkata" in text
    visitor.http.cookies.set("guard_zone", "<script>")
    assert "Times in UTC" in visitor.get("/spend").text


def test_a_range_that_is_none_is_explained_on_the_page(visitor: Any) -> None:
    reply = visitor.get("/spend", **{"from": "2026-02-01", "to": "2026-01-01"})
    assert reply.status_code == 200
    assert "The last day is before the first one" in reply.text


@pytest.mark.parametrize(("path", "query", "shows"), [
    ("/user", {"id": "user-2"}, ["user-2", "$3.00", "wide", "narrow", "model-2"]),
    ("/agent", {"id": "one"}, ["$7.80", "model-2"]),
    ("/model", {"id": "model-1"}, ["$1.40", "wide"]),
    ("/tag", {"name": "team", "id": "team-1"}, ["team = team-1", "$4.20"]),
])  # fmt: skip
def test_each_scope_has_a_page(
    visitor: Any, tenant: Any, path: str, query: dict[str, str], shows: list[str]
) -> None:
    tenant.admin.set_budget(10_000, scope_kind="user", scope_id="*")
    tenant.admin.set_budget(10_000, scope_kind="tag", scope_id="team=*")
    fill(tenant)
    text = visitor.get(path, **query).text
    for word in shows:
        assert word in text
    if path in ("/user", "/tag"):
        assert "of $100.00" in text
    assert visitor.get(path).status_code == 404
    assert visitor.get(path, **(query | {"id": "unheard of"})).status_code == 200
    if path == "/tag":
        assert visitor.get(path, id="team-1").status_code == 404


def test_each_name_on_spend_leads_to_its_page(visitor: Any, tenant: Any) -> None:
    fill(tenant)
    for by, path in (("model", "/model"), ("workflow", "/workflow"), ("user", "/user"),
                     ("agent", "/agent"), ("tag:team", "/tag")):  # fmt: skip
        text = visitor.get("/spend", by=by, range="24h").text
        links = re.findall(rf'href="({path}\?[^"]+)"', text)
        assert links, by
        for link in links:
            assert visitor.http.get(link.replace("&amp;", "&")).status_code == 200


def test_latency_says_what_it_covers(visitor: Any, tenant: Any) -> None:
    assert "No LLM request in the last 7 days." in visitor.get("/latency").text
    fill(tenant)
    text = visitor.get("/latency").text
    rows = {row[0]: row for row in cells(text, "Latency and errors")}
    assert rows["model-1"][1:4] == ["2", "1 s", "1 s"]
    assert rows["gpt-4o"][1:4] == ["1", "– (0 measured)", "–"]


def test_failed_calls_count_for_the_models_that_they_used(visitor: Any, tenant: Any) -> None:
    for at in range(4):
        common = {"span_id": f"s{at}", "run_id": "r"}
        outcome = "error" if at == 0 else "ok"
        tenant.send("w", {"type": "llm", "data": {"model": "m"}, **common},
                    {"type": "span", "data": {"name": "f", "kind": "call", "outcome": outcome},
                     **common})  # fmt: skip
    (row,) = cells(visitor.get("/latency").text, "Latency and errors")[1:]
    assert row[-2:] == ["4", "1 25.0 %"]


def test_a_search_leads_to_what_it_finds(visitor: Any, tenant: Any) -> None:
    fill(tenant)
    for text, title in (("wid", "Workflows"), ("run-1", "Runs"), ("ring-1", "Calls"),
                        ("user-", "Users"), ("one", "Agents"), ("model-", "Models"),
                        ("event-", "Events")):  # fmt: skip
        page = visitor.get("/search", q=f" {text} ").text
        assert title in re.findall(r"<h2[^>]*>([^<]+)</h2>", page)
        link = re.search(r'<th scope="row"><a class="name" href="([^"]+)"', page)
        assert link is not None
        assert visitor.http.get(link[1].replace("&amp;", "&")).status_code == 200
    assert "Nothing begins with" in visitor.get("/search", q="unheard").text
    assert "Type the beginning" in visitor.get("/search").text
    assert "There are more" in visitor.get("/search", q="ring").text


def test_a_search_stays_in_its_organisation(visitor: Any, tenant: Any, make_tenant: Any) -> None:
    fill(make_tenant())
    assert "Nothing begins with" in visitor.get("/search", q="ring").text
    assert "Nothing was spent" in visitor.get("/spend").text


def test_a_refused_call_is_found_and_shown(visitor: Any, tenant: Any) -> None:
    tenant.admin.request("PUT", "/policies/p", {"document": {"tools_block": ["rm"]}})
    assert tenant.gate("w", tool_name="rm", call_id="dead-1").status_code == 403
    assert "dead-1" in visitor.get("/search", q="dead").text
    assert 'class="tag bad"' in visitor.get("/events", call="dead-1").text


def test_types_of_events_are_a_choice(visitor: Any, tenant: Any) -> None:
    tenant.send("w", {"type": "llm", "data": {"model": "m"}}, {"type": "odd", "data": {}})
    for kind, marked in (("llm", "LLM requests"), ("odd", "odd"), ("", None)):
        text = visitor.get("/events", type=kind).text
        (types,) = re.findall(r'<select name="type".*?</select>', text, re.DOTALL)
        chosen = re.findall(r"selected>([^<]+)<", types)
        assert chosen == ([marked] if marked else [])
        assert text.count("<tr id=") == (1 if kind else 2)
