"""Who may do what in the dashboard: roles, operators, sessions, organisations."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import expect
from starlette.routing import Route

from guard.gateway.admin import AdminClient
from guard.gateway.embedded import Gateway, run_gateway
from tests.support.store_dump import dump

PASSWORD: Final = "a password for tests"
ROLES: Final = ("viewer", "operator", "owner")
FOR_ALL: Final = {
    "/device",
    "/sign-in",
    "/sign-out",
    "/audit/verify",
    "/answer",
    "/own/logins",
}
"""Forms that change nothing of anybody else's, and a signed link's, which needs no session."""

FOR_OWNERS: Final = {
    "/keys", "/keys/change", "/people", "/people/change", "/people/sessions", "/organisations",
    "/organisations/remove",
}  # fmt: skip
_numbers = itertools.count(1)


def csrf_in(text: str) -> str:
    return text.split('name="csrf" value="')[1][:64]


@attrs.frozen
class House:
    """A gateway of its own with somebody of every role, who is signed in."""

    gateway: Gateway
    database: str
    people: dict[str, httpx.Client]
    organisation_id: str

    def post(self, who: str, path: str, /, **fields: str) -> httpx.Response:
        http = self.people[who]
        csrf = csrf_in(http.get("/").text)
        headers = {"Origin": self.gateway.base_url}
        data = {"csrf": csrf, "organisation": self.organisation_id, **fields}
        return http.post(path, data=data, headers=headers)

    def forms(self) -> list[str]:
        """Return where forms of the dashboard are sent."""
        routes = self.gateway._server.app._cold.routes  # type: ignore[union-attr]
        return sorted(
            each.path
            for each in routes
            if isinstance(each, Route) and "POST" in (each.methods or ())
            if not each.path.startswith(("/api/", "/slack/"))  # these are signed
        )


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    database = str(tmp_path_factory.mktemp("house") / "g.sqlite3")
    with run_gateway(database, sweep_interval_ms=600_000) as gateway:
        people = {}
        for role in ROLES:
            gateway.admin.put_operator(role, password=PASSWORD, role=role)
            http = httpx.Client(base_url=gateway.base_url, trust_env=False)
            body = {"name": role, "password": PASSWORD, "csrf": csrf_in(http.get("/sign-in").text)}
            reply = http.post("/sign-in", data=body, headers={"Origin": gateway.base_url})
            assert reply.status_code == 303
            people[role] = http
        [default] = gateway.admin.organisations()
        yield House(gateway, database, people, default["organisation_id"])
        for http in people.values():
            http.close()


def test_each_form_asks_for_a_role(house: House) -> None:
    """A form that is new is for operators, until somebody says more."""
    forms = house.forms()
    assert set(forms) > FOR_ALL | FOR_OWNERS
    before = dump(house.database, but=("sessions",))
    for path in (each for each in forms if each not in FOR_ALL):
        for role in ("viewer", "operator"):
            if role == "operator" and path not in FOR_OWNERS:
                continue
            reply = house.post(role, path)
            assert reply.status_code == 403, (role, path)
            assert f"yours is {role}" in reply.text
    assert dump(house.database, but=("sessions",)) == before


_CHANGES: Final[list[tuple[str, dict[str, str]]]] = [
    ("/control", {"action": "kill", "workflow": "*", "word": "everything"}),
    ("/settings/prices", {"model": "m", "input": "1", "output": "1"}),
    ("/settings", {"strict": "1", "was_strict": "false"}),
    ("/budgets", {"scope_kind": "organisation", "limit": "1", "window": "day"}),
    ("/policies", {"name": "p", "is_new": "1", "tools_block": "*"}),
    ("/keys", {"name": "k"}),
    ("/people", {"name": "mallory", "role": "owner", "password": PASSWORD}),
    ("/people/change", {"name": "viewer", "change": "role", "role": "owner"}),
    ("/people/change", {"name": "operator", "change": "role", "role": "owner"}),
    ("/people/change", {"name": "owner", "change": "remove"}),
    ("/people/change", {"name": "owner", "change": "password", "password": PASSWORD}),
    ("/organisations", {"name": "another"}),
]


@pytest.mark.parametrize(("path", "fields"), _CHANGES)
@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_nobody_does_what_the_role_does_not_allow(
    house: House, role: str, path: str, fields: dict[str, str]
) -> None:
    if role == "operator" and path not in FOR_OWNERS:
        assert house.post(role, path, **fields).status_code in (200, 303, 400)
        return
    before = dump(house.database, but=("sessions",))
    assert house.post(role, path, **fields).status_code == 403
    assert dump(house.database, but=("sessions",)) == before


@pytest.mark.parametrize("role", ROLES)
def test_pages_are_for_all_and_change_nothing(house: House, role: str) -> None:
    before = dump(house.database, but=("sessions",))
    for path in ("/", "/workflows", "/events", "/approvals", "/budgets", "/budgets/edit",
                 "/policies", "/policies/edit", "/keys", "/people", "/settings",
                 "/settings/prices", "/settings/gateway", "/audit",
                 "/people/change?name=viewer&change=remove"):  # fmt: skip
        assert house.people[role].get(path).status_code == 200, path
    shown = house.people[role].get("/people").text
    for name in ROLES:
        assert f'<span class="name">{name}</span>' in shown
    assert ("Add a person" in shown) == ("Sessions</h2>" in shown) == (role == "owner")
    assert dump(house.database, but=("sessions",)) == before


def test_an_owner_keeps_the_own_role(house: House) -> None:
    for change in ("role", "remove"):
        reply = house.post("owner", "/people/change", name="owner", change=change, role="viewer")
        assert reply.status_code == 400
        assert "another owner" in reply.text


def test_an_owner_of_one_organisation_makes_nobody_elses(house: House) -> None:
    own = house.gateway.admin.create_organisation("own")["organisation_id"]
    house.gateway.admin.create_organisation("other")
    with contextlib.closing(
        AdminClient(house.gateway.base_url, house.gateway.admin_key, organisation="own")
    ) as admin:
        admin.put_operator("bea", password=PASSWORD)
    with httpx.Client(base_url=house.gateway.base_url, trust_env=False) as http:
        body = {"name": "bea", "password": PASSWORD, "csrf": csrf_in(http.get("/sign-in").text)}
        http.post("/sign-in", data=body, headers={"Origin": house.gateway.base_url})
        page = http.get("/people").text
        assert ">owner<" not in page.split("Who may sign in</h2>")[1].split("bea")[0]
        assert "Organisations</h2>" not in page
        csrf = csrf_in(page)

        def answer(path: str, **fields: str) -> httpx.Response:
            headers = {"Origin": house.gateway.base_url}
            return http.post(path, data={"csrf": csrf, **fields}, headers=headers)

        def post(path: str, **fields: str) -> int:
            return answer(path, **fields).status_code

        assert post("/people", name="carl", role="owner", sees="", password=PASSWORD) == 303
        [carl] = [each for each in house.gateway.admin.operators() if each["name"] == "carl"]
        assert carl["organisation_id"] == own, "whatever the form says"
        new = {"role": "owner", "password": PASSWORD}
        taken = [answer("/people", name=each, **new) for each in ("viewer", "carl")]
        assert [each.status_code for each in taken] == [400, 400]
        said = {text for each in taken for text in re.findall(r"Nobody was added[^<]*", each.text)}
        assert said == {"Nobody was added: this name cannot be given, choose another."}
        assert 'class="name">viewer<' not in http.get("/people").text
        for change in ("role", "password", "sign-out", "remove"):
            fields = {"role": "owner", "password": PASSWORD}
            assert post("/people/change", name="viewer", change=change, **fields) == 404
        assert post("/organisations", name="third") == 409
        assert post("/organisations/remove", id=own, name="own") == 409
        strangers = house.gateway.admin.sessions()
        found = next(each for each in strangers if each["name"] == "viewer")
        assert post("/people/sessions", session=found["session_id"]) == 404


# -- in a browser --------------------------------------------------------------------------------


def _sign_in(page: Any, name: str) -> None:
    page.goto("/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Live", exact=True).wait_for()


def test_an_owner_adds_a_viewer_who_sees_and_changes_nothing(
    signed_in: Callable[..., Any], new_page: Callable[..., Any], tenant: Any
) -> None:
    name = f"vera-{next(_numbers)}"
    tenant.spend("night", 10**7)
    page = signed_in("/people")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("status").get_by_text("They can sign in now")).to_be_visible()
    row = page.get_by_role("table", name="Operators").get_by_role("row").filter(has_text=name)
    expect(row).to_contain_text("viewer")

    other = new_page()
    _sign_in(other, name)
    other.goto("/workflows")
    expect(other.get_by_role("link", name="night").first).to_be_visible()
    expect(other.get_by_role("link", name="Kill night")).to_be_hidden()
    other.goto("/settings")
    expect(other.get_by_role("button", name="Save")).to_be_hidden()
    other.goto("/people")
    expect(other.get_by_text("Add a person")).to_have_count(0)

    row.get_by_role("link", name="Role").click()
    page.get_by_role("dialog").get_by_label("Role").select_option("operator")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(row).to_contain_text("operator")
    other.goto("/workflows")
    expect(other.get_by_role("link", name="Kill night")).to_be_visible()

    sessions = page.get_by_role("table", name="Sessions")
    sessions.get_by_role("button", name=f"End the session of {name}").click()
    expect(page.get_by_text("The session has ended.")).to_be_visible()
    with contextlib.suppress(PlaywrightError):  # the open page goes there by itself meanwhile
        other.goto("/workflows")
    expect(other.get_by_role("heading", name="Sign in")).to_be_visible()

    row.get_by_role("link", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


def test_an_organisation_is_made_and_removed(signed_in: Callable[..., Any], tenant: Any) -> None:
    name = f"acme-{next(_numbers)}"
    page = signed_in("/people", viewport={"width": 390, "height": 844})
    page.get_by_label("New organisation").fill(name)
    page.get_by_role("button", name="Create").click()
    table = page.get_by_role("table", name="Organisations")
    row = table.get_by_role("row").filter(has_text=name)
    expect(row).to_be_visible()
    row.get_by_role("link", name=f"Remove {name}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type its name").fill("something else")
    dialog.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("is not the organisation's")).to_be_visible()
    page.goto(f"/people?organisation={tenant.organisation_id}")
    row.get_by_role("link", name=f"Remove {name}").click()
    dialog.get_by_label("Type its name").fill(name)
    dialog.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("The organisation was removed")).to_be_visible()
    expect(row).to_have_count(0)


def test_the_page_fits(signed_in: Callable[..., Any], tmp_path: Path) -> None:
    for width in (390, 1280):
        page = signed_in("/people", viewport={"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=str(tmp_path / f"people-{width}.png"), full_page=True)
