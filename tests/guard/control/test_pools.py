"""A kill in a worker of a pool reaches whoever waits for the task, and ends nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
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
                print(result.get(50))
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


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_of_processes(tmp_path: Path, tenant: Any, method: str) -> None:
    tenant.admin.kill("killed")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(program), method],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GUARD_API_KEY": tenant.key,
            "GUARD_API_URL": tenant.url,
            "GUARD_TIMEOUT_MS": "10000",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
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
