"""Many clients at once, on each engine; and what a client that is refused is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from spamdetect import AsyncSpamClient
from spamdetect.testing import RunningService, run_service_async
from tests.support.private_server import schema_in

PREDICT = "/v1/spam-detection/predict"
MB = 1 << 20


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'keys.sqlite3'}"
        return
    async with schema_in(request.getfixturevalue("postgres_url")) as url:
        yield url


def _address(service: RunningService) -> tuple[str, int]:
    return "127.0.0.1", int(service.base_url.rpartition(":")[2])


def _request(service: RunningService, body: bytes = b'{"text": "hello"}', size: int = 0) -> bytes:
    return (
        f"POST {PREDICT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"x-api-key: {service.api_key}\r\ncontent-length: {size or len(body)}\r\n\r\n"
    ).encode() + body


@pytest.mark.asyncio
async def test_two_hundred_reports_of_one_key_at_once_are_all_taken(database_url: str) -> None:
    async with (
        run_service_async(database_url=database_url, max_queue_wait_ms=60_000) as service,
        AsyncSpamClient(service.base_url, service.api_key, timeout=120, retries=0) as spam,
    ):
        texts = [f"An offer of number {number} for watches and pills" for number in range(200)]
        await asyncio.gather(*(spam.send_feedback(text, is_spam=True) for text in texts))
        assert (await spam.predict(texts[7])).is_spam


@pytest.mark.asyncio
async def test_a_thousand_clients_and_more_than_are_served_lose_no_answer(
    database_url: str,
) -> None:
    """Those beyond the most that are served have sent their request when they are turned away."""
    served, beyond = 1000, 100

    async def ask(gate: asyncio.Event) -> int:
        reader, writer = await asyncio.open_connection(*_address(service))
        try:
            if not gate.is_set():
                await gate.wait()
            writer.write(_request(service))
            await writer.drain()
            return int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
        finally:
            writer.close()

    async with run_service_async(
        database_url=database_url, max_queue_wait_ms=60_000, max_connections=served
    ) as service:
        gate = asyncio.Event()
        waiting = [asyncio.create_task(ask(gate)) for _ in range(served)]
        async with httpx.AsyncClient(base_url=service.base_url, timeout=120) as client:
            # The service has all of them when it turns the next one away.
            while (await client.get("/healthz")).status_code != 503:
                await asyncio.sleep(0)
            refused = await asyncio.gather(
                *(client.post(PREDICT, content=b"x" * 100_000) for _ in range(beyond))
            )
        assert {answer.status_code for answer in refused} == {503}
        gate.set()
        assert Counter(await asyncio.gather(*waiting)) == {200: served}


@pytest.mark.asyncio
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_that_is_too_long_is_refused_before_it_is_sent(is_chunked: bool) -> None:
    """The answer is there while the client goes on sending, and no reset takes it away."""
    async with run_service_async(max_text_chars=1000, body_timeout_s=600) as service:
        head = _request(service, b"", 64 * MB)
        if is_chunked:
            head = head.replace(b"content-length: 67108864", b"transfer-encoding: chunked")
        reader, writer = await asyncio.open_connection(*_address(service))
        async with asyncio.timeout(60):
            writer.write(head)
            if is_chunked:
                writer.write(b"%x\r\n" % (64 * MB) + b"x" * MB)
            found = await reader.readuntil(b"}}")
            assert found.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close" in found
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"x" * MB)
                    await writer.drain()
        writer.close()


@pytest.mark.asyncio
async def test_a_request_names_its_host_once() -> None:
    async with run_service_async() as service:
        for hosts, status in ((0, 400), (1, 200), (2, 400)):
            for path in (b"GET /healthz", None):
                raw = _request(service)
                if path:
                    raw = path + b" HTTP/1.1\r\nhost: x\r\n\r\n"
                raw = raw.replace(b"host: x\r\n", b"host: x\r\n" * hosts)
                reader, writer = await asyncio.open_connection(*_address(service))
                async with asyncio.timeout(60):
                    writer.write(raw)
                    found = await reader.readuntil(b"\r\n\r\n")
                assert int(found.split(b" ")[1]) == status, (hosts, path)
                writer.close()
        # HTTP/1.0 knows no hosts.
        reader, writer = await asyncio.open_connection(*_address(service))
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("page", ["healthz", "readyz", "metrics", "openapi.json"])
async def test_a_page_without_a_key_reads_no_body(page: str) -> None:
    async with run_service_async() as service:
        reader, writer = await asyncio.open_connection(*_address(service))
        async with asyncio.timeout(60):
            writer.write(
                f"GET /{page} HTTP/1.1\r\nhost: x\r\ncontent-length: 67108864\r\n\r\n".encode()
            )
            found = await reader.readuntil(b"}}")
            assert found.startswith(b"HTTP/1.1 413 ")
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"x" * MB)
                    await writer.drain()
        writer.close()
