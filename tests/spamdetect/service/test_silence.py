"""A PostgreSQL or a Redis that stops answering without a word, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from spamdetect.errors import SpamConfigError
from spamdetect.service.app import open_store
from spamdetect.testing import RunningService, run_service_async
from tests.support.private_server import schema_in
from tests.support.proxy import ChaosProxy

pytestmark = [pytest.mark.asyncio, pytest.mark.fault]

PREDICT = "/v1/spam-detection/predict"
SILENT_S = 40.0
"""A request waits at most about 2 seconds for a silent server; the rest is for a busy machine.

One that waits for the system to give up waits for minutes.
"""


@contextlib.contextmanager
def line_to(url: str) -> Iterator[ChaosProxy]:
    proxy = ChaosProxy(url)
    try:
        yield proxy
    finally:
        proxy.close()


def heal(line: ChaosProxy) -> None:
    """Let new connections through; those that were open stay silent for ever."""
    line.strand()
    line.fault = "none"


class Caller:
    """Asks a service, and says how it answered and after how long."""

    def __init__(self, service: RunningService) -> None:
        self._client = httpx.AsyncClient(
            base_url=service.base_url, headers={"x-api-key": service.api_key}, timeout=300
        )

    async def ask(self) -> tuple[int, str, float]:
        started_s = time.monotonic()
        answer = await self._client.post(PREDICT, json={"text": "hello"})
        took_s = time.monotonic() - started_s
        return answer.status_code, answer.json()["data"]["error_code"], took_s

    async def status(self, page: str) -> int:
        return (await self._client.get(page)).status_code

    async def close(self) -> None:
        await self._client.aclose()


@contextlib.asynccontextmanager
async def calling(**settings: Any) -> AsyncIterator[Caller]:
    async with run_service_async(max_queue_wait_ms=60_000, **settings) as service:
        caller = Caller(service)
        try:
            yield caller
        finally:
            await caller.close()


async def recovered(caller: Caller) -> None:
    async with asyncio.timeout(60):
        while (await caller.ask())[0] != 200:
            await asyncio.sleep(0.05)
    assert await caller.status("/readyz") == 200


@contextlib.asynccontextmanager
async def database(server: Any) -> AsyncIterator[tuple[ChaosProxy, str]]:
    """A schema of its own, and what stands between it and the service."""
    server.start()
    folder = parse_qs(urlsplit(server.url).query)["host"][0]
    with line_to(f"unix://{folder}/.s.PGSQL.5432") as line:
        port = line.url.rpartition(":")[2]
        async with schema_in(server.url) as url:
            yield line, f"postgresql://postgres@127.0.0.1:{port}/postgres?{url.partition('&')[2]}"


@pytest.mark.parametrize("kind", ["hang", "partition"])
async def test_a_silent_postgres_is_503_soon_and_comes_back(
    private_postgres: Any, kind: str
) -> None:
    async with database(private_postgres) as (line, url), calling(database_url=url) as caller:
        assert (await caller.ask())[0] == 200
        line.part(kind)
        # More than the pool has connections, and again when each of them is broken.
        for _ in range(2):
            found = await asyncio.gather(*(caller.ask() for _ in range(25)))
            assert {answer[:2] for answer in found} == {(503, "UNAVAILABLE")}
            assert max(took_s for *_, took_s in found) < SILENT_S
        assert await caller.status("/readyz") == 503
        assert await caller.status("/healthz") == 200
        heal(line)
        await recovered(caller)


async def test_a_postgres_that_falls_silent_between_two_questions_is_503(
    private_postgres: Any,
) -> None:
    async with (
        database(private_postgres) as (line, url),
        calling(database_url=url, rate_per_minute=6000) as caller,
    ):
        line.mute_after = b"SELECT requests FROM spamdetect_key_usage"
        status, error_code, took_s = await caller.ask()
        assert (status, error_code) == (503, "UNAVAILABLE")
        assert took_s < SILENT_S
        line.mute_after = None
        await recovered(caller)


@pytest.mark.parametrize("kind", ["hang", "partition"])
async def test_a_service_stops_while_postgres_is_silent(private_postgres: Any, kind: str) -> None:
    async with database(private_postgres) as (line, url):
        async with calling(database_url=url) as caller:
            assert (await caller.ask())[0] == 200
            line.part(kind)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 2 * SILENT_S


@pytest.mark.parametrize("kind", ["hang", "partition"])
async def test_a_service_that_starts_before_a_silent_postgres_says_so(
    private_postgres: Any, kind: str
) -> None:
    async with database(private_postgres) as (line, url):
        line.part(kind)
        began_s = time.monotonic()
        with pytest.raises(SpamConfigError, match="Cannot open the PostgreSQL key store"):
            await open_store(url)
        assert time.monotonic() - began_s < 2 * SILENT_S


@pytest.mark.parametrize("kind", ["hang", "partition"])
async def test_limits_go_on_while_redis_is_silent(private_redis: Any, kind: str) -> None:
    private_redis.start()
    with line_to(private_redis.url) as line:
        url = line.url.replace("http", "redis") + "/0"
        async with calling(redis_url=url) as caller:
            assert (await caller.ask())[0] == 200
            line.part(kind)
            for _ in range(2):
                found = await asyncio.gather(*(caller.ask() for _ in range(25)))
                assert {status for status, *_ in found} == {200}
                assert max(took_s for *_, took_s in found) < SILENT_S
                await asyncio.sleep(1.1)  # longer than Redis is left alone
            heal(line)
            line.connections = 0
            async with asyncio.timeout(60):
                while not line.connections:
                    assert (await caller.ask())[0] == 200
                    await asyncio.sleep(0.05)
