"""The process of the proxy: how it is started, ended and started again, beside a stand-in of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from guard.running import reports
from guard.running.plan import HOOK
from guard.running.proxy_process import START_S, ProxyProcess
from tests.support.programs import is_gone
from tests.support.waiting import WAIT_S, until

STAND_IN = """
import json, os, socket, sys
told = json.loads(sys.stdin.readline())
session = os.getsid(0) == os.getpid()
seen = {**told, "fd": "inherited", "path": os.environ["PYTHONPATH"], "session": session}
with open(os.path.join(told["directory"], "told"), "a") as file:
    file.write(json.dumps(seen) + "\\n")
listening = socket.socket(fileno=told.pop("fd"))
print(json.dumps({"url": "it serves"}), flush=True)
connection, _ = listening.accept()
connection.sendall(b"served")
connection.close()
sys.stdin.read()
"""


def proxy(directory: Path, script: str = STAND_IN) -> ProxyProcess:
    environ = {**os.environ, "PYTHONPATH": f"{HOOK}:/elsewhere"}
    path = directory / "stand_in.py"
    path.write_text(textwrap.dedent(script))
    return ProxyProcess(
        directory, environ, "w", {"openai": "http://h"}, limited=True,
        command=(sys.executable, "-I", str(path)),
    )  # fmt: skip


def told(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "told").read_text().splitlines()]


def ask(running: ProxyProcess) -> bytes:
    """Connect as a program does, and look as ``guard run`` does; return what is answered."""
    assert running.address is not None
    with socket.create_connection(running.address, WAIT_S) as program:
        running.poll()
        return program.recv(100)


def test_it_is_started_when_somebody_asks_and_ends_with_its_input(tmp_path: Path) -> None:
    with proxy(tmp_path) as running:
        running.poll()
        assert running.pids == set(), "nobody has asked"
        assert ask(running) == b"served"
        [pid] = running.pids
        running.poll()
        assert running.pids == {pid}
    assert is_gone(pid)
    assert running.pids == set()
    assert told(tmp_path) == [{
        "directory": str(tmp_path), "workflow": "w", "upstreams": {"openai": "http://h"},
        "limited": True, "fd": "inherited", "path": "/elsewhere", "session": True,
    }]  # fmt: skip
    with pytest.raises(OSError, match="refused"):
        ask(running)


def test_one_that_nobody_asks_for_is_not_started(tmp_path: Path) -> None:
    with proxy(tmp_path, "raise SystemExit(1)") as running:
        running.poll()
    assert reports.refusal(tmp_path) is None


def test_one_that_dies_is_replaced_at_the_same_address(tmp_path: Path) -> None:
    with proxy(tmp_path) as running:
        assert ask(running) == b"served"
        url, [pid] = running.url, running.pids
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid))
        assert ask(running) == b"served"
        assert running.url == url
        assert running.pids != {pid}
    assert reports.refusal(tmp_path) is None


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("raise SystemExit('no such thing')", "no such thing"),
        ('print(\'{"error": "it is full"}\'); raise SystemExit(1)', "it is full"),
        ("print('torn'); raise SystemExit(3)", "exit code"),
        ("raise SystemExit(3)", "exit code"),
    ],
)
def test_one_that_cannot_be_started_ends_the_run(tmp_path: Path, script: str, says: str) -> None:
    with proxy(tmp_path, script) as running:
        assert running.address is not None
        with socket.create_connection(running.address):
            running.poll()
        running.poll()
    found = reports.refusal(tmp_path)
    assert found is not None
    assert found["message"] == "guard's proxy cannot be started, and nothing runs without it"
    assert says in found["reason"]


def test_the_end_does_not_wait_for_one_that_is_being_started(tmp_path: Path) -> None:
    # Each of its three starts would take a minute, and the end waited for all of them.
    with proxy(tmp_path, "import sys; sys.stdin.readline(); sys.stdin.read()") as running:
        assert running.address is not None
        with socket.create_connection(running.address):
            looking = threading.Thread(target=running.poll)
            looking.start()
            [pid] = until(lambda: running.pids)
            ending = threading.Thread(target=running.end)
            ending.start()
            ending.join(START_S / 2)
            has_ended = not ending.is_alive()
            ending.join()
            looking.join()
    assert has_ended
    assert is_gone(pid)
    assert reports.refusal(tmp_path) is None, "the run has ended, and its proxy has not failed"


def test_one_whose_start_the_end_has_just_missed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(tmp_path, "import sys; sys.stdin.readline(); sys.stdin.read()") as running:
        assert running.address is not None
        ending = threading.Thread(target=running.end)
        start = subprocess.Popen
        started: list[subprocess.Popen[Any]] = []

        def ended_meanwhile(*args: Any, **options: Any) -> subprocess.Popen[Any]:
            started.append(start(*args, **options))
            ending.start()
            until(lambda: running._listening is None)
            return started[-1]

        monkeypatch.setattr(subprocess, "Popen", ended_meanwhile)
        with socket.create_connection(running.address):
            running.poll()
        ending.join()
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert reports.refusal(tmp_path) is None
