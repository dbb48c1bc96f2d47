"""The first keys and password, from the environment and from files, and never in a log."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.first_secrets import FirstSecrets, first_secrets, metrics_key_of
from guard.gateway.settings import GatewaySettings, SettingError
from tests.gateway.conftest import SERVE
from tests.support import postgres
from tests.support.programs import killed_at_last
from tests.support.waiting import WAIT_S, until

PASSWORD = "a password that was given"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return postgres.url_of(tmp_path)
    return str(tmp_path / "g.sqlite3")


def _key(prefix: str) -> str:
    return prefix + secrets.token_hex(32)


@contextmanager
def serving(database: str, output: Path, **environment: str) -> Iterator[str]:
    """Serve in a process of its own, with no terminal; all that it says goes into the file."""
    given = {f"GUARD_GATEWAY_{name.upper()}": value for name, value in environment.items()}
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve", "--port", "0", "--database", database,
             "--log-level", "debug"],
            env={**os.environ, **given}, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    with killed_at_last(process):
        until(lambda: "ready on" in output.read_text() or process.poll() is not None)
        found = re.search(r"^guard gateway on (http\S+)", output.read_text(), re.MULTILINE)
        assert found is not None, output.read_text()
        url = found[1]
        until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 200)
        yield url
        process.terminate()
        process.wait(WAIT_S)


def all_keys(admin: AdminClient) -> list[dict[str, Any]]:
    return admin.keys()


def _works(url: str, api_key: str) -> bool:
    headers = {"X-API-Key": api_key, "X-Guard-Protocol": "3"}
    body = {"call_id": secrets.token_hex(8), "kind": "call", "function": "f", "workflow_id": "w"}
    reply = httpx.post(f"{url}/gate", json=body, headers=headers, trust_env=False)
    return reply.status_code == 200


def test_given_keys_are_the_first_ones(database: str, tmp_path: Path) -> None:
    admin_key, api_key, other = _key("gda_"), _key("gdk_"), _key("gda_")
    file = tmp_path / "admin-key"
    file.write_text(admin_key + "\n")
    given = {"first_admin_key_file": str(file), "first_api_key": api_key,
             "first_password": PASSWORD}  # fmt: skip
    output = tmp_path / "output"
    with serving(database, output, **given) as url:
        admin = AdminClient(url, admin_key)
        assert [each["role"] for each in admin.operators()] == ["owner"]
        assert _works(url, api_key)
        [key] = [each for each in all_keys(admin) if each["role"] == "sdk"]
        admin.revoke_key(key["key_id"])
        admin.set_password("admin", "a password of the operator's own")
        admin.close()
    text = output.read_text()
    assert "ready on" in text
    for secret in (admin_key, api_key, PASSWORD, "shown once", "GUARD_ADMIN_KEY", "GUARD_API_KEY"):
        assert secret not in text

    file.write_text(other)
    with serving(database, tmp_path / "second", **given) as url:
        assert not _works(url, api_key), "a revoked key stays revoked"
        for each in (admin_key, other):
            admin = AdminClient(url, each)
            assert len(admin.organisations()) == 1
            assert len([k for k in all_keys(admin) if k["role"] == "sdk"]) == 1
            admin.close()
        with httpx.Client(base_url=url, trust_env=False) as http:
            csrf = http.get("/sign-in").text.split('name="csrf" value="')[1][:64]
            for password, status in (("a password of the operator's own", 303), (PASSWORD, 403)):
                body = {"name": "admin", "password": password, "csrf": csrf}
                csrf_cookie = http.get("/sign-in").text.split('name="csrf" value="')[1][:64]
                body["csrf"] = csrf_cookie
                reply = http.post("/sign-in", data=body, headers={"Origin": url})
                assert reply.status_code == status


def test_without_them_the_keys_are_printed(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with serving(str(tmp_path / "g.sqlite3"), output) as url:
        lines = output.read_text().splitlines()
        key = next(e.partition("=")[2].strip() for e in lines if "GUARD_ADMIN_KEY" in e)
        admin = AdminClient(url, key)
        assert len(admin.keys()) == 1
        admin.close()
        stranger = AdminClient(url, _key("gda_"))
        with pytest.raises(AdminError):
            stranger.keys()
        stranger.close()


_GOOD = _key("gda_")
_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"first_admin_key": "gda_short"}, "first_admin_key"),
    ({"first_admin_key": _key("gdk_")}, "first_admin_key"),
    ({"first_admin_key": _GOOD + " "}, "first_admin_key"),
    ({"first_admin_key": "gda_" + "é" * 40}, "first_admin_key"),
    ({"first_api_key": _key("gdk_")}, "first_api_key"),
    ({"first_admin_key": _GOOD, "first_api_key": _key("gda_")}, "first_api_key"),
    ({"first_password": "short"}, "first_password"),
    ({"metrics_key": "short"}, "metrics_key"),
    ({"metrics_key": "a key with blanks, which is long enough"}, "metrics_key"),
    ({"metrics_key_file": Path("/nowhere/at/all")}, "metrics_key_file"),
    ({"first_password_file": Path("/nowhere/at/all")}, "first_password_file"),
    ({"first_admin_key": _GOOD, "first_admin_key_file": Path("x")}, "first_admin_key_file"),
]


@pytest.mark.parametrize(("given", "name"), _WRONG)
def test_what_is_wrong_is_named_and_not_shown(given: dict[str, Any], name: str) -> None:
    settings = GatewaySettings(**given)
    with pytest.raises(SettingError) as caught:
        (metrics_key_of if "metrics" in name else first_secrets)(settings)
    assert caught.value.name == name
    for value in given.values():
        if isinstance(value, str):
            assert value not in str(caught.value)
            assert value not in repr(settings)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff" * 40])
def test_a_file_without_a_secret(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "f"
    file.write_bytes(content)
    with pytest.raises(SettingError, match="first_admin_key_file takes"):
        first_secrets(GatewaySettings(first_admin_key_file=file))


def test_nothing_is_given() -> None:
    assert first_secrets(GatewaySettings()) == FirstSecrets()
    assert _GOOD not in repr(FirstSecrets(admin_key=_GOOD))
