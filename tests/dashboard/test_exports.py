"""What pages show, as CSV and JSON: the same rows, harmless in a spreadsheet, for nobody else."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any, Final

import httpx
import hypothesis.strategies as st
import pytest
from hypothesis import given

from guard.core.visible import visible
from guard.gateway.dashboard import exports, spend, tables
from guard.gateway.services.turns import Turns

NAMES: Final = ("spend", "usage", "workflows", "events", "budgets", "audit")
FORMULAS: Final = ("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1",
                   '=HYPERLINK("https://evil.example","x")')  # fmt: skip


def rows(
    visitor: Any, name: str, **query: Any
) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Return the rows of both files."""
    table = visitor.get(f"/export/{name}.csv", **query)
    assert table.status_code == 200, table.text
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert table.headers["content-disposition"] == f'attachment; filename="{name}.csv"'
    assert table.headers["cache-control"] == "no-store"
    records = visitor.get(f"/export/{name}.json", **query)
    assert records.headers["content-type"] == "application/json"
    return list(csv.DictReader(io.StringIO(table.text, newline=""))), records.json()


def fill(tenant: Any) -> None:
    for at, name in enumerate(FORMULAS):
        tenant.send(name, {
            "type": "llm", "data": {"model": name, "cost_nanousd": at + 1, "input_tokens": 7},
            "user": name, "agent": name, "run_id": name, "tags": {name: name},
        })  # fmt: skip
    tenant.spend("plain", 2_500_000_000)


@given(st.text())
def test_no_text_begins_a_formula(text: str) -> None:
    line = tables.csv_lines(("a", "b"), [{"a": text, "b": [text]}])
    (cells,) = csv.reader(io.StringIO(line, newline=""))
    for cell in cells:
        assert not cell.lstrip().startswith(("=", "+", "-", "@")), cell
        assert not cell.startswith(("\t", "\r"))
        assert cell.removeprefix("'") in (visible(text), visible(text.removeprefix("'")))


def test_amounts_and_moments_are_written_twice() -> None:
    row = {"a_nanousd": -2_500_000_001, "b_at_ms": 1_800_000_000_000, "c": True, "d": None,
           "e": {"x": "=1"}, "f": 1.5}  # fmt: skip
    columns = tuple(row)
    assert tables.csv_head(columns) == "a_usd,b_at,c,d,e,f\r\n"
    assert tables.csv_lines(columns, [row]) == (
        '-2.500000001,2027-01-15T08:00:00.000+00:00,true,,"{""x"": ""=1""}",1.5\r\n'
    )
    assert json.loads(tables.json_rows([row], is_first=True)) == row
    units = ("unit", "limit")
    assert tables.csv_head(units) == "unit,limit\r\n"
    assert tables.csv_lines(units, [{"unit": "tokens", "limit": 5}]) == "tokens,5\r\n"
    assert tables.csv_lines(units, [{"unit": "usd", "limit": 5}]) == "usd,0.000000005\r\n"


@pytest.mark.parametrize("by", ["model", "workflow", "user", "agent", "tag:=1+1"])
def test_spend_is_what_the_page_shows(visitor: Any, tenant: Any, by: str) -> None:
    fill(tenant)
    table, records = rows(visitor, "spend", by=by, range="24h")
    page = visitor.get("/spend", by=by, range="24h").text
    assert len(table) == len(records)
    assert len(records) % 24 == 0
    total = 2_500_000_000 + sum(range(1, len(FORMULAS) + 1))
    assert sum(each["cost_nanousd"] for each in records) == total
    assert sum(Decimal(each["cost_usd"]) for each in table) == Decimal(total) / 10**9
    assert {each["by"] for each in records} == {by}
    names = {each["name"] for each in records}
    for each in table:
        assert not each["name"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert (None in names) == ("others" in page)
    dear = [each for each in records if each["cost_nanousd"] >= 10**9]
    assert [each["is_rest"] for each in dear] == [by in ("user", "agent", "tag:=1+1")]


def test_users_and_workflows(visitor: Any, tenant: Any) -> None:
    fill(tenant)
    table, records = rows(visitor, "usage", by="user")
    assert {each["group"] for each in records} == {None, *FORMULAS}
    assert table[0]["cost_usd"] == "2.5"
    table, records = rows(visitor, "workflows", q="plain", sort="spend")
    assert [each["workflow_id"] for each in records] == ["plain"]
    assert (records[0]["spent_nanousd"], table[0]["spent_usd"]) == (2_500_000_000, "2.5")
    table, records = rows(visitor, "workflows", sort="spend")
    assert [each["workflow_id"] for each in records][:2] == ["plain", FORMULAS[-1]]
    assert len(rows(visitor, "workflows", sort="spend", offset=3)[1]) == len(FORMULAS) + 1 - 3


def test_events_with_the_filters_of_the_page(visitor: Any, tenant: Any) -> None:
    fill(tenant)
    data = {"tool_name": "=tool", "outcome": "error", "metadata": {"password": "hunter2"}}
    tenant.send("plain", {"type": "tool", "data": data, "call_id": "c1", "run_id": "r1"})
    table, records = rows(visitor, "events")
    assert len(records) == len(FORMULAS) + 2
    assert "hunter2" not in json.dumps(records)
    assert (records[0]["name"], table[0]["name"]) == ("=tool", "'=tool")
    assert records[0]["outcome"] == "error"
    assert records[1]["cost_nanousd"] == 2_500_000_000
    for query, count in (({"type": "tool"}, 1), ({"workflow": "plain"}, 2), ({"run": "r1"}, 1),
                         ({"call": "c1"}, 1), ({"event": records[0]["event_id"]}, 1),
                         ({"before": records[3]["event_seq"]}, len(records) - 4),
                         ({"show": "refused"}, 0)):  # fmt: skip
        assert len(rows(visitor, "events", **query)[1]) == count, query
    tenant.admin.request("PUT", "/policies/p", {"document": {"tools_block": ["=*"]}})
    tenant.gate("w", tool_name="=rm")
    table, records = rows(visitor, "events", show="refused")
    assert (records[0]["tool_name"], table[0]["tool_name"]) == ("=rm", "'=rm")


def test_budgets_of_every_unit(visitor: Any, tenant: Any) -> None:
    tenant.admin.set_budget(1000, scope_kind="workflow", scope_id="*")
    tenant.admin.set_budget(limit_tokens=5000, window="day")
    fill(tenant)
    table, records = rows(visitor, "budgets")
    money = next(each for each in table if each["of"] == "plain")
    assert (money["limit"], money["committed"]) == ("10", "2.5")
    tokens = next(each for each in records if each["unit"] == "tokens")
    assert (tokens["limit"], tokens["committed"]) == (5000, 7 * len(FORMULAS) + 100)
    assert next(each for each in table if each["unit"] == "tokens")["limit"] == "5000"


def test_audit(visitor: Any, tenant: Any) -> None:
    tenant.admin.set_budget(1000, scope_kind="workflow", scope_id="=1")
    table, records = rows(visitor, "audit")
    assert [each["seq"] for each in records] == sorted((e["seq"] for e in records), reverse=True)
    assert table[0].keys() == {"seq", "done_at", "actor", "action", "target", "details", "hash"}
    last = records[-2]["seq"]
    assert len(rows(visitor, "audit", before=last)[1]) == 1


def test_long_files_are_sent_in_batches_and_whole(
    visitor: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "BATCH", 7)
    for batch in range(4):
        tenant.send(f"w{batch}", *({"type": "note", "data": {}} for _ in range(10)))
    table, records = rows(visitor, "events")
    assert len({each["event_seq"] for each in records}) == len(table) == 40
    assert len(rows(visitor, "workflows")[1]) == 4


def test_no_step_of_a_file_has_more_rows_than_a_batch(
    visitor: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users come from one query; their thousand lines were written in one step."""
    monkeypatch.setattr(exports, "BATCH", 7)
    for batch in range(3):
        users = [f"u{batch}-{number}" for number in range(10)]
        tenant.send("w", *({"type": "llm", "user": u, "data": {"model": "m"}} for u in users))
    steps = list[int]()
    lines = tables.csv_lines

    def counted(columns: Any, found: Any) -> str:
        steps.append(len(found))
        return lines(columns, found)

    monkeypatch.setattr(tables, "csv_lines", counted)
    assert len(rows(visitor, "usage", by="user")[0]) == 30
    assert (sum(steps), max(steps)) == (30, 7)


@pytest.mark.asyncio
async def test_files_take_turns_step_by_step_and_wait_for_no_slow_reader() -> None:
    turns, running, order = Turns(), list[str](), list[str]()

    async def parts(name: str) -> AsyncIterator[str | bytes]:
        for _ in range(3):
            running.append(name)
            await asyncio.sleep(0)
            assert running == [name]
            running.clear()
            yield name

    async def read(name: str) -> None:
        async for part in exports._in_turn(turns, "o", parts(name)):
            order.append(str(part))

    slow = exports._in_turn(turns, "o", parts("slow"))
    await anext(slow)
    async with asyncio.timeout(60):
        await asyncio.gather(read("a"), read("b"))
    assert order == ["a", "b"] * 3
    await slow.aclose()  # type: ignore[attr-defined]  # as a server does when a client has gone


def test_a_file_of_usage_has_all_rows_of_the_pages_time(
    visitor: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spend, "USAGE_BATCH", 3)
    for number in range(10):
        event = {"type": "llm", "user": f"u{number % 5}", "tags": {"project": "=1+1"}}
        tenant.send("w", {**event, "data": {"model": f"m{number % 2}", "input_tokens": 1}})
    tenant.send("w", {"type": "llm", "data": {"model": "m0"}})
    table, records = rows(visitor, "usage", by="user")
    assert [each["group"] for each in records] == [None, "u0", "u1", "u2", "u3", "u4"]
    assert {each["by"] for each in table} == {"user"}
    assert sum(each["llm_calls"] for each in records) == 11
    _, pairs = rows(visitor, "usage", by="user", rows="by-model")
    assert [(each["group"], each["model"]) for each in pairs[:3]] == [
        (None, "m0"), ("u0", "m0"), ("u0", "m1"),
    ]  # fmt: skip
    assert len(pairs) == 11
    tags, _ = rows(visitor, "usage", by="tag:project")
    assert [each["group"] for each in tags] == ["", "'=1+1"]
    assert rows(visitor, "usage", by="user", **{"from": "2020-01-01", "to": "2020-02-01"})[1] == []


def test_keys_have_their_names_in_a_file_of_usage(visitor: Any, tenant: Any) -> None:
    tenant.send("w", {"type": "llm", "data": {"model": "m"}})
    _, found = rows(visitor, "usage", by="key")
    assert [each["key_name"] for each in found] == ["test"]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_page_is_an_empty_file(visitor: Any, name: str) -> None:
    table, records = rows(visitor, name)
    if name != "audit":
        assert (table, records) == ([], [])


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("name", NAMES)
def test_who_may_not_see_the_page_gets_no_file(
    gateway: Any, tenant: Any, make_tenant: Callable[[], Any], visit: Callable[..., Any],
    name: str, kind: str,
) -> None:  # fmt: skip
    other = make_tenant()
    password = "only of one organisation"
    who = f"{name}-{kind}"
    gateway.admin.request(
        "PUT", f"/operators/{who}", {"password": password, "role": "viewer"},
        organisation=tenant.organisation_id,
    )  # fmt: skip
    own = visit(tenant.organisation_id, who, password)
    assert own.get(f"/export/{name}.{kind}").status_code == 200
    stranger = own.http.get(f"/export/{name}.{kind}?organisation={other.organisation_id}")
    assert stranger.status_code == 404
    with httpx.Client(base_url=gateway.base_url, trust_env=False) as nobody:
        reply = nobody.get(f"/export/{name}.{kind}")
        assert (reply.status_code, reply.headers["location"][:9]) == (303, "/sign-in?")


@pytest.mark.parametrize("path", ["/spend", "/users", "/workflows", "/events", "/budgets",
                                  "/audit"])  # fmt: skip
def test_each_page_links_to_its_files(visitor: Any, tenant: Any, path: str) -> None:
    fill(tenant)
    text = visitor.get(path, q="plain", by="user", range="24h", workflow="plain").text
    links = re.findall(r'href="(/export/[^"]+)"', text)
    assert len(links) == (6 if path == "/spend" else 2)
    for link in links:
        assert visitor.http.get(link.replace("&amp;", "&")).status_code == 200
    if path == "/spend":
        assert "by=user&amp;range=24h" in links[0]
    if path == "/workflows":
        assert "q=plain" in links[0]
    if path == "/events":
        assert "workflow=plain" in links[0]
