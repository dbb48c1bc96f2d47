"""A kill stops requests of its workflow where no protected body is stopped for them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

import guard
from guard import WorkflowKilledInterrupt
from guard.instrumentation.interruptible import llm_request_async
from guard.runtime.runtime import GuardRuntime
from tests.support.slow_server import SlowServer
from tests.support.waiting import WAIT_S, until_async

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("connected", "collected")]

CHAT = "v1/chat/completions"

Ask = Callable[[str], Awaitable[object]]


def _async_get(module: Any) -> Ask:
    async def ask(url: str) -> None:
        async with module.AsyncClient(timeout=None, trust_env=False) as client:
            try:
                await client.get(f"{url}/hang")
            finally:
                assert not client._transport._pool._requests

    return ask


def _async_stream(module: Any, path: str) -> Ask:
    async def ask(url: str) -> None:
        async with (
            module.AsyncClient(timeout=None, trust_env=False) as client,
            client.stream("POST", f"{url}/{path}/{CHAT}", json={"model": "m"}) as response,
        ):
            async for _ in response.aiter_bytes():
                pass

    return ask


async def _aiohttp_get(url: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as client:
        await client.get(f"{url}/hang")


async def _aiohttp_stream(url: str) -> None:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as client,
        client.post(f"{url}/stall/{CHAT}", json={"model": "m"}) as response,
    ):
        async for _ in response.content.iter_any():
            pass


IN_TASKS: dict[str, Ask] = {
    "httpx": _async_get(httpx),
    "httpx2": _async_get(httpx2),
    "aiohttp": _aiohttp_get,
    "httpx LLM stream that stalls": _async_stream(httpx, "stall"),
    "httpx LLM stream that drips": _async_stream(httpx, "drip"),
    "httpx2 LLM stream that stalls": _async_stream(httpx2, "stall"),
    "aiohttp LLM stream that stalls": _aiohttp_stream,
}


def _get(module: Any) -> Callable[[str], object]:
    def ask(url: str) -> None:
        with module.Client(timeout=None, trust_env=False) as client:
            try:
                client.get(f"{url}/hang")
            finally:
                assert not client._transport._pool._requests

    return ask


def _stream(path: str) -> Callable[[str], object]:
    def ask(url: str) -> None:
        with (
            httpx.Client(timeout=None, trust_env=False) as client,
            client.stream("POST", f"{url}/{path}/{CHAT}", json={"model": "m"}) as response,
        ):
            for _ in response.iter_bytes():
                pass

    return ask


def _requests_get(url: str) -> None:
    requests.get(f"{url}/hang", timeout=None)


def _requests_stream(url: str) -> None:
    with requests.post(
        f"{url}/stall/{CHAT}", json={"model": "m"}, stream=True, timeout=None
    ) as response:
        for _ in response.iter_content(5):
            pass


IN_THREADS: dict[str, Callable[[str], object]] = {
    "httpx": _get(httpx),
    "httpx2": _get(httpx2),
    "requests": _requests_get,
    "httpx LLM stream that stalls": _stream("stall"),
    "httpx LLM stream that drips": _stream("drip"),
    "httpx LLM stream that floods": _stream("flood"),
    "requests LLM stream that stalls": _requests_stream,
}


@guard.protect
async def start(ask: Callable[[], Awaitable[object]]) -> asyncio.Task[object]:
    """Start a task and leave it alone."""

    async def asks() -> object:
        return await ask()

    return asyncio.create_task(asks())


def asked(server: SlowServer) -> bool:
    return bool(server.requests)


async def no_request_is_left(runtime: GuardRuntime) -> None:
    await until_async(lambda: len(runtime.enforcement.bodies) == 0, WAIT_S)


@pytest.mark.parametrize("kind", IN_TASKS)
async def test_in_a_task_that_nobody_awaits(
    operator: Any, server: SlowServer, connected: GuardRuntime, kind: str
) -> None:
    with guard.workflow("w"):
        task = await start(lambda: IN_TASKS[kind](server.url))
    operator(lambda: asked(server))
    with pytest.raises(WorkflowKilledInterrupt) as killed:
        await asyncio.wait_for(task, WAIT_S)
    assert killed.value.workflow_id == "w"
    assert killed.value.reason == "stop it"
    await no_request_is_left(connected)


async def test_behind_a_shield(operator: Any, server: SlowServer, connected: GuardRuntime) -> None:
    tasks: list[asyncio.Task[None]] = []

    @guard.protect
    async def body() -> None:
        async def ask() -> None:
            await IN_TASKS["httpx"](server.url)

        tasks.append(asyncio.create_task(ask()))
        await asyncio.shield(tasks[0])

    operator(lambda: asked(server))
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        await body()
    with pytest.raises(WorkflowKilledInterrupt):
        await asyncio.wait_for(tasks[0], WAIT_S)
    await no_request_is_left(connected)


@pytest.mark.parametrize("kind", IN_THREADS)
async def test_in_a_thread_that_nobody_awaits(
    operator: Any, server: SlowServer, connected: GuardRuntime, kind: str
) -> None:
    with guard.workflow("w"):
        task = await start(lambda: asyncio.to_thread(IN_THREADS[kind], server.url))
    operator(lambda: asked(server))
    with pytest.raises(WorkflowKilledInterrupt) as killed:
        await asyncio.wait_for(task, WAIT_S)
    assert killed.value.reason == "stop it"
    await no_request_is_left(connected)


async def test_a_client_that_tries_again_is_stopped_again(
    operator: Any, server: SlowServer, connected: GuardRuntime
) -> None:
    def ask() -> None:
        with requests.Session() as session:
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=3))
            session.get(f"{server.url}/hang", timeout=None)

    with guard.workflow("w"):
        task = await start(lambda: asyncio.to_thread(ask))
    operator(lambda: asked(server))
    with pytest.raises(WorkflowKilledInterrupt):
        await asyncio.wait_for(task, WAIT_S)
    await until_async(lambda: server.open_connections == 0, WAIT_S)
    await no_request_is_left(connected)


async def test_in_a_thread_of_a_body_that_awaits_it(operator: Any, server: SlowServer) -> None:
    ended = threading.Event()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            _requests_get(server.url)
        except BaseException as exc:
            errors.append(exc)
        finally:
            ended.set()

    @guard.protect
    async def body() -> None:
        await asyncio.to_thread(ask)

    operator(lambda: asked(server))
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        await body()
    await until_async(ended.is_set, WAIT_S)
    assert [type(error) for error in errors] == [WorkflowKilledInterrupt]


async def test_a_blocking_request_in_a_coroutine(operator: Any, server: SlowServer) -> None:
    """It holds up its own loop, where nothing can be cancelled."""

    @guard.protect
    async def body() -> None:
        _requests_get(server.url)

    operator(lambda: asked(server))
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        await body()
    task = asyncio.current_task()
    assert task is not None
    await asyncio.sleep(0.01)  # no cancellation is left over
    assert task.cancelling() == 0


async def test_an_llm_request_in_a_workflow_without_a_protected_call(
    operator: Any, server: SlowServer
) -> None:
    operator(lambda: asked(server))
    with pytest.raises(WorkflowKilledInterrupt):
        async with guard.workflow("w"):
            await IN_TASKS["httpx LLM stream that stalls"](server.url)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_loop_that_is_not_asyncios_is_left_alone() -> None:
    """httpx works on trio as well; what it awaits there cannot be cancelled from here."""

    async def answer() -> str:
        return "an answer"

    def drive() -> object:
        coroutine: Any = llm_request_async(answer)
        with pytest.raises(StopIteration) as stopped:
            coroutine.send(None)
        return stopped.value.value

    with guard.workflow("w"):
        assert await asyncio.to_thread(drive) == "an answer"


async def test_another_request_in_a_workflow_without_a_protected_call_is_left_alone(
    connected: GuardRuntime, tenant: Any
) -> None:
    """The order itself, given from inside of the workflow, comes back with its answer."""
    with guard.workflow("w"):
        for _ in range(20):
            await asyncio.to_thread(tenant.admin.kill, "w")
    await until_async(lambda: "w" in connected.enforcement.control.kills.exact, WAIT_S)
    assert connected.enforcement.control.kills.exact["w"].halted


async def test_other_workflows_go_on(
    operator: Any, server: SlowServer, connected: GuardRuntime
) -> None:
    tasks: list[asyncio.Task[Any]] = []
    for name in ("w", "other"):
        with guard.workflow(name):
            tasks.append(await start(lambda: _aiohttp_get(server.url)))
    tasks.append(asyncio.create_task(_aiohttp_get(server.url)))
    operator(lambda: len(server.requests) == 3)
    with pytest.raises(WorkflowKilledInterrupt):
        await asyncio.wait_for(tasks[0], WAIT_S)
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in tasks[1:])
    for task in tasks[1:]:
        task.cancel()
    results = await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
    await no_request_is_left(connected)


async def test_both_of_two_nested_workflows(operator: Any, server: SlowServer) -> None:
    """The request is no part of the body's workflow, and both are killed by one order."""

    @guard.protect
    async def body() -> None:
        with guard.workflow("inner"):
            await IN_TASKS["httpx LLM stream that stalls"](server.url)

    operator(lambda: asked(server), "*")
    with guard.workflow("outer"), pytest.raises(WorkflowKilledInterrupt):
        await body()
    task = asyncio.current_task()
    assert task is not None
    await asyncio.sleep(0.01)
    assert task.cancelling() == 0


async def test_the_users_own_cancellation_stays_one(
    server: SlowServer, connected: GuardRuntime
) -> None:
    with guard.workflow("w"):
        task = await start(lambda: IN_TASKS["httpx"](server.url))
    await until_async(lambda: asked(server), WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await no_request_is_left(connected)


async def test_what_a_clean_up_asks_for_after_the_kill_is_let_through(
    operator: Any, server: SlowServer, connected: GuardRuntime, tenant: Any
) -> None:
    """Unless it is an LLM request; and another kill of another workflow does not stop it."""
    answered: list[int] = []
    refused: list[BaseException] = []

    async def ask() -> None:
        async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
            try:
                await client.get(f"{server.url}/hang")
            finally:
                async with client.stream("GET", f"{server.url}/drip") as response:
                    await asyncio.to_thread(tenant.admin.kill, "another")
                    await until_async(
                        lambda: "another" in connected.enforcement.control.kills.exact, WAIT_S
                    )
                    answered.append(response.status_code)
                with contextlib.suppress(BaseException):
                    try:
                        await client.post(f"{server.url}/{CHAT}", json={})
                    except BaseException as exc:
                        refused.append(exc)
                        raise

    with guard.workflow("w"):
        task = await start(ask)
    operator(lambda: asked(server))
    with pytest.raises(WorkflowKilledInterrupt):
        await asyncio.wait_for(task, WAIT_S)
    assert answered == [200]
    assert [type(error) for error in refused] == [WorkflowKilledInterrupt]


async def test_guards_own_requests_are_none_of_the_workflows(
    server: SlowServer, connected: GuardRuntime
) -> None:
    """They run on the background loop, in the context of their caller."""
    seen: list[object] = []
    enter = connected.enter_request

    def watched(*args: Any) -> Any:
        request = enter(*args)
        seen.append(request)
        return request

    connected.enter_request = watched  # type: ignore[method-assign]
    assert connected.link.session is not None
    connected.link.session.asks.supports(False)  # so that it asks over HTTP
    with guard.workflow("w"):
        await guard.protect(asyncio.sleep)(0)
    assert seen
    assert not any(seen)
