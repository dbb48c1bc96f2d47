"""``guard login`` at the gateway: codes, refresh tokens, suspension, groups."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import KeySet
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

import guard
from guard.core import wire
from guard.gateway.admin import AdminError
from guard.gateway.api.socket import CLOSE_REVOKED
from guard.gateway.domain.operators import Person
from guard.gateway.embedded import run_gateway
from guard.gateway.services import logins as service
from guard.gateway.services import openid
from guard.gateway.settings import GatewaySettings, SettingError
from guard.gateway.single_sign_on import login_secrets_of
from tests.support import postgres
from tests.support.logins import HOUR_MS, LOGIN_KEY, LoginSite, MovedClock, client_of
from tests.support.openid_provider import openid_provider
from tests.support.waiting import WAIT_S, until

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with openid_provider([]) as issuer:
        yield issuer


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def site(
    provider: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoginSite]:
    folder = tmp_path_factory.mktemp("logins")
    database = folder / "g.sqlite3" if request.param == "sqlite" else postgres.url_of(folder)
    clock = MovedClock()
    with (
        pytest.MonkeyPatch.context() as patched,
        run_gateway(
            database, clock_ms=clock, login_key=LOGIN_KEY, **client_of(provider)
        ) as gateway,
    ):  # fmt: skip
        patched.setattr(openid, "_TIMEOUT_S", WAIT_S)  # a slow provider is not away
        patched.setattr(service, "CODES_OF_NETWORK_MAX", 10_000)
        gateway.admin.put_sign_on_group("dev", team="search")
        yield LoginSite(gateway, provider, clock)


@pytest.fixture
def person(site: LoginSite) -> str:
    """Somebody whom no other test knows, of the group ``dev``."""
    return new_person(site)


def new_person(site: LoginSite, *groups: str) -> str:
    sub = f"person-{next(_numbers)}"
    about(site, sub, *(groups or ("dev",)))
    return sub


def about(site: LoginSite, sub: str, *groups: str, **claims: Any) -> None:
    named = {"email": f"{sub}@example.com", "email_verified": True, "groups": list(groups)}
    site.says(sub, **(named | claims))


def error(reply: httpx.Response) -> str:
    assert reply.status_code == 400, reply.text
    return str(reply.json()["error"])


def keys_of(site: LoginSite) -> list[dict[str, Any]]:
    return site.gateway.admin.keys()


def account(site: LoginSite, sub: str) -> dict[str, Any]:
    [found] = [
        each for each in keys_of(site)
        if each["person"] == f"{sub}@example.com" and each["revoked_at_ms"] is None
    ]  # fmt: skip
    return found


# -- the code --------------------------------------------------------------------------------------


def test_a_person_signs_a_program_in(site: LoginSite, person: str) -> None:
    code = site.begin()
    assert (code["interval"], code["expires_in"]) == (5, 600)
    assert code["verification_uri"] == f"{site.gateway.base_url}/device"
    assert code["verification_uri_complete"].endswith(f"?code={code['user_code']}")
    assert error(site.redeem(code)) == "authorization_pending"
    site.browse(code["user_code"], person)
    tokens = site.redeem(code).json()
    assert tokens["token_type"] == "Bearer"
    assert 3590 < tokens["expires_in"] <= 3600
    assert tokens["access_token"].startswith("gdk_")
    assert site.works(tokens)
    made = account(site, person)
    assert (made["team"], made["name"], made["role"]) == ("search", f"{person}@example.com", "sdk")
    [secret] = made["secrets"]
    assert secret["prefix"] == tokens["access_token"][:12]
    assert secret["ends_at_ms"] > site.clock()
    assert error(site.redeem(code)) == "invalid_grant", "a code is for one program, once"
    again = site.sign_in(person)
    assert account(site, person)["key_id"] == made["key_id"], "the account stays"
    assert site.works(again)
    assert site.works(tokens)


@pytest.mark.parametrize("polls", [1, 2])
def test_who_asks_too_often_has_to_slow_down(site: LoginSite, polls: int) -> None:
    code = site.begin()
    assert error(site.redeem(code)) == "authorization_pending"
    for _ in range(polls):
        assert error(site.redeem(code)) == "slow_down"
    site.later(5_000 * polls + 4_000)
    assert error(site.redeem(code)) == "slow_down", "five seconds more each time"
    site.later(5_000 * polls + 10_000)
    assert error(site.redeem(code)) == "authorization_pending"


def test_a_code_expires(site: LoginSite, person: str) -> None:
    early, late, allowed = site.begin(), site.begin(), site.begin()
    site.browse(allowed["user_code"], person)
    site.later(600_001)
    assert error(site.redeem(early)) == "expired_token"
    assert error(site.redeem(allowed)) == "expired_token"
    page = site.browse(late["user_code"], person)
    assert (page.status_code, "no program waits" in page.text) == (403, True)


def test_a_person_may_refuse(site: LoginSite, person: str) -> None:
    code = site.begin()
    page = site.browse(code["user_code"], person, "refuse")
    assert "The program is not signed in" in page.text
    assert error(site.redeem(code)) == "access_denied"
    assert "no program waits" in site.browse(code["user_code"], person).text


def test_nobody_answers_but_who_has_signed_in_last(site: LoginSite, person: str) -> None:
    """Whoever knows a code and signs in for it first cannot allow what another sees."""
    code, other = site.begin(), new_person(site)
    origin = {"Origin": site.gateway.base_url}
    with httpx.Client(base_url=site.gateway.base_url, follow_redirects=True) as http:
        first = site.page(code["user_code"], other, http)
        confirm = first.text.split('name="confirm" value="')[1].split('"')[0]
        site.page(code["user_code"], person, http)
        body = {"code": code["user_code"], "answer": "allow"}
        for secret in (confirm, "", "x"):
            reply = http.post("/device", data=body | {"confirm": secret}, headers=origin)
            assert reply.status_code == 403
        foreign = http.post("/device", data=body, headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403
    assert error(site.redeem(code)) == "authorization_pending"


def test_only_so_many_wait(site: LoginSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.later(24 * HOUR_MS)  # the others' have ended
    monkeypatch.setattr(service, "CODES_OF_NETWORK_MAX", 2)
    site.begin()
    site.begin()
    refused = site.post("device")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    monkeypatch.setattr(service, "CODES_OF_NETWORK_MAX", 10)
    monkeypatch.setattr(service, "CODES_MAX", 2)
    assert site.post("device").status_code == 429


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "unsupported_grant_type"),
        ({"grant_type": "password", "client_id": "x"}, "unsupported_grant_type"),
        ({"grant_type": "refresh_token"}, "invalid_request"),
        ({"grant_type": "refresh_token", "refresh_token": "gdr_x"}, "invalid_grant"),
        ({"grant_type": "refresh_token", "refresh_token": "é\x00"}, "invalid_grant"),
        ({"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": "x"},
         "invalid_grant"),
    ],
)  # fmt: skip
def test_what_is_no_grant(site: LoginSite, fields: dict[str, str], expected: str) -> None:
    assert error(site.post("token", **fields)) == expected


def test_a_field_twice_is_refused_and_unknown_ones_are_not(site: LoginSite) -> None:
    url = f"{site.gateway.base_url}/api/v1/login/"
    twice = httpx.post(f"{url}token", data={"grant_type": ["refresh_token", "password"]})
    assert error(twice) == "invalid_request"
    assert site.post("device", client_id="x", scope="y", another="z").status_code == 200


# -- refresh tokens --------------------------------------------------------------------------------


def test_a_refresh_token_has_one_successor(site: LoginSite, person: str) -> None:
    first = site.sign_in(person)
    second = site.refresh(first).json()
    assert second["access_token"] != first["access_token"]
    assert second["refresh_token"] != first["refresh_token"]
    site.later(50_000)
    again = site.refresh(first).json()
    assert again["refresh_token"] == second["refresh_token"]
    assert again["access_token"] == second["access_token"]
    assert 3530 <= again["expires_in"] <= 3550, "it ends when it did"
    assert site.works(first)
    assert site.works(second)
    assert site.refresh(second).status_code == 200


def test_programs_that_refresh_at_once_get_the_same(site: LoginSite, person: str) -> None:
    first = site.sign_in(person)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(site.refresh, [first] * 8))
    assert {each.status_code for each in replies} == {200}
    assert len({each.json()["refresh_token"] for each in replies}) == 1
    assert site.refresh(replies[0].json()).status_code == 200


@pytest.mark.parametrize("how", ["after a minute", "two behind"])
def test_an_old_refresh_token_ends_the_login(site: LoginSite, person: str, how: str) -> None:
    other = site.sign_in(person)
    first = site.sign_in(person)
    second = site.refresh(first).json()
    newest = second
    if how == "two behind":
        newest = site.refresh(second).json()
    else:
        site.later(60_001)
    assert error(site.refresh(first)) == "invalid_grant"
    for each in (first, second, newest):
        assert not site.works(each), "whoever has stolen one has nothing"
    assert error(site.refresh(newest)) == "invalid_grant"
    assert site.works(other), "the person's other machine has a login of its own"
    assert site.refresh(other).status_code == 200


def test_nobody_makes_a_refresh_token(site: LoginSite, person: str) -> None:
    tokens = site.sign_in(person)
    token = tokens["refresh_token"]
    for at in (5, 25, 40, len(token) - 5):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert error(site.refresh({"refresh_token": changed})) == "invalid_grant"
    assert site.refresh(tokens).status_code == 200, "a forged one ends nothing"


def test_signing_out_ends_the_keys_at_once(site: LoginSite, person: str) -> None:
    for name in ("refresh_token", "access_token"):
        tokens = site.sign_in(person)
        assert site.works(tokens)
        assert site.post("revoke", token=tokens[name]).status_code == 200
        assert not site.works(tokens)
        assert error(site.refresh(tokens)) == "invalid_grant"
    assert site.post("revoke", token="unknown").status_code == 200
    assert error(site.post("revoke")) == "invalid_request"
    key = site.gateway.admin.create_key("not a login's")
    assert site.post("revoke", token=key).status_code == 200
    assert site.works({"access_token": key})


def test_an_unused_login_ends(site: LoginSite, person: str) -> None:
    tokens = site.sign_in(person)
    site.later(HOUR_MS + 1000)
    assert not site.works(tokens)
    site.later(29 * 24 * HOUR_MS)
    tokens = site.refresh(tokens).json()
    assert site.works(tokens)
    site.later(31 * 24 * HOUR_MS)
    assert error(site.refresh(tokens)) == "invalid_grant"


# -- work keys -------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of those about whom the provider was asked."""
    names: list[str] = []
    refresh = openid.OpenIdProvider.refresh

    async def counted(self: openid.OpenIdProvider, known: openid.Known) -> openid.Known:
        names.append(known.person.name)
        return await refresh(self, known)

    monkeypatch.setattr(openid.OpenIdProvider, "refresh", counted)
    return names


def test_a_work_key_lasts_a_day_of_which_the_provider_is_asked_each_hour(
    site: LoginSite, person: str, asked: list[str]
) -> None:
    tokens = site.sign_in(person)
    key = site.work_key(tokens)
    assert 43_190 <= key["expires_in"] <= 43_200
    assert "refresh_token" not in key
    for hours in (1, 3, 1):  # after three, as after one
        site.later(hours * HOUR_MS + 1000)
        before = len(asked)
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(site.works, [key] * 8))
        assert len(asked) == before + 1
        assert site.works(key)
        assert len(asked) == before + 1
    assert not site.works(tokens)
    assert site.refresh(tokens).status_code == 200, "the refresh token is as it was"
    site.later(7 * HOUR_MS)
    before = len(asked)
    assert not site.works(key)
    assert len(asked) == before


def test_a_refresh_puts_off_the_end_of_work_keys(
    site: LoginSite, person: str, asked: list[str]
) -> None:
    tokens = site.sign_in(person)
    key = site.work_key(tokens)
    site.later(HOUR_MS // 2)
    site.refresh(tokens)
    site.later(HOUR_MS * 3 // 4)
    assert site.works(key)
    assert len(asked) == 1


def test_a_work_key_ends_within_an_hour_of_a_suspension(site: LoginSite, person: str) -> None:
    tokens = site.sign_in(person)
    site.later(HOUR_MS // 2)
    key = site.work_key(tokens)
    site.suspend(person)
    assert site.works(key)
    site.later(HOUR_MS // 2)  # since the provider was asked last, not since the key was made
    assert not site.works(key)
    assert not site.works(key)
    assert error(site.refresh(tokens)) == "invalid_grant"


def test_a_work_key_of_a_provider_that_is_away_waits_for_it(
    site: LoginSite, person: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = site.work_key(site.sign_in(person))
    headers = {"X-API-Key": key["access_token"], "X-Guard-Protocol": "3"}

    async def away(*_: object) -> None:
        raise openid.OpenIdError("the provider does not answer")

    site.later(HOUR_MS + 1000)
    with monkeypatch.context() as cut:
        cut.setattr(openid.OpenIdProvider, "_provider", away)
        reply = httpx.get(f"{site.gateway.base_url}/api/v1/capabilities", headers=headers)
        assert (reply.status_code, reply.headers["content-type"]) == (
            503, "application/problem+json"
        )  # fmt: skip
    assert site.works(key)


@pytest.mark.parametrize("how", ["signed out", "rotated", "everywhere", "revoked"])
@pytest.mark.parametrize("is_lapsed", [False, True])
def test_what_ends_a_login_ends_its_work_keys(
    site: LoginSite, person: str, how: str, is_lapsed: bool
) -> None:
    tokens = site.sign_in(person)
    key, other = site.work_key(tokens), site.work_key(site.sign_in(new_person(site)))
    own = account(site, person)["key_id"]
    if is_lapsed:
        site.later(HOUR_MS + 1000)
    if how == "signed out":
        site.post("revoke", token=tokens["refresh_token"])
    elif how == "everywhere":
        site.post("revoke", token=key["access_token"])
    elif how == "rotated":
        site.gateway.admin.rotate_key(own)
    else:
        site.gateway.admin.revoke_key(own)
    assert not site.works(key)
    site.later(HOUR_MS + 1000)
    assert not site.works(key)
    assert site.works(other)
    if how != "revoked":
        assert account(site, person)["secrets"] == [], "and none is listed"


def test_a_work_key_is_for_who_has_an_access_token(site: LoginSite, person: str) -> None:
    tokens = site.sign_in(person)
    key = site.work_key(tokens)
    assert error(site.post("work-key", token=key["access_token"])) == "invalid_grant"
    assert error(site.post("work-key", token=tokens["refresh_token"])) == "invalid_grant"
    assert error(site.post("work-key", token=site.gateway.admin.create_key("x"))) == "invalid_grant"
    assert error(site.post("work-key")) == "invalid_request"
    site.later(HOUR_MS + 1000)
    assert error(site.post("work-key", token=tokens["access_token"])) == "invalid_grant"


def test_a_program_goes_on_with_its_work_key(site: LoginSite, person: str) -> None:
    """Its connection is kept where its key's end is put off, and ends with its person's account."""
    key = site.work_key(site.sign_in(person))
    guard.init(api_url=site.gateway.base_url, api_key=key["access_token"])
    try:
        work = guard.protect(lambda: 1)
        for _ in range(3):
            assert work() == 1
            site.later(HOUR_MS + 1000)
        assert work() == 1
        site.suspend(person)
        site.later(HOUR_MS + 1000)
        with pytest.raises(guard.GuardError, match="GD-A003"):
            until(lambda: work() != 1)
    finally:
        guard.shutdown(flush=False)


def receive(channel: ClientConnection, messages: int) -> None:
    for _ in range(messages):
        channel.recv(timeout=WAIT_S)


def test_an_open_channel_lasts_as_long_as_its_work_key(provider: str) -> None:
    clock = MovedClock()
    with run_gateway(
        clock_ms=clock, login_key=LOGIN_KEY, control_ping_interval_ms=50, **client_of(provider)
    ) as gateway:
        site = LoginSite(gateway, provider, clock)
        gateway.admin.put_sign_on_group("*")
        person = new_person(site)
        key = site.work_key(site.sign_in(person))
        headers = {"X-API-Key": key["access_token"], "X-Guard-Protocol": "3"}
        url = gateway.base_url.replace("http", "ws", 1) + wire.CONTROL_WS_PATH
        with connect(url, additional_headers=headers) as channel:
            site.later(HOUR_MS + 1000)
            receive(channel, 5)  # more than one ping after the lapse
            site.suspend(person)
            site.later(HOUR_MS + 1000)
            with pytest.raises(ConnectionClosed) as closed:
                receive(channel, 1000)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == CLOSE_REVOKED


# -- the provider ----------------------------------------------------------------------------------


def test_who_is_suspended_at_the_provider_is_out_within_an_hour(
    site: LoginSite, person: str
) -> None:
    tokens = site.sign_in(person)
    tokens = site.refresh(tokens).json()
    site.suspend(person)
    assert error(site.refresh(tokens)) == "invalid_grant"
    assert not site.works(tokens)


def test_a_provider_that_is_away_ends_nothing(
    site: LoginSite, person: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = site.sign_in(person)

    async def away(*_: object) -> None:
        raise openid.OpenIdError("the provider does not answer")

    with monkeypatch.context() as cut:
        cut.setattr(openid.OpenIdProvider, "_provider", away)
        reply = site.refresh(tokens)
        assert (reply.status_code, reply.headers["content-type"]) == (
            503, "application/problem+json"
        )  # fmt: skip
        assert site.works(tokens)
        code = site.begin()
        assert code["user_code"], "the provider is asked in the browser"
    assert site.refresh(tokens).status_code == 200


def test_a_provider_that_is_gone_ends_nothing() -> None:
    clock = MovedClock()
    with contextlib.ExitStack() as running:
        issuer = running.enter_context(openid_provider([]))
        with run_gateway(clock_ms=clock, login_key=LOGIN_KEY, **client_of(issuer)) as gateway:
            site = LoginSite(gateway, issuer, clock)
            gateway.admin.put_sign_on_group("*")
            tokens = site.sign_in(new_person(site))
            running.close()
            for _ in range(2):
                assert site.refresh(tokens).status_code == 503
            assert site.works(tokens)


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (400, {"error": "invalid_grant"}, openid.PersonRefusedError),
        (401, {"error": "invalid_client"}, openid.OpenIdError),
        (400, {"error": "temporarily_unavailable"}, openid.OpenIdError),
        (500, {"error": "invalid_grant"}, openid.OpenIdError),
        (200, {"nothing": "at all"}, openid.OpenIdError),
        (200, [], openid.OpenIdError),
        (200, {"access_token": "a", "token_type": "Bearer"}, openid.OpenIdError),
    ],
)
def test_what_a_provider_may_say(status: int, answer: Any, expected: type[Exception]) -> None:
    """Nothing but ``invalid_grant`` ends a login; the last one describes nobody."""

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        provider = openid.OpenIdProvider(url, "guard", "secret", "sub")
        described = {"token_endpoint": f"{url}/token", "userinfo_endpoint": "http://127.0.0.1:1"}
        provider._known = (time.monotonic(), described, KeySet([]))
        person = Person(issuer=url, subject="s", name="s")
        with pytest.raises(expected):
            asyncio.run(provider.refresh(openid.Known(person, "r")))
        thread.join()


def test_without_a_providers_refresh_token_a_login_lasts_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = MovedClock()
    with (
        openid_provider([], "--no-refresh-token") as issuer,
        run_gateway(clock_ms=clock, login_key=LOGIN_KEY, **client_of(issuer)) as gateway,
    ):  # fmt: skip
        site = LoginSite(gateway, issuer, clock)
        gateway.admin.put_sign_on_group("*")
        person = new_person(site)
        tokens = site.sign_in(person)
        assert "refresh_token" not in tokens
        assert site.works(tokens)
        site.later(HOUR_MS + 1000)
        assert not site.works(tokens)
        again = site.sign_in(person)
        assert site.post("revoke", token=again["access_token"]).status_code == 200
        assert not site.works(again)


# -- accounts and groups ---------------------------------------------------------------------------


def test_a_suspended_account_is_out_at_once(site: LoginSite, person: str) -> None:
    tokens = site.sign_in(person)
    key_id = account(site, person)["key_id"]
    with pytest.raises(AdminError, match="not revoked"):
        site.gateway.admin.forget_account(key_id)
    site.gateway.admin.revoke_key(key_id)
    assert not site.works(tokens)
    assert error(site.refresh(tokens)) == "invalid_grant"
    page = site.browse(site.begin()["user_code"], person)
    assert (page.status_code, "is suspended" in page.text) == (403, True)
    site.gateway.admin.forget_account(key_id)
    assert site.works(site.sign_in(person))
    assert account(site, person)["key_id"] != key_id
    with pytest.raises(AdminError, match="no such account"):
        site.gateway.admin.forget_account(key_id)


def test_who_is_suspended_after_allowing_gets_no_tokens(site: LoginSite, person: str) -> None:
    site.sign_in(person)
    code = site.begin()
    site.browse(code["user_code"], person)
    site.gateway.admin.revoke_key(account(site, person)["key_id"])
    assert error(site.redeem(code)) == "access_denied"


def test_who_was_removed_as_an_operator_does_not_come_back(site: LoginSite, person: str) -> None:
    name = f"{person}@example.com"
    tokens = site.sign_in(person)
    site.gateway.admin.put_operator(name, role="viewer")
    site.gateway.admin.remove_operator(name)
    assert error(site.refresh(tokens)) == "invalid_grant"
    assert "was removed" in site.browse(site.begin()["user_code"], person).text


def test_groups_decide(site: LoginSite) -> None:
    admin = site.gateway.admin
    nobody = new_person(site, "other")
    page = site.browse(site.begin()["user_code"], nobody)
    assert (page.status_code, "no group of" in page.text) == (403, True)
    admin.put_sign_on_group("other", team="late", models=["claude-*"])
    try:
        both = new_person(site, "other", "dev")
        site.sign_in(both)
        assert account(site, both)["team"] == "search", "the first rule counts"
        admin.put_sign_on_group("other", team="late", models=["claude-*"], place=1)
        tokens = site.sign_in(both)
        own = [each for each in keys_of(site) if each["person"].startswith(f"{both}@")]
        assert {each["team"] for each in own} == {"search", "late"}
        headers = {"X-API-Key": tokens["access_token"], "X-Guard-Protocol": "3"}
        for model, status in (("gpt-4o", 403), ("claude-sonnet-4-5", 200)):
            body = {"call_id": f"c{next(_numbers)}", "kind": "llm", "function": "f", "model": model}
            gate = f"{site.gateway.base_url}/gate"
            assert httpx.post(gate, json=body, headers=headers).status_code == status, model
        assert [each["group"] for each in admin.sign_on_groups()] == ["other", "dev"]
        admin.put_sign_on_group("other", team="late")
        tokens = site.refresh(tokens).json()
        headers["X-API-Key"] = tokens["access_token"]
        body = {"call_id": f"c{next(_numbers)}", "kind": "llm", "function": "f", "model": "gpt-4o"}
        assert httpx.post(gate, json=body, headers=headers).status_code == 200
    finally:
        admin.delete_sign_on_group("other")
    with pytest.raises(AdminError, match="no such group"):
        admin.delete_sign_on_group("other")


def test_a_rotated_account_ends_its_logins(site: LoginSite, person: str) -> None:
    """Who has stolen a refresh token would otherwise be given the next secret."""
    tokens, other = site.sign_in(person), site.sign_in(new_person(site))
    own = account(site, person)["key_id"]
    secret = {"access_token": site.gateway.admin.rotate_key(own)["api_key"]}
    assert site.works(secret)
    assert not site.works(tokens)
    assert error(site.refresh(tokens)) == "invalid_grant"
    assert site.works(site.refresh(other).json()), "nobody else's"
    assert site.works(site.sign_in(person))
    assert account(site, person)["key_id"] == own
    site.later(HOUR_MS + 1000)
    assert not site.works(secret), "or it would outlive a suspension at the provider"


@pytest.mark.parametrize("is_named", [False, True])
def test_a_file_of_rules_leaves_peoples_models(
    site: LoginSite, person: str, is_named: bool
) -> None:
    admin = site.gateway.admin
    admin.put_sign_on_group("dev", team="search", models=["claude-*"])
    try:
        site.sign_in(person)
        own = f"sign-on {account(site, person)['key_id']}"
        [policy] = [each for each in admin.policies() if each["name"] == own]
        admin.set_policy("by hand", tools_block=["rm"])
        named = {name: policy[name] for name in ("name", "scope_kind", "scope_id", "document")}
        body = {"policies": [named] if is_named else [], "prune": True}
        for changed in (1, 0):
            plan = admin.request("POST", "/apply", body)
            assert plan["changed"] == changed, plan
        left = {each["name"] for each in admin.policies()}
        assert (own in left, "by hand" in left) == (True, False)
    finally:
        admin.put_sign_on_group("dev", team="search")


@pytest.mark.parametrize("groups", [["other"], [], ["boss"], None])
def test_who_leaves_a_group_is_out_within_an_hour(
    site: LoginSite, person: str, groups: list[str] | None
) -> None:
    admin = site.gateway.admin
    admin.put_sign_on_group("boss", team="bosses")
    tokens = site.sign_in(person)
    tokens = site.refresh(tokens).json()
    about(site, person, groups=groups)
    assert error(site.refresh(tokens)) == "invalid_grant"
    assert not site.works(tokens)
    if groups == ["boss"]:
        assert site.works(site.sign_in(person)), "as another account, which another team pays"
    admin.delete_sign_on_group("boss")


def test_an_organisations_owner_cannot_draw_people_to_it(site: LoginSite) -> None:
    admin = site.gateway.admin
    name = f"org-{next(_numbers)}"
    admin.create_organisation(name)
    try:
        with pytest.raises(AdminError, match="name the organisation"):
            admin.put_sign_on_group("x")
        own = admin.create_key_full("own", role="admin", organisation=name)
        headers = {"Authorization": f"Bearer {own['api_key']}"}
        url = f"{site.gateway.base_url}/api/v1/admin/sign-on/groups"
        assert httpx.put(f"{url}/x", json={}, headers=headers).status_code == 409
        assert httpx.delete(f"{url}/dev", headers=headers).status_code == 409
        assert httpx.get(url, headers=headers).json() == []
    finally:
        admin.remove_organisation(name)


# -- secrets ---------------------------------------------------------------------------------------


def test_the_database_has_nothing_to_sign_in_with(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    refresh_token = openid._refresh_token

    def noted(token: Any) -> str:
        given.append(refresh_token(token))
        return given[-1]

    monkeypatch.setattr(openid, "_refresh_token", noted)
    database = tmp_path / "g.sqlite3"
    options = client_of(provider)
    with run_gateway(database, login_key=LOGIN_KEY, **options) as gateway:
        site = LoginSite(gateway, provider, MovedClock())
        gateway.admin.put_sign_on_group("*")
        code = site.begin()
        tokens = site.sign_in(new_person(site))
        newer = site.refresh(tokens).json()
    with contextlib.closing(sqlite3.connect(database)) as opened:
        stored = "\n".join(opened.iterdump())
    assert given[0]
    secrets = [code["device_code"], *given, tokens["access_token"], tokens["refresh_token"],
               newer["access_token"], newer["refresh_token"], LOGIN_KEY]  # fmt: skip
    assert [each for each in secrets if each and each in stored] == []
    with run_gateway(database, login_key="l" * 40, **options) as gateway:
        other = LoginSite(gateway, provider, MovedClock())
        assert error(other.refresh(newer)) == "invalid_grant", "another key ends every login"


def test_a_gateway_without_a_key_signs_nobody_in(provider: str) -> None:
    with run_gateway(openid_issuer=provider, openid_client_id="guard") as gateway:
        for path in ("device", "token", "revoke"):
            reply = httpx.post(f"{gateway.base_url}/api/v1/login/{path}")
            assert (reply.status_code, "login_key" in reply.text) == (404, True)
        assert httpx.get(f"{gateway.base_url}/device").status_code == 404


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"login_key": "short", "openid_issuer": "https://a.example"}, "32 or more"),
        ({"login_key": LOGIN_KEY}, "needs openid_issuer"),
    ],
)
def test_a_wrong_key_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        login_secrets_of(GatewaySettings(**given))
    assert caught.value.name == "login_key"


def test_what_has_ended_is_deleted(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovedClock()
    database = str(tmp_path / "g.sqlite3")
    with run_gateway(
        database, clock_ms=clock, login_key=LOGIN_KEY, sweep_interval_ms=20, **client_of(provider)
    ) as gateway:
        site = LoginSite(gateway, provider, clock)
        gateway.admin.put_sign_on_group("*")
        person = new_person(site)
        site.work_key(site.sign_in(person))
        site.begin()
        site.later(4 * HOUR_MS)

        def left() -> list[int]:
            with contextlib.closing(sqlite3.connect(database)) as opened:
                return [
                    opened.execute(f"SELECT count(*) FROM {each}").fetchone()[0]
                    for each in ("login_codes", "logins", "secrets WHERE login_id IS NOT NULL")
                ]

        until(lambda: left() == [0, 1, 1])  # the work key
        site.later(31 * 24 * HOUR_MS)
        until(lambda: left() == [0, 0, 0])
        assert account(site, person)["secrets"] == [], "the account stays"
