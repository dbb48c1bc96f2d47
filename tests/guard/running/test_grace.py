"""The time that a refused program may take to end, on machines as busy as may be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.running import processes
from guard.running.grace import LAST_WORDS_S, OWN_S, WALL_S, Grace, ProcessLoad
from tests.support.waiting import until

LOOK_S = 0.1
SLACK_S = 2 * LOOK_S

WORK = st.tuples(st.sampled_from(["burn", "sleep"]), st.floats(0.1, 4.0))
"""What an end consists of: CPU time, and waits; in seconds."""


def lived(
    work: list[tuple[str, float]], share: float
) -> Iterator[tuple[float, float, ProcessLoad]]:
    """Yield the clock, the program's own time and its load, where it gets a share of the CPU."""
    now_s = own_s = cpu_s = 0.0
    yield now_s, own_s, ProcessLoad(cpu_s, False)
    for kind, length_s in work:
        left_s = length_s
        while left_s > 1e-9:
            rate = share if kind == "burn" else 1.0
            step_s = min(LOOK_S, left_s / rate)
            now_s += step_s
            own_s += step_s * rate
            cpu_s += step_s * rate if kind == "burn" else 0.0
            left_s -= step_s * rate
            yield now_s, own_s, ProcessLoad(cpu_s, kind == "burn")


@given(
    work=st.lists(WORK, min_size=1, max_size=8),
    share=st.floats(0.02, 1.0),
    allowed_s=st.sampled_from([OWN_S, LAST_WORDS_S]),
)
def test_only_its_own_time_counts(
    work: list[tuple[str, float]], share: float, allowed_s: float
) -> None:
    grace = Grace(0.0, allowed_s)
    for now_s, own_s, load in lived(work, share):
        is_over = grace.is_over(now_s, {1: load})
        if now_s >= WALL_S or own_s >= allowed_s + SLACK_S:
            assert is_over, (now_s, own_s)
        elif own_s < allowed_s - SLACK_S and now_s < WALL_S - SLACK_S:
            assert not is_over, (now_s, own_s)
        if is_over:
            return


def test_the_busiest_process_counts_and_not_their_sum() -> None:
    grace = Grace(0.0)
    for look in range(1, 25):  # on eight CPUs: 2.4 s by the clock, 19 s of CPU
        loads = {pid: ProcessLoad(look * LOOK_S, True) for pid in range(8)}
        assert not grace.is_over(look * LOOK_S, loads)
    assert any(
        grace.is_over(look * LOOK_S, {1: ProcessLoad(look * LOOK_S, True)})
        for look in range(25, 40)
    )


def test_where_nothing_can_be_looked_at_the_clock_counts() -> None:
    grace = Grace(0.0)
    over = [look for look in range(60) if grace.is_over(look * LOOK_S, {})]
    assert over[0] == pytest.approx(OWN_S / LOOK_S, abs=1)


def test_a_supervisor_that_was_held_up_does_not_blame_the_program() -> None:
    grace = Grace(0.0)
    assert not grace.is_over(10.0, {1: ProcessLoad(0.0, False)})


@pytest.mark.skipif(not processes.IS_LINUX, reason="asks Linux")
def test_loads_of_a_tree() -> None:
    script = (
        "import subprocess, sys, threading, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "burn = threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True)\n"
        "for line in sys.stdin:\n    burn.start()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            child = int(process.stdout.readline())
            until(lambda: not any(load.is_held for load in processes.loads([process.pid]).values()))
            before = processes.loads([process.pid])
            assert set(before) == {process.pid, child}
            process.stdin.write("go\n")
            process.stdin.flush()
            until(lambda: processes.loads([process.pid])[process.pid].is_held)
            until(lambda: processes.loads([process.pid])[process.pid].cpu_s
                  > before[process.pid].cpu_s)  # fmt: skip
            os.kill(child, signal.SIGSTOP)
            until(lambda: processes.loads([child])[child].is_held)
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()
    assert processes.loads([process.pid]) == {}
