"""The fault run: a network that breaks in every way, processes that are killed at any moment.

``GUARD_TEST_FAULT_ROUNDS`` sets the number of rounds: a few by default, hundreds for a full run.
Each round starts two processes that share a spool, or have none; most of them are killed.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest

from tests.guard.delivery.conftest import Spawn
from tests.support.proxy import ChaosProxy, Fault

ROUNDS = int(os.environ.get("GUARD_TEST_FAULT_ROUNDS", "3"))

CHILD = """
import os, sys, time
import guard

log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
guard.init()
ends = time.monotonic() + float(sys.argv[2])
print("ready", flush=True)
slowest = cpu = 0.0
number = 0
while time.monotonic() < ends:
    began, spent = time.perf_counter(), time.thread_time()
    event_id = guard.track_llm(100, 1, model="gpt-4o")["event_id"]
    took, used = time.perf_counter() - began, time.thread_time() - spent
    os.write(log, f"event {event_id}\\n".encode())
    if took > slowest or used > cpu:
        slowest, cpu = max(slowest, took), max(cpu, used)
        os.write(log, f"slow {slowest} {cpu}\\n".encode())
    number += 1
    if number % 20 == 0:
        time.sleep(0.003)
try:
    guard.shutdown()
except Exception:
    pass
status = guard.status()
os.write(log, f"end {status.events_sent} {status.events_lost} {status.spooled}\\n".encode())
"""

DRAIN = """
import time, guard
runtime = guard.init()
ends = time.monotonic() + 60
while time.monotonic() < ends:
    runtime.flush(20)
    if not guard.status().spooled: break
print(guard.status().spooled)
"""


@attrs.define
class Told:
    """What one process wrote down before it ended."""

    events: list[str] = attrs.field(factory=list)
    slowest_s: float = 0.0
    slowest_cpu_s: float = 0.0
    end: tuple[int, int, int] | None = None

    @classmethod
    def read(cls, path: Path) -> Told:
        told = cls()
        for line in path.read_text().splitlines():
            kind, *values = line.split()
            if kind == "event":
                told.events.append(values[0])
            elif kind == "slow":
                told.slowest_s, told.slowest_cpu_s = float(values[0]), float(values[1])
            else:
                told.end = (int(values[0]), int(values[1]), int(values[2]))
        return told


def _break_things(proxy: ChaosProxy, done: threading.Event, luck: random.Random) -> None:
    faults = get_args(Fault)
    while not done.wait(luck.uniform(0.03, 0.2)):
        proxy.fault = luck.choice(faults) if luck.random() < 0.7 else "none"
        proxy.delay_s = luck.choice((0.0, 0.0, 0.05))
        if luck.random() < 0.3:
            proxy.cut()


def _kill(child: subprocess.Popen[str], after_s: float | None) -> None:
    """Wait for the child's end; from its first event on, kill it after a while."""
    assert child.stdout is not None
    child.stdout.readline()
    if after_s is not None:
        try:
            child.wait(after_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
    child.communicate(timeout=300)


def _spooled(directory: Path) -> set[str]:
    file = directory / "events-1.sqlite3"
    if not file.exists():
        return set()
    connection = sqlite3.connect(file, timeout=120)
    try:
        return {name for (name,) in connection.execute("SELECT event_id FROM events")}
    finally:
        connection.close()


@pytest.mark.fault
@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_every_event_is_charged_once_or_counted(
    tenant: Any, spawn: Spawn, proxy: ChaosProxy, tmp_path: Path
) -> None:
    luck = random.Random(20_261_120)
    spool = tmp_path / "spool"
    base = {
        "GUARD_API_KEY": tenant.key,
        "GUARD_API_URL": proxy.url,
        "GUARD_TIMEOUT_MS": "400",
        "GUARD_FLUSH_INTERVAL_MS": "20",
    }
    with_spool: list[Told] = []
    without: list[Told] = []
    seen_on_disk: set[str] = set()
    for turn in range(ROUNDS):
        done = threading.Event()
        breaker = threading.Thread(target=_break_things, args=(proxy, done, luck))
        breaker.start()
        logs = [tmp_path / f"{turn}-{number}.log" for number in range(2)]
        env = {**base, "GUARD_SPOOL_DIR": str(spool)} if turn % 3 != 2 else base
        span_s = luck.uniform(0.3, 1.2)
        children = [spawn(CHILD, str(log), str(span_s), env=env) for log in logs]
        doomed = [luck.uniform(0.0, span_s) if luck.random() < 0.7 else None for _ in children]
        killers = [
            threading.Thread(target=_kill, args=(child, after_s))
            for child, after_s in zip(children, doomed, strict=True)
        ]
        for killer in killers:
            killer.start()
        for killer in killers:
            killer.join()
        done.set()
        breaker.join()
        (with_spool if turn % 3 != 2 else without).extend(Told.read(log) for log in logs)
        seen_on_disk |= _spooled(spool)
    proxy.fault, proxy.delay_s = "none", 0.0
    drain = spawn(DRAIN, env={**base, "GUARD_SPOOL_DIR": str(spool), "GUARD_TIMEOUT_MS": "5000"})
    out, err = drain.communicate(timeout=300)
    assert (drain.returncode, out.strip()) == (0, "0"), err

    charged = Counter(_all_event_ids(tenant))
    assert set(charged.values()) <= {1}
    tracked = {name for told in (*with_spool, *without) for name in told.events}
    # A process that is killed between an event and its line in the log leaves one event more.
    assert len(charged.keys() - tracked) <= 2 * ROUNDS
    assert seen_on_disk <= charged.keys(), "what was on disk is at the gateway in the end"
    for told in (*with_spool, *without):
        arrived = sum(name in charged for name in told.events)
        if told.end is None:
            continue  # killed: what was neither sent nor on disk is gone, and nobody can count it
        _, lost, _ = told.end
        # An event whose acknowledgement got lost may be counted as lost and yet be charged.
        assert arrived + lost >= len(told.events), "an event is neither charged nor counted"
    for told in with_spool:
        if told.end is not None:
            assert told.end[1] == 0, "with a spool nothing is lost at an ordinary end"
            assert all(name in charged for name in told.events)
    spent = sum(row["cost_nanousd"] for row in _all_events(tenant))
    assert spent == len(charged) * (100 * 2500 + 10_000)
    everyone = (*with_spool, *without)
    print(
        f"{ROUNDS} rounds, {len(everyone)} processes,"
        f" {sum(told.end is None for told in everyone)} killed;"
        f" {len(tracked)} events, {len(charged)} charged,"
        f" {sum(t.end[1] for t in everyone if t.end)} counted as lost;"
        f" slowest call {max(t.slowest_s for t in everyone) * 1000:.2f} ms by the wall clock,"
        f" {max(t.slowest_cpu_s for t in everyone) * 1000:.2f} ms of its own"
    )


def _all_events(tenant: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:
        after = rows[-1]["event_seq"] if rows else 0
        page = tenant.admin.events(after=after, type="llm", limit=1000)
        if not page:
            return rows
        rows += page


def _all_event_ids(tenant: Any) -> list[str]:
    return [row["event_id"] for row in _all_events(tenant)]
