"""Twenty callers wait for room while their gateway dies and comes back, or stands still."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.ports import free_port
from tests.support.private_server import private_postgres  # noqa: F401  # a fixture
from tests.support.programs import environment, is_gone, killed_at_last
from tests.support.replicas import private_dsn  # noqa: F401  # a fixture
from tests.support.waiting import WAIT_S, until

CALLERS = 20

PROGRAM = """
import sys, threading, time
import guard, httpx

guard.init()
ask = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}

def send():
    try:
        with guard.workflow("w"):
            reply = httpx.post(sys.argv[1] + "/v1/chat/completions", json=ask, timeout=300)
        print(reply.status_code, flush=True)
    except Exception as exc:
        print(exc, flush=True)

for line in sys.stdin:
    for _ in range(int(line)):
        threading.Thread(target=send, daemon=True).start()
    while int(line) > 3 and guard.status().waiting_calls < int(line) - 3:
        time.sleep(0.01)
    if int(line) > 3:
        print("waiting", flush=True)
"""
"""Starts as many callers as a line says. Each request holds $0.164, and costs $0.0005125."""

STOPPED_S, STOPPED_LONG_S = 10.0, 15.0

LIMIT = 500_000_000
"""Pays for three holds at a time."""


@contextlib.contextmanager
def program(gateway: GatewayProcess, vendor: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    settings = {"GUARD_API_URL": gateway.url, "GUARD_API_KEY": gateway.key, **more}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, vendor],
        env=environment(settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with killed_at_last(process):
        yield process


def start(process: subprocess.Popen[str], callers: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{callers}\n")
    process.stdin.flush()


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def slow_down(vendor: str, seconds: float) -> None:
    urllib.request.urlopen(f"{vendor}/delay/{seconds}").close()


def answered(vendor: str) -> int:
    with urllib.request.urlopen(f"{vendor}/stats") as reply:
        return int(json.load(reply)["answered"])


def assert_exact(gateway: GatewayProcess, requests: int) -> None:
    """What was charged is the vendor's bill, nothing of it in doubt, and nothing is held."""

    def balance() -> tuple[int, int]:
        [found] = gateway.admin.ledger()
        return found["committed"], found["reserved"]

    until(lambda: balance() == (requests * 512_500, 0), WAIT_S)
    assert gateway.admin.doubts() == []
    assert gateway.admin.verify_ledger()["problems"] == []


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_callers_in_line_outlast_a_gateway_that_is_away(
    vendor: str, tmp_path: Path, how: str
) -> None:
    where = {"database": str(tmp_path / "gateway.sqlite3"), "port": free_port()}
    before = answered(vendor)
    waits = {"GUARD_TIMEOUT_MS": "2000", "GUARD_WAIT_FOR_ROOM_MS": "60000"}
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(gateway_process(**where))
        gateway.admin.set_budget(limit_nanousd=LIMIT)
        process = stack.enter_context(program(gateway, vendor, **waits))
        slow_down(vendor, 3)  # until all the others stand in line
        start(process, CALLERS)
        assert lines_of(process, 1) == ["waiting"]
        slow_down(vendor, 0.1)
        if how == "killed":
            os.kill(gateway.pid, signal.SIGKILL)
            until(lambda: is_gone(gateway.pid))
            gateway = stack.enter_context(gateway_process(**where))
        else:
            os.kill(gateway.pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(gateway.pid, signal.SIGCONT)
        assert lines_of(process, CALLERS) == ["200"] * CALLERS
        assert answered(vendor) - before == CALLERS
        assert_exact(gateway, CALLERS)


def test_what_is_granted_to_a_caller_that_has_gone_is_given_back(vendor: str) -> None:
    """The gateway takes the question in once it goes on; its answer is read by nobody."""
    slow_down(vendor, 0.1)
    with gateway_process() as gateway:
        gateway.admin.set_budget(limit_nanousd=LIMIT)
        with program(gateway, vendor, GUARD_TIMEOUT_MS="2000") as process:
            start(process, 1)
            assert lines_of(process, 1) == ["200"]
            assert_exact(gateway, 1)
            os.kill(gateway.pid, signal.SIGSTOP)
            start(process, 1)
            [refused] = lines_of(process, 1)
            assert "no answer" in refused
            os.kill(gateway.pid, signal.SIGCONT)
            start(process, 1)  # by its answer the one before is decided
            assert lines_of(process, 1) == ["200"]
            assert_exact(gateway, 2)


def test_a_new_program_outlasts_a_gateway_that_stands_still_for_less_than_its_timeout(
    vendor: str,
) -> None:
    slow_down(vendor, 0.1)
    with gateway_process() as gateway:
        gateway.admin.set_budget(limit_nanousd=LIMIT)
        os.kill(gateway.pid, signal.SIGSTOP)
        with program(gateway, vendor, GUARD_TIMEOUT_MS="60000") as process:
            start(process, 1)
            time.sleep(STOPPED_S)
            os.kill(gateway.pid, signal.SIGCONT)
            assert lines_of(process, 1) == ["200"]
            assert_exact(gateway, 1)


# -- over PostgreSQL -------------------------------------------------------------------------------


def backends_of(dsn: str) -> list[int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in rows]


@pytest.mark.parametrize("what", ["the replica", "the backends"])
def test_callers_in_line_outlast_what_stands_still_over_postgresql(
    private_dsn: str,  # noqa: F811
    vendor: str,
    what: str,
) -> None:
    """Beside a replica that goes on. A gateway whose store is silent may refuse who is not in line
    yet, or whose decision it does not know; what it has decided all the same is given back.
    """
    before = answered(vendor)
    waits = {"GUARD_TIMEOUT_MS": "3000", "GUARD_WAIT_FOR_ROOM_MS": "60000"}
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(gateway_process(database=private_dsn))
        gateway.admin.set_budget(limit_nanousd=LIMIT)
        process = stack.enter_context(program(gateway, vendor, **waits))
        slow_down(vendor, 3)
        start(process, CALLERS)
        assert lines_of(process, 1) == ["waiting"]
        slow_down(vendor, 0.1)
        stopped = [gateway.pid] if what == "the replica" else backends_of(private_dsn)
        other = stack.enter_context(gateway_process(database=private_dsn))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(STOPPED_LONG_S)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        lines = lines_of(process, CALLERS)
        refused = [line for line in lines if line != "200"]
        assert what == "the backends" or not refused
        assert all(line.startswith(("[GD-B001]", "[GD-R002]")) for line in refused), refused
        assert answered(vendor) - before == CALLERS - len(refused)
        assert_exact(other, CALLERS - len(refused))
