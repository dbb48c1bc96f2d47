"""The pages of spend in a real browser: for everyone, in the viewer's time zone, and by a click."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.support.axe import axe

HOSTILE: Final = '"><img src=x onerror=window.pwned=1> ' + "w" * 150
DESKTOP: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
PAGES: Final = (
    "/spend?by=user", "/spend?by=model&range=30d", "/spend?by=tag:team&range=24h", "/users",
    "/latency", "/user?id=user-1", "/model?id=model-1&range=24h", "/agent?id=one",
    "/tag?name=team&id=red", "/search?q=user", "/search", "/events?call=call-1", "/workflows",
    "/budgets", "/audit", "/",
)  # fmt: skip


def fill(tenant: Any) -> None:
    tenant.admin.set_budget(10_000, scope_kind="user", scope_id="*")
    for at in range(10):
        name = HOSTILE if at == 5 else f"user-{at}"
        tenant.send(f"flow-{at % 3}", {
            "type": "llm", "user": name, "agent": "one", "run_id": f"run-{at}", "span_id": f"s{at}",
            "call_id": f"call-{at}", "tags": {"team": "red" if at % 2 else HOSTILE},
            "data": {"model": f"model-{at}", "cost_nanousd": (at + 1) * 10**8, "latency_ms": 900},
        })  # fmt: skip
    span = {"name": "f", "kind": "call", "outcome": "error"}
    tenant.send("flow-1", {"type": "span", "data": span, "span_id": "s1", "run_id": "run-1"})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_pages_are_for_everyone(
    signed_in: Callable[..., Any], tenant: Any, scheme: str, viewport: dict[str, int]
) -> None:
    fill(tenant)
    find = axe()
    page = signed_in("/spend", color_scheme=scheme, viewport=viewport)
    found = {}
    for path in PAGES:
        separator = "&" if "?" in path else "?"
        page.goto(f"{path}{separator}organisation={tenant.organisation_id}")
        page.get_by_text("Live", exact=True).wait_for()
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > viewport["width"]:
            found[path, "wide"] = {("wide", str(wide))}
        if wrong := find(page):
            found[path, "axe"] = wrong
        assert page.evaluate("window.pwned === undefined && !document.querySelector('main img')")
    assert found == {}


def test_days_are_the_browsers_from_the_first_page_on(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    fill(tenant)
    page = signed_in("/spend?range=7d", timezone_id="Pacific/Auckland")
    expect(page.locator("figcaption")).to_contain_text("Times in Pacific/Auckland")
    page = signed_in("/spend?range=7d", timezone_id="Asia/Kathmandu")
    expect(page.locator("figcaption")).to_contain_text(re.compile("Times in Asia/Kath?mandu"))


def test_a_click_leads_from_spend_to_the_user_and_on(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    fill(tenant)
    page = signed_in("/")
    page.get_by_role("link", name="Spend", exact=True).click()
    page.get_by_label("Divided by").select_option("user")
    expect(page.get_by_role("heading", level=2, name="By user")).to_be_visible()
    table = page.get_by_role("table", name="Spend by user")
    table.get_by_role("link", name="user-9").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("user-9")
    expect(page.get_by_role("main")).to_contain_text("of $100.00")
    page.get_by_role("link", name="90d").click()
    expect(page.get_by_text("$1.00 in the last 90 days")).to_be_visible()
    page.get_by_role("link", name="model-9").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("model-9")
    page.get_by_role("link", name="Spend by model").click()
    expect(page).to_have_url(re.compile("/spend"))
    expect(page.get_by_role("link", name="Spend", exact=True)).to_have_attribute(
        "aria-current", "page"
    )


def test_the_chart_reads_its_values_to_the_keyboard(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    fill(tenant)
    page = signed_in("/spend?by=model&range=24h")
    page.locator(".plot").focus()
    page.keyboard.press("End")
    tip = page.locator(".tip")
    expect(tip).to_contain_text("$5.50")
    expect(tip).to_contain_text("model-9 $1.00\nmodel-8 $0.90", use_inner_text=True)
    expect(page.locator(".chart-voice")).to_contain_text("$5.50")


def test_a_range_between_two_days_keeps_the_division(
    signed_in: Callable[..., Any], tenant: Any
) -> None:
    fill(tenant)
    page = signed_in("/spend?by=agent")
    page.get_by_text("Other days").click()
    page.get_by_label("From").fill("2026-01-01")
    page.get_by_label("To", exact=True).fill("2026-01-05")
    page.get_by_role("button", name="Show").last.click()
    nothing = page.get_by_text("Nothing was spent from 1 Jan 2026 to 5 Jan 2026")
    expect(nothing).to_be_visible()
    expect(page.get_by_label("Divided by")).to_have_value("agent")
    assert "from=2026-01-01" in page.url
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Events").click()
    expect(page.get_by_text("No event from 1 Jan 2026 to 5 Jan 2026")).to_be_visible()
    page.get_by_role("link", name="last 90 days").last.click()
    expect(page.get_by_role("table", name="Events, newest first")).to_be_visible()
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Spend").click()
    expect(page.get_by_role("main")).to_contain_text("in the last 90 days")


def test_the_search_box_is_on_every_page(signed_in: Callable[..., Any], tenant: Any) -> None:
    fill(tenant)
    page = signed_in("/audit")
    page.get_by_role("searchbox", name="Search").fill("call-4")
    page.keyboard.press("Enter")
    page.get_by_role("table", name="Calls").get_by_role("link", name="call-4").click()
    expect(page.get_by_role("textbox", name="Call")).to_have_value("call-4")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Organisation")).to_have_value(tenant.organisation_id)


def test_a_file_is_downloaded(signed_in: Callable[..., Any], tenant: Any) -> None:
    fill(tenant)
    page = signed_in("/spend?by=user&range=24h")
    with page.expect_download() as started:
        page.get_by_role("link", name="CSV of spend").click()
    assert started.value.suggested_filename == "spend.csv"
    assert "user-9" in started.value.path().read_text()


def test_everything_is_there_without_a_script(
    new_page: Callable[..., Any], session_cookie: Any, tenant: Any
) -> None:
    fill(tenant)
    page = new_page(java_script_enabled=False)
    page.context.add_cookies([session_cookie])
    page.goto(f"/spend?range=24h&organisation={tenant.organisation_id}")
    page.get_by_label("Divided by").select_option("user")
    page.get_by_role("button", name="Show").first.click()
    expect(page.locator("figcaption")).to_contain_text("Times in UTC")
    assert page.locator("rect.layer").count() == 8
    page.get_by_role("table", name="Spend by user").get_by_role("link", name="user-9").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("user-9")
    page.get_by_role("searchbox").fill("flow")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Workflows")).to_contain_text("flow-2")
