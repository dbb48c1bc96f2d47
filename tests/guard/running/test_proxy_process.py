"""The process of the proxy: how it is started, ended and started again, beside a stand-in of it."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from guard.running import reports
from guard.running.plan import HOOK
from guard.running.proxy_process import ProxyError, ProxyProcess
from tests.support.programs import is_gone
from tests.support.waiting import until

STAND_IN = """
import json, os, sys
told = json.loads(sys.stdin.readline())
seen = {**told, "path": os.environ["PYTHONPATH"], "session": os.getsid(0) == os.getpid()}
with open(os.path.join(told["directory"], "told"), "a") as file:
    file.write(json.dumps(seen) + "\\n")
print(json.dumps({"url": "http://127.0.0.1:%d" % (told["port"] or 4711)}), flush=True)
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


def looked(running: ProxyProcess) -> ProxyProcess:
    running.look()
    return running


def told(directory: Path) -> list[dict[str, object]]:
    import json

    return [json.loads(line) for line in (directory / "told").read_text().splitlines()]


def test_it_is_told_what_it_needs_and_ends_with_its_input(tmp_path: Path) -> None:
    with proxy(tmp_path) as running:
        [pid] = running.pids
        assert (running.url, running.address) == ("http://127.0.0.1:4711", ("127.0.0.1", 4711))
        running.look()
        assert running.pids == {pid}
    assert is_gone(pid)
    assert running.pids == set()
    assert told(tmp_path) == [{
        "directory": str(tmp_path), "workflow": "w", "upstreams": {"openai": "http://h"},
        "limited": True, "port": 0, "path": "/elsewhere", "session": True,
    }]  # fmt: skip


def test_one_that_dies_is_started_again_at_its_port(tmp_path: Path) -> None:
    with proxy(tmp_path) as running:
        [pid] = running.pids
        os.kill(pid, signal.SIGKILL)
        until(lambda: looked(running).pids != {pid})
        assert [each["port"] for each in told(tmp_path)] == [0, 4711]
    assert reports.refusal(tmp_path) is None


def test_one_that_cannot_be_started_again_ends_the_run(tmp_path: Path) -> None:
    with proxy(tmp_path) as running:
        [pid] = running.pids
        (tmp_path / "stand_in.py").write_text("raise SystemExit('no room')")
        os.kill(pid, signal.SIGKILL)
        until(lambda: looked(running) and reports.refusal(tmp_path))
        found = reports.refusal(tmp_path)
        assert found is not None
        assert found["message"] == "guard's proxy has ended, and cannot be started again"
        assert "no room" in found["reason"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("raise SystemExit('no such thing')", "no such thing"),
        ('print(\'{"error": "it is full"}\'); raise SystemExit(1)', "it is full"),
        ("print('torn'); raise SystemExit(1)", "exit code"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
def test_why_it_cannot_be_started_is_said(tmp_path: Path, script: str, says: str) -> None:
    whole = f"guard's proxy cannot be started: .*{says}"
    with pytest.raises(ProxyError, match=whole), proxy(tmp_path, script):
        pass
