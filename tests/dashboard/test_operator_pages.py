"""Budgets, prices, settings, details of calls, refusals, audit and the kill of everything."""

from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Callable
from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.dashboard.conftest import PASSWORD, Tenant, Visitor
from tests.dashboard.test_accessibility import CHECKS
from tests.dashboard.test_counted_budgets import text_of
from tests.support.waiting import WAIT_S

WAITS: Final = """
import guard
guard.init()

@guard.protect
def work():
    print("it ran", flush=True)

with guard.workflow("nightly"):
    try:
        work()
    except guard.GuardError as exc:
        print("refused", exc.error_code, exc, flush=True)
"""
HOSTILE: Final = '"><img src=x onerror=window.pwned=1><script>window.pwned=1</script>'


def fill(tenant: Tenant) -> None:
    """Something of everything that these pages show."""
    admin = tenant.admin
    admin.set_budget(200, scope_kind="workflow", scope_id="nightly", on_exhausted="ask")
    admin.set_budget(1000, window="day")
    admin.set_budget(limit_tokens=2000, scope_kind="workflow", scope_id="nightly", window="week")
    admin.set_budget(limit_calls=3, counts=["search"], window="hour")
    tenant.spend("nightly", 25 * 10**8)
    for call in ("one", "two"):
        assert tenant.gate("nightly", wait_ms=60_000, call_id=f"asks-{call}").json()["asks"]
    admin.set_policy("careful", tools_block=["shell_*"])
    for number in range(3):
        tenant.gate("auditor", tool_name="shell_exec", call_id=f"shell-{number}", agent="worker")
    for number in range(4):
        tenant.gate("auditor", tool_name="search", call_id=f"search-{number}")
    tokens = {"input_tokens": 1200, "output_tokens": 300, "cache_read_tokens": 800,
              "cache_write_tokens": 100, "reasoning_tokens": 50, "audio_tokens": 7,
              "latency_ms": 1530}  # fmt: skip
    tenant.send(
        "auditor",
        {"type": "llm", "data": {"model": "gpt-4o", "provider": "openai", **tokens},
         "span_id": "b" * 16, "parent_span_id": "a" * 16, "trace_id": "c" * 32, "run_id": "run-1",
         "agent": "worker", "user": "ada", "tags": {"team": "search"}},
        {"type": "llm", "data": {"model": HOSTILE, **tokens}, "agent": HOSTILE, "user": HOSTILE,
         "run_id": "run-1"},
        {"type": "span", "data": {"name": HOSTILE, "outcome": "refused", "error_code": "GD-T001"},
         "call_id": "shell-0", "span_id": "a" * 16, "run_id": "run-1"},
    )  # fmt: skip
    admin.set_price("our-model-*", input_per_mtok=5 * 10**8, output_per_mtok=15 * 10**8)
    admin.request("POST", "/apply", {"prices": [
        {"model": HOSTILE, "rates": {"input_per_mtok": 10**9, "output_per_mtok": 10**9}},
    ]})  # fmt: skip


def refusal_path(page: str) -> str:
    """Return the address of the first refusal's details."""
    found = re.search(r'href="(/events/refusal\?[^"]+)"', page)
    assert found is not None
    return html.unescape(found[1])


def paths(tenant: Tenant) -> dict[str, str]:
    """Return the pages by a name."""
    events = tenant.admin.request("GET", "/events")
    llm = [each["event_seq"] for each in events if each["type"] == "llm"]
    [span] = [each["event_seq"] for each in events if each["type"] == "span"]
    return {
        "overview": "/", "budgets": "/budgets", "audit": "/audit", "prices": "/settings/prices",
        "prices-found": "/settings/prices?q=sonnet-4", "gateway": "/settings/gateway",
        "settings": "/settings", "events": "/events", "refused": "/events?show=refused",
        "event": f"/events/event?id={llm[1]}", "hostile": f"/events/event?id={llm[2]}",
        "span": f"/events/event?id={span}",
        "kill": "/control?action=kill&workflow=*", "workflow": "/workflow?id=nightly",
        "alerts": "/alerts",
    }  # fmt: skip


@pytest.fixture
def bound(tenant: Tenant, visit: Callable[..., Visitor]) -> Callable[[str], Visitor]:
    """Sign in as somebody of the tenant's organisation alone, with a role."""

    def sign_in(role: str) -> Visitor:
        name = f"{role}-of-{tenant.organisation_id}"
        tenant.admin.put_operator(name, password=PASSWORD, role=role)
        return visit(tenant.organisation_id, name)

    return sign_in


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_pages_pass_the_checks_at_every_width_with_hostile_names(
    signed_in: Callable[..., Any], tenant: Tenant, width: int, scheme: str
) -> None:
    fill(tenant)
    page = signed_in("/", color_scheme=scheme, viewport={"width": width, "height": 844})
    for name, path in paths(tenant).items():
        page.goto(f"{path}{'&' if '?' in path else '?'}organisation={tenant.organisation_id}")
        page.get_by_text("Live", exact=True).wait_for()
        assert page.evaluate(CHECKS) == [], name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate("window.pwned === undefined && !document.querySelector('main img')")


# -- prices and settings -------------------------------------------------------------------------


def test_prices_say_by_whose_word_they_are(tenant: Tenant, visitor: Visitor) -> None:
    tenant.send("w", *({"type": "llm", "data": {"model": model, "input_tokens": 1000}}
                       for model in ("gpt-4o", "our-model-1", "nobody-knows-it")))  # fmt: skip
    page = text_of(visitor.get("/settings/prices").text)
    assert "2 models charged at fallback prices, last 30 days" in page
    assert "gpt-4o $2.50 $10 $1.25" in page
    assert "built in: the published price" in page
    assert "fallback: no price of this model is known" in page
    saved = visitor.post("/settings/prices", model="our-model-*", input="0.50", output="1.50")
    assert saved.status_code == 303, saved.text
    tenant.admin.request("POST", "/apply", {"prices": [
        {"model": "gpt-4o", "rates": {"input_per_mtok": 10**9, "output_per_mtok": 2 * 10**9}},
    ]})  # fmt: skip
    page = text_of(visitor.get("/settings/prices").text)
    assert re.search(
        r"our-model-1 fallback price charged \$0.50 \$1.50 .* set by an operator", page
    )
    assert re.search(r"gpt-4o \$1 \$2 \$1 \$1 set from a file by guard gateway apply", page)
    assert "$3 $15" in text_of(visitor.get("/settings/prices", q="claude-sonnet-4-0").text)
    assert "fallback" in text_of(visitor.get("/settings/prices", q="no-such-model").text)
    wrong = visitor.post("/settings/prices", model="m", input="much", output="1")
    assert wrong.status_code == 400
    assert "Nothing was saved" in wrong.text
    [own] = [each for each in tenant.admin.prices() if each["model"] == "gpt-4o"]
    asked = visitor.get("/settings/prices/remove", id=own["price_id"]).text
    assert "the built-in price counts" in text_of(asked)
    assert visitor.post("/settings/prices/remove", price=own["price_id"]).status_code == 303
    assert [each["model"] for each in tenant.admin.prices()] == ["our-model-*"]
    done = [each["action"] for each in tenant.admin.audit()]
    assert done.count("price.put") == 2
    assert "price.delete" in done


def test_who_sees_and_changes_prices_and_settings(
    tenant: Tenant, visitor: Visitor, bound: Callable[[str], Visitor]
) -> None:
    page = visitor.get("/settings/gateway").text
    shown = text_of(page)
    assert "--first-admin-key not set default" in shown
    assert "--sweep-interval 250ms the program that runs the gateway default 500ms" in shown
    assert f'href="/people?organisation={tenant.organisation_id}"' in visitor.get("/settings").text
    viewer = bound("viewer")
    assert viewer.get("/settings/gateway").status_code == 404
    assert "/settings/gateway" not in viewer.get("/settings").text
    assert viewer.get("/settings/prices").status_code == 200
    assert "Set a price" not in viewer.get("/settings/prices").text
    for path, fields in (
        ("/settings/prices", {"model": "m", "input": "1", "output": "1"}),
        ("/settings/prices/remove", {"price": "x"}),
        ("/budgets/refuse", {"budget_id": "x"}),
    ):
        assert viewer.post(path, **fields).status_code == 403, path
    assert tenant.admin.prices() == []


# -- details and refusals ------------------------------------------------------------------------


def test_an_event_is_shown_with_all_that_is_known(
    tenant: Tenant,
    visitor: Visitor,
    make_tenant: Callable[[], Tenant],
    visit: Callable[..., Visitor],
) -> None:
    fill(tenant)
    pages = paths(tenant)
    path, _, query = pages["event"].partition("?id=")
    page = text_of(visitor.get(path, id=query).text)
    for text in ("Input 1,200", "Output 300", "Read from cache 800", "Written to cache 100",
                 "Reasoning 50", "Audio 7", "Took 1.5 s", "Trace " + "c" * 32,
                 "Parent span " + "a" * 16, "Tag team search", "User ada",
                 "Price built in: the published price",
                 "Charged to Whole organisation per day"):  # fmt: skip
        assert text in page, text
    span = pages["span"].partition("?id=")[2]
    page = text_of(visitor.get(path, id=span).text)
    assert "GD-T001 policy careful, version 1 the tool is blocked by" in page
    other = visit(make_tenant().organisation_id)
    assert other.get(path, id=query).status_code == 404
    assert visitor.get(path, id="9" * 16).status_code == 404


def test_a_call_shows_what_was_set_aside_for_it(tenant: Tenant, visitor: Visitor) -> None:
    tenant.admin.set_budget(1000)
    reply = tenant.gate("w", kind="llm", model="gpt-4o", max_input_tokens=1000,
                        max_output_tokens=1000).json()  # fmt: skip
    tenant.send("w", {"type": "llm", "reservation_id": reply["reservation_id"],
                      "data": {"model": "gpt-4o", "input_tokens": 100}})  # fmt: skip
    events = visitor.get("/events").text
    found = re.search(r'href="(/events/event\?id=\d+[^"]*)"', events)
    assert found is not None, events
    page = text_of(visitor.http.get(html.unescape(found[1])).text)
    assert f"Reservation {reply['reservation_id']}" in page
    assert "Amount $0.0125" in page
    assert "Spent of it $0.00025" in page


def test_refusals_that_are_alike_are_one_row_and_one_call_counts_once(
    tenant: Tenant, visitor: Visitor
) -> None:
    tenant.admin.set_policy("careful", tools_block=["shell_*"])
    for call in ("a", "b", "b", "c"):
        tenant.gate("w", tool_name="shell_exec", call_id=call)
    tenant.gate("other", tool_name="shell_exec", call_id="d")
    page = visitor.get("/events", show="refused").text
    rows = page.split("<tbody>")[1].split("</tbody>")[0].split("<tr>")[1:]
    assert [re.search(r'"Calls" class="num">([\d,]+)<', row)[1] for row in rows] == ["1", "3"]  # type: ignore[index]
    path = refusal_path(rows[1])
    shown = text_of(visitor.http.get(path).text)
    assert "Refused by policy careful, version 1" in shown
    assert "Because the tool is blocked by" in shown
    twice = re.search(r"id=(\d+)", path)
    assert twice is not None
    again = text_of(visitor.get("/events/refusal", id=str(int(twice[1]) - 1)).text)
    assert "Each time that it asked" in again


def test_what_a_budget_has_refused_is_named(tenant: Tenant, visitor: Visitor) -> None:
    tenant.admin.set_budget(1, scope_kind="workflow", scope_id="w")
    tenant.spend("w", 10**8)
    for cost in (1, 2, 3):
        tenant.gate("w")
        tenant.spend("w", cost * 10**7)
    page = visitor.get("/events", show="refused").text
    assert page.count("GD-B004</a>") == 1, "the figures in the reason differ, the reason does not"
    shown = text_of(visitor.http.get(refusal_path(page)).text)
    assert "Refused by budget of workflow w" in shown


# -- budgets -------------------------------------------------------------------------------------


def test_budgets_say_how_full_they_are(tenant: Tenant, visitor: Visitor) -> None:
    fill(tenant)
    page = visitor.get("/budgets").text
    shown = text_of(page)
    assert "$2.50 of $2.00 125% exhausted over by $0.50" in shown
    assert "3 of 3 calls of search 100% exhausted 0 left" in shown
    assert "100 of 2,000 tokens 5%" in shown
    assert '<span class="tag bad">exhausted</span>' in page
    assert "$0.000000001" not in page


def test_a_run_that_waits_for_a_raise_is_refused_on_the_page(
    signed_in: Callable[..., Any], tenant: Tenant, agent: Callable[..., subprocess.Popen[str]]
) -> None:
    tenant.admin.set_budget(200, scope_kind="workflow", scope_id="nightly", on_exhausted="ask")
    tenant.spend("nightly", 2 * 10**9)
    page = signed_in("/budgets")
    process = agent(WAITS)
    waiting = page.get_by_role("group", name="Waiting for a raise")
    expect(waiting).to_contain_text("1 call waits for a raise")
    waiting.get_by_label("Reason to refuse").fill("not tonight")
    waiting.get_by_role("button", name="Refuse the call").click()
    expect(page.get_by_role("status").filter(has_text="has ended")).to_be_visible()
    output, _ = process.communicate(timeout=WAIT_S)
    assert "refused GD-B004" in output, output
    assert "an operator refused to raise it: not tonight" in output
    assert "it ran" not in output
    [entry] = [each for each in tenant.admin.audit() if each["action"] == "budget.refuse"]
    assert (entry["actor"], entry["details"]["reason"]) == ("operator admin", "not tonight")


# -- everything is killed ------------------------------------------------------------------------


def test_the_kill_of_everything_takes_the_word(
    tenant: Tenant, visitor: Visitor, bound: Callable[[str], Visitor]
) -> None:
    for run in ("r1", "r2", "r3"):
        tenant.gate("a" if run == "r1" else "b", run_id=run)
    asked = text_of(visitor.get("/control", action="kill", workflow="*").text)
    assert "It stops 3 runs that were seen in the last 10 min" in asked
    assert "(2 known so far)" in asked
    kill = {"action": "kill", "workflow": "*", "reason": "enough"}
    for word in ("", "all", "every thing"):
        reply = visitor.post("/control", word=word, **kill)
        assert reply.status_code == 400
        assert "type the word everything" in reply.text
    assert bound("viewer").post("/control", word="everything", **kill).status_code == 403
    assert tenant.gate("a").status_code == 200
    assert visitor.post("/control", word=" Everything ", **kill).status_code == 303
    assert tenant.gate("a").json()["error_code"] == "GD-W002"
    [entry] = [each for each in tenant.admin.audit() if each["action"] == "workflow.kill"]
    assert (entry["actor"], entry["target"]) == ("operator admin", "*")


@pytest.mark.parametrize("script", [True, False])
def test_everything_is_killed_in_the_browser(
    signed_in: Callable[..., Any],
    new_page: Callable[..., Any],
    session_cookie: Any,
    tenant: Tenant,
    script: bool,
) -> None:
    tenant.gate("a", run_id="r1")
    if script:
        page = signed_in("/")
    else:
        page = new_page(java_script_enabled=False)
        page.context.add_cookies([session_cookie])
        page.goto(f"/?organisation={tenant.organisation_id}")
    page.get_by_role("link", name="Kill everything").click()
    panel = page.get_by_role("dialog") if script else page.get_by_role("main")
    expect(panel).to_contain_text("1 run that was seen")
    panel.get_by_label("Type “everything” to confirm").fill("everything")
    panel.get_by_label("Reason").fill("fire drill")
    panel.get_by_role("button", name="Kill").click()
    expect(page.get_by_role("status").filter(has_text="Killed.")).to_be_visible()
    assert tenant.gate("a").json()["error_code"] == "GD-W002"


# -- audit and times -----------------------------------------------------------------------------


def test_the_audit_log_is_in_words_and_shows_the_gateway_to_those_of_all_of_it(
    tenant: Tenant, visitor: Visitor, bound: Callable[[str], Visitor]
) -> None:
    tenant.admin.set_budget(250, window="day", on_exhausted="ask")
    page = text_of(visitor.get("/audit").text)
    assert "limit: $2.50" in page
    assert "ask: 5m" in page
    assert "thresholds: 80%, 100%" in page
    assert not re.search(r"nanousd|_ms\b|_at_ms", page)
    assert "whole gateway" in page, "somebody of the whole gateway has signed in"
    own = text_of(bound("owner").get("/audit").text)
    assert "limit: $2.50" in own
    assert "whole gateway" not in own


def test_moments_name_their_day_and_the_viewers_time(
    signed_in: Callable[..., Any], tenant: Tenant
) -> None:
    tenant.spend("w", 10**6)
    page = signed_in("/events", timezone_id="Asia/Tokyo", locale="en-GB")
    moment = page.get_by_role("row", name=re.compile("gpt-4o")).locator("time")
    expect(moment).to_have_text(re.compile(r"^(today|yesterday) \d\d:\d\d:\d\d$"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", moment.get_attribute("title"))
    moment.hover()
    expect(moment).to_have_attribute("title", re.compile(r"UTC, .* your time$"))
