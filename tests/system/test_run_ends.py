"""What a run leaves behind when its supervisor is killed, and pausing one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from guard.local_gateway import Files, read_json
from guard.local_runs import RunMark, abandoned
from tests.support.programs import is_gone
from tests.support.runs import AGENT, LIMIT, Runs, wait_for_end
from tests.support.waiting import WAIT_S, until

SLOW = """
import sys, time, httpx
print("up", flush=True)
for number in range(600):
    body = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    try:
        reply = httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60)
    except Exception as exc:
        print(type(exc).__name__, flush=True)
    else:
        print(number, reply.status_code, flush=True)
    time.sleep(0.2)
print("done", flush=True)
"""


@pytest.fixture
def slow(tmp_path: Path) -> str:
    path = tmp_path / "slow.py"
    path.write_text(SLOW)
    return str(path)


def rules(guard: Runs) -> tuple[list[str], list[str], list[str]]:
    """Return the run keys that are valid, the key budgets and the policies."""
    with guard.operator() as admin:
        listed = admin.keys()
        keys = [each["name"] for each in listed
                if each["name"].startswith("run ") and each["revoked_at_ms"] is None]  # fmt: skip
        budgets = [each["scope_id"] for each in admin.budgets() if each["scope_kind"] == "key"]
        return keys, budgets, [each["name"] for each in admin.policies()]


def killed_run(guard: Runs, slow: str, vendor: str, name: str) -> Any:
    process = guard.start(
        "run", "--workflow", name, "--limit", "$1", "--block-tool", "rm", "--",
        sys.executable, slow, vendor,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    keys, budgets, policies = rules(guard)
    assert (keys, len(budgets), len(policies)) == ([f"run {name}"], 1, 1)
    process.send_signal(signal.SIGKILL)
    return process


def test_a_killed_supervisor_leaves_nothing_and_cuts_its_program_off(
    guard: Runs, vendor: str, slow: str
) -> None:
    stay = guard.start("gateway", "local")
    assert stay.stdout is not None
    assert stay.stdout.readline().startswith("local gateway on")
    try:
        process = killed_run(guard, slow, vendor, "orphan")
        until(lambda: rules(guard) == ([], [], []), WAIT_S)
        out, err = process.communicate(timeout=WAIT_S)  # the program's, which has both pipes
        assert "done" not in out, out + err  # with the key gone, its next request ended it
        with guard.operator() as admin:
            audit = admin.audit()
        removed = {e["action"] for e in audit if e["actor"] == "end of a run"}
        assert removed == {"key.revoke", "policy.delete", "budget.delete"}
    finally:
        stay.send_signal(signal.SIGINT)
        stay.communicate(timeout=WAIT_S)


def test_the_next_gateway_removes_what_the_last_one_could_not(
    guard: Runs, vendor: str, slow: str, directory: Path
) -> None:
    process = guard.start(
        "run", "--workflow", "lost", "--limit", "$1", "--", sys.executable, slow, vendor
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    gateway = read_json(Files(directory).address)["pid"]
    process.send_signal(signal.SIGSTOP)  # it would start another one
    os.kill(gateway, signal.SIGKILL)
    wait_for_end(directory)
    process.send_signal(signal.SIGKILL)
    assert list((directory / "runs").iterdir())
    until(lambda: rules(guard) == ([], [], []), WAIT_S)
    until(lambda: not list((directory / "runs").iterdir()), WAIT_S)
    with guard.operator():  # else the gateway might end before the program asks it again
        # The program has ended, or what it asks for is refused.
        for line in process.stdout:
            if not line.endswith(" 200\n"):
                break
    for each in psutil.process_iter(["cmdline"]):
        if slow in (each.info["cmdline"] or ()):
            each.kill()
    process.communicate(timeout=WAIT_S)


def holds(pid: int, number: int) -> bool:
    """Return whether a process has blocked a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition("SigBlk:")[2].split(maxsplit=1)[0], 16)
    return bool(mask >> (number - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_ctrl_c_after_the_programs_end_loses_no_report(guard: Runs, directory: Path) -> None:
    process = guard.start(
        "run", "--limit", "$1", "--allow-unseen", "--json", "--", "sh", "-c", "echo $$; read line"
    )
    assert process.stdout is not None
    program = int(process.stdout.readline())
    gateway = read_json(Files(directory).address)["pid"]
    os.kill(gateway, signal.SIGSTOP)  # so the report has to wait
    try:
        assert process.stdin is not None
        process.stdin.close()
        until(lambda: is_gone(program) and not holds(process.pid, signal.SIGINT), WAIT_S)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)  # without the gateway it could only end
    finally:
        os.kill(gateway, signal.SIGCONT)
    process.stdin = None  # closed, and not to be flushed
    out, err = process.communicate(timeout=WAIT_S)
    assert json.loads(out)["limit_nanousd"] == 10**9, err


def test_a_run_that_ends_leaves_no_mark(guard: Runs, directory: Path) -> None:
    assert guard("run", "--limit", LIMIT, "--", sys.executable, "-c", "print(1)").returncode == 0
    assert not list((directory / "runs").iterdir())
    assert rules(guard) == ([], [], [])


def test_marks(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert list(abandoned(files)) == []
    with RunMark(files) as mark, RunMark(files) as silent:
        mark.name("k", "o", "w")
        assert list(abandoned(files)) == []
    found = {(each.key_id, each.organisation_id) for each in abandoned(files)}
    assert found == {("k", "o"), (None, None)}
    mark.done()
    silent.done()
    assert list(abandoned(files)) == []
    (tmp_path / "runs" / "x").write_text('{"torn')
    assert [each.key_id for each in abandoned(files)] == [None]


def test_pause_resume_and_kill_in_short(guard: Runs, vendor: str, slow: str) -> None:
    process = guard.start("run", "--workflow", "held", "--", sys.executable, slow, vendor)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    paused = guard("pause", "held", "--reason", "lunch")
    assert paused.returncode == 0
    assert paused.stdout.startswith("paused held on http://127.0.0.1:")
    assert paused.stdout.endswith("this user's local gateway: 1 run under way\n")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 77, "its next request was refused"
    assert "[GD-W003] lunch" in err
    assert "lift that with: guard resume held --local" in err
    again = guard("run", "--workflow", "held", "--", sys.executable, slow, vendor)
    assert (again.stdout, again.returncode) == ("up\n", 77), "it begins, and ends likewise"
    assert guard("resume", "held").returncode == 0
    process = guard.start("run", "--workflow", "held", "--", sys.executable, slow, vendor)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert process.stdout.readline() == "0 200\n"
    assert guard("kill", "held", "--reason", "enough").returncode == 0
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 77
    assert "enough" in err
    assert guard("revive", "held").returncode == 0


def test_a_run_outlives_its_gateway(
    guard: Runs, directory: Path, vendor: str, tmp_path: Path
) -> None:
    """It is killed while the program asks; every answer is charged once."""
    script = tmp_path / "steady.py"
    script.write_text(AGENT.replace("print(", "import time; time.sleep(0.05); print("))
    with guard.start("run", "--limit", "$5", "--json", "--", str(script), vendor, "20") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == 5:
                os.kill(read_json(Files(directory).address)["pid"], signal.SIGKILL)
        process.wait(300)
    facts = json.loads(lines[-1])
    assert [line for line in lines[:-1] if line.strip()] == [f"{n} 200\n" for n in range(20)]
    assert (facts["requests"], facts["spent_nanousd"]) == (20, 20 * 512_500)


@pytest.mark.parametrize("held_s", [1.0, pytest.param(40.0, marks=pytest.mark.long)])
def test_a_run_that_was_stopped_goes_on(guard: Runs, vendor: str, slow: str, held_s: float) -> None:
    """CPython's `sigtimedwait` returns garbage if its process is stopped during the wait."""
    process = guard.start("run", "--limit", "$5", "--", sys.executable, slow, vendor)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(held_s)  # its program asks on meanwhile
    process.send_signal(signal.SIGCONT)
    for number in range(round(held_s)):
        assert process.stdout.readline() == f"{number} 200\n"
    process.send_signal(signal.SIGTERM)  # still forwarded
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "LLM requests" in err, "its report"


TIDY = """
import os, signal, sys, httpx
try:
    while True:
        body = {"model": "gpt-4o", "max_tokens": 50, "messages": []}
        httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60)
finally:
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    print("tidy", flush=True)
"""

HELD_S = 8.0
"""Longer than a refused program may take of its own."""


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux says that it uses")
def test_a_program_that_is_not_let_run_is_not_ended(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    """Stopped, as a busy machine holds it up: SIGTERM would be pending, and end it."""
    script = tmp_path / "tidy.py"
    script.write_text(TIDY)
    process = guard.start("run", "--limit", LIMIT, "--", str(script), vendor)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    held_until_s = time.monotonic() + HELD_S
    try:
        while time.monotonic() < held_until_s:
            assert not is_pending(pid, signal.SIGTERM)
            time.sleep(0.05)
    finally:
        os.kill(pid, signal.SIGCONT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (out, process.returncode) == ("tidy\n", 77), err


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Tell whether a signal waits until the process goes on."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)
