"""``guard doctor``, as a process, on environments that are sound and on broken ones."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from guard.doctor import age_of_facts
from guard.gateway.embedded import Gateway
from tests.support.commands import Command, run_commands
from tests.system.conftest import Run

NOBODY = "http://127.0.0.1:1"


def examined(run: Run, *, code: int, **env: str) -> dict[str, dict[str, Any]]:
    """Run it; return its checks by name, the worst of those that have one."""
    return checks_of(run("-m", "guard", "doctor", "--json", env=env), code)


def checks_of(done: subprocess.CompletedProcess[str], code: int) -> dict[str, dict[str, Any]]:
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["ok"] is (code == 0)
    rank = ("ok", "warn", "fail")
    checks: dict[str, dict[str, Any]] = {}
    for check in sorted(said["checks"], key=lambda check: rank.index(check["result"])):
        checks[check["name"]] = check
        assert check["result"] == "ok" or check["advice"], check
    return checks


def test_a_sound_environment(run: Run, gateway: Gateway, tmp_path: Path) -> None:
    key = gateway.admin.create_key()
    env = {
        "GUARD_API_KEY": key,
        "GUARD_API_URL": gateway.base_url,
        "GUARD_SPOOL_DIR": f"{tmp_path}/s",
    }
    checks = examined(run, code=0, **env)
    assert {check["result"] for check in checks.values()} == {"ok"}
    assert checks.keys() >= {
        "mode", "GUARD_API_KEY", "GUARD_API_URL", "TLS", "gateway", "protocol", "clock",
        "control channel", "facts", "seam", "vendor client", "spool",
    }  # fmt: skip
    assert "websocket" in checks["control channel"]["detail"]
    done = run("-m", "guard", "doctor", env=env)
    assert done.returncode == 0
    assert key not in done.stdout
    assert f"openai {version('openai')}, seen through httpx" in done.stdout
    assert f"httpx {version('httpx')}" in done.stdout


def test_old_facts_are_a_warning_that_says_what_to_type() -> None:
    today, released = dt.date(2026, 11, 29), dt.date(2026, 8, 31)
    assert age_of_facts(released, "", today).result == "ok"
    old = age_of_facts(released - dt.timedelta(1), "", today)
    assert (old.result, old.detail[-11:]) == ("warn", "91 days ago")
    assert "`guard gateway facts import FILE`" in old.advice
    both = age_of_facts(dt.date(2026, 1, 1), "2026-11-01", today)
    assert (both.result, both.detail[-34:]) == (
        "ok",
        "the gateway's operators as of 2026-11-01"[-34:],
    )
    assert age_of_facts(dt.date(2026, 1, 1), "2026-02-01", today).result == "warn"
    assert age_of_facts(dt.date(2026, 1, 1), "no date", today).result == "warn"


def test_the_age_of_the_gateways_facts(run: Run, gateway: Gateway) -> None:
    gateway.admin.change_facts([{"name": "tool:orbit", "date": "2031-01-01"}])
    env = {"GUARD_API_KEY": gateway.admin.create_key(), "GUARD_API_URL": gateway.base_url}
    detail = examined(run, code=0, **env)["facts"]["detail"]
    assert detail.endswith("the gateway's operators as of 2031-01-01")
    gateway.admin.change_facts([], "replace")


def test_no_gateway(run: Run) -> None:
    checks = examined(run, code=1, GUARD_API_KEY="some-key-0123456789", GUARD_API_URL=NOBODY)
    assert checks["gateway"]["result"] == "fail"
    assert "guard gateway serve" in checks["gateway"]["detail"]
    assert checks["seam"]["result"] == "ok"


def test_a_key_that_is_refused(run: Run, gateway: Gateway) -> None:
    checks = examined(
        run, code=1, GUARD_API_KEY="gdk_wrong_key_0123456789", GUARD_API_URL=gateway.base_url
    )
    assert "refused" in checks["GUARD_API_KEY"]["detail"]


def test_what_is_not_as_usual(gateway: Gateway) -> None:
    usual = {"GUARD_API_KEY": gateway.admin.create_key(), "GUARD_API_URL": gateway.base_url}
    expected = [
        ({"GUARD_MODE": "observe"}, "mode", "warn"),
        ({"GUARD_FALLBACK_MODE": "open"}, "mode", "warn"),
        ({"GUARD_APIKEY": "x"}, "variables", "warn"),
        ({"GUARD_GATEWAY_URL": "x"}, "variables", "warn"),
        ({"GUARD_AUTO_INSTRUMENT": "0"}, "hooks", "warn"),
        ({"GUARD_TRANSPORT_MODE": "http"}, "control channel", "ok"),
        ({"GUARD_SPOOL_DIR": "/dev/null/spool"}, "spool", "fail"),
        ({"GUARD_TIMEOUT_MS": "soon"}, "settings", "fail"),
        ({"GUARD_API_URL": "http://guard.example.com"}, "TLS", "fail"),
    ]
    commands = [Command(("doctor", "--json"), env=usual | env) for env, _, _ in expected]
    for (env, name, result), done in zip(expected, run_commands(*commands), strict=True):
        checks = checks_of(done, code=1 if result == "fail" else 0)
        assert checks[name]["result"] == result, env


def test_switched_off_it_needs_no_key(run: Run) -> None:
    checks = examined(run, code=0, GUARD_MODE="off")
    assert checks["mode"]["detail"].startswith("off")


def test_a_client_whose_version_cannot_be_instrumented(run: Run, gateway: Gateway) -> None:
    program = (
        "import botocore.httpsession as module\n"
        "del module.URLLib3Session\n"
        "from guard.cli import cli\n"
        "cli(['doctor'])"
    )
    env = {"GUARD_API_KEY": gateway.admin.create_key(), "GUARD_API_URL": gateway.base_url}
    done = run("-c", program, env=env)
    assert done.returncode == 1
    assert f"FAIL  seam             botocore {version('botocore')} cannot be" in done.stdout
    assert f"FAIL  vendor client    boto3 {version('boto3')} is not seen" in done.stdout
