"""Compressed bodies of requests are read: held like the plain ones, and sent as they are."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import aiohttp
import brotli
import httpx
import pytest
import requests
import zstandard

import guard
from guard.runtime.runtime import GuardRuntime
from tests.guard.instrumentation.conftest import Observed, start_observing
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.gated_clients import CHAT, INSIDE
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn

BODY = {
    "model": "gpt-5",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "Hello? " * 90}],
}
PLAIN = json.dumps(BODY).encode()
ANSWER = Reply(None, encoded({"id": "c", "choices": [], "model": "gpt-5",
                              "usage": {"prompt_tokens": 3, "completion_tokens": 2}}))  # fmt: skip


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", _raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "two": ("gzip, br", lambda data: brotli.compress(gzip.compress(data))),
    "identity": ("identity", bytes),
}


def by_httpx(url: str, body: bytes, headers: dict[str, str]) -> None:
    httpx.post(url, content=body, headers=headers)


def by_httpx_client(url: str, body: bytes, headers: dict[str, str]) -> None:
    with httpx.Client(headers=headers) as client:
        client.post(url, content=body)


def by_httpx_async(url: str, body: bytes, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with httpx.AsyncClient() as client:
            await client.post(url, content=body, headers=headers)

    asyncio.run(main())


def by_requests(url: str, body: bytes, headers: dict[str, str]) -> None:
    requests.post(url, data=body, headers=headers, timeout=60)


def by_aiohttp(url: str, body: bytes, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=body, headers=headers),
        ):
            pass

    asyncio.run(main())


def by_aiohttp_session(url: str, body: bytes, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(url, data=body),
        ):
            pass

    asyncio.run(main())


CLIENTS = [
    by_httpx, by_httpx_client, by_httpx_async, by_requests, by_aiohttp, by_aiohttp_session,
]  # fmt: skip


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("send", CLIENTS)
def test_it_is_held_like_a_plain_one_and_sent_as_it_is(
    standin: StandIn,
    gate: FakeGate,
    gated: Observed,
    send: Callable[[str, bytes, dict[str, str]], None],
    packed: str,
) -> None:
    standin.instead = ANSWER
    name, pack = PACKERS[packed]
    body = pack(PLAIN)
    send(standin.url + CHAT, PLAIN, {})
    send(standin.url + CHAT, body, {"Content-Encoding": name})
    plain, held = (each.bound for each in gate.holds)
    assert held == plain
    assert held.output_tokens == 50
    assert standin.bodies[-1] == body
    assert len(gated.events) == 2


@pytest.mark.parametrize("send", CLIENTS)
def test_no_limit_is_put_into_it(
    standin: StandIn,
    gate: FakeGate,
    send: Callable[[str, bytes, dict[str, str]], None],
) -> None:
    from guard.scope.scope import current_scope

    standin.instead = ANSWER
    observing = start_observing(request_gate=gate, max_output_tokens=77, inject_stream_usage=True)
    token = current_scope.set(INSIDE)
    body = gzip.compress(json.dumps({**BODY, "max_tokens": None, "stream": True}).encode())
    send(standin.url + CHAT, body, {"Content-Encoding": "gzip"})
    current_scope.reset(token)
    observing.instrumentation.uninstall()
    assert standin.bodies == [body]
    assert gate.holds[0].bound.output_tokens is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (gzip.compress(bytes(32 * 1024 * 1024 + 1)), "gzip"),
        (gzip.compress(PLAIN), "no-such-thing"),
        (b"\x1f\x8bbroken", "gzip"),
    ],
    ids=["bomb", "unknown", "broken"],
)
def test_what_cannot_be_read_is_held_without_a_model(
    standin: StandIn, gate: FakeGate, gated: Observed, body: bytes, name: str
) -> None:
    standin.instead = ANSWER
    by_httpx(standin.url + CHAT, body, {"Content-Encoding": name})
    (held,) = gate.holds
    assert (held.bound.model, held.bound.input_tokens) == (None, None)
    assert gated.instrumentation.failures == 0


def test_a_packed_body_is_held_where_only_a_body_tells_that_it_is_an_llm(
    standin: StandIn, gate: FakeGate, gated: Observed
) -> None:
    standin.instead = ANSWER
    httpx.post(f"{standin.url}/v1/messages", content=gzip.compress(PLAIN))
    assert len(gate.holds) == 1
    httpx.post(f"{standin.url}/v1/messages", content=b"to=%2B1555&text=hi")
    assert len(gate.holds) == 1, "of something else"


class TestWithAnAllowList:
    """What cannot be read may be for any model."""

    @pytest.fixture(autouse=True)
    def _allowed(self, tenant: Any, standin: StandIn) -> None:
        standin.instead = ANSWER
        tenant.admin.set_policy("only", models_allow=["gpt-5"])

    def test_a_readable_one_goes_out(
        self, standin: StandIn, start: Callable[..., GuardRuntime]
    ) -> None:
        start()
        with guard.workflow("w"):
            by_httpx(standin.url + CHAT, gzip.compress(PLAIN), {"Content-Encoding": "gzip"})
        assert len(standin.bodies) == 1

    @pytest.mark.parametrize(
        ("body", "name"),
        [(gzip.compress(PLAIN), "no-such-thing"), (PLAIN.replace(b"gpt-5", b"gpt-4"), "identity"),
         (gzip.compress(PLAIN.replace(b"gpt-5", b"gpt-4")), "gzip"), (b"not JSON at all", "")],
        ids=["unreadable", "another model", "another model, packed", "no JSON"],
    )  # fmt: skip
    def test_others_are_refused(
        self, standin: StandIn, start: Callable[..., GuardRuntime], body: bytes, name: str
    ) -> None:
        start()
        with pytest.raises(guard.GuardBlockedException, match="model"), guard.workflow("w"):
            by_httpx(standin.url + CHAT, body, {"Content-Encoding": name} if name else {})
        assert standin.bodies == []
