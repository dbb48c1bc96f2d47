"""Many SDKs in a few processes, each a whole runtime; those of a process share one background loop.

Run: ``python -m tests.support.fleet COUNT NUMBER URL KEY``; then one command a line on standard
input, answered by one object a line.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guard
from guard.control import control_socket
from guard.loop import BackgroundLoop
from guard.runtime import active
from guard.runtime import runtime as runtime_module
from guard.runtime.runtime import GuardRuntime

_ROOT = Path(__file__).parents[2]
_AT_ONCE = 8
TIMEOUT_MS = 60_000
PATIENCE_S = 20.0
PER_PROCESS = 500
COST_TOKENS = 100
WORKFLOW = "fleet"
CALLS = "fleet-calls"
"""The workflow of single calls: they go on when the bodies' is killed."""


@guard.protect
async def body(runtime: GuardRuntime) -> None:
    """Charge one request, and wait to be killed."""
    active.current = runtime
    guard.track_llm(COST_TOKENS, 0, model="gpt-4o")
    await asyncio.sleep(3600)


@guard.protect
async def step(runtime: GuardRuntime) -> None:
    """Charge one more."""
    active.current = runtime
    guard.track_llm(COST_TOKENS, 0, model="gpt-4o")


class Sdk:
    """One SDK with a body that runs.

    Attributes:
        interrupts: how often the body was killed.
        failed: how many calls have failed; each was made again.
        ups: when the control socket opened.
    """

    def __init__(self, url: str, key: str, shared: BackgroundLoop) -> None:
        active.current = None  # one at a time in a process, but for this one
        runtime_module.BackgroundLoop = lambda: shared  # type: ignore[assignment,misc]
        self.runtime = GuardRuntime(key, url, auto_instrument=False, timeout_ms=TIMEOUT_MS)
        self.runtime._exits.install = lambda: None  # type: ignore[method-assign]
        self.background = shared
        self.interrupts = self.failed = 0
        self.ups: list[float] = []
        self.error = ""

    async def run(self, turns: asyncio.Semaphore) -> None:
        async with turns:
            session = await self.background.run_async(self.runtime.link.connect)
            self.runtime.opened = True
            switched = session.subscriber._switched

            def noted(channel: Any) -> None:
                if channel == "websocket":
                    self.ups.append(time.monotonic())
                switched(channel)

            session.subscriber._switched = noted
            while not session.asks.can_lease:  # nothing here needs an event for it
                await asyncio.sleep(0.02)
        while not self.interrupts and not self.error:
            try:
                with guard.workflow(WORKFLOW):
                    active.current = self.runtime
                    await body(self.runtime)
            except guard.WorkflowKilledInterrupt:
                self.interrupts += 1
            except guard.GuardTransportError:
                continue  # it has not begun: the machine is slow
            except guard.GuardError as exc:
                self.error = repr(exc)

    async def call(self, turns: asyncio.Semaphore) -> None:
        """Make one more call; leases go back when they are idle, so this is what takes one."""
        async with turns:
            while True:
                try:
                    with guard.workflow(CALLS):
                        active.current = self.runtime
                        return await step(self.runtime)
                except guard.GuardTransportError:
                    self.failed += 1

    async def close(self, turns: asyncio.Semaphore) -> None:
        async with turns:
            session = self.runtime.link.session
            assert session is not None
            with contextlib.suppress(Exception):
                await self.background.run_async(session.flusher.flush)
            await self.background.run_async(session.close, 5.0)


def _status(sdks: list[Sdk]) -> dict[str, Any]:
    controls = [each.runtime.enforcement.control for each in sdks]
    statuses = [each.runtime.status() for each in sdks]
    return {
        "up": sum(each.control_channel == "websocket" for each in statuses),
        "leases": sum(each.leases for each in statuses),
        "bodies": sum(len(each.runtime.enforcement.bodies) for each in sdks),
        "interrupts": dict(collections.Counter(str(each.interrupts) for each in sdks)),
        "failed": sum(each.failed for each in sdks),
        "errors": [each.error for each in sdks if each.error][:3],
        "seqs": sorted({each.seq for each in controls}),
        "kills": sorted({name for each in controls for name in each.kills.exact}),
        "ups": [up for each in sdks for up in each.ups],
    }


def _be_patient() -> None:
    """Lift the deadlines of sockets: hundreds share a loop, and it may be slow."""
    for name in ("PING_INTERVAL_S", "PING_TIMEOUT_S", "_OPEN_TIMEOUT_S"):
        setattr(control_socket, name, PATIENCE_S)


async def main(count: int, number: int, url: str, key: str) -> None:
    _be_patient()
    shared = BackgroundLoop(f"fleet-{number}")
    shared.start()
    sdks = [Sdk(url, key, shared) for _ in range(count)]
    turns = asyncio.Semaphore(_AT_ONCE)
    tasks = [asyncio.create_task(each.run(turns)) for each in sdks]
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if command == "forget":
            for each in sdks:
                each.ups.clear()
        if command == "call":
            await asyncio.gather(*(each.call(turns) for each in sdks))
        if command == "close":
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(each.close(turns) for each in sdks))
        print(json.dumps(_status(sdks)), flush=True)


class Fleet:
    """The processes, from a test.

    Args:
        count: of SDKs.
        url: of the gateway.
        key: of the gateway.
    """

    def __init__(self, count: int, url: str, key: str) -> None:
        self.count = count
        self._lock = threading.Lock()
        sizes = [PER_PROCESS] * (count // PER_PROCESS)
        if count % PER_PROCESS:
            sizes.append(count % PER_PROCESS)
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.fleet", str(size), str(number), url, key],
                cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for number, size in enumerate(sizes)
        ]  # fmt: skip

    def tell(self, command: str = "status") -> dict[str, Any]:
        """Have every process do something; return what they say, added up."""
        with self._lock:
            return self._tell(command)

    def _tell(self, command: str) -> dict[str, Any]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{command}\n")
            process.stdin.flush()
        total: dict[str, Any] = {}
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "a process of the fleet has ended"
            for name, value in json.loads(line).items():
                if isinstance(value, dict):
                    before = collections.Counter(total.get(name, {}))
                    total[name] = dict(before + collections.Counter(value))
                elif name in ("seqs", "kills"):
                    total[name] = sorted({*total.get(name, ()), *value})
                else:
                    total[name] = total.get(name, type(value)()) + value
        return total

    def end(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def fleet(count: int, url: str, key: str) -> Iterator[Fleet]:
    """Run a number of SDKs until the block ends."""
    running = Fleet(count, url, key)
    try:
        yield running
    finally:
        running.end()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
