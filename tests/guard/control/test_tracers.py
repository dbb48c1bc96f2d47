"""A kill of a plain function while the whole process is traced: it ends, and nothing freezes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import faulthandler, sys, threading, time
faulthandler.dump_traceback_later(150, exit=True)
how = sys.argv[1]

def tracer(frame, event, arg):
    return tracer

if how == "settrace":
    threading.settrace(tracer)
    sys.settrace(tracer)
elif how == "setprofile":
    threading.setprofile(tracer)
    sys.setprofile(tracer)
elif how == "coverage":
    import coverage
    measured = coverage.Coverage(data_file=None)
    measured.start()

import guard
from guard.core import wire

def step():
    return 1

def computes():
    while True:
        step()

def waits():
    while True:
        time.sleep(0.2)

def swallows():
    for _ in range(10**9):
        try:
            step()
        except BaseException:
            break
    while True:
        step()

def acquires():  # what is posted here is often withdrawn
    lock = threading.Lock()
    while True:
        lock.acquire()
        lock.release()

counts = [0]
def bystander():
    while True:
        step()
        counts[0] += 1
        time.sleep(0.001)

runtime = guard.init()
threading.Thread(target=bystander, daemon=True).start()
number = 0
for kind in (computes, waits, swallows, acquires) * 5:
    number += 1
    name = f"w{number}"
    message = wire.ControlMessage(seq=number, type="kill", workflow_id=name)
    loop = runtime._background.start()
    with guard.workflow(name):
        loop.call_soon_threadsafe(
            loop.call_later, 0.05, runtime.enforcement.apply, message)
        try:
            guard.protect(kind)()
        except guard.WorkflowKilledInterrupt as exc:
            assert exc.workflow_id == name
    before = counts[0]
    while counts[0] < before + 5:
        step()
assert len(runtime.enforcement.bodies) == 0
print("killed", number)
"""


@pytest.mark.long
@pytest.mark.generator("kills under a tracer")
@pytest.mark.parametrize("how", ["settrace", "setprofile", "coverage", "nothing"])
def test_nothing_freezes(
    tmp_path: Path, tenant: Any, how: str, count_cases: Callable[[int], None]
) -> None:
    if how == "coverage":
        pytest.importorskip("coverage")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), how],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GUARD_API_KEY": tenant.key,
            "GUARD_API_URL": tenant.url,
            "GUARD_TIMEOUT_MS": "60000",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "killed 20\n", done.stderr
    count_cases(20)
