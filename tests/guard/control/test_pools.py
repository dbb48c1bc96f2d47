"""A kill in a worker of a pool reaches whoever waits for the task, and ends nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

import guard
from guard.runtime.runtime import GuardRuntime
from tests.support.waiting import WAIT_S, until

ROOT = Path(__file__).parents[3]

PROGRAM = """
import multiprocessing, os, sys
import guard

@guard.protect
def step(number):
    return number

def job(number):
    if number == 5:
        raise LookupError("its own")
    with guard.workflow("killed" if number == 3 else "other"):
        try:
            return step(number)
        except Exception as exc:  # what a careful job does must not swallow a kill
            return f"swallowed {exc!r}"

if __name__ == "__main__":
    guard.init()
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        first = [pool.apply_async(job, (number,)) for number in range(6)]
        for result in first:
            try:
                print(result.get(250))
            except guard.WorkflowKilledInterrupt as exc:
                print("killed", exc.workflow_id, isinstance(exc, Exception))
            except LookupError as exc:
                print("error", exc)
        try:
            pool.map(job, range(4))
        except guard.WorkflowKilledInterrupt as exc:
            print("map killed", exc.workflow_id)
        print(sorted(pool.map(job, [0, 1])))
"""


def run(tmp_path: Path, tenant: Any, text: str, method: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose children are started by a method."""
    program = tmp_path / "program.py"
    program.write_text(text)
    return subprocess.run(
        [sys.executable, str(program), method],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GUARD_API_KEY": tenant.key,
            "GUARD_API_URL": tenant.url,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


UNHEARD = """
import multiprocessing, signal, sys, threading
import guard

def wait(lock, number):
    guard.init()
    with guard.workflow("w"):
        guard.track_llm(10, 1, model="gpt-4o")
    # A signal to another thread leaves the main thread where it is: so does one that comes just
    # before it blocks.
    tell = lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Timer(1, tell).start()
    lock.acquire()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    lock = context.Lock()
    if sys.argv[1] == "fork":
        guard.init()
    with lock:
        child = context.Process(target=wait, args=(lock, 1))
        child.start()
        child.join(250)
        print(child.exitcode, flush=True)
        child.kill()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_that_blocks_hears_of_its_end(tmp_path: Path, tenant: Any, method: str) -> None:
    """Else its pool, which waits for it without limit, would wait for ever."""
    done = run(tmp_path, tenant, UNHEARD, method)
    assert done.stdout == "-15\n", done.stderr
    assert [event["model"] for event in tenant.admin.events(type="llm")] == ["gpt-4o"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_of_processes(tmp_path: Path, tenant: Any, method: str) -> None:
    tenant.admin.kill("killed")
    done = run(tmp_path, tenant, PROGRAM, method)
    assert done.stdout.splitlines() == [
        "0", "1", "2", "killed killed False", "4", "error its own",
        "map killed killed", "[0, 1]",
    ], done.stderr  # fmt: skip


def test_of_threads(runtime: GuardRuntime, tenant: Any) -> None:
    tenant.admin.kill("killed")
    until(lambda: runtime.enforcement.control.kills, WAIT_S)

    @guard.protect
    def step(number: int) -> int:
        return number

    def job(number: int) -> int:
        with guard.workflow("killed" if number == 1 else "other"):
            return step(number)

    with ThreadPool(2) as pool:
        results = [pool.apply_async(job, (number,)) for number in range(3)]
        assert (results[0].get(WAIT_S), results[2].get(WAIT_S)) == (0, 2)
        with pytest.raises(guard.WorkflowKilledInterrupt) as killed:
            results[1].get(WAIT_S)
        assert killed.value.workflow_id == "killed"
        assert not isinstance(killed.value, Exception)
        assert list(pool.imap(job, [0, 2])) == [0, 2]
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(guard.WorkflowKilledInterrupt):
            executor.submit(job, 1).result(WAIT_S)
        assert executor.submit(job, 0).result(WAIT_S) == 0
