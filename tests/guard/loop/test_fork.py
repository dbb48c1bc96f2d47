"""Fork: the child forgets the loop without touching it and starts its own; each in a subprocess."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PRELUDE = """
import asyncio, os, sys, threading, time
from guard.loop import BackgroundLoop, LoopClosedError

async def give(value):
    await asyncio.sleep(0)
    return value

def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid

def well(pid):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return False
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:.*fork:DeprecationWarning", "-c",
         PRELUDE + textwrap.dedent(script)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_starts_its_own_loop_and_the_parents_goes_on() -> None:
    out = run(
        """
        loop = BackgroundLoop()
        assert loop.run(give, 1) == 1
        old = loop.start()
        def child():
            assert not loop.is_running
            assert not loop.call_soon(print, "into the parent's loop")
            assert loop.run(give, 2, timeout_s=120) == 2
            assert loop.start() is not old
            assert loop.close(60)
        pid = in_child(child)
        assert well(pid)
        assert loop.run(give, 3, timeout_s=120) == 3
        assert loop.start() is old
        assert loop.close(60)
        print("well")
        """
    )
    assert out == "well\n"


def test_fork_under_load() -> None:
    """Other threads hold the loop's lock and its queue at the moment of the fork."""
    out = run(
        """
        loop = BackgroundLoop()
        loop.start()
        stop = threading.Event()
        served = [0] * 6
        def load(slot):
            while not stop.is_set():
                assert loop.run(give, slot, timeout_s=120) == slot
                served[slot] += 1
        threads = [threading.Thread(target=load, args=(slot,)) for slot in range(6)]
        for thread in threads:
            thread.start()
        def child():
            for number in range(5):
                assert loop.run(give, number, timeout_s=120) == number
            assert loop.close(60)
        ends = [well(in_child(child)) for _ in range(30)]
        before = list(served)
        deadline = time.monotonic() + 120
        while any(now <= then for now, then in zip(served, before)):
            assert time.monotonic() < deadline, "the parent's threads stand still"
            time.sleep(0.005)
        stop.set()
        for thread in threads:
            thread.join(120)
        assert loop.close(60)
        print(all(ends), len(ends))
        """
    )
    assert out == "True 30\n"


def test_fork_while_the_lock_is_held() -> None:
    out = run(
        """
        loop = BackgroundLoop()
        loop.start()
        held, release = threading.Event(), threading.Event()
        def hold():
            with loop._lock:
                held.set()
                release.wait(120)
        threading.Thread(target=hold, daemon=True).start()
        held.wait(120)
        pid = in_child(lambda: loop.run(give, 1, timeout_s=120))
        print(well(pid))
        release.set()
        loop.close(60)
        """
    )
    assert out == "True\n"


def test_a_fork_of_a_fork_and_a_closed_loop() -> None:
    """A prefork server's master may close its loop; its workers still start theirs."""
    out = run(
        """
        loop = BackgroundLoop()
        loop.run(give, 1)
        loop.close(60)
        def grandchild():
            assert loop.run(give, 3, timeout_s=120) == 3
        def child():
            assert loop.run(give, 2, timeout_s=120) == 2
            assert well(in_child(grandchild))
        print(well(in_child(child)))
        try:
            loop.run(give, 4)
        except LoopClosedError:
            print("closed")
        """
    )
    assert out == "True\nclosed\n"


def test_exit_without_close_neither_hangs_nor_complains() -> None:
    out = run(
        """
        loop = BackgroundLoop()
        loop.run(give, 1)
        async def forever():
            await asyncio.sleep(3600)
        loop.submit(forever)
        print("out")
        """
    )
    assert out == "out\n"
