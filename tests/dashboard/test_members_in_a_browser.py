"""The own page of a member, and what a member is refused, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.dashboard.test_members import Members, members_site
from tests.support.axe import axe
from tests.support.openid_provider import openid_provider

CHECKS: Final = (Path(__file__).parent / "accessibility.js").read_text()
ADDRESS: Final = "a-developer-with-a-very-long-name.of-several-parts@engineering.example.com"
HOSTILE: Final = '"><img src=x onerror=window.pwned=1> ' + "w" * 80


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    folder = tmp_path_factory.mktemp("members")
    with openid_provider([]) as issuer, members_site(issuer, folder, "sqlite") as made:
        fill(made)
        yield made


def fill(site: Members) -> None:
    """Somebody with two accounts and two keys made by hand, one of which has ended."""
    admin = site.gateway.admin
    admin.put_sign_on_group("batch", team="batch", place=1)
    for at, groups in enumerate((["batch"], ["dev"])):
        site.says("ada", email=ADDRESS, email_verified=True, groups=groups)
        site.spend(site.sign_in("ada")["access_token"], (2 - at) * 10**9)
    by_hand = admin.create_key(HOSTILE, person=ADDRESS, team="nightly")
    site.spend(by_hand, 3 * 10**8)
    admin.create_key("before", person=ADDRESS)
    [before] = [each for each in admin.keys() if each["name"] == "before"]  # noqa: SIM118
    admin.request("DELETE", f"/keys/{before['key_id']}")
    admin.set_budget(150, scope_kind="key", scope_id="*", window="day")
    admin.set_budget(9_900, scope_kind="organisation", window="month")


@pytest.fixture
def member(site: Members, browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page with the session of the person."""
    contexts: list[Any] = []

    def open_page(**options: Any) -> Any:
        with site.visit("ada") as http:
            value = http.cookies["guard_session"]
        context = browser.new_context(base_url=site.gateway.base_url, **options)
        contexts.append(context)
        context.add_cookies([{"name": "guard_session", "value": value,
                              "url": site.gateway.base_url}])  # fmt: skip
        return context.new_page()

    yield open_page
    for each in contexts:
        each.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_pages_of_a_member_are_for_everyone(
    member: Callable[..., Any], scheme: str, width: int, tmp_path: Path
) -> None:
    page = member(viewport={"width": width, "height": 900}, color_scheme=scheme)
    find, found = axe(), {}
    page.goto("/")
    page.get_by_text("Live", exact=True).wait_for()
    expect(page.get_by_role("heading", name=ADDRESS)).to_be_visible()
    address = page.get_by_role("link", name="Sign out everywhere").first.get_attribute("href")
    for name, path in (
        ("own", "/own"), ("range", "/own?range=24h"), ("end", address), ("refused", "/people"),
    ):  # fmt: skip
        page.goto(path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
        troubles = [*page.evaluate(CHECKS), *sorted(find(page))]
        found[name] = [*troubles, *([f"{wide} wide"] if wide > width else [])]
        assert page.evaluate("window.pwned === undefined")
    assert {name: troubles for name, troubles in found.items() if troubles} == {}


def test_a_member_signs_out_everywhere_by_a_click(
    site: Members, member: Callable[..., Any]
) -> None:
    tokens = site.sign_in("ada")
    page = member()
    page.goto("/own")
    page.get_by_role("link", name="Sign out everywhere").filter(has_text="search").click()
    page.get_by_role("dialog").get_by_role("button", name="Sign out everywhere").click()
    page.get_by_role("status").filter(has_text="Signed out everywhere.").wait_for()
    assert not site.works(tokens)


def test_what_a_member_is_refused_says_so_and_leads_back(member: Callable[..., Any]) -> None:
    page = member()
    page.goto("/budgets")
    expect(page.get_by_text("this takes the role viewer, and yours is member")).to_be_visible()
    page.get_by_role("link", name="To your page").click()
    expect(page.get_by_role("heading", name="Your keys")).to_be_visible()
