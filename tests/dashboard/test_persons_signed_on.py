"""Whom single sign-on lets in, and as whom: at a proxy and at a provider, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.services import openid
from guard.gateway.settings import GatewaySettings, SettingError
from tests.dashboard.test_single_sign_on import HEADER, PASSWORD, client
from tests.support import postgres
from tests.support.openid_provider import openid_provider
from tests.support.waiting import WAIT_S

CLAIMS: list[dict[str, object]] = [
    {"sub": "s-alice", "preferred_username": "alice"},
    {"sub": "s-other", "preferred_username": "alice"},
    {"sub": "s-bob", "preferred_username": "bob"},
    {"sub": "s-admin", "preferred_username": "admin"},
]


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with openid_provider(CLAIMS) as issuer:
        yield issuer


@attrs.define
class Door:
    """A gateway with two organisations, and a place elsewhere at which people sign in."""

    gateway: Gateway
    issuer: str

    def comes(self, name: str, subject: str = "") -> httpx.Response:
        """Sign in elsewhere as a person, in a fresh browser; return the page that they get."""
        with client(self.gateway) as http:
            if not self.issuer:
                return http.get("/people", headers={HEADER: name})
            form = http.get("/sign-in/openid")
            done = http.post(form.url, data={"sub": subject or f"s-{name}"})
            return done if done.status_code != 200 else http.get("/people")

    def operators(self) -> dict[str, tuple[str, str | None]]:
        names = {each["organisation_id"]: each["name"] for each in
                 self.gateway.admin.organisations()}  # fmt: skip
        return {each["name"]: (each["role"], names.get(each["organisation_id"]))
                for each in self.gateway.admin.operators()}  # fmt: skip

    def add(self, name: str, organisation: str | None = None, **fields: Any) -> None:
        self.gateway.admin.request("PUT", f"/operators/{name}", fields, organisation=organisation)


@contextmanager
def door_of(way: str, issuer: str, database: str, **settings: Any) -> Iterator[Door]:
    if way == "proxy":
        settings |= {"trusted_proxies": ("127.0.0.1",), "proxy_user_header": HEADER}
    else:
        settings |= {"openid_issuer": issuer, "openid_client_id": "guard",
                     "openid_client_secret": "a secret",
                     "openid_claim": "preferred_username"}  # fmt: skip
    with run_gateway(database, **settings) as gateway:
        for name in ("acme", "globex"):
            gateway.admin.create_organisation(name)
        yield Door(gateway, "" if way == "proxy" else issuer)


@pytest.fixture(params=["proxy", "openid"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(openid, "_TIMEOUT_S", WAIT_S)
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return postgres.url_of(tmp_path)
    return str(tmp_path / "gateway.sqlite3")


OPEN: dict[str, Any] = {"sign_on_role": "operator", "sign_on_organisation": "globex"}


def test_a_person_who_was_removed_stays_removed(way: str, provider: str, database: str) -> None:
    with door_of(way, provider, database, **OPEN) as door:
        door.add("alice", "acme", role="viewer")  # signs on, and is removed
        door.add("bob", "acme", role="viewer")  # is removed before that
        assert 'data-role="viewer"' in door.comes("alice").text
        for name in ("alice", "bob"):
            door.gateway.admin.remove_operator(name)
            reply = door.comes(name)
            assert reply.status_code == 403, reply.text
            assert f"{name} was removed" in reply.text
        assert door.operators() == {}
        # An owner who adds them again lets them in, in the role that they are given then.
        door.add("alice", "acme", role="viewer")
        assert 'data-role="viewer"' in door.comes("alice").text
        assert door.operators() == {"alice": ("viewer", "acme")}


def test_who_leaves_with_an_organisation_does_not_join_another(
    way: str, provider: str, database: str
) -> None:
    with door_of(way, provider, database, **OPEN) as door:
        door.add("alice", "acme", role="viewer")
        door.comes("alice")
        door.gateway.admin.remove_organisation("acme")
        assert door.comes("alice").status_code == 403
        assert door.operators() == {}


def test_new_people_join_the_organisation_that_is_named(
    way: str, provider: str, database: str
) -> None:
    with door_of(way, provider, database, **OPEN) as door:
        for _ in range(2):
            assert 'data-role="operator"' in door.comes("bob").text
        assert door.operators() == {"bob": ("operator", "globex")}
        door.gateway.admin.remove_organisation("globex")
        reply = door.comes("alice")
        assert reply.status_code == 403
        assert "no organisation globex" in reply.text


def test_admin_elsewhere_is_not_the_owner_admin(way: str, provider: str, database: str) -> None:
    with door_of(way, provider, database, **OPEN) as door:
        reply = door.comes("admin")  # before there is one
        assert reply.status_code == 403
        assert door.operators() == {}
        door.gateway.admin.set_password("admin", PASSWORD)
        door.gateway.admin.set_password("alice", PASSWORD)
        for name in ("admin", "alice"):
            reply = door.comes(name)
            assert reply.status_code == 403
            assert "signs in with a password" in reply.text
        assert door.gateway.admin.sessions() == []
        # One whom an owner has added for it is let in.
        door.gateway.admin.remove_operator("admin")
        door.add("admin", "acme", role="viewer")
        assert 'data-role="viewer"' in door.comes("admin").text


def test_a_name_that_is_given_to_another_person_is_not_theirs(provider: str, database: str) -> None:
    with door_of("openid", provider, database, **OPEN) as door:
        door.add("alice", None, role="owner")
        assert 'data-role="owner"' in door.comes("alice").text
        reply = door.comes("alice", "s-other")
        assert reply.status_code == 403
        assert "another person" in reply.text
        door.gateway.admin.remove_operator("alice")
        for subject in ("s-alice", "s-other"):
            assert door.comes("alice", subject).status_code == 403
        door.add("alice", "acme", role="viewer")
        assert 'data-role="viewer"' in door.comes("alice", "s-other").text


def test_people_join_only_an_organisation_that_is_named() -> None:
    with pytest.raises(SettingError, match="sign_on_organisation") as caught:
        GatewaySettings(sign_on_role="viewer")
    assert caught.value.name == "sign_on_role"
