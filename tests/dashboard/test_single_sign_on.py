"""People who have signed in elsewhere: at a trusted proxy, or at an OpenID provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.settings import GatewaySettings, SettingError

PASSWORD = "a password for tests"
HEADER = "X-Forwarded-User"


@contextmanager
def browser(gateway: Gateway, address: str = "127.0.0.1") -> Iterator[httpx.Client]:
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
        gateway.admin.put_operator("admin", password=PASSWORD)
        yield gateway


def test_the_proxys_user_is_signed_in(proxied: Gateway) -> None:
    with browser(proxied) as http:
        page = shown(http, "/people", "alice@example.com")
        assert "<h1>People</h1>" in page
        assert "alice@example.com, operator" in page
        assert "New operator" not in page
        [session] = [e for e in proxied.admin.sessions() if e["name"] == "alice@example.com"]
        assert session["signed_in_by"] == "proxy"


@pytest.mark.parametrize("user", ["alice@example.com", "admin"])
def test_nobody_else_names_a_user(proxied: Gateway, user: str) -> None:
    before = len(proxied.admin.sessions())
    with browser(proxied, "127.0.0.2") as http:
        for path in ("/", "/people", "/sign-in"):
            assert "<h1>Sign in</h1>" in shown(http, path, user)
        forwarded = {HEADER: user, "X-Forwarded-For": "127.0.0.1"}
        assert "<h1>Sign in</h1>" in http.get("/", headers=forwarded).text
    assert len(proxied.admin.sessions()) == before


def test_a_person_who_was_not_added_does_not_get_in(proxied: Gateway) -> None:
    with browser(proxied) as http:
        reply = http.get("/", headers={HEADER: "mallory"})
        assert reply.status_code == 403
        assert "mallory is not an operator" in reply.text
    assert all(each["name"] != "mallory" for each in proxied.admin.operators())


@pytest.mark.parametrize(
    "named", [["alice@example.com", "admin"], ["\u202ex".encode()], [b"\xff\xfe"], ["a" * 257]]
)
def test_an_unclear_name_is_nobodys(proxied: Gateway, named: list[str | bytes]) -> None:
    with browser(proxied) as http:
        headers = [(HEADER, each) for each in named]
        reply = http.get("/sign-in", headers=headers)  # type: ignore[arg-type]
        assert reply.status_code == 403
        assert "guard_session" not in http.cookies


def test_another_user_of_the_proxy_is_another_here(proxied: Gateway) -> None:
    with browser(proxied) as http:
        assert "alice@example.com" in shown(http, "/", "alice@example.com")
        page = shown(http, "/people", "admin")
        assert 'data-role="owner"' in page
        assert "New operator" in page
        assert 'data-role="operator"' in shown(http, "/people", "alice@example.com")


def test_who_is_removed_or_signs_out_is_out(proxied: Gateway) -> None:
    proxied.admin.put_operator("bob", role="viewer")
    with browser(proxied) as http:
        page = shown(http, "/", "bob")
        csrf = page.split('name="csrf" value="')[1][:64]
        headers = {"Origin": proxied.base_url, HEADER: "bob"}
        out = http.post("/sign-out", data={"csrf": csrf}, headers=headers)
        assert "<h1>Sign in</h1>" in out.text
        assert 'data-role="viewer"' in shown(http, "/", "bob")
        proxied.admin.remove_operator("bob")
        assert http.get("/", headers={HEADER: "bob"}).status_code == 403


def test_without_the_header_there_is_the_password(proxied: Gateway) -> None:
    with browser(proxied) as http:
        csrf = shown(http, "/sign-in").split('name="csrf" value="')[1][:64]
        body = {"name": "admin", "password": PASSWORD, "csrf": csrf}
        page = http.post("/sign-in", data=body, headers={"Origin": proxied.base_url}).text
        assert 'data-role="owner"' in page


def test_strangers_become_what_the_settings_say() -> None:
    with (
        run_gateway(trusted_proxies=("127.0.0.1",), proxy_user_header=HEADER,
                    sign_on_role="viewer") as gateway,
        browser(gateway) as http,
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
