"""Every way in which a process can end, against the real gateway."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard.delivery.spool import Spool, owner_of
from guard.session.exit_hooks import ExitHooks
from tests.guard.delivery.conftest import PATIENT_END, Spawn
from tests.support.waiting import WAIT_S

HEAD = """
import os, signal, sys, threading, time
import guard
def track(first, count):
    for number in range(first, first + count):
        guard.track_llm(number, 1, model="m")
def wait_for_a_signal():
    while True:
        time.sleep(0.05)  # Python takes a signal between two naps
"""


def tokens(tenant: Any) -> list[int]:
    """Return the recorded input tokens: which events arrived, and how often."""
    return sorted(event["data"].get("input_tokens", 0) for event in tenant.llm_events())


def env(tenant: Any, **more: str) -> dict[str, str]:
    return {"GUARD_API_KEY": tenant.key, "GUARD_API_URL": tenant.url, **more}


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def settled(tenant: Any, spawn: Spawn, tmp_path: Path) -> Callable[..., None]:
    """Run a program to its end and see to it that what it spooled arrives too.

    On an idle machine two seconds are plenty for a last delivery; on one under load the rest goes
    to the spool. Either way every process of the program has to have done something at its end.
    """
    with_spool = env(tenant, GUARD_SPOOL_DIR=str(tmp_path / "spool"))

    def run(program: str, code: int = 0, **more: str) -> None:
        found, _, err = ended(spawn(HEAD + program, env={**with_spool, **more}))
        assert found == code, err
        assert "could not be delivered" not in err
        assert code or "Traceback" not in err
        drain = "ends = time.monotonic() + 50\nwhile time.monotonic() < ends:\n"
        drain += "    guard.init().flush(20)\n    if not guard.status().spooled: break\n"
        assert ended(spawn(HEAD + drain, env=with_spool))[0] == 0

    return run


def ended(process: subprocess.Popen[str], timeout_s: float = 2 * WAIT_S) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


@pytest.mark.parametrize("handler", ["", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))"])
def test_sigterm_while_it_ends(tenant: Any, spawn: Spawn, handler: str) -> None:
    """The delivery that has begun is finished first."""
    program = f"""{PATIENT_END}
{handler}
runtime = guard.init()
def kill():
    while not runtime.is_shut_down: pass
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=kill, daemon=True).start()
track(0, 900)
guard.shutdown(60)
time.sleep(60)  # the signal ends it
"""
    code, _, err = ended(spawn(HEAD + program, env=env(tenant, GUARD_FLUSH_INTERVAL_MS="3600000")))
    assert (code, err) == (9 if handler else -signal.SIGTERM, "")
    assert tokens(tenant) == list(range(900))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("guard.init(); track(0, 250)", id="without a word"),
        pytest.param("track(0, 250)", id="without init"),
        pytest.param("guard.init(); track(0, 250); sys.exit(0)", id="sys.exit"),
        pytest.param("guard.init(); track(0, 250); guard.shutdown()", id="shutdown"),
        pytest.param(
            "guard.init()\nthreading.Thread(target=track, args=(0, 250)).start()",
            id="from a thread that outlives main",
        ),
        pytest.param(
            "guard.init()\nimport atexit\natexit.register(track, 0, 250)",
            id="from an exit handler",
        ),
        pytest.param(
            "guard.init(); track(0, 250)\n"
            "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
            id="beside a daemon thread",
        ),
        pytest.param(
            "import asyncio\n"
            "async def main():\n"
            "    await guard.GuardRuntime.start()\n"
            "    track(0, 250)\n"
            "asyncio.run(main())",
            id="after the user's loop has closed",
        ),
    ],
)
def test_an_ordinary_end_delivers_everything_once(
    tenant: Any, settled: Callable[..., None], program: str
) -> None:
    settled(program)
    assert tokens(tenant) == list(range(250))


def test_an_uncaught_exception_changes_nothing(tenant: Any, settled: Callable[..., None]) -> None:
    settled("guard.init(); track(0, 9); raise KeyError", code=1)
    assert tokens(tenant) == list(range(9))


class TestSignals:
    def test_sigterm_delivers_and_kills_as_before(self, tenant: Any, spawn: Spawn) -> None:
        process = spawn(
            HEAD + PATIENT_END + "guard.init(); track(0, 50); print('ready', flush=True)\n"
            "wait_for_a_signal()",
            env=env(tenant, GUARD_FLUSH_INTERVAL_MS="3600000"),
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        code, _, _ = ended(process)
        assert code == -signal.SIGTERM
        assert tokens(tenant) == list(range(50))

    def test_the_users_handler_runs_after_the_events_are_safe(
        self, tenant: Any, spawn: Spawn
    ) -> None:
        process = spawn(
            HEAD
            + PATIENT_END
            + "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'mine'), os._exit(7)))\n"
            "guard.init(); track(0, 50); print('ready', flush=True); wait_for_a_signal()",
            env=env(tenant, GUARD_FLUSH_INTERVAL_MS="3600000"),
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        code, out, _ = ended(process)
        assert (code, out) == (7, "mine")
        assert tokens(tenant) == list(range(50))

    def test_a_handler_that_lets_the_program_go_on(self, tenant: Any, spawn: Spawn) -> None:
        process = spawn(
            HEAD
            + PATIENT_END
            + "stop = []\nsignal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
            "guard.init(); track(0, 50); print('ready', flush=True)\n"
            "while not stop: time.sleep(0.01)\n"
            "track(50, 50); ends = time.monotonic() + 60\n"
            "while guard.status().state != 'ok' and time.monotonic() < ends: time.sleep(0.01)\n"
            "print(guard.status().state)",
            env=env(tenant, GUARD_FLUSH_INTERVAL_MS="3600000"),
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        code, out, err = ended(process)
        assert (code, out, err) == (0, "ok\n", "")
        assert tokens(tenant) == list(range(100))

    def test_a_hanging_gateway_does_not_hold_up_the_end_and_the_loss_is_reported(
        self, tenant: Any, spawn: Spawn, black_hole: str
    ) -> None:
        process = spawn(
            HEAD + "guard.init(); track(0, 50); print('ready', flush=True); wait_for_a_signal()",
            env=env(tenant, GUARD_API_URL=black_hole, GUARD_TIMEOUT_MS="300"),
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)
        assert code == -signal.SIGTERM
        assert "50 events could not be delivered" in err

    def test_ctrl_c_in_a_facade_cancels_it_and_loses_nothing(
        self, tenant: Any, spawn: Spawn, black_hole: str
    ) -> None:
        process = spawn(
            HEAD + f"runtime = guard.GuardRuntime(api_url={black_hole!r}, timeout_ms=60000)\n"
            "track(0, 50)\n"
            "try:\n"
            "    print('ready', flush=True); runtime.flush()\n"
            "except KeyboardInterrupt:\n"
            "    deadline = time.monotonic() + 60\n"
            "    while guard.status().buffered != 50 and time.monotonic() < deadline: pass\n"
            "    print(guard.status().buffered)\n"
            "guard.shutdown(0.2, flush=False); print(guard.status().events_lost)",
            env=env(tenant),
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)  # let it get into the wait; earlier would be just as right
        process.send_signal(signal.SIGINT)
        code, out, err = ended(process)
        assert (code, out.split(), err) == (0, ["50", "50"], "")

    def test_ctrl_c_while_it_connects(self, tenant: Any, spawn: Spawn, black_hole: str) -> None:
        """The tasks that open connections have not begun when all of them are cancelled."""
        process = spawn(
            "import os, signal, sys, threading, time\n"
            "import guard\n"
            "class Slow:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'guard.session.session' and not done.is_set():\n"
            "            assert threading.current_thread() is not threading.main_thread()\n"
            "            done.set(); os.kill(os.getpid(), signal.SIGINT)\n"
            # Python may take a signal only after the wait that the main thread is about to begin.
            "            global again\n"
            "            again = threading.Timer(15, os.kill, (os.getpid(), signal.SIGINT))\n"
            "            again.daemon = True; again.start(); time.sleep(0.3)\n"
            "done = threading.Event(); sys.meta_path.insert(0, Slow())\n"
            # The importer drops one that comes in a callback of its weak references.
            "def dropped(one):\n"
            "    if one.exc_type is not KeyboardInterrupt: sys.__unraisablehook__(one)\n"
            "sys.unraisablehook = dropped\n"
            "try:\n"
            "    guard.init()\n"
            "except KeyboardInterrupt:\n"
            "    again.cancel()  # or it might interrupt a slow end\n"
            "    print(done.is_set())\n",
            # A coroutine that nobody awaits is a RuntimeWarning. The interpreter's own importer may
            # leave a file open where the signal stops it (a ResourceWarning).
            env=env(tenant, GUARD_API_URL=black_hole, PYTHONWARNINGS="always::RuntimeWarning"),
        )
        assert ended(process) == (0, "True\n", "")

    def test_ctrl_c_while_it_is_imported(self, tenant: Any, spawn: Spawn) -> None:
        """An exception while msgspec inspects a ``TypedDict`` would end the process (SIGSEGV)."""
        process = spawn(
            "import sys\n"
            "def interrupt(frame, event, argument):\n"
            "    if event == 'call' and frame.f_code.co_name == 'get_typeddict_info':\n"
            "        raise KeyboardInterrupt\n"
            "sys.setprofile(interrupt)\n"
            "import guard\n"
            "guard.init(); print('ready'); guard.shutdown()\n",
            env=env(tenant),
        )
        assert ended(process) == (0, "ready\n", "")


class TestSpool:
    def spooled(self, tenant: Any, directory: Path, url: str) -> int:
        spool = Spool(directory, owner_of(url, tenant.key), bytes_max=1 << 26)
        try:
            return spool.count()
        finally:
            spool.close()

    def test_what_cannot_be_delivered_at_exit_is_delivered_by_the_next_process(
        self, tenant: Any, spawn: Spawn, tmp_path: Path, proxy: Any
    ) -> None:
        directory = tmp_path / "spool"
        both = env(tenant, GUARD_SPOOL_DIR=str(directory), GUARD_API_URL=proxy.url)
        proxy.fault = "refuse"
        code, out, err = ended(
            spawn(
                HEAD + "guard.init(); track(0, 300); guard.shutdown(); s = guard.status()\n"
                "print(s.events_lost, s.spooled)",
                env=both,
            )
        )
        assert (code, out) == (0, "0 300\n"), err
        assert self.spooled(tenant, directory, proxy.url) == 300
        assert oct(directory.stat().st_mode)[-3:] == "700"
        assert {oct(path.stat().st_mode)[-3:] for path in directory.iterdir()} == {"600"}
        assert not any(tenant.key.encode() in path.read_bytes() for path in directory.iterdir())
        proxy.fault = "none"
        code, _, err = ended(spawn(HEAD + "guard.init().flush()", env=both))
        assert (code, err) == (0, "")
        assert tokens(tenant) == list(range(300))
        assert self.spooled(tenant, directory, proxy.url) == 0

    @pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
    def test_what_is_on_disk_survives_the_hardest_end(
        self, tenant: Any, spawn: Spawn, tmp_path: Path, proxy: Any, how: str
    ) -> None:
        directory = tmp_path / "spool"
        both = env(
            tenant,
            GUARD_SPOOL_DIR=str(directory),
            GUARD_API_URL=proxy.url,
            GUARD_FLUSH_INTERVAL_MS="20",
        )
        proxy.fault = "refuse"
        ended(
            spawn(
                HEAD + "guard.init(); track(0, 300)\n"
                "while guard.status().spooled < 300: time.sleep(0.005)\n" + how,
                env=both,
            )
        )
        assert self.spooled(tenant, directory, proxy.url) == 300
        proxy.fault = "none"
        children = [spawn(HEAD + "guard.init().flush()", env=both) for _ in range(3)]
        for child in children:  # several at once: each event is charged once all the same
            assert ended(child)[0] == 0
        assert tokens(tenant) == list(range(300))


class TestChildren:
    @pytest.mark.parametrize("leave", ["sys.exit(0)", "pass", "guard.shutdown(); os._exit(0)"])
    def test_fork(self, tenant: Any, settled: Callable[..., None], leave: str) -> None:
        program = f"""
guard.init()
track(0, 10)
children = []
for number in range(1, 4):
    pid = os.fork()
    if pid == 0:
        track(number * 10, 10)
        assert guard.status().pid == os.getpid()
        {leave}
        break
    children.append(pid)
else:
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
"""
        settled(program, GUARD_FLUSH_INTERVAL_MS="3600000")
        assert tokens(tenant) == list(range(40))

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_multiprocessing(self, tenant: Any, settled: Callable[..., None], method: str) -> None:
        program = f"""
import multiprocessing
def work(first):
    track(first, 10)
def main():
    guard.init()
    track(0, 10)
    context = multiprocessing.get_context({method!r})
    processes = [context.Process(target=work, args=(n * 10,)) for n in range(1, 3)]
    for process in processes: process.start()
    for process in processes: process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    with context.Pool(2) as pool:
        pool.map(work, [30, 40, 50, 60], chunksize=1)
        pool.close(); pool.join()
if __name__ == "__main__":
    main()
"""
        settled(program)
        assert tokens(tenant) == list(range(70))

    def test_a_child_that_spoke_to_the_gateway_before_it_had_an_event(
        self, tenant: Any, settled: Callable[..., None]
    ) -> None:
        program = """
import multiprocessing
def work():
    runtime.flush()
    track(0, 10)
runtime = guard.init()
process = multiprocessing.get_context("fork").Process(target=work)
process.start(); process.join()
assert process.exitcode == 0
"""
        settled(program, GUARD_FLUSH_INTERVAL_MS="3600000")
        assert tokens(tenant) == list(range(10))

    def test_a_terminated_child_delivers_too(self, tenant: Any, spawn: Spawn) -> None:
        program = """
import multiprocessing
def work(ready):
    track(0, 10)
    ready.set()
    wait_for_a_signal()
guard.init()
context = multiprocessing.get_context("fork")
ready = context.Event()
process = context.Process(target=work, args=(ready,))
process.start(); ready.wait(); process.terminate(); process.join()
print(process.exitcode)
"""
        code, out, err = ended(
            spawn(HEAD + PATIENT_END + program, env=env(tenant, GUARD_FLUSH_INTERVAL_MS="3600000"))
        )
        assert (code, out, err) == (0, "-15\n", "")
        assert tokens(tenant) == list(range(10))

    def test_fork_during_a_flush_and_under_load(self, tenant: Any, spawn: Spawn) -> None:
        program = """
guard.init()
stop = threading.Event()
def hammer(name):
    number = 0
    while not stop.is_set() and number < 2000:
        guard.track_llm(1_000_000 + name * 100_000 + number, 1, model="m"); number += 1
        if number % 50 == 0: time.sleep(0.001)
threads = [threading.Thread(target=hammer, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
flusher = threading.Thread(target=lambda: [guard.init().flush() for _ in range(20)])
flusher.start()
children = []
for number in range(8):
    pid = os.fork()
    if pid == 0:
        stop.set()
        track(number * 10, 10)
        guard.init().flush(50)
        os._exit(0)
    children.append(pid)
    time.sleep(0.01)
codes = [os.waitpid(pid, 0)[1] for pid in children]
assert codes == [0] * 8, codes
for thread in threads: thread.join()
flusher.join()
"""
        program = HEAD + PATIENT_END + program
        code, _, err = ended(spawn(program, env=env(tenant)), timeout_s=300)
        assert (code, err) == (0, ""), err
        seen = [number for page in _pages(tenant) for number in page]
        assert len(seen) == len(set(seen)), "nothing is sent by both sides of a fork"
        assert sorted(number for number in seen if number < 1_000_000) == list(range(80))
        assert sum(number >= 1_000_000 for number in seen) == 6000

    def test_fork_while_locks_are_held(self, tenant: Any, spawn: Spawn) -> None:
        program = """
from guard import facade
from guard.instrumentation import patching
from guard.runtime import active
runtime = guard.init()
# The loop's imports need one of the locks, and a fork waits for an import for ten seconds at most.
while runtime.status().control_channel != "websocket": time.sleep(0.01)
held = [facade._init_lock, active._lock, runtime._background._lock, runtime.events.buffer._lock,
        runtime._ending, runtime.events.health._lock, patching._lock,
        runtime.instrumentation.reading, runtime.gate._courier._admission._lock]
grabbed, done = threading.Event(), threading.Event()
def grab():
    for lock in held: lock.acquire()
    grabbed.set(); done.wait()
    for lock in reversed(held): lock.release()
thread = threading.Thread(target=grab); thread.start(); grabbed.wait()
pid = os.fork()
if pid == 0:
    @guard.protect
    def work(): track(0, 10)
    guard.instrument(); work(); guard.uninstrument(); guard.shutdown(); os._exit(0)
_, status = os.waitpid(pid, 0)
done.set(); thread.join()
sys.exit(status)
"""
        code, _, err = ended(spawn(HEAD + PATIENT_END + program, env=env(tenant)))
        assert (code, err) == (0, "")
        assert tokens(tenant) == list(range(10))


def _pages(tenant: Any) -> Iterator[list[int]]:
    after = 0
    while True:
        rows = tenant.admin.events(after=after, type="llm", limit=1000)
        if not rows:
            return
        yield [row["data"].get("input_tokens", 0) for row in rows]
        after = rows[-1]["event_seq"]


def test_a_signal_that_comes_while_its_handler_is_installed_reaches_the_programs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("the program's"))
    install = signal.signal

    def signalled_at_once(number: int, handler: Any) -> Any:
        previous = install(number, handler)
        if seen == []:
            handler(number, None)
        return previous

    hooks = ExitHooks(lambda _: seen.append("flushed"), lambda: seen.append("closed"))
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", lambda *_: seen.append("killed"))
            patched.setattr(signal, "signal", signalled_at_once)
            hooks._install_signal()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["flushed", "the program's"]
