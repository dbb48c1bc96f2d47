"""``/device`` in a browser, and the table of groups at the dashboard's own sign-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from guard.gateway.embedded import run_gateway
from tests.dashboard.conftest import PAGE_WAIT_MS
from tests.support.axe import axe
from tests.support.logins import LOGIN_KEY, LoginSite, MovedClock, client_of
from tests.support.openid_provider import openid_provider

CHECKS: Final = (Path(__file__).parent / "accessibility.js").read_text()
NAME: Final = "a-developer-with-a-very-long-name.of-several-parts@engineering.example.com"


@pytest.fixture(scope="module")
def site() -> Iterator[LoginSite]:
    clock = MovedClock()
    with (
        openid_provider([]) as issuer,
        run_gateway(clock_ms=clock, login_key=LOGIN_KEY, **client_of(issuer)) as gateway,
    ):
        made = LoginSite(gateway, issuer, clock)
        gateway.admin.put_sign_on_group("dev", team="search")
        made.says("ada", email=NAME, email_verified=True, groups=["dev"])
        yield made


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")]
)
@pytest.mark.parametrize("answer", ["Allow", "Refuse"])
def test_a_person_enters_the_code_signs_in_and_answers(
    site: LoginSite, browser: Any, width: int, scheme: Any, answer: str, tmp_path: Path
) -> None:
    """Over two sites, so that what browsers do with forms that lead elsewhere is in it."""
    context = browser.new_context(
        base_url=site.gateway.base_url, viewport={"width": width, "height": 800},
        color_scheme=scheme,
    )  # fmt: skip
    context.set_default_timeout(PAGE_WAIT_MS)
    page, find, found = context.new_page(), axe(), {}

    def look(name: str) -> None:
        page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png")
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        found[name] = [*page.evaluate(CHECKS), *sorted(find(page)), *(["too wide"] if wide else [])]

    code = site.begin()
    page.goto("/device")
    look("enter")
    page.get_by_label("Code").fill("nonsense")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    look("wrong")
    page.get_by_label("Code").fill(code["user_code"].lower().replace("-", " "))
    page.get_by_role("button", name="Go on").click()
    page.get_by_text(code["user_code"]).wait_for()
    look("start")
    page.get_by_role("link", name="Sign in by single sign-on").click()
    page.locator('input[name="sub"]').first.fill("ada")
    page.locator('button[type="submit"], input[type="submit"]').first.click()
    page.get_by_role("heading", name="Allow this program?").wait_for()
    page.get_by_text(NAME).wait_for()
    look("confirm")
    page.get_by_role("button", name=answer).click()
    page.get_by_text("You can close this page").wait_for()
    look("done")
    context.close()
    assert {name: troubles for name, troubles in found.items() if troubles} == {}
    reply = site.redeem(code)
    assert reply.status_code == (200 if answer == "Allow" else 400)


@pytest.mark.parametrize("code", ["<script>alert(1)</script>", "AAAA-AAAA", "x" * 5000, "\x00"])
def test_what_is_no_code_leads_nowhere(site: LoginSite, code: str) -> None:
    reply = httpx.get(f"{site.gateway.base_url}/device", params={"code": code})
    assert (reply.status_code, "A code has eight letters" in reply.text) == (200, True)
    assert "<script>alert" not in reply.text
    assert "/sign-in/openid" not in reply.text


def signed_on(site: LoginSite, person: str) -> httpx.Response:
    with httpx.Client(base_url=site.gateway.base_url, follow_redirects=True) as http:
        form = http.get("/sign-in/openid", params={"return_to": "/people"})
        assert str(form.url).startswith(site.issuer), form.text
        reply = http.post(form.url, data={"sub": person})
        return http.get("/people") if reply.status_code == 200 else reply


def test_a_group_lets_people_into_the_dashboard_in_its_role(site: LoginSite) -> None:
    admin = site.gateway.admin
    claims = {"email": "eve@example.com", "email_verified": True}
    site.says("eve", **claims, groups=["ops", "dev"])
    refused = signed_on(site, "eve")
    assert (refused.status_code, "yours is member" in refused.text) == (403, True)
    admin.put_sign_on_group("ops", role="viewer", place=1)
    admin.put_sign_on_group("boss", role="owner", place=1)
    assert "eve@example.com, viewer" in signed_on(site, "eve").text
    site.says("eve", **claims, groups=["ops", "boss"])
    assert 'data-role="owner"' in signed_on(site, "eve").text, "the role follows the groups"
    site.says("eve", **claims, groups=["dev"])
    assert "yours is member" in signed_on(site, "eve").text
    site.says("eve", **claims, groups=["elsewhere"])
    refused = signed_on(site, "eve")
    assert (refused.status_code, "no group of eve@example.com" in refused.text) == (403, True)
    site.says("eve", **claims, groups=["ops"])
    assert "eve@example.com, viewer" in signed_on(site, "eve").text
    admin.delete_sign_on_group("boss")


def test_a_group_takes_nothing_from_who_was_added_by_hand(site: LoginSite) -> None:
    admin = site.gateway.admin
    admin.put_operator("bob@example.com", role="operator")
    claims = {"email": "bob@example.com", "email_verified": True}
    for groups in (["ops"], [], ["dev"]):
        site.says("bob", **claims, groups=groups)
        assert "bob@example.com, operator" in signed_on(site, "bob").text
    admin.set_password("root@example.com", "a password for tests")
    site.says("mallory", email="root@example.com", email_verified=True, groups=["ops"])
    assert signed_on(site, "mallory").status_code == 403, "a name with a password is nobody else's"
