"""The whole loop in a real browser: sign in, see, decide, stop."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from guard.gateway.storage.sql import queries
from tests.support.two_organisations import naming
from tests.support.waiting import WAIT_S, until

WORKER = """
import time, guard
guard.init()

@guard.protect
def work():
    guard.track_llm(20_000, 2_000, model="gpt-4o")

with guard.workflow("night-shift"):
    print("working", flush=True)
    while True:
        work()
        time.sleep(0.05)
"""

ASKER = """
import guard
guard.init()

@guard.sensitive
@guard.protect
def delete_record(number):
    print("deleted", number, flush=True)

with guard.workflow("janitor"):
    for number in (1, 2):
        try:
            delete_record(number)
        except guard.GuardError as exc:
            print("refused", number, exc.error_code, flush=True)
print("done", flush=True)
"""


def dollars(text: str) -> float:
    return float(text.replace("$", "").replace(",", ""))


def test_signs_in_and_out(new_page: Callable[..., Any], tenant: Any) -> None:
    page = new_page()
    page.goto(f"/budgets?organisation={tenant.organisation_id}")
    expect(page).to_have_url(re.compile("/sign-in"))
    page.get_by_label("Password").fill("not the password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("Name or password is not right.")
    page.goto(f"/budgets?organisation={tenant.organisation_id}")
    page.get_by_label("Password").fill("a password for tests")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Budgets")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.goto("/")
    expect(page).to_have_url(re.compile("/sign-in"))


def test_a_newcomer_is_told_the_two_lines(signed_in: Callable[..., Any]) -> None:
    page = signed_in("/")
    main = page.get_by_role("main")
    expect(main).to_contain_text("guard.init()")
    expect(main).to_contain_text("@guard.protect")
    expect(main).to_contain_text("GUARD_API_URL=http://127.0.0.1:")


def test_spend_moves_and_a_kill_stops_the_process(
    signed_in: Callable[..., Any],
    agent: Callable[..., subprocess.Popen[str]],
    tenant: Any,
) -> None:
    tenant.admin.request(
        "PUT", "/budgets", {"scope_kind": "organisation", "window": "day", "limit_cents": 100_000}
    )
    page = signed_in("/")
    process = agent(WORKER)
    spent = page.locator(".figures .card", has_text="Spent today").locator(".figure-value")
    # Without a reload: the page has to come by itself from nothing to a sum, and go on from there.
    page.evaluate("window.wasNotReloaded = true")
    expect(spent).not_to_have_text("$0.00")
    first = dollars(spent.inner_text())
    until(lambda: dollars(spent.inner_text()) > first)
    assert page.evaluate("window.wasNotReloaded")
    row = page.get_by_role("row", name=re.compile("^night-shift"))
    expect(row).to_contain_text("active")

    row.get_by_role("link", name="Kill night-shift").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Kill night-shift?")
    dialog.get_by_label("Reason").fill("it never sleeps")
    dialog.get_by_role("button", name="Kill").click()

    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode != 0
    assert "guard: [GD-W002]" in output
    assert "it never sleeps" in output
    expect(row).to_contain_text("killed")
    expect(page.get_by_role("status").filter(has_text="Killed.")).to_be_visible()
    expect(dialog).to_be_hidden()
    assert page.evaluate("window.wasNotReloaded")
    audit = tenant.admin.audit()
    assert (audit[-1]["action"], audit[-1]["actor"], audit[-1]["details"]["reason"]) == (
        "workflow.kill", "operator admin", "it never sleeps",
    )  # fmt: skip


def test_pause_and_resume(signed_in: Callable[..., Any], tenant: Any) -> None:
    tenant.spend("slow-one", 10**9)
    page = signed_in("/workflows")
    page.get_by_role("link", name="Pause slow-one").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    row = page.get_by_role("row", name=re.compile("^slow-one"))
    expect(row).to_contain_text("paused")
    assert tenant.gate("slow-one").json()["error_code"] == "GD-W003"
    row.get_by_role("link", name="Resume slow-one").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(row).to_contain_text("active")
    assert tenant.gate("slow-one").status_code == 200


def test_a_person_approves_one_call_and_refuses_the_next(
    signed_in: Callable[..., Any], agent: Callable[..., subprocess.Popen[str]], tenant: Any
) -> None:
    document = {"approval_tools": ["*delete_record"], "approval_timeout_ms": 600_000}
    tenant.admin.request("PUT", "/policies/careful", {"document": document})
    page = signed_in("/approvals")
    expect(page.get_by_role("main")).to_contain_text("Nothing waits for you")
    process = agent(ASKER)
    waiting = page.get_by_role("listitem").filter(has=page.get_by_role("button", name="Approve"))
    expect(waiting).to_have_count(1)
    expect(waiting).to_contain_text("janitor")
    waiting.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("approved"))).to_have_count(1)

    expect(waiting).to_have_count(1)
    waiting.get_by_label("Reason").fill("not that one")
    waiting.get_by_role("button", name="Refuse").click()
    expect(page.get_by_role("row", name=re.compile("refused"))).to_contain_text("not that one")
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, output
    assert "deleted 1" in output
    assert "deleted 2" not in output
    assert "refused 2 GD-X001" in output


def test_a_budget_is_previewed_edited_and_in_force(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    for _ in range(4):
        tenant.spend("shopper", 2 * 10**9)
    page = signed_in("/budgets")
    page.get_by_role("main").get_by_role("link", name="Set the first budget").click()
    page.get_by_label("Limit", exact=True).fill("4.00")
    page.get_by_role("button", name="Preview").click()
    preview = page.get_by_role("region", name="What it would have done")
    expect(preview).to_contain_text("2 of 4 calls")
    assert tenant.admin.request("GET", "/budgets") == []
    page.get_by_role("button", name="Activate").click()
    expect(page.get_by_role("status").filter(has_text="is active")).to_be_visible()
    assert tenant.gate("shopper").json()["error_code"] == "GD-B004"

    page.get_by_role("link", name="Edit organisation").click()
    page.get_by_label("Limit in dollars").fill("20")
    page.get_by_role("button", name="Activate").click()
    expect(page.get_by_role("main")).to_contain_text("$20.00")
    assert tenant.gate("shopper").status_code == 200


@pytest.fixture
def lasting_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show a call that waits for longer than its SDK would take to ask again: it has none here."""
    monkeypatch.setattr(queries, "LAPSE_MS", 600_000)


@pytest.mark.usefixtures("lasting_asks")
def test_a_budget_that_asks_is_raised_and_shows_by_whom(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    tenant.admin.set_budget(200, scope_kind="workflow", scope_id="nightly", on_exhausted="ask")
    tenant.spend("nightly", 2 * 10**9)
    call = {"wait_ms": 60_000, "call_id": "the-call"}
    assert tenant.gate("nightly", **call).json()["decision"] == "waiting"
    page = signed_in("/budgets")
    waiting = page.get_by_role("group", name="Waiting for a raise")
    expect(waiting).to_contain_text("1 call waits for a raise")
    waiting.get_by_label("Raise by dollars").fill("2.50")
    waiting.get_by_role("button", name="Raise workflow nightly").click()
    expect(page.get_by_role("status").filter(has_text="was raised")).to_be_visible()
    assert tenant.gate("nightly", **call).json()["decision"] == "allow"
    [raised] = tenant.admin.budget_raises()
    assert raised["limit"] == 4_500_000_000

    page.get_by_role("link", name="Edit workflow nightly").click()
    history = page.get_by_role("region", name="Raises")
    expect(history).to_contain_text("$2.50")
    expect(history).to_contain_text("$4.50")
    expect(history).to_contain_text("admin")
    expect(page.get_by_label("Before it refuses")).to_have_value("ask")
    page.goto("/audit?organisation=" + tenant.organisation_id)
    expect(page.get_by_role("main")).to_contain_text("raised budget")


@pytest.mark.usefixtures("lasting_asks")
def test_a_budget_of_tokens_keeps_a_share_and_is_raised(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    page = signed_in("/budgets/edit")
    page.locator("select[name=unit]").select_option("tokens")
    page.get_by_label("Window").select_option("total")
    page.get_by_label("Limit", exact=True).fill("1000")
    page.get_by_text("Ask before refusing").click()
    page.get_by_label("Before it refuses").select_option("ask")
    page.get_by_label("Percent kept for winding down").fill("20")
    page.get_by_role("button", name="Activate").click()
    expect(page.get_by_role("status").filter(has_text="is active")).to_be_visible()
    call = {"kind": "llm", "model": "m", "max_input_tokens": 100, "wait_ms": 60_000}
    assert tenant.gate("w", **call, max_output_tokens=600).json()["decision"] == "allow"
    waits = tenant.gate("w", **call, max_output_tokens=800, call_id="b").json()
    assert (waits["decision"], waits["asks"]) == ("waiting", True)
    page.goto("/budgets?organisation=" + tenant.organisation_id)
    expect(page.get_by_role("main")).to_contain_text("300 left, 200 of it for winding down")
    waiting = page.get_by_role("group", name="Waiting for a raise")
    expect(waiting).to_contain_text("may use 900 tokens")
    waiting.get_by_label("Raise by tokens").fill("1,000")
    waiting.get_by_role("button", name="Raise organisation").click()
    expect(page.get_by_role("status").filter(has_text="was raised")).to_be_visible()
    assert tenant.gate("w", **call, max_output_tokens=800, call_id="b").json()["decision"] == (
        "allow"
    )
    page.get_by_role("link", name="Edit organisation").click()
    expect(page.get_by_role("region", name="Raises")).to_contain_text("2,000")
    expect(page.get_by_label("Percent kept for winding down")).to_have_value("20")
    page.goto("/?organisation=" + tenant.organisation_id)
    expect(page.get_by_role("main")).to_contain_text("400 left, 400 of it for winding down")


def test_a_policy_is_previewed_against_recent_calls(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    for tool in ("read_file", "shell_exec"):
        assert tenant.gate("coder", tool_name=tool).status_code == 200
    page = signed_in("/policies/edit")
    page.get_by_label("Name", exact=True).fill("no shell")
    page.get_by_label("Blocked tools").fill("shell_*")
    page.get_by_role("button", name="Preview").click()
    preview = page.get_by_role("region", name="What it would have done")
    expect(preview).to_contain_text("1 refused")
    expect(preview.get_by_role("row", name=re.compile("shell_exec"))).to_contain_text("GD-T001")
    page.get_by_role("button", name="Activate").click()
    expect(page.get_by_role("heading", name="no shell")).to_be_visible()
    assert tenant.gate("coder", tool_name="shell_exec").json()["error_code"] == "GD-T001"


def test_a_key_is_shown_once_and_revoked(signed_in: Callable[..., Any], tenant: Any) -> None:
    page = signed_in("/keys")
    page.get_by_label("Name").fill("night agents")
    page.get_by_role("button", name="Make key").click()
    key = page.get_by_label("GUARD_API_KEY").input_value()
    assert key.startswith("gdk_")
    tenant.http.headers["X-API-Key"] = key
    assert tenant.gate("any").status_code == 200
    page.get_by_role("link", name="I have stored it").click()
    row = page.get_by_role("row", name=re.compile("night agents"))
    assert key not in page.content()
    row.get_by_role("link", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("region", name="Ended")).to_contain_text("night agents")
    assert tenant.gate("any").status_code == 401


def test_a_proxys_key_is_made_and_listed_as_such(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    page = signed_in("/keys")
    page.get_by_label("Name").fill("team proxy")
    page.get_by_label("For").select_option(label="a proxy")
    page.get_by_role("button", name="Make key").click()
    key = page.get_by_label("GUARD_API_KEY").input_value()
    assert key.startswith("gdp_")
    page.get_by_role("link", name="I have stored it").click()
    expect(page.get_by_role("row", name=re.compile("team proxy"))).to_contain_text("a proxy")
    named = naming(key, tenant.http.headers["X-API-Key"])
    tenant.http.headers["X-API-Key"] = key
    assert tenant.gate("any").json()["error_code"] == "GD-A005"
    tenant.http.headers["X-API-Key"] = named
    assert tenant.gate("any").status_code == 200


def test_events_stream_in_and_can_be_paused(signed_in: Callable[..., Any], tenant: Any) -> None:
    page = signed_in("/events")
    tenant.spend("streamer", 123_000_000, model="model-one")
    expect(page.get_by_role("row", name=re.compile("model-one"))).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    tenant.spend("streamer", 1, model="model-two")
    # The badge of the same change_watcher would come along with the row.
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("row", name=re.compile("model-two"))).to_be_visible()


def test_a_chart_reads_its_values_out(signed_in: Callable[..., Any], tenant: Any) -> None:
    tenant.spend("reader", 1_500_000_000)
    page = signed_in("/")
    plot = page.locator("#spend-chart .plot")
    expect(plot).to_have_attribute("aria-label", re.compile(r"^\$1\.50 in the last 24 hours"))
    plot.focus()
    page.keyboard.press("End")
    expect(page.locator("#spend-chart .tip")).to_contain_text("$1.50")
    expect(page.locator("#spend-chart .chart-voice")).to_contain_text("$1.50, 1 LLM call")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#spend-chart .tip")).to_contain_text("$0.00")


def test_says_when_the_stream_is_lost_and_when_the_gateway_is_unwell(
    signed_in: Callable[..., Any],
) -> None:
    page = signed_in("/")
    page.evaluate(
        """() => {
          const send = (source, kind, data) => source.dispatchEvent(new MessageEvent(kind, {data}));
          window.EventSource = class extends EventTarget {
            constructor() { super(); window.fake = this; this.readyState = 0; }
            close() {}
          };
          window.say = (kind, data) => send(window.fake, kind, data);
        }"""
    )
    hidden = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    told = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(hidden % "true" + told)
    page.evaluate(hidden % "false" + told)
    page.evaluate("window.say('health', JSON.stringify({ok: false, text: 'The store is away.'}))")
    expect(page.get_by_role("alert").filter(has_text="The store is away.")).to_be_visible()
    page.evaluate("window.fake.dispatchEvent(new Event('error'))")
    expect(page.get_by_role("alert").filter(has_text="Not connected")).to_be_visible()
    expect(page.get_by_text("Disconnected")).to_be_visible()
    page.evaluate("window.say('health', JSON.stringify({ok: true, text: ''}))")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_theme_follows_the_system_and_the_button(signed_in: Callable[..., Any]) -> None:
    page = signed_in("/", color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light theme").click()
    expect(page.get_by_role("button", name="Dark theme")).to_be_visible()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light, "the choice is remembered"
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate(ground) == dark
