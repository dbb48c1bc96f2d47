"""Teams with their members, keys and spend, on both engines and in a browser."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.dashboard.test_members import Members, members_site
from tests.support.axe import axe
from tests.support.openid_provider import openid_provider

CHECKS: Final = (Path(__file__).parent / "accessibility.js").read_text()
HOSTILE: Final = '"><img src=x onerror=window.pwned=1> ' + "w" * 80
PEOPLE: Final = {"ada": "search", "bob": "search", "cy": "batch", "dan": HOSTILE}
MONEY: Final = 10**9


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with openid_provider([]) as issuer:
        yield issuer


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def site(
    provider: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Members]:
    folder = tmp_path_factory.mktemp("teams")
    with members_site(provider, folder, str(request.param)) as made:
        fill(made)
        yield made


def fill(site: Members) -> None:
    """Three teams that people sign in to, one that nobody has yet, and keys made by hand."""
    admin = site.gateway.admin
    admin.set_budget(500, scope_kind="key", scope_id="*", window="day")
    for group, team in (("dev", "search"), ("ops", "batch"), ("odd", HOSTILE), ("new", "empty")):
        admin.put_sign_on_group(group, team=team)
    admin.put_sign_on_group("chiefs", role="viewer", place=1)
    groups = {"search": "dev", "batch": "ops", HOSTILE: "odd"}
    for at, (person, team) in enumerate(PEOPLE.items(), 1):
        email = f"{person}@example.com"
        site.says(person, email=email, email_verified=True, groups=[groups[team]])
        site.spend(site.sign_in(person)["access_token"], at * MONEY)
    site.says("chief", email="chief@example.com", email_verified=True, groups=["chiefs"])
    ended = admin.create_key("ended", team="search", person="eve@example.com")
    site.spend(ended, 10 * MONEY)
    [key_id] = [each["key_id"] for each in list(admin.keys()) if each["name"] == "ended"]
    admin.request("DELETE", f"/keys/{key_id}")
    site.spend(admin.create_key("of no team"), 20 * MONEY)


def rows(page: httpx.Response, caption: str) -> list[list[str]]:
    """Return the cells of a table, as they are read."""
    assert page.status_code == 200, page.text
    table = page.text.split(f'<caption class="hidden">{caption}</caption>')[1]
    body = table.split("<tbody>")[1].split("</tbody>")[0]
    return [
        [html.unescape(re.sub(r"<[^>]*>", "", cell)).strip()
         for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    ]  # fmt: skip


def test_teams_have_their_members_keys_groups_and_spend(site: Members) -> None:
    with site.visit("chief") as http:
        found = [row[:6] for row in rows(http.get("/teams"), "Teams")]
    assert found == [
        ["no team", "0", "2", "chiefs", "$20.00", "1"],  # one is the gateway's first key
        ["search", "2", "2", "dev", "$13.00", "3"],
        [HOSTILE, "1", "1", "odd", "$4.00", "1"],
        ["batch", "1", "1", "ops", "$3.00", "1"],
        ["empty", "0", "0", "new", "$0.00", "0"],
    ]


def test_the_spend_of_teams_is_that_of_the_report(site: Members) -> None:
    with site.visit("chief") as http:
        shown = {row[0]: row[4] for row in rows(http.get("/teams"), "Teams")}
        report = http.get("/export/usage.json", params={"by": "team", "range": "30d"}).json()
    of_report = {
        each["group"] or "no team": f"${each['cost_nanousd'] / MONEY:.2f}" for each in report
    }
    assert {name: money for name, money in shown.items() if money != "$0.00"} == of_report


def test_a_team_has_its_members_and_its_keys_and_no_others(site: Members) -> None:
    with site.visit("chief") as http:
        page = http.get("/team", params={"id": "search"})
        members = [row[:3] for row in rows(page, "Members")]
        keys = [row[:3] for row in rows(page, "Keys in use")]
        assert members == [
            ["eve@example.com", "0", "$10.00"], ["bob@example.com", "1", "$2.00"],
            ["ada@example.com", "1", "$1.00"],
        ]  # fmt: skip
        assert sorted(keys) == [
            [f"{each}@example.com signs in", f"{each}@example.com", money]
            for each, money in (("ada", "$1.00"), ("bob", "$2.00"))
        ]
        assert [row[0] for row in rows(page, "Keys that have ended")] == ["ended"]
        for others in ("cy@example.com", "dan@example.com", "of no team", "$20"):
            assert others not in page.text, others


def test_a_team_is_found_by_its_name_or_not_at_all(site: Members) -> None:
    with site.visit("chief") as http:
        assert "Nobody has signed in yet" in http.get("/team", params={"id": "empty"}).text
        for name in ("", "nowhere", "Search"):
            assert http.get("/team", params={"id": name}).status_code == 404, name
        links = re.findall(r'href="(/team\?[^"]*)"', http.get("/teams").text)
        assert len(links) == 4
        for link in links:
            assert http.get(html.unescape(link)).status_code == 200, link
        # The page of spend leads there as well.
        spend = http.get("/spend", params={"by": "team"}).text
        assert 'href="/team?id=search' in spend


def test_teams_are_of_one_organisation(site: Members) -> None:
    admin = site.gateway.admin
    other = admin.create_organisation("elsewhere")["organisation_id"]
    try:
        admin.request("POST", "/keys", {"name": "k", "team": "of-another"}, organisation=other)
        with site.visit("chief") as http:
            assert "of-another" not in http.get("/teams").text
            assert http.get("/team", params={"id": "of-another"}).status_code == 404
    finally:
        admin.remove_organisation("elsewhere")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_pages_of_teams_are_for_everyone(
    site: Members, browser: Any, scheme: Any, width: int, tmp_path: Path
) -> None:
    with site.visit("chief") as http:
        value = http.cookies["guard_session"]
    base = site.gateway.base_url
    context = browser.new_context(
        base_url=base, viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    context.add_cookies([{"name": "guard_session", "value": value, "url": base}])
    page, find, found = context.new_page(), axe(), {}
    page.goto("/teams")
    hostile = page.locator("#teams a").filter(has_text="onerror").get_attribute("href")
    for name, path in (
        ("teams", "/teams"), ("team", "/team?id=search"), ("hostile", hostile),
        ("empty", "/team?id=empty&range=24h"), ("keys", "/keys"),
    ):  # fmt: skip
        page.goto(path)
        page.get_by_text("Live", exact=True).wait_for()
        wide = page.evaluate("document.documentElement.scrollWidth")
        page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
        troubles = [*page.evaluate(CHECKS), *sorted(find(page))]
        found[name] = [*troubles, *([f"{wide} wide"] if wide > width else [])]
        assert page.evaluate("window.pwned === undefined")
    context.close()
    assert {name: troubles for name, troubles in found.items() if troubles} == {}
