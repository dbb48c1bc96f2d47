"""The command line: help, explanations, and one clear line for every mistake."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from guard.gateway.embedded import Gateway
from tests.system.conftest import Run

NOBODY = "http://127.0.0.1:1"


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Check that a command failed with one line on standard error, and return it."""
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_help_names_every_command_and_fits_the_terminal(run: Run) -> None:
    done = run("-m", "guard", "--help")
    assert done.returncode == 0
    for command in ("demo", "doctor", "explain", "gateway", "status"):
        assert f"\n  {command} " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_missing_key(run: Run) -> None:
    assert "GUARD_API_KEY" in one_line(run("-m", "guard", "status"))
    done = run("-m", "guard", "doctor")
    assert done.returncode == 1
    assert "GUARD_API_KEY    not set" in done.stdout


def test_wrong_key(run: Run, gateway: Gateway) -> None:
    env = {"GUARD_API_KEY": "gdk_wrong_key_0123456789", "GUARD_API_URL": gateway.base_url}
    said = one_line(run("-m", "guard", "status", env=env))
    assert "GD-A003" in said
    assert env["GUARD_API_KEY"] not in said


def test_no_gateway(run: Run) -> None:
    env = {"GUARD_API_KEY": "some-key-0123456789", "GUARD_API_URL": NOBODY}
    done = run("-m", "guard", "status", "--json", env=env)
    assert done.returncode == 1
    assert json.loads(done.stdout)["state"] == "offline"
    done = run("-m", "guard", "doctor", env=env)
    assert done.returncode == 1
    assert "no answer" in done.stdout


def test_insecure_address(run: Run) -> None:
    env = {"GUARD_API_KEY": "some-key-0123456789", "GUARD_API_URL": "http://guard.example.com"}
    assert "https" in one_line(run("-m", "guard", "status", env=env))


def test_status_of_a_working_set_up(run: Run, gateway: Gateway) -> None:
    env = {"GUARD_API_KEY": gateway.admin.create_key(), "GUARD_API_URL": gateway.base_url}
    done = run("-m", "guard", "status", "--json", env=env)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["state"] == "ok"
    assert facts["control_channel"] == "websocket"
    assert run("-m", "guard", "doctor", env=env).returncode == 0


@pytest.mark.parametrize("program", ["guard gateway", "spamdetect"])
def test_port_in_use(run: Run, tmp_path: Path, program: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = [*program.split(), "serve", "--port", str(port)]
        if program == "guard gateway":
            arguments += ["--database", f"{tmp_path}/gateway.sqlite3"]
        else:
            arguments += ["--database-url", f"sqlite:///{tmp_path}/keys.sqlite3"]
        assert str(port) in one_line(run("-m", *arguments))


def test_explain(run: Run) -> None:
    done = run("-m", "guard", "explain", "gd-b004")
    assert done.returncode == 0
    assert "Budget exhausted" in done.stdout
    assert "GD-T001" in run("-m", "guard", "explain").stdout
    assert "GD-NOPE" in one_line(run("-m", "guard", "explain", "GD-NOPE"))
