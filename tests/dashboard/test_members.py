"""Who signs in without a further role: their own page, and nothing else of the dashboard."""

from __future__ import annotations

import contextlib
import html
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
from starlette.routing import Route

from guard.gateway.admin import AdminError
from guard.gateway.embedded import run_gateway
from guard.gateway.services import openid
from tests.dashboard.conftest import csrf_in
from tests.support import postgres
from tests.support.logins import HOUR_MS, LOGIN_KEY, LoginSite, MovedClock, client_of
from tests.support.openid_provider import openid_provider
from tests.support.store_dump import dump
from tests.support.waiting import WAIT_S, until

_numbers = itertools.count(1)

OWN: Final = {
    ("GET", "/"): 303, ("GET", "/own"): 200, ("GET", "/own/logins"): 404,
    ("POST", "/own/logins"): 404, ("GET", "/live"): 200, ("POST", "/sign-out"): 303,
}  # fmt: skip
"""What a member may ask for, and what it answers to a request that names nothing."""

WITHOUT_A_SESSION: Final = {
    "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs/errors", "/docs/errors/{code}",
    "/static/{name}", "/sign-in", "/sign-in/openid", "/sign-in/openid/callback", "/device",
    "/answer", "/api/v1/login/device", "/api/v1/login/token", "/api/v1/login/revoke",
}  # fmt: skip
"""Pages that ask for no session, or for a key or a signed link of their own."""


@attrs.frozen
class Members(LoginSite):
    """A gateway whose people sign in at a provider, by the group ``dev`` that has no role."""

    database: str

    def know(self, person: str, *groups: str) -> str:
        """Make the provider know somebody new; return their name."""
        name = f"{person}-{next(_numbers)}"
        self.says(name, email=f"{name}@example.com", email_verified=True, groups=[*groups])
        return name

    @contextlib.contextmanager
    def visit(self, person: str) -> Iterator[httpx.Client]:
        """Sign in to the dashboard; the client has the page that this leads to."""
        with httpx.Client(base_url=self.gateway.base_url, follow_redirects=True) as http:
            form = http.get("/sign-in/openid")
            assert str(form.url).startswith(self.issuer), form.text
            done = http.post(form.url, data={"sub": person})
            assert done.status_code == 200, done.text
            yield http

    def spend(self, key: str, nanousd: int, workflow: str = "work") -> None:
        """Report one LLM call with its cost."""
        number = next(_numbers)
        event = {"event_id": f"member-{number}", "at_ms": self.clock(), "workflow_id": workflow,
                 "type": "llm", "data": {"model": "gpt-4o", "cost_nanousd": nanousd}}  # fmt: skip
        body = {"batch_id": f"member-{number}", "sent_at_ms": 1, "events": [event]}
        headers = {"X-API-Key": key, "X-Guard-Protocol": "3"}
        address = f"{self.gateway.base_url}/api/v1/events"
        reply = httpx.post(address, json=body, headers=headers)
        assert reply.status_code in (202, 422), reply.text

    def account(self, person: str) -> dict[str, Any]:
        """Return the key that is somebody's account."""
        email = f"{person}@example.com"
        keys = self.gateway.admin.keys()
        [found] = [each for each in keys if each["person"] == email and each["signs_in"]]
        return dict(found)


@contextlib.contextmanager
def members_site(issuer: str, folder: Path, engine: str, **settings: Any) -> Iterator[Members]:
    database = str(folder / "g.sqlite3") if engine == "sqlite" else postgres.url_of(folder)
    clock = MovedClock()
    with (
        pytest.MonkeyPatch.context() as patched,
        run_gateway(
            database, clock_ms=clock, login_key=LOGIN_KEY, **client_of(issuer), **settings
        ) as gateway,
    ):
        patched.setattr(openid, "_TIMEOUT_S", WAIT_S)  # a slow provider is not away
        gateway.admin.put_sign_on_group("dev", team="search")
        yield Members(gateway, issuer, clock, database)


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with openid_provider([]) as issuer:
        yield issuer


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def site(
    provider: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Members]:
    folder = tmp_path_factory.mktemp("members")
    with members_site(provider, folder, str(request.param)) as made:
        yield made


def post(http: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """Send a form as the own page would."""
    body = {"csrf": csrf_in(http.get("/own").text), **fields}
    origin = str(http.base_url).rstrip("/")
    return http.post(path, data=body, headers={"Origin": origin}, follow_redirects=False)


def amounts(page: str) -> list[str]:
    """Return the key figures of a page."""
    return re.findall(r'class="figure-value">([^<]*)', page)


# -- who is a member -------------------------------------------------------------------------------


def test_whoever_signs_in_without_a_role_lands_on_their_own_page(site: Members) -> None:
    person = site.know("ada", "dev")
    with site.visit(person) as http:
        page = http.get("/")
        assert (page.url.path, page.status_code) == ("/own", 200)
        assert 'data-role="member"' in page.text
        assert f"{person}@example.com" in page.text
        links = set(re.findall(r'<a [^>]*href="(/[^"]*)"', page.text.split("</nav>")[0]))
        assert links == {"/", "/own"}
    # The role follows the table, in both directions.
    site.gateway.admin.put_sign_on_group("chiefs", role="operator", place=1)
    for groups, role in ((["chiefs"], "operator"), (["dev"], "member")):
        email = f"{person}@example.com"
        site.says(person, email=email, email_verified=True, groups=groups)
        with site.visit(person) as http:
            assert f'data-role="{role}"' in http.get("/own").text


def test_somebody_of_no_group_is_no_member(site: Members) -> None:
    person = site.know("nobody", "elsewhere")
    with httpx.Client(base_url=site.gateway.base_url, follow_redirects=True) as http:
        form = http.get("/sign-in/openid")
        reply = http.post(form.url, data={"sub": person})
    assert reply.status_code == 403, reply.text


def test_what_the_settings_say_of_everybody_stands_before_a_row_without_a_role(
    provider: str, tmp_path: Path
) -> None:
    joins = {"sign_on_role": "operator", "sign_on_organisation": "default"}
    with members_site(provider, tmp_path, "sqlite", **joins) as site:
        site.gateway.admin.put_sign_on_group("clerks", role="member")
        for group, role in (("dev", "operator"), ("clerks", "member"), ("others", "operator")):
            with site.visit(site.know(group, group)) as http:
                assert f'data-role="{role}"' in http.get("/own").text, group


def test_a_member_belongs_to_one_organisation(site: Members) -> None:
    admin, name = site.gateway.admin, f"wide-{next(_numbers)}"
    with pytest.raises(AdminError, match="a member belongs to one organisation"):
        admin.put_operator(name, role="member")
    admin.put_operator(name, role="viewer")
    with pytest.raises(AdminError, match="a member belongs to one organisation"):
        admin.put_operator(name, role="member")
    [own] = admin.organisations()
    named = f"{name}-of-one"
    path, body = f"/operators/{named}", {"role": "member"}
    made = admin.request("PUT", path, body, organisation=own["organisation_id"])
    assert made["role"] == "member"


# -- and nothing else ------------------------------------------------------------------------------


def test_every_route_that_is_not_listed_refuses_a_member(site: Members) -> None:
    """A route that is new is refused, until somebody lists it here."""
    person = site.know("curious", "dev")
    site.sign_in(person)
    routes = site.gateway._server.app._cold.routes  # type: ignore[union-attr]
    asked = [
        (method, route.path)
        for route in routes
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]
    assert set(asked) > set(OWN)
    assert len(asked) > 100
    with site.visit(person) as http:
        csrf = csrf_in(http.get("/own").text)
        before = dump(site.database, but=("sessions", "secrets"))
        for method, path in sorted(asked, key=lambda each: each[1] == "/sign-out"):
            if path in WITHOUT_A_SESSION:
                continue
            address = re.sub(r"\{[a-z_]+(:path)?\}", "x", path)
            body = {"csrf": csrf} if method == "POST" else None
            headers = {"Origin": site.gateway.base_url}
            request = http.build_request(method, address, data=body, headers=headers)
            reply = http.send(request, stream=True, follow_redirects=False)
            try:
                if (method, path) in OWN:
                    assert reply.status_code == OWN[method, path], (method, path)
                    continue
                text = reply.read().decode()
            finally:
                reply.close()
            if path.startswith(("/api/", "/slack/")):  # these take a key or a signature
                assert 400 <= reply.status_code < 500, (method, path, reply.status_code)
                if path.startswith("/api/v1/admin"):
                    assert reply.status_code == 401, (method, path)
                continue
            assert reply.status_code == 403, (method, path, text)
            assert "this takes the role" in text, (method, path)
            assert "and yours is member" in text, (method, path)
            assert "To your page" in text, (method, path)
        assert dump(site.database, but=("sessions", "secrets")) == before


# -- their own page --------------------------------------------------------------------------------


def test_the_page_has_what_is_theirs_and_nothing_of_others(site: Members) -> None:
    admin, [ada, eve] = site.gateway.admin, [site.know(each, "dev") for each in ("ada", "eve")]
    keys = {each: site.sign_in(each)["access_token"] for each in (ada, eve)}
    by_hand = admin.create_key("nightly", person=f"{ada}@example.com", team="batch")
    admin.create_key("stranger", person=f"{ada}@example.com.evil")
    site.spend(keys[ada], 3 * 10**9, f"secret-of-{ada}")
    site.spend(by_hand, 4 * 10**9)
    site.spend(keys[eve], 50 * 10**9, f"secret-of-{eve}")
    account = site.account(ada)
    with site.visit(ada) as http:
        text = html.unescape(http.get("/own").text)
        assert amounts(text)[:2] == ["$7.00", "$7.00"]
        named = re.findall(r'<th scope="row"><span class="name">([^<]+)', text)
        assert sorted(named) == sorted([f"{ada}@example.com", "nightly"])
        for hidden in ("stranger", eve, "$50", "$57", "secret-of", "gpt-4o"):
            assert hidden not in text, hidden
        # Only the account ends by their word: a name is no proof of who somebody is.
        ends = re.findall(r'href="(/own/logins[^"]*)"', text)
        assert ends == [f"/own/logins?key={account['key_id']}"]


def test_the_budgets_of_the_page_are_those_over_any_of_their_calls(site: Members) -> None:
    admin, person = site.gateway.admin, site.know("bea", "dev")
    key = site.sign_in(person)["access_token"]
    own = site.account(person)["key_id"]
    sets: list[tuple[str, str, str, int]] = [
        ("key", "*", "day", 400), ("key", own, "month", 900), ("workflow", "work", "day", 77_700),
        ("user", person, "day", 88_800), ("organisation", "", "month", 99_900),
        ("tag", "team=search", "month", 55_500),
    ]  # fmt: skip
    made = [
        admin.set_budget(cents, scope_kind=kind, scope_id=name, window=window)
        for kind, name, window, cents in sets
    ]
    try:
        with site.visit(person) as http:
            # Also before their first call, which opens the balances.
            for spent in (0, 1):
                text = http.get("/own").text
                found = re.findall(r"of \$([0-9.,]+)</span> <span class=\"balance-share\"", text)
                assert sorted(found) == ["4.00", "555.00", "9.00", "999.00"], (spent, text)
                for limit in ("4.00", "9.00"):
                    line = f'<strong>${spent}.00</strong> <span class="dim">of ${limit}</span>'
                    assert line in text, (spent, text)
                site.spend(key, 10**9)
    finally:
        for budget in made:
            admin.request("DELETE", f"/budgets/{budget['budget_id']}")


def test_a_login_says_when_its_account_was_used_after_its_tokens_are_gone(site: Members) -> None:
    person = site.know("old", "dev")
    tokens = site.sign_in(person)
    assert site.works(tokens)
    used_ms = until(lambda: site.account(person)["used_at_ms"])
    assert site.account(person)["signs_in"]
    site.later(3 * HOUR_MS)
    # Another use writes, and so forgets what has ended.
    other = site.know("new", "dev")
    site.works(site.sign_in(other))
    until(lambda: site.account(other)["used_at_ms"])
    found = site.account(person)
    assert (found["secrets"], found["used_at_ms"]) == ([], used_ms)


def test_signing_out_everywhere_ends_every_key_at_once_and_no_others(site: Members) -> None:
    ada, eve = (site.know(each, "dev") for each in ("ada", "eve"))
    laptop, server, hers = site.sign_in(ada), site.sign_in(ada), site.sign_in(eve)
    with site.visit(ada) as http:
        account, foreign = site.account(ada)["key_id"], site.account(eve)["key_id"]
        for key in (foreign, "x", ""):
            assert post(http, "/own/logins", key=key).status_code == 404, key
            assert http.get("/own/logins", params={"key": key}).status_code == 404, key
        assert site.works(laptop)
        assert site.works(hers)
        assert "Sign out" in http.get("/own/logins", params={"key": account}).text
        reply = post(http, "/own/logins", key=account)
        assert reply.headers["location"] == "/own?notice=logins-ended"
        assert not site.works(laptop)
        assert not site.works(server)
        assert site.refresh(laptop).json()["error"] == "invalid_grant"
        assert site.works(hers)
        assert http.get("/own").status_code == 200, "the dashboard is another sign-in"
    newest = site.gateway.admin.request("GET", "/audit?limit=1000")
    assert any(
        (each["action"], each["actor"]) == ("login.end_all", f"operator {ada}@example.com")
        for each in newest
    )
    assert site.works(site.sign_in(ada)), "the account is not suspended"


def test_a_key_made_by_hand_ends_by_an_owner_alone(site: Members) -> None:
    person = site.know("cy", "dev")
    admin = site.gateway.admin
    name = f"by hand {person}"
    api_key = admin.create_key(name, person=f"{person}@example.com")
    keys = admin.keys()
    [key_id] = [each["key_id"] for each in keys if each["name"] == name]
    with site.visit(person) as http:
        for path, fields in (
            ("/own/logins", {"key": key_id}),
            ("/keys/change", {"key": key_id, "action": "rotate"}),
            ("/keys/change", {"key": key_id, "action": "revoke"}),
        ):
            assert post(http, path, **fields).status_code in (403, 404), (path, fields)
    assert site.works({"access_token": api_key})


def test_an_account_is_nobody_elses_of_that_name(site: Members) -> None:
    """The provider gives an address of somebody who has left to somebody new."""
    leaver, joiner = (site.know(each, "dev") for each in ("leaver", "joiner"))
    site.sign_in(leaver)
    address = f"{leaver}@example.com"
    site.says(joiner, email=address, email_verified=True, groups=["dev"])
    with site.visit(joiner) as http:
        text = http.get("/own").text
        assert address in text
        assert "No key is yours yet" in text


def test_an_operator_has_a_page_of_their_own_as_well(site: Members) -> None:
    admin, person = site.gateway.admin, site.know("boss", "dev")
    admin.put_operator(f"{person}@example.com", role="operator")
    site.sign_in(person)
    with site.visit(person) as http:
        text = http.get("/own").text
        assert 'data-role="operator"' in text
        assert "Sign out everywhere" in text
