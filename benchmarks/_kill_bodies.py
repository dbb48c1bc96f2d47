"""The bodies that ``benchmarks.kill`` kills, by kind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

import guard

WAIT_S: Final = 30.0

Note = Callable[[], None]
"""Called by a body when it is running, and again when it has been stopped."""


class Missing(Exception):
    """A library that a kind needs is not installed."""


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as exc:
        raise Missing(f"{name} is not installed") from exc


async def a_sleep(url: str, note: Note) -> None:
    """asyncio.sleep"""
    note()
    await asyncio.sleep(WAIT_S)


def a_http(module: str, path: str) -> Callable[[str, Note], Awaitable[None]]:
    async def body(url: str, note: Note) -> None:
        async with _module(module).AsyncClient(timeout=None, trust_env=False) as client:
            if path == "hang":
                note()
            async with client.stream("GET", f"{url}/{path}") as response:
                async for _ in response.aiter_bytes():
                    note()

    body.path = path  # type: ignore[attr-defined]
    return body


async def a_aiohttp(url: str, note: Note) -> None:
    aiohttp = _module("aiohttp")
    async with aiohttp.ClientSession() as client, client.get(f"{url}/drip") as response:
        async for _ in response.content.iter_any():
            note()


async def a_group(url: str, note: Note) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(asyncio.sleep(WAIT_S))
        note()


async def a_anyio(url: str, note: Note) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(anyio.sleep, WAIT_S)
        note()


async def a_gather(url: str, note: Note) -> None:
    note()
    await asyncio.gather(*(asyncio.sleep(WAIT_S) for _ in range(5)), return_exceptions=True)


async def a_timeout(url: str, note: Note) -> None:
    note()
    async with asyncio.timeout(WAIT_S):
        await asyncio.sleep(WAIT_S)


async def a_shield(url: str, note: Note) -> None:
    inner = asyncio.ensure_future(asyncio.sleep(WAIT_S))
    note()
    try:
        await asyncio.shield(inner)
    finally:
        inner.cancel()


async def a_nested(url: str, note: Note) -> None:
    await guard.protect(a_sleep)(url, note)


async def a_generator(url: str, note: Note) -> None:
    @guard.protect
    async def numbers() -> Any:
        yield 1
        await a_sleep(url, note)

    async for _ in numbers():
        pass


def s_loop(url: str, note: Note) -> None:
    note()
    while True:
        pass


def s_http(module: str, path: str) -> Callable[[str, Note], None]:
    def body(url: str, note: Note) -> None:
        library = _module(module)
        if path == "hang":
            note()
        if module == "requests":
            with library.get(f"{url}/{path}", stream=True, timeout=None) as response:
                for _ in response.iter_content(9):
                    note()
            return
        with (
            library.Client(timeout=None, trust_env=False) as client,
            client.stream("GET", f"{url}/{path}") as response,
        ):
            for _ in response.iter_bytes():
                note()

    body.path = path  # type: ignore[attr-defined]
    return body


def s_naps(url: str, note: Note) -> None:
    note()
    while True:
        time.sleep(0.02)


def s_generator(url: str, note: Note) -> None:
    @guard.protect
    def numbers() -> Any:
        yield 1
        s_loop(url, note)

    for _ in numbers():
        pass


def s_carried(url: str, note: Note) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(guard.context.carry(s_loop), url, note).exception()


def s_run(url: str, note: Note) -> None:
    asyncio.run(a_sleep(url, note))  # type: ignore[arg-type]


ASYNC: Final[dict[str, Callable[[str, Note], Awaitable[None]]]] = {
    "asyncio.sleep": a_sleep,
    "httpx, before headers": a_http("httpx", "hang"),
    "httpx, between chunks": a_http("httpx", "drip"),
    "httpx2, before headers": a_http("httpx2", "hang"),
    "httpx2, between chunks": a_http("httpx2", "drip"),
    "aiohttp, between chunks": a_aiohttp,
    "TaskGroup": a_group,
    "anyio task group": a_anyio,
    "gather(return_exceptions)": a_gather,
    "asyncio.timeout": a_timeout,
    "shield": a_shield,
    "nested protected call": a_nested,
    "async generator": a_generator,
}
SYNC: Final[dict[str, Callable[[str, Note], None]]] = {
    "Python loop": s_loop,
    "Python loop, generator": s_generator,
    "Python loop, carried thread": s_carried,
    "asyncio.run inside": s_run,
    "httpx, before headers": s_http("httpx", "hang"),
    "httpx, between chunks": s_http("httpx", "drip"),
    "httpx, flood": s_http("httpx", "flood"),
    "httpx2, before headers": s_http("httpx2", "hang"),
    "httpx2, between chunks": s_http("httpx2", "drip"),
    "requests, before headers": s_http("requests", "hang"),
    "requests, between chunks": s_http("requests", "drip"),
    "C call: time.sleep(0.02)": s_naps,
}
