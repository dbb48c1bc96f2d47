"""People who have signed in elsewhere: at a trusted proxy, or at an OpenID provider."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import msgspec
import pytest

from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.services import openid
from guard.gateway.services.openid import Flow
from guard.gateway.settings import GatewaySettings, SettingError
from guard.gateway.single_sign_on import provider_of
from tests.dashboard.conftest import PAGE_WAIT_MS
from tests.support.openid_provider import openid_provider
from tests.support.waiting import WAIT_S

PASSWORD = "a password for tests"
HEADER = "X-Forwarded-User"


@contextmanager
def client(gateway: Gateway, address: str = "127.0.0.1") -> Iterator[httpx.Client]:
    """An HTTP client with its cookies, that connects from an address of this machine."""
    transport = httpx.HTTPTransport(local_address=address)
    with httpx.Client(
        base_url=gateway.base_url, transport=transport, follow_redirects=True
    ) as http:
        yield http


def shown(http: httpx.Client, path: str = "/people", user: str | bytes | None = None) -> str:
    headers = [] if user is None else [(HEADER, user)]
    return http.get(path, headers=headers).text  # type: ignore[arg-type]


# -- a trusted proxy -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxied() -> Iterator[Gateway]:
    """A gateway behind a proxy at 127.0.0.1, and at no other address."""
    with run_gateway(trusted_proxies=("127.0.0.1",), proxy_user_header=HEADER) as gateway:
        gateway.admin.put_operator("alice@example.com", role="operator")
        gateway.admin.put_operator("carol", role="owner")
        gateway.admin.put_operator("admin", password=PASSWORD)
        yield gateway


def test_the_proxys_user_is_signed_in(proxied: Gateway) -> None:
    before = {each["session_id"] for each in proxied.admin.sessions()}
    with client(proxied) as http:
        page = shown(http, "/people", "alice@example.com")
        assert "<h1>People</h1>" in page
        assert "alice@example.com, operator" in page
        assert "Add a person" not in page
        [session] = [e for e in proxied.admin.sessions() if e["session_id"] not in before]
        assert (session["name"], session["signed_in_by"]) == ("alice@example.com", "proxy")


@pytest.mark.parametrize("user", ["alice@example.com", "admin"])
def test_nobody_else_names_a_user(proxied: Gateway, user: str) -> None:
    before = len(proxied.admin.sessions())
    with client(proxied, "127.0.0.2") as http:
        for path in ("/", "/people", "/sign-in"):
            assert "<h1>Sign in</h1>" in shown(http, path, user)
        forwarded = {HEADER: user, "X-Forwarded-For": "127.0.0.1"}
        assert "<h1>Sign in</h1>" in http.get("/", headers=forwarded).text
    assert len(proxied.admin.sessions()) == before


def test_a_person_who_was_not_added_does_not_get_in(proxied: Gateway) -> None:
    with client(proxied) as http:
        reply = http.get("/", headers={HEADER: "mallory"})
        assert reply.status_code == 403
        assert "mallory is not an operator" in reply.text
    assert all(each["name"] != "mallory" for each in proxied.admin.operators())


@pytest.mark.parametrize(
    "named", [["alice@example.com", "admin"], ["\u202ex".encode()], [b"\xff\xfe"], ["a" * 257]]
)
def test_an_unclear_name_is_nobodys(proxied: Gateway, named: list[str | bytes]) -> None:
    with client(proxied) as http:
        headers = [(HEADER, each) for each in named]
        reply = http.get("/sign-in", headers=headers)  # type: ignore[arg-type]
        assert reply.status_code == 403
        assert "guard_session" not in http.cookies


def test_another_user_of_the_proxy_is_another_here(proxied: Gateway) -> None:
    with client(proxied) as http:
        assert "alice@example.com" in shown(http, "/", "alice@example.com")
        page = shown(http, "/people", "carol")
        assert 'data-role="owner"' in page
        assert "Add a person" in page
        assert 'data-role="operator"' in shown(http, "/people", "alice@example.com")


def test_who_is_removed_or_signs_out_is_out(proxied: Gateway) -> None:
    proxied.admin.put_operator("bob", role="viewer")
    with client(proxied) as http:
        page = shown(http, "/", "bob")
        csrf = page.split('name="csrf" value="')[1][:64]
        headers = {"Origin": proxied.base_url, HEADER: "bob"}
        out = http.post("/sign-out", data={"csrf": csrf}, headers=headers)
        assert "<h1>Sign in</h1>" in out.text
        assert 'data-role="viewer"' in shown(http, "/", "bob")
        proxied.admin.remove_operator("bob")
        assert http.get("/", headers={HEADER: "bob"}).status_code == 403


def test_without_the_header_there_is_the_password(proxied: Gateway) -> None:
    with client(proxied) as http:
        csrf = shown(http, "/sign-in").split('name="csrf" value="')[1][:64]
        body = {"name": "admin", "password": PASSWORD, "csrf": csrf}
        page = http.post("/sign-in", data=body, headers={"Origin": proxied.base_url}).text
        assert 'data-role="owner"' in page


def test_strangers_become_what_the_settings_say() -> None:
    with (
        run_gateway(trusted_proxies=("127.0.0.1",), proxy_user_header=HEADER,
                    sign_on_role="viewer", sign_on_organisation="default") as gateway,
        client(gateway) as http,
    ):  # fmt: skip
        assert 'data-role="viewer"' in shown(http, "/", "zoë".encode())
        [made] = gateway.admin.operators()
        assert (made["name"], made["role"], made["has_password"]) == ("zoë", "viewer", False)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"proxy_user_header": HEADER}, "proxy_user_header"),
        ({"proxy_user_header": "Cookie", "trusted_proxies": ("10.0.0.0/8",)}, "proxy_user_header"),
        ({"proxy_user_header": "a b", "trusted_proxies": ("10.0.0.0/8",)}, "proxy_user_header"),
        ({"sign_on_role": "root"}, "sign_on_role"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], name: str) -> None:
    with pytest.raises(SettingError) as caught:
        GatewaySettings(**given)  # type: ignore[arg-type]
    assert caught.value.name == name


# -- an OpenID provider --------------------------------------------------------------------------


@attrs.frozen
class Site:
    """A gateway whose people sign in at a provider in a process of its own."""

    gateway: Gateway
    issuer: str

    def signs_on(self, http: httpx.Client, person: str, path: str = "/people") -> httpx.Response:
        """Sign in as a person, as a browser does; return the page that says so."""
        form = http.get("/sign-in/openid", params={"return_to": path})
        assert str(form.url).startswith(self.issuer), form.text
        return http.post(form.url, data={"sub": person})


_PEOPLE: list[dict[str, object]] = [
    {"sub": "1", "email": "alice@example.com", "email_verified": True},
    {"sub": "2", "email": "alice@example.com", "email_verified": False},
    {"sub": "3", "email": "mallory@example.com", "email_verified": True},
    {"sub": "4"},
    {"sub": "5", "email": "bob@example.com", "email_verified": True},
]


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with openid_provider(_PEOPLE) as issuer:
        yield issuer


@pytest.fixture(scope="module")
def site(provider: str) -> Iterator[Site]:
    with (
        pytest.MonkeyPatch.context() as patched,
        run_gateway(
            openid_issuer=provider, openid_client_id="guard", openid_client_secret="a secret"
        ) as gateway,
    ):
        patched.setattr(openid, "_TIMEOUT_S", WAIT_S)  # a slow provider is not away
        gateway.admin.put_operator("alice@example.com", role="operator")
        gateway.admin.put_operator("bob@example.com", role="viewer")
        yield Site(gateway, provider)


def test_a_person_signs_in_at_the_provider(site: Site) -> None:
    before = site.gateway.admin.sessions()
    with client(site.gateway) as http:
        page = http.get("/sign-in").text
        assert "Sign in by single sign-on" in page
        assert "Nobody can sign in yet" not in page
        done = site.signs_on(http, "1")
        assert done.status_code == 200, done.text
        assert 'content="0; url=/people"' in done.text
        page = http.get("/people").text
        assert "alice@example.com, operator" in page
        assert "guard_openid" not in http.cookies
    [session] = [each for each in site.gateway.admin.sessions() if each not in before]
    assert (session["name"], session["signed_in_by"]) == ("alice@example.com", "openid")


@pytest.mark.parametrize(
    ("person", "why"),
    [("2", "has not verified"), ("3", "is not an operator"), ("4", "has no claim email")],
)
def test_others_do_not_get_in(site: Site, person: str, why: str) -> None:
    with client(site.gateway) as http:
        done = site.signs_on(http, person)
        assert done.status_code == 403
        assert why in done.text
        assert "guard_session" not in http.cookies
        assert "<h1>Sign in</h1>" in http.get("/").text
    assert {each["name"] for each in site.gateway.admin.operators()} == {
        "alice@example.com", "bob@example.com",
    }  # fmt: skip


def test_a_removed_operator_does_not_come_back(site: Site) -> None:
    site.gateway.admin.put_operator("bob@example.com", role="viewer")
    with client(site.gateway) as http:
        site.signs_on(http, "5")
        assert 'data-role="viewer"' in http.get("/").text
        site.gateway.admin.remove_operator("bob@example.com")
        assert "<h1>Sign in</h1>" in http.get("/").text
        assert site.signs_on(http, "5").status_code == 403
    site.gateway.admin.put_operator("bob@example.com", role="viewer")


def _returned(site: Site, http: httpx.Client, person: str = "1") -> str:
    """Sign in at the provider, and return where it sends the browser, which has not gone there."""
    form = http.get("/sign-in/openid")
    sent = http.post(form.url, data={"sub": person}, follow_redirects=False)
    return sent.headers["location"]


@pytest.mark.parametrize("how", ["other browser", "other state", "twice", "no code", "made up"])
def test_a_sign_in_ends_in_the_browser_that_began_it(site: Site, how: str) -> None:
    with client(site.gateway) as http, client(site.gateway) as other:
        address = httpx.URL(_returned(site, http))
        if how == "other browser":  # somebody is led into somebody else's account
            other.get("/sign-in/openid", follow_redirects=False)
            reply = other.get(address)
        elif how == "other state":
            reply = http.get(address.copy_set_param("state", "x"))
        elif how == "twice":
            assert http.get(address).status_code == 200
            http.cookies.clear()
            reply = http.get(address)
        elif how == "no code":
            reply = http.get(address.copy_remove_param("code"))
        else:
            reply = http.get(address.copy_set_param("code", "made-up"))
        assert reply.status_code == 403
        assert "Single sign-on failed" in reply.text
        assert "<h1>Sign in</h1>" in other.get("/").text


def test_a_code_is_of_no_use_with_another_verifier(site: Site) -> None:
    """The provider binds a code to who began: it is PKCE's part, beside the state's."""
    with client(site.gateway) as http:
        address = httpx.URL(_returned(site, http))
        begun = Flow.read(http.cookies["guard_openid"])
        assert begun is not None
        forged = msgspec.structs.replace(begun, verifier="v" * 43)
        http.cookies.clear()
        http.cookies.set("guard_openid", forged.text(), domain="127.0.0.1")
        assert http.get(address).status_code == 403
        replayed = msgspec.structs.replace(begun, nonce="another")
        http.cookies.set("guard_openid", replayed.text(), domain="127.0.0.1")
        assert http.get(_returned_with(http, site, replayed)).status_code == 403


def _returned_with(http: httpx.Client, site: Site, flow: Flow) -> str:
    address = _returned(site, http)
    fresh = Flow.read(http.cookies["guard_openid"])
    assert fresh is not None
    wrong = msgspec.structs.replace(fresh, nonce=flow.nonce)
    http.cookies.clear()
    http.cookies.set("guard_openid", wrong.text(), domain="127.0.0.1")
    return address


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"openid_issuer": "http://login.example.com", "openid_client_id": "g"}, "openid_issuer"),
        ({"openid_issuer": "login", "openid_client_id": "g"}, "openid_issuer"),
        ({"openid_issuer": "https://login.example.com"}, "openid_issuer"),
        ({"openid_issuer": "https://login.example.com", "openid_client_id": "g",
          "openid_client_secret_file": Path("/nowhere/at/all")}, "openid_client_secret_file"),
    ],
)  # fmt: skip
def test_a_wrong_provider_is_named(given: dict[str, object], name: str) -> None:
    with pytest.raises(SettingError) as caught:
        provider_of(GatewaySettings(**given))  # type: ignore[arg-type]
    assert caught.value.name == name


def test_a_provider_that_is_away_locks_nobody_out(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        issuer = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with run_gateway(openid_issuer=issuer, openid_client_id="guard") as gateway:
            gateway.admin.set_password("admin", PASSWORD)
            with client(gateway) as http:
                reply = http.get("/sign-in/openid")
                assert reply.status_code == 502
                assert "does not answer" in reply.text
                csrf = reply.text.split('name="csrf" value="')[1][:64]
                body = {"name": "admin", "password": PASSWORD, "csrf": csrf}
                done = http.post("/sign-in", data=body, headers={"Origin": gateway.base_url})
                assert 'data-role="owner"' in done.text


def test_in_a_browser(site: Site, browser_of: Any) -> None:
    """Over two sites, so that what browsers do with strict cookies is in it."""
    page = browser_of(site.gateway.base_url)
    page.goto("/people")
    page.get_by_role("link", name="Sign in by single sign-on").click()
    page.locator('input[name="sub"]').first.fill("1")
    page.locator('button[type="submit"], input[type="submit"]').first.click()
    page.get_by_role("heading", name="People").wait_for()
    page.get_by_text("alice@example.com, operator").wait_for()


@pytest.fixture
def browser_of(request: pytest.FixtureRequest) -> Iterator[Any]:
    opened = request.getfixturevalue("browser")
    contexts = []

    def open_page(base_url: str) -> Any:
        contexts.append(opened.new_context(base_url=base_url))
        contexts[-1].set_default_timeout(PAGE_WAIT_MS)
        return contexts[-1].new_page()

    yield open_page
    for each in contexts:
        each.close()
