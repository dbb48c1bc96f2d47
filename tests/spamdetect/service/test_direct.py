"""Requests that the server's protocol answers itself: as the application would, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
import pytest_asyncio

from spamdetect.service import direct
from spamdetect.service.app import SpamService
from spamdetect.service.keys import KeySpec
from spamdetect.service.server import serving
from spamdetect.service.settings import ServiceSettings

pytestmark = pytest.mark.asyncio

PREDICT = "/v1/spam-detection/predict"
TEXT = b'{"text": "You won! Claim your free prize at http://bit.ly/x now"}'
JSON = "content-type: application/json"


class Site:
    """A service, a key for it, and who answered."""

    def __init__(self, service: SpamService, base_url: str, api_key: str) -> None:
        self.service = service
        self.base_url = base_url
        self.port = int(base_url.rpartition(":")[2])
        self.api_key = api_key
        self.direct = 0
        self.received = 0

    def request(
        self, body: bytes = TEXT, *headers: str, path: str = PREDICT, method: str = "POST",
        version: str = "1.1", key: str | None = None,
    ) -> bytes:  # fmt: skip
        """One request, with a JSON body, a key and whatever else."""
        lines = [
            f"{method} {path} HTTP/{version}",
            "host: x",
            f"x-api-key: {self.api_key if key is None else key}",
            *(headers or (JSON,)),
            f"content-length: {len(body)}",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def site_of(tmp_path: Path, **settings: Any) -> AsyncIterator[Site]:
    url = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
    chosen = {"rate_per_minute": 0, "max_queue_wait_ms": 60_000.0, **settings}
    service = SpamService(ServiceSettings(port=0, database_url=url, **chosen))
    async with serving(service) as server:
        key = await service.store.create(KeySpec())
        site = Site(service, server.base_url, key.api_key)
        send, received = direct.DirectProtocol._send, direct.DirectProtocol.data_received

        def counted(self: Any, cycle: Any, reply: Any) -> None:
            site.direct += 1
            send(self, cycle, reply)

        def noted(self: Any, data: bytes) -> None:
            received(self, data)
            site.received += len(data)

        with (
            mock.patch.object(direct.DirectProtocol, "_send", counted),
            mock.patch.object(direct.DirectProtocol, "data_received", noted),
        ):
            yield site


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_of(tmp_path) as made:
        # The first request of a key loads its counts, which waits for the store.
        async with made.connection() as (reader, writer):
            writer.write(made.request())
            await answer(reader)
        made.direct = 0
        yield made


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    return (
        int(status.split(" ")[1]),
        fields,
        await reader.readexactly(int(fields["content-length"])),
    )


Raw = Callable[[Site], bytes]
# A request, and whether the protocol answers it alone.
REQUESTS: dict[str, tuple[Raw, bool]] = {
    "predict": (lambda site: site.request(), True),
    "preprocess": (lambda site: site.request(path=PREDICT.replace("predict", "preprocess")), True),
    "threshold": (lambda site: site.request(b'{"text": "a", "threshold": "strict"}'), True),
    "wrong threshold": (lambda site: site.request(b'{"text": "a", "threshold": 7}'), True),
    "empty text": (lambda site: site.request(b'{"text": ""}'), True),
    "no text": (lambda site: site.request(b"{}"), True),
    "no JSON": (lambda site: site.request(b"{"), True),
    "no body": (lambda site: site.request(b""), True),
    "no key": (lambda site: site.request(key=""), True),
    "wrong key": (lambda site: site.request(key=site.api_key[:-1] + "!"), True),
    "media type": (lambda site: site.request(TEXT, "content-type: text/plain"), True),
    "charset": (lambda site: site.request(TEXT, f"{JSON}; charset=utf-8"), True),
    "compressed": (lambda site: site.request(TEXT, JSON, "content-encoding: gzip"), True),
    "too long": (lambda site: site.request(b'{"text": "' + b"a" * 100_001 + b'"}'), True),
    "upper case": (lambda site: site.request().replace(b"x-api-key", b"X-Api-Key"), True),
    "two keys": (lambda site: site.request(TEXT, JSON, "x-api-key: other"), True),
    "two headers": (lambda site: site.request(TEXT, JSON, "accept: a", "accept: b"), True),
    "query": (lambda site: site.request(path=f"{PREDICT}?a=b"), False),
    "escaped path": (lambda site: site.request(path=PREDICT.replace("p", "%70")), False),
    "method": (lambda site: site.request(method="PUT"), False),
    "other path": (lambda site: site.request(path=f"{PREDICT}s"), False),
    "feedback": (lambda site: site.request(path=PREDICT.replace("predict", "feedback")), True),
    "upgrade": (
        lambda site: site.request(TEXT, JSON, "connection: upgrade", "upgrade: h2c"), False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
async def test_both_ways_give_the_same_answer(site: Site, name: str) -> None:
    make, alone = REQUESTS[name]
    raw = make(site)
    async with site.connection() as (reader, writer):
        writer.write(raw)
        one = await answer(reader)
    if len(raw) < 50_000:  # a larger one may come in pieces
        assert bool(site.direct) is alone
    async with site.connection() as (reader, writer):
        with mock.patch.object(direct.DirectProtocol, "_is_plain", return_value=False):
            writer.write(raw)
            other = await answer(reader)
    assert one[0] == other[0]
    assert one[2] == other[2]
    dates = one[1].pop("date"), other[1].pop("date")
    assert list(one[1].items()) == list(other[1].items())
    assert all(date.endswith("GMT") for date in dates)


async def test_many_requests_on_one_connection(site: Site) -> None:
    async with site.connection() as (reader, writer):
        for n in range(30):
            writer.write(site.request(b'{"text": "number %d"}' % n))
            status, _, body = await answer(reader)
            assert status == 200
            assert b'"input_text":"number %d"' % n in body
    assert site.direct == 30


async def test_pipelined_requests_are_answered_in_order(site: Site) -> None:
    paths = [PREDICT, "/healthz", PREDICT, PREDICT, "/none", PREDICT]
    raw = b"".join(
        site.request(
            b'{"text": "number %d"}' % n, path=path, method="GET" if "z" in path else "POST"
        )
        for n, path in enumerate(paths)
    )
    async with site.connection() as (reader, writer):
        for pieces in (1, 2, 7, 40):
            step = -(-len(raw) // pieces)
            for at in range(0, len(raw), step):
                writer.write(raw[at : at + step])
                await writer.drain()
                await asyncio.sleep(0.001)
            for n, path in enumerate(paths):
                status, _, body = await answer(reader)
                if path == PREDICT:
                    assert (status, b"number %d" % n in body) == (200, True)
                else:
                    assert status == (404 if path == "/none" else 200)


@pytest.mark.parametrize("at", [-len(TEXT), -len(TEXT) + 5, -1])
async def test_a_body_in_pieces_is_answered(
    site: Site, at: int, until: Callable[..., Awaitable[None]]
) -> None:
    raw = site.request()
    async with site.connection() as (reader, writer):
        for _ in range(2):
            site.received = 0
            writer.write(raw[:at])
            await until(lambda: site.received == len(raw[:at]))
            writer.write(raw[at:])
            assert (await answer(reader))[0] == 200
        writer.write(raw)
        assert (await answer(reader))[0] == 200
    assert site.direct == 1


async def test_a_body_of_many_chunks_is_put_together(site: Site) -> None:
    text = b'{"text": "' + b"a" * 2000 + b'"}'
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    head = site.request(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    async with site.connection() as (reader, writer):
        writer.write(head + body)
        status, _, found = await answer(reader)
    assert (status, b'"text_length":2000' in found, site.direct) == (200, True, 1)


async def test_a_client_that_waits_for_100_gets_it(site: Site) -> None:
    raw = site.request(TEXT, JSON, "expect: 100-continue")
    async with site.connection() as (reader, writer):
        writer.write(raw[: -len(TEXT)])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(TEXT)
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize(
    ("version", "header"), [("1.0", "accept: a"), ("1.1", "connection: close")]
)
async def test_a_connection_that_is_to_close_is_closed(
    site: Site, version: str, header: str
) -> None:
    async with site.connection() as (reader, writer):
        writer.write(site.request(TEXT, JSON, header, version=version))
        status, fields, _ = await answer(reader)
        assert (status, fields["connection"]) == (200, "close")
        assert await reader.read() == b""


async def _closed_when_idle(site: Site, keep_alive_s: float) -> bool:
    """Use a connection for longer than it may be idle, then leave it; ``False`` if that is slow."""
    loop = asyncio.get_running_loop()
    async with site.connection() as (reader, writer):
        began_s = sent_s = loop.time()
        while sent_s - began_s < 1.5 * keep_alive_s:
            sent_s = loop.time()
            try:
                writer.write(site.request())
                assert (await answer(reader))[0] == 200
                await asyncio.sleep(keep_alive_s / 8)
            except (asyncio.IncompleteReadError, ConnectionError):
                assert loop.time() - sent_s >= keep_alive_s, "it was not idle"
                return False
        return await reader.read() == b""


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    with mock.patch("spamdetect.service.server._KEEP_ALIVE_S", 0.4):
        async with site_of(tmp_path) as site:
            while not await _closed_when_idle(site, 0.4):
                pass


async def test_a_head_that_stops_after_an_answer_is_408(tmp_path: Path) -> None:
    statuses: list[int] = []
    async with site_of(tmp_path, header_timeout_s=0.2) as site:
        while statuses[:2] != [200, 200]:  # else the machine was too slow for a whole head
            statuses.clear()
            async with site.connection() as (reader, writer):
                for raw in (site.request(), site.request(), b"POST /v1/spam"):
                    writer.write(raw)
                    statuses.append((await answer(reader))[0])
                    if statuses[-1] != 200:
                        break
            assert statuses[-1] == 408


async def test_a_client_that_leaves_harms_nobody(site: Site) -> None:
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(site.request())
        await writer.drain()
        writer.transport.abort()
    async with httpx.AsyncClient(base_url=site.base_url) as client:
        assert (await client.get("/healthz")).status_code == 200


async def test_the_rate_holds(tmp_path: Path) -> None:
    async with site_of(tmp_path, rate_per_minute=60) as site, site.connection() as (reader, writer):
        statuses = []
        for _ in range(30):
            writer.write(site.request())
            statuses.append((await answer(reader))[0])
        assert set(statuses) == {200, 429}
        assert 10 <= statuses.count(200) <= 25
    assert site.direct == 30


async def test_the_service_stops_after_the_running_requests(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with site_of(tmp_path) as site:
            reader, writer = await stack.enter_async_context(site.connection())
            writer.write(site.request())
            await answer(reader)
        assert await asyncio.wait_for(reader.read(), 60) == b""
