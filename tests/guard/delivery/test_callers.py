"""Whoever calls: many threads, many tasks, other loops, loops that close."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import guard
from guard.runtime.runtime import GuardRuntime
from tests.guard.delivery.conftest import PATIENT_END, Scripted, Spawn
from tests.support.waiting import WAIT_S

Against = Callable[..., GuardRuntime]


def test_a_thousand_threads(against: Against, scripted: Scripted) -> None:
    runtime = against(buffer_size=100_000, timeout_ms=60_000)
    seen: list[str] = []

    def work(name: int) -> None:
        with guard.workflow(f"w{name}"):
            for number in range(20):
                decision = guard.track_llm(number, name, model="m")
                seen.append(decision["event_id"])

    threads = [threading.Thread(target=work, args=(name,)) for name in range(1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runtime.flush(3 * WAIT_S)
    assert len(set(seen)) == 20_000
    assert sorted(body["event_id"] for body in scripted.llm()) == sorted(seen)
    assert runtime.status().events_lost == 0
    assert all(
        body["workflow_id"] == f"w{body['data'].get('output_tokens', 0)}" for body in scripted.llm()
    )


@pytest.mark.asyncio
async def test_ten_thousand_tasks(against: Against, scripted: Scripted) -> None:
    runtime = await asyncio.to_thread(against, buffer_size=100_000)
    seen: list[str] = []

    async def work(name: int) -> None:
        async with guard.workflow(f"w{name % 10}"):
            await asyncio.sleep(0)
            seen.append(guard.track_llm(name, 1, model="m")["event_id"])

    await asyncio.gather(*(work(name) for name in range(10_000)))
    await asyncio.to_thread(runtime.flush, WAIT_S)
    assert sorted(body["event_id"] for body in scripted.llm()) == sorted(seen)
    assert len(seen) == 10_000


def test_what_is_tracked_while_a_drain_runs_is_bounded_and_counted(
    against: Against, scripted: Scripted
) -> None:
    runtime = against(buffer_size=2000)
    total = 100_000
    for number in range(total):
        guard.track_llm(number, 1)
    runtime.flush(WAIT_S)
    status = runtime.status()
    assert status.events_sent + status.events_lost == total
    reported = sum(b["data"]["events"] for b in scripted.bodies if b["type"] == "sdk.loss")
    assert reported == status.events_lost
    assert len(scripted.llm()) == status.events_sent


def test_loops_come_and_go(against: Against, scripted: Scripted) -> None:
    runtime = against()

    @guard.protect
    async def work(number: int) -> int:
        guard.track_llm(number, 1)
        return number

    for number in range(3):  # each run closes its loop
        assert asyncio.run(work(number)) == number
    runtime.flush(WAIT_S)
    assert len(scripted.llm()) == 3


def test_a_running_loop_that_calls_the_blocking_functions(
    against: Against, scripted: Scripted
) -> None:
    """As in a notebook, where every cell runs inside a loop."""
    runtime = against(flush_interval_ms=3_600_000)

    @guard.protect
    def cell() -> int:
        guard.track_llm(1, 1)
        return 7

    async def notebook() -> int:
        result = cell()
        runtime.flush(WAIT_S)
        return result

    assert asyncio.run(notebook()) == 7
    assert len(scripted.llm()) == 1


def test_uvloop(tenant: Any, spawn: Spawn) -> None:
    pytest.importorskip("uvloop")
    program = f"""{PATIENT_END}
import asyncio, uvloop

@guard.protect
async def work(number):
    guard.track_llm(number, 1)
    await asyncio.sleep(0)
    return number

async def main():
    await guard.GuardRuntime.start()
    with guard.workflow("w"):
        print(sum(await asyncio.gather(*(work(n) for n in range(20)))))

uvloop.run(main())
"""
    process = spawn(program, env={"GUARD_API_KEY": tenant.key, "GUARD_API_URL": tenant.url})
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (0, "190\n", "")
    assert sorted(e["data"].get("input_tokens", 0) for e in tenant.llm_events("w")) == list(
        range(20)
    )


def test_calls_leave_nothing_to_the_garbage_collector(against: Against, scripted: Scripted) -> None:
    runtime = against()

    @guard.protect
    def work() -> None:
        guard.track_llm(1, 1, model="m")

    def exchanges() -> int:
        return sum(isinstance(each, httpx.Request | httpx.Response) for each in gc.get_objects())

    work()
    runtime.flush(WAIT_S)
    gc.collect()
    gc.disable()
    try:
        before = exchanges()
        for _ in range(50):
            work()
        runtime.flush(WAIT_S)
        assert scripted.count("/gate") == 51
        assert exchanges() <= before + 10
    finally:
        gc.enable()
