"""What a screen reader, a keyboard and weak eyes need, checked in the rendered pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.dashboard.conftest import PASSWORD
from tests.support.axe import axe

PAGES: Final = [
    "/", "/workflows", "/users", "/workflow?id=auditor&tab=calls", "/workflow?id=auditor&tab=spans",
    "/workflow?id=auditor&tab=models", "/workflow?id=auditor&tab=decisions",
    "/workflow?id=auditor&tab=errors", "/events", "/events?show=refused", "/approvals", "/budgets",
    "/budgets/edit", "/policies", "/policies/edit", "/alerts", "/alerts/channel?kind=slack",
    "/alerts/channel?kind=email", "/keys", "/people", "/people/change?name=admin&change=role",
    "/spend?range=24h", "/spend?by=user", "/latency",
    "/spend?by=tag:team&from=2026-01-01&to=2026-01-09", "/user?id=ana", "/agent?id=one&range=24h",
    "/model?id=gpt-4o", "/tag?name=team&id=search", "/search?q=a", "/search", "/events?call=call",
    "/settings", "/settings/prices", "/settings/prices?q=gpt-4o", "/settings/gateway", "/audit",
    "/control?action=kill&workflow=*", "/control?action=kill&workflow=auditor", "/teams",
    "/team?id=search", "/own", "/events?user=ana&range=24h", "/events?user=nobody&range=1h",
    "/events?tag=team%3Dsearch&cost=0.01&from=2026-01-01&to=2026-01-09", "/audit?range=1h",
    "/search?q=gpt", "/events/event?id=1", "/events/refusal?id=1", "/workflows?q=none&range=24h",
]  # fmt: skip
CHECKS: Final = (Path(__file__).parent / "accessibility.js").read_text()


def fill(tenant: Any) -> None:
    """Something of everything that pages show."""
    tenant.admin.set_budget(1, scope_kind="workflow", scope_id="asks", on_exhausted="ask")
    tenant.spend("asks", 10**7)
    assert tenant.gate("asks", wait_ms=60_000).json()["asks"]
    tenant.admin.request(
        "PUT", "/budgets", {"scope_kind": "organisation", "window": "day", "limit_cents": 1}
    )
    tenant.admin.request("PUT", "/policies/careful", {"document": {
        "tools_block": ["shell_*"], "approval_tools": ["delete_*"], "rate_caps": [{"calls": 9}],
    }})  # fmt: skip
    tenant.admin.create_key("laptop", team="search", person="ana")
    tenant.gate("auditor", tool_name="shell_exec")
    tenant.gate("auditor", tool_name="delete_all")
    tenant.spend("auditor", 10**9)
    tenant.spend("w" * 200, 10**6)
    common = {"user": "ana", "agent": "one", "tags": {"team": "search"}, "call_id": "call"}
    tenant.send("auditor", {"type": "llm", "data": {"model": "gpt-4o", "cost_nanousd": 10**8},
                            **common})  # fmt: skip
    span = {"name": "work", "kind": "call", "duration_ms": 20, "outcome": "error"}
    tenant.send(
        "auditor",
        {"type": "span", "data": span, "span_id": "a" * 16, "run_id": "run-1", "agent": "one"},
        {"type": "tool", "data": {"tool_name": "read"}, "span_id": "a" * 16, "run_id": "run-1"},
    )
    for action, target in (("kill", "stopped"), ("pause", "waiting")):
        body = {"action": action, "workflow_id": target, "reason": "because"}
        tenant.admin.request("POST", "/control", body)


DESKTOP: Final = {"width": 1280, "height": 720}
PHONE: Final = {"width": 390, "height": 844}
SEEN_AS: Final = [
    ("owner", DESKTOP, "light", PAGES[::2]), ("owner", DESKTOP, "dark", PAGES[1::2]),
    ("owner", PHONE, "light", PAGES[1::2]), ("owner", PHONE, "dark", PAGES[::2]),
    ("operator", PHONE, "light", PAGES[1::6]), ("viewer", DESKTOP, "dark", PAGES[::6]),
    ("viewer", PHONE, "light", PAGES[2::6]), ("member", DESKTOP, "light", ["/own"]),
    ("member", PHONE, "dark", ["/own", "/own?range=24h"]),
]  # fmt: skip
"""Who looks at which pages, in which window and which colours."""


@pytest.mark.generator("pages as they are seen by roles, windows and colours")
@pytest.mark.parametrize(
    ("role", "window", "scheme", "pages"), SEEN_AS,
    ids=[f"{role}-{window['width']}-{scheme}" for role, window, scheme, _ in SEEN_AS],
)  # fmt: skip
def test_every_page_passes_the_checks(
    new_page: Callable[..., Any], tenant: Any, role: str, window: Any, scheme: str,
    pages: list[str], count_cases: Callable[[int], None],
) -> None:  # fmt: skip
    fill(tenant)
    find = axe()
    name = f"{role}-{tenant.organisation_id[-8:]}"
    operator = {"role": role, "password": PASSWORD}
    tenant.admin.request("PUT", f"/operators/{name}", operator)
    page = new_page(color_scheme=scheme, viewport=window)
    page.goto("/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Live", exact=True).wait_for()
    found = {}
    for path in pages:
        page.goto(path)
        if page.locator("[data-problem]").count():
            assert "id=1" in path or role != "owner" or "gateway" in path or "admin" in path, path
            continue
        page.evaluate("document.getElementById('live-text').textContent = 'Disconnected'")
        wide = page.evaluate("document.documentElement.scrollWidth")
        found[path] = [*page.evaluate(CHECKS), *sorted(find(page))]
        found[path] += [f"{wide} wide"] if wide > window["width"] else []
    assert {path: troubles for path, troubles in found.items() if troubles} == {}
    count_cases(len(found))


def test_the_sign_in_and_the_error_page_pass_the_checks(new_page: Callable[..., Any]) -> None:
    page = new_page()
    page.goto("/sign-in")
    assert page.evaluate(CHECKS) == []
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button").click()
    page.get_by_role("alert").wait_for()
    assert page.evaluate(CHECKS) == []


def test_the_checks_find_what_they_are_for(new_page: Callable[..., Any]) -> None:
    page = new_page()
    page.goto("/sign-in")
    page.evaluate(
        """() => {
          const main = document.querySelector('main');
          main.append(document.createElement('input'), document.createElement('button'));
          const pale = document.createElement('p');
          pale.textContent = 'pale';
          pale.style.color = getComputedStyle(main).backgroundColor;
          const jump = document.createElement('h4');
          jump.textContent = 'jump';
          main.append(pale, jump);
          document.querySelector('h1').id = 'twice';
          pale.id = 'twice';
        }"""
    )
    found = " ".join(page.evaluate(CHECKS))
    for word in ("no label", "no name", "contrast", "heading", "id twice"):
        assert word in found, (word, found)


def test_the_keyboard_alone_can_kill(signed_in: Callable[..., Any], tenant: Any) -> None:
    tenant.spend("victim", 10**6)
    page = signed_in("/workflows")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    order = []
    for _ in range(20):
        order.append(page.evaluate("document.activeElement.innerText"))
        if order[-1].startswith("Kill victim") or ("Kill" in order[-1] and "victim" in order[-1]):
            break
        page.keyboard.press("Tab")
    assert order[0] == "Kill everything", "the skip link leads past the navigation"
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    page.wait_for_function("document.activeElement.id === 'reason'")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    page.wait_for_function("document.activeElement.id === 'kill-victim'")  # focus comes back
    page.keyboard.press("Enter")
    dialog.wait_for()
    page.wait_for_function("document.activeElement.id === 'reason'")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    page.get_by_role("status").filter(has_text="Killed.").wait_for()
    assert tenant.admin.request("GET", "/workflows/victim")["state"] == "killed"
