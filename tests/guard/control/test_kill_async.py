"""A kill stops coroutines and async generators in mid-call, whatever they await."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import anyio
import httpx
import httpx2
import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.runtime.runtime import GuardRuntime
from tests.support.slow_server import SlowServer
from tests.support.waiting import WAIT_S, until_async

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("connected")]


async def _sleep(server: SlowServer, entered: threading.Event) -> None:
    entered.set()
    await asyncio.sleep(WAIT_S)


async def _anyio_sleep(server: SlowServer, entered: threading.Event) -> None:
    entered.set()
    await anyio.sleep(WAIT_S)


def _http(module: Any, path: str) -> Callable[[SlowServer, threading.Event], Awaitable[None]]:
    async def wait(server: SlowServer, entered: threading.Event) -> None:
        async with module.AsyncClient(timeout=None, trust_env=False) as client:
            try:
                async with client.stream("GET", f"{server.url}/{path}") as response:
                    async for _ in response.aiter_bytes():
                        entered.set()
            finally:
                assert not client._transport._pool._requests

    return wait


async def _aiohttp(server: SlowServer, entered: threading.Event) -> None:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as client,
        client.get(f"{server.url}/drip") as response,
    ):
        async for _ in response.content.iter_any():
            entered.set()


async def _task_group(server: SlowServer, entered: threading.Event) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(_sleep(server, entered))


async def _anyio_group(server: SlowServer, entered: threading.Event) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(_sleep, server, entered)


async def _anyio_shield(server: SlowServer, entered: threading.Event) -> None:
    with anyio.CancelScope(shield=True):
        await _anyio_group(server, entered)


async def _anyio_deadline(server: SlowServer, entered: threading.Event) -> None:
    with anyio.fail_after(WAIT_S):
        await _anyio_sleep(server, entered)


async def _gather(server: SlowServer, entered: threading.Event) -> None:
    sleeps = [_sleep(server, entered) for _ in range(3)]
    await asyncio.gather(*sleeps, return_exceptions=True)


async def _protected_gather(server: SlowServer, entered: threading.Event) -> None:
    sleeps = [guard.protect(_sleep)(server, entered) for _ in range(3)]
    await asyncio.gather(*sleeps, return_exceptions=True)


async def _protected_task_group(server: SlowServer, entered: threading.Event) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(guard.protect(_sleep)(server, entered))


async def _timeout(server: SlowServer, entered: threading.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        await _sleep(server, entered)


async def _wait_for(server: SlowServer, entered: threading.Event) -> None:
    await asyncio.wait_for(_sleep(server, entered), WAIT_S)


async def _shield(server: SlowServer, entered: threading.Event) -> None:
    inner = asyncio.ensure_future(_sleep(server, entered))
    try:
        await asyncio.shield(inner)
    finally:
        assert not inner.cancelled()  # it asked to be left alone; its next gate will refuse
        inner.cancel()


async def _to_thread(server: SlowServer, entered: threading.Event) -> None:
    stop = threading.Event()

    def work() -> None:
        entered.set()
        stop.wait(WAIT_S)

    try:
        await asyncio.to_thread(work)
    finally:
        stop.set()


async def _nested(server: SlowServer, entered: threading.Event) -> None:
    await guard.protect(guard.protect(_sleep))(server, entered)


async def _swallowing(server: SlowServer, entered: threading.Event) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await _sleep(server, entered)


BODIES: dict[str, Callable[[SlowServer, threading.Event], Awaitable[None]]] = {
    "sleep": _sleep,
    "anyio sleep": _anyio_sleep,
    "httpx hang": _http(httpx, "hang"),
    "httpx drip": _http(httpx, "drip"),
    "httpx2 hang": _http(httpx2, "hang"),
    "httpx2 drip": _http(httpx2, "drip"),
    "httpx flood": _http(httpx, "flood"),
    "aiohttp": _aiohttp,
    "TaskGroup": _task_group,
    "anyio group": _anyio_group,
    "anyio shield": _anyio_shield,
    "anyio deadline": _anyio_deadline,
    "gather": _gather,
    "protected gather": _protected_gather,
    "protected TaskGroup": _protected_task_group,
    "timeout": _timeout,
    "wait_for": _wait_for,
    "shield": _shield,
    "to_thread": _to_thread,
    "nested": _nested,
    "swallowing": _swallowing,
}


@pytest.mark.parametrize("kind", BODIES)
async def test_every_kind_of_wait_is_stopped(
    operator: Any, server: SlowServer, connected: GuardRuntime, kind: str
) -> None:
    entered = threading.Event()

    @guard.protect
    async def body() -> str:
        await BODIES[kind](server, entered)
        return "a result"

    operator(lambda: entered.is_set() or server.count("hang"))
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt) as killed:
        await body()
    assert killed.value.workflow_id == "w"
    assert killed.value.reason == "stop it"
    task = asyncio.current_task()
    assert task is not None
    # Before 3.13, a group whose children end it while it waits for them never takes that back.
    if kind != "protected TaskGroup" or sys.version_info >= (3, 13):
        assert task.cancelling() == 0
    await asyncio.sleep(0.01)  # no cancellation is left over
    await until_async(lambda: len(connected.enforcement.bodies) == 0, WAIT_S)


async def test_all_tasks_of_a_workflow_and_no_others(operator: Any, server: SlowServer) -> None:
    entered = [threading.Event() for _ in range(10)]
    done = asyncio.Event()

    @guard.protect
    async def body(event: threading.Event) -> str:
        event.set()
        await done.wait()
        return "finished"

    async def run(name: str, event: threading.Event) -> str:
        with guard.workflow(name):
            return await body(event)

    tasks = [
        asyncio.create_task(run("w" if number % 2 else "other", event))
        for number, event in enumerate(entered)
    ]
    operator(lambda: all(event.is_set() for event in entered))
    killed = await asyncio.gather(*tasks[1::2], return_exceptions=True)
    assert [type(exc) for exc in killed] == [WorkflowKilledInterrupt] * 5
    done.set()
    assert await asyncio.gather(*tasks[::2]) == ["finished"] * 5


async def test_a_swallowed_kill_is_raised_again_at_the_next_gate(operator: Any) -> None:
    entered = threading.Event()

    @guard.protect
    async def body() -> None:
        entered.set()
        await asyncio.sleep(WAIT_S)

    operator(entered)
    with guard.workflow("w"):
        results = await asyncio.gather(body(), body(), return_exceptions=True)
        assert [type(result) for result in results] == [WorkflowKilledInterrupt] * 2
        with pytest.raises(WorkflowKilledInterrupt):
            await body()


async def test_task_group_around_protected_calls_is_unwrapped_at_the_boundary(
    operator: Any,
) -> None:
    entered = threading.Event()

    @guard.protect
    async def body() -> None:
        entered.set()
        await asyncio.sleep(WAIT_S)

    async def two() -> None:
        with guard.workflow("w"):
            async with asyncio.TaskGroup() as group:
                group.create_task(body())
                group.create_task(body())

    operator(entered)
    with pytest.raises(WorkflowKilledInterrupt):
        await two()


async def test_the_users_own_cancellation_stays_one(connected: GuardRuntime, tenant: Any) -> None:
    entered = asyncio.Event()

    @guard.protect
    async def body() -> None:
        entered.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            # Still cleaning up from the user's cancellation when the kill arrives.
            with contextlib.suppress(asyncio.CancelledError):
                await until_async(lambda: connected.enforcement.control.kills.exact, WAIT_S)
                await asyncio.sleep(0.2)

    async def run() -> None:
        with guard.workflow("w"):
            await body()

    task = asyncio.create_task(run())
    await entered.wait()
    task.cancel()
    await asyncio.to_thread(tenant.admin.kill, "w")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_timeout_around_the_call_that_expires_with_the_kill(
    connected: GuardRuntime, tenant: Any
) -> None:
    deadline = asyncio.timeout(None)

    @guard.protect
    async def body() -> None:
        deadline.reschedule(asyncio.get_running_loop().time() + 0.1)
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.to_thread(tenant.admin.kill, "w")
                await asyncio.sleep(WAIT_S)

    with guard.workflow("w"):
        with pytest.raises(TimeoutError):
            async with deadline:
                await body()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        with pytest.raises(WorkflowKilledInterrupt):
            await body()


async def test_waiting_for_a_person_is_cut_short(operator: Any, tenant: Any) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["needs_a_person"])

    @guard.protect
    async def needs_a_person() -> None:
        raise AssertionError("entered")

    operator(lambda: tenant.admin.approvals())
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        await needs_a_person()


class TestGenerators:
    async def test_in_a_step(self, operator: Any) -> None:
        entered = threading.Event()
        closed: list[bool] = []

        @guard.protect
        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                entered.set()
                await asyncio.sleep(WAIT_S)
            finally:
                await asyncio.sleep(0)
                closed.append(True)

        operator(entered)
        with guard.workflow("w"):
            stream = numbers()
            assert await anext(stream) == 1
            with pytest.raises(WorkflowKilledInterrupt):
                await anext(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        assert closed == [True]

    async def test_between_steps_the_consumer_is_left_alone(
        self, connected: GuardRuntime, tenant: Any
    ) -> None:
        closed: list[bool] = []

        @guard.protect
        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                raise AssertionError("went on")
            finally:
                closed.append(True)

        with guard.workflow("w"):
            stream = numbers()
            assert await anext(stream) == 1
            await asyncio.to_thread(tenant.admin.kill, "w")
            await until_async(lambda: connected.enforcement.control.kills.exact, WAIT_S)
            await asyncio.sleep(0.05)
            with pytest.raises(WorkflowKilledInterrupt):
                await anext(stream)
        assert closed == [True]
