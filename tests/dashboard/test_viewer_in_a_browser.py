"""Who may change nothing is shown nothing to change it with: every page, as a viewer sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.dashboard.conftest import PASSWORD
from tests.dashboard.test_accessibility import PAGES, fill

OFFERED = """() => [...document.querySelectorAll('main *')].filter(
  each => each.matches('form[method="post"]:not([action="/audit/verify"], [action^="/own/"]),'
    + ' form[method="post"]:not([action="/audit/verify"], [action^="/own/"]) *, a.button')
    && each.matches('form, input:not([type="hidden"]), select, textarea, button, a')
    && each.checkVisibility() && each.getBoundingClientRect().height > 1
).map(each => each.tagName === 'A' ? 'A ' + each.getAttribute('href') : each.tagName + ' ' +
  (each.name || each.action))"""
OWN = {"/budgets/edit", "/policies/edit", "/alerts/channel?kind=slack", "/settings/gateway",
       "/alerts/channel?kind=email", "/people/change?name=admin&change=role",
       "/control?action=kill&workflow=*", "/control?action=kill&workflow=auditor"}  # fmt: skip
"""Pages that are for changes, to which a viewer is led by nothing."""


def test_a_viewer_is_offered_no_change(new_page: Callable[..., Any], tenant: Any) -> None:
    fill(tenant)
    tenant.admin.put_operator("vera", role="viewer")
    tenant.admin.set_password("vera", PASSWORD)
    page = new_page()
    page.goto("/sign-in")
    page.get_by_label("Name").fill("vera")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Live", exact=True).wait_for()
    found: dict[str, list[str]] = {}
    links: set[str] = set()
    for path in [path for path in PAGES if path not in OWN]:
        page.goto(path)
        offered = page.evaluate(OFFERED)
        links |= {each[2:] for each in offered if each.startswith("A ")}
        found[path] = [each for each in offered if not each.startswith("A ")]
    assert {path: each for path, each in found.items() if each} == {}
    for link in sorted(links):
        answer = page.goto(link)
        assert answer.status == 200, link
        assert not [each for each in page.evaluate(OFFERED) if each[0] != "A"], link
