"""``guard login``, ``guard key print`` and ``guard logout``, as programs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guard.gateway.embedded import run_gateway
from tests.support.logins import LOGIN_KEY, LoginSite, MovedClock, client_of
from tests.support.openid_provider import openid_provider
from tests.support.programs import environment

PEOPLE: list[dict[str, Any]] = [
    {"sub": "ada", "email": "ada@example.com", "email_verified": True, "groups": ["dev"]}
]
EARLY_MS = 600_000


@pytest.fixture(scope="module")
def site() -> Iterator[LoginSite]:
    clock = MovedClock()
    with (
        openid_provider(PEOPLE) as issuer,
        run_gateway(clock_ms=clock, login_key=LOGIN_KEY, **client_of(issuer)) as gateway,
    ):
        gateway.admin.put_sign_on_group("dev", team="search")
        yield LoginSite(gateway, issuer, clock)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = environment({"HOME": str(tmp_path)})
    return {name: text for name, text in kept.items() if name != "XDG_CONFIG_HOME"}


def guard(env: dict[str, str], *words: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "guard", *words], env=env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def stored(env: dict[str, str]) -> dict[str, Any]:
    return dict(json.loads(file_of(env).read_text()))


def file_of(env: dict[str, str]) -> Path:
    return Path(env["HOME"]) / ".config" / "guard" / "login.json"


def store(env: dict[str, str], site: LoginSite, ends_in_ms: int, **changes: str) -> dict[str, Any]:
    """Sign in, and keep the tokens as if they ended at another time."""
    tokens = site.sign_in("ada")
    login = {
        "url": site.gateway.base_url, "access_token": tokens["access_token"],
        "ends_ms": time.time_ns() // 1_000_000 + ends_in_ms,
        "refresh_token": tokens["refresh_token"], "tls_fingerprint": "",
    } | changes  # fmt: skip
    file_of(env).parent.mkdir(parents=True, exist_ok=True)
    file_of(env).write_text(json.dumps(login))
    file_of(env).chmod(0o600)
    return tokens


def test_a_person_signs_in_prints_a_key_and_signs_out(site: LoginSite, env: dict[str, str]) -> None:
    process = guard(env, "login", "--url", site.gateway.base_url + "/")
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(3)]
    code = said[0].strip().rstrip(":").split()[-1]
    assert said[1].strip() == f"{site.gateway.base_url}/device?code={code}"
    site.browse(code, "ada")
    assert ended(process) == (
        0,
        f"signed in at {site.gateway.base_url}, until `guard logout`\n",
        "",
    )
    assert file_of(env).stat().st_mode & 0o777 == 0o600
    assert file_of(env).parent.stat().st_mode & 0o777 == 0o700
    code_, key, err = ended(guard(env, "key", "print"))
    assert (code_, err, key) == (0, "", stored(env)["access_token"] + "\n")
    assert site.works({"access_token": key.strip()})
    assert ended(guard(env, "logout"))[:2] == (0, f"signed out at {site.gateway.base_url}\n")
    assert not file_of(env).exists()
    assert not site.works({"access_token": key.strip()})
    code_, key, err = ended(guard(env, "key", "print"))
    assert (code_, key, "guard login" in err) == (1, "", True)
    assert ended(guard(env, "logout"))[:2] == (0, "nobody was signed in\n")


def test_a_refused_program_says_so(site: LoginSite, env: dict[str, str]) -> None:
    process = guard(env, "login", env_url(env, site))
    assert process.stdout is not None
    code = process.stdout.readline().strip().rstrip(":").split()[-1]
    site.browse(code, "ada", "refuse")
    code_, _, err = ended(process)
    assert (code_, err) == (1, "Error: not signed in: the person does not allow it\n")
    assert not file_of(env).exists()


def env_url(env: dict[str, str], site: LoginSite) -> str:
    env["GUARD_API_URL"] = site.gateway.base_url
    return "--tls-fingerprint="


def test_tools_that_ask_at_once_refresh_once(site: LoginSite, env: dict[str, str]) -> None:
    before = store(env, site, EARLY_MS - 1000)
    printed = [ended(each) for each in [guard(env, "key", "print") for _ in range(6)]]
    assert len({*printed}) == 1, printed
    [(code, key, err)] = {*printed}
    assert (code, err, key.strip()) == (0, "", stored(env)["access_token"])
    assert key.strip() != before["access_token"]
    assert site.works({"access_token": key.strip()})


def test_a_fresh_token_asks_nobody(site: LoginSite, env: dict[str, str]) -> None:
    tokens = store(env, site, EARLY_MS + 60_000, url="http://127.0.0.1:1")
    assert ended(guard(env, "key", "print")) == (0, tokens["access_token"] + "\n", "")


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_gateway_that_is_away_ends_no_login(
    site: LoginSite, env: dict[str, str], is_valid: bool
) -> None:
    tokens = store(env, site, 60_000 if is_valid else -1, url="http://127.0.0.1:1")
    code, key, err = ended(guard(env, "key", "print"))
    if is_valid:
        assert (code, key) == (0, tokens["access_token"] + "\n")
    else:
        assert (code, key, "try again" in err) == (1, "", True)
    assert stored(env)["refresh_token"] == tokens["refresh_token"]


def test_a_login_that_has_ended_is_forgotten(site: LoginSite, env: dict[str, str]) -> None:
    tokens = store(env, site, -1)
    site.post("revoke", token=tokens["refresh_token"])
    code, key, err = ended(guard(env, "key", "print"))
    assert (code, key, "sign in again with `guard login`" in err) == (1, "", True)
    assert not file_of(env).exists()
    store(env, site, -1, refresh_token="")
    code, _, err = ended(guard(env, "key", "print"))
    assert (code, "guard login" in err, file_of(env).exists()) == (1, True, False)


def test_a_file_that_others_may_read_is_not_used(site: LoginSite, env: dict[str, str]) -> None:
    store(env, site, 3_600_000)
    file_of(env).chmod(0o644)
    code, key, err = ended(guard(env, "key", "print"))
    assert (code, key, "other users may read" in err) == (1, "", True)


@pytest.mark.parametrize(
    ("url", "says"),
    [("", "name the gateway"), ("local", "name the gateway"),
     ("http://gateway.example", "plain http"), ("http://127.0.0.1:1", "does not answer")],
)  # fmt: skip
def test_a_wrong_address_is_named(env: dict[str, str], url: str, says: str) -> None:
    code, _, err = ended(guard(env, "login", "--url", url))
    assert (code, says in err, "Traceback" in err) == (1, True, False)


def test_signing_out_without_a_gateway_says_what_is_left(
    site: LoginSite, env: dict[str, str]
) -> None:
    store(env, site, 3_600_000, url="http://127.0.0.1:1")
    code, _, err = ended(guard(env, "logout"))
    assert (code, "forgotten here" in err, file_of(env).exists()) == (1, True, False)


def test_a_shell_is_led_to_a_proxy(site: LoginSite, env: dict[str, str]) -> None:
    before = store(env, site, -1)
    script = (
        'eval "$("$PYTHON" -m guard proxy env https://proxy.example:8788/)" && '
        "env | grep -E '^(ANTHROPIC|OPENAI|GEMINI|GOOGLE)_' | sort"
    )
    clean = {
        name: text for name, text in env.items()
        if not name.startswith(("ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_"))
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", script], env=clean | {"PYTHON": sys.executable}, capture_output=True,
        text=True, check=True, timeout=120,
    )  # fmt: skip
    token = stored(env)["access_token"]
    assert token != before["access_token"]
    key = done.stdout.partition("=")[2].partition("\n")[0]
    assert key != token, "that ends within the hour"
    assert site.works({"access_token": key})
    assert done.stdout.splitlines() == [
        f"ANTHROPIC_API_KEY={key}", "ANTHROPIC_BASE_URL=https://proxy.example:8788/anthropic",
        f"GEMINI_API_KEY={key}", "GOOGLE_GEMINI_BASE_URL=https://proxy.example:8788/gemini",
        f"OPENAI_API_KEY={key}", "OPENAI_BASE_URL=https://proxy.example:8788/openai/v1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "says"),
    [("proxy", "name the proxy"), ("http://proxy.example", "plain http"),
     ("https://proxy.example:8788", "nobody is signed in")],
)  # fmt: skip
def test_a_shell_that_cannot_be_led_gets_nothing(env: dict[str, str], url: str, says: str) -> None:
    code, out, err = ended(guard(env, "proxy", "env", url))
    assert (code, out, says in err) == (1, "", True)


def test_what_people_get_is_set_on_the_command_line(site: LoginSite, env: dict[str, str]) -> None:
    own = env | {"GUARD_ADMIN_KEY": site.gateway.admin_key, "GUARD_API_URL": site.gateway.base_url}

    def sign_on(*words: str) -> tuple[int, str, str]:
        return ended(guard(own, "gateway", "sign-on", *words))

    assert sign_on("set", "/ops/night", "--team", "ops", "--role", "viewer", "--model", "gpt-*",
                   "--place", "1")[0] == 0  # fmt: skip
    listed = sign_on("list")[1].splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [["1", "/ops/night"], ["2", "dev"]]
    assert {"viewer", "gpt-*", "ops"} <= {*listed[1].split()}
    assert sign_on("remove", "/ops/night")[0] == 0
    assert "no such group" in sign_on("remove", "/ops/night")[2]
    assert "no such account" in sign_on("forget", "x")[2]
