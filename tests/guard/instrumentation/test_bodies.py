"""Counted is what is sent: each body that reaches a socket has taken one hold, by every stack."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpcore
import httpcore2
import httpx
import httpx2
import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter

from guard.breaker.refusals import Refusal
from guard.running.child import refuse_unseen
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.test_ends import PricedGate, charged
from tests.support.body_counter import OUTPUT, PROMPT, Behaviour, BodyCounter
from tests.support.closing import turns
from tests.support.waiting import WAIT_S, until, until_async

CHAT = "/v1/chat/completions"
ASK = {"model": "gpt-4o", "max_tokens": OUTPUT, "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(ASK).encode()
HEADERS = {"content-type": "application/json", "user-agent": "x"}
TRIES = 4

Ask = Callable[[str, int], None]
"""Sends so many requests to a URL, one after the other, over one client."""

STACKS: dict[str, Ask] = {}
"""Every way to send a request that is observed. Each follows redirects, and tries again, by itself
if it can; what comes of it is of no interest."""


def stack(name: str) -> Callable[[Ask], Ask]:
    def note(ask: Ask) -> Ask:
        STACKS[name] = ask
        return ask

    return note


_SERVERS: list[BodyCounter] = []
"""The running server: a connection that it closes is closed before the next request."""


def _each(send: Callable[[], Any], number: int) -> None:
    for _ in range(number):
        with contextlib.suppress(Exception):
            send()
        until(lambda: not _SERVERS[0].closing)


async def _each_async(send: Callable[[], Any], number: int) -> None:
    for _ in range(number):
        with contextlib.suppress(Exception):
            await send()
        await until_async(lambda: not _SERVERS[0].closing)
        await turns()  # of the loop, in which it notices that


def _is_final(status: int) -> bool:
    return status not in (502, 503, 429)


# -- httpx and httpx2 ---------------------------------------------------------------------------


def _httpx(module: Any, core: Any) -> None:
    class Retrying(module.BaseTransport):  # type: ignore[misc, name-defined]
        """Another client's pool, without the client's own transport."""

        def __init__(self) -> None:
            self._pool = core.ConnectionPool()

        def handle_request(self, request: Any) -> Any:
            url = core.URL(scheme=request.url.raw_scheme, host=request.url.raw_host,
                           port=request.url.port, target=request.url.raw_path)  # fmt: skip
            for left in reversed(range(TRIES)):
                try:
                    found = self._pool.handle_request(core.Request(
                        request.method, url, headers=request.headers.raw, content=request.stream,
                    ))  # fmt: skip
                except (core.NetworkError, core.ProtocolError):
                    if not left:
                        raise
                    continue
                content = b"".join(found.stream)
                found.close()
                if _is_final(found.status) or not left:
                    return module.Response(found.status, headers=found.headers, content=content)
            raise AssertionError

        def close(self) -> None:
            self._pool.close()

    class RetryingAsync(module.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._pool = module.AsyncHTTPTransport()

        async def handle_async_request(self, request: Any) -> Any:
            for left in reversed(range(TRIES)):
                try:
                    response = await self._pool.handle_async_request(request)
                except module.TransportError:
                    if not left:
                        raise
                    continue
                if _is_final(response.status_code) or not left:
                    return response
                await response.aread()
                await response.aclose()
            raise AssertionError

        async def aclose(self) -> None:
            await self._pool.aclose()

    name = module.__name__

    def blocking(**options: Any) -> Ask:
        def ask(url: str, number: int) -> None:
            made = {key: make() for key, make in options.items()}
            with module.Client(follow_redirects=True, timeout=WAIT_S, **made) as client:
                auth = module.DigestAuth("u", "p")
                _each(lambda: client.post(url, json=ASK, auth=auth), number)

        return ask

    def waiting(**options: Any) -> Ask:
        def ask(url: str, number: int) -> None:
            async def main() -> None:
                made = {key: make() for key, make in options.items()}
                settings: Any = {"follow_redirects": True, "timeout": WAIT_S, **made}
                async with module.AsyncClient(**settings) as client:
                    auth = module.DigestAuth("u", "p")
                    await _each_async(lambda: client.post(url, json=ASK, auth=auth), number)

            asyncio.run(main())

        return ask

    STACKS[name] = blocking()
    STACKS[f"{name} over a pool"] = blocking(transport=Retrying)
    STACKS[f"{name} async"] = waiting()
    STACKS[f"{name} async, tried again"] = waiting(transport=RetryingAsync)
    if module is httpx:
        from httpx_aiohttp import AiohttpTransport

        STACKS["httpx over aiohttp"] = waiting(transport=AiohttpTransport)
    second: Any = {"http2": lambda: True, "http1": lambda: False}
    STACKS[f"{name} by HTTP/2"] = blocking(**second)
    STACKS[f"{name} async by HTTP/2"] = waiting(**second)


_httpx(httpx, httpcore)
_httpx(httpx2, httpcore2)


def _httpcore(core: Any, http2: bool) -> None:
    name = f"{core.__name__}{' by HTTP/2' if http2 else ''}"
    settings: Any = {"http2": http2, "http1": not http2}
    asked = {"headers": HEADERS | {"content-length": str(len(BODY))}, "content": BODY}

    @stack(name)
    def ask(url: str, number: int) -> None:
        with core.ConnectionPool(**settings) as pool:
            _each(lambda: pool.request("POST", url, **asked), number)

    @stack(f"{name} async")
    def ask_async(url: str, number: int) -> None:
        async def main() -> None:
            async with core.AsyncConnectionPool(**settings) as pool:
                await _each_async(lambda: pool.request("POST", url, **asked), number)

        asyncio.run(main())


for _core in (httpcore, httpcore2):
    for _http2 in (False, True):
        _httpcore(_core, _http2)


# -- over http.client ---------------------------------------------------------------------------

_RETRY = urllib3.Retry(
    TRIES - 1, status_forcelist=[502, 503, 429], allowed_methods=None, raise_on_status=False
)


@stack("requests")
def _requests(url: str, number: int) -> None:
    from requests.auth import HTTPDigestAuth

    with requests.Session() as session:
        session.auth = HTTPDigestAuth("u", "p")
        _each(lambda: session.post(url, json=ASK), number)


@stack("requests, tried again")
def _requests_tried(url: str, number: int) -> None:
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=_RETRY))
        _each(lambda: session.post(url, json=ASK), number)


@stack("urllib3")
def _urllib3(url: str, number: int) -> None:
    with urllib3.PoolManager(retries=_RETRY) as pool:
        _each(lambda: pool.request("POST", url, body=BODY, headers=HEADERS), number)


@stack("urllib3, read later")
def _urllib3_stream(url: str, number: int) -> None:
    def send() -> None:
        answer: Any = pool.request("POST", url, body=BODY, headers=HEADERS, preload_content=False)
        for _ in answer.stream(8):
            pass
        answer.release_conn()

    with urllib3.PoolManager(retries=_RETRY) as pool:
        _each(send, number)


@stack("botocore")
def _botocore(url: str, number: int) -> None:
    from botocore.awsrequest import AWSRequest
    from botocore.httpsession import URLLib3Session

    session = URLLib3Session(timeout=WAIT_S)
    request = AWSRequest("POST", url, HEADERS | {"expect": "100-continue"}, BODY)
    _each(lambda: session.send(request.prepare()), number)
    session.close()


# -- aiohttp and tornado ------------------------------------------------------------------------


def _aiohttp(**options: Any) -> Ask:
    def ask(url: str, number: int) -> None:
        async def main() -> None:
            made = {key: make() for key, make in options.items()}
            async with aiohttp.ClientSession(**made) as session:

                async def send() -> None:
                    async with session.post(url, json=ASK) as answer:
                        await answer.read()

                await _each_async(send, number)

        asyncio.run(main())

    return ask


async def _again(request: Any, handler: Any) -> Any:
    for left in reversed(range(TRIES)):
        try:
            response = await handler(request)
        except aiohttp.ClientConnectionError:
            if not left:
                raise
            continue
        if _is_final(response.status) or not left:
            return response
        response.release()
    raise AssertionError


STACKS["aiohttp"] = _aiohttp()
STACKS["aiohttp, tried again"] = _aiohttp(middlewares=lambda: (_again,))
STACKS["aiohttp, by digest"] = _aiohttp(
    middlewares=lambda: (aiohttp.DigestAuthMiddleware("u", "p"),)
)


@stack("tornado")
def _tornado(url: str, number: int) -> None:
    from tornado.httpclient import AsyncHTTPClient

    async def main() -> None:
        client = AsyncHTTPClient(force_instance=True)
        sent = {"method": "POST", "body": BODY, "headers": HEADERS}
        await _each_async(lambda: client.fetch(url, **sent), number)
        client.close()

    asyncio.run(main())


@stack("tornado, in pieces")
def _tornado_pieces(url: str, number: int) -> None:
    from tornado.httpclient import AsyncHTTPClient

    async def produce(write: Callable[[bytes], Any]) -> None:
        await write(BODY[:9])
        await write(BODY[9:])

    async def main() -> None:
        client = AsyncHTTPClient(force_instance=True)
        headers = {**HEADERS, "content-length": str(len(BODY))}
        sent: Any = {"method": "POST", "body_producer": produce, "headers": headers}
        await _each_async(lambda: client.fetch(url, **sent), number)
        client.close()

    asyncio.run(main())


# -- the claim ----------------------------------------------------------------------------------


@pytest.fixture
def counter() -> Iterator[BodyCounter]:
    server = BodyCounter()
    _SERVERS[:] = [server]
    yield server
    server.close()


@pytest.fixture
def gate() -> PricedGate:
    return PricedGate()


def _rounds(rng: random.Random) -> list[list[Behaviour]]:
    faults: list[Behaviour] = ["close", "502", "503", "429", "307", "401"]
    rounds: list[list[Behaviour]] = [
        ["ok", "ok", "ok"], ["ok, then close"] * 3, ["ok", "close", "ok"], ["307", "ok"],
        ["401", "ok"], ["close"] * 5, ["503"] * 5, ["502", "307", "close", "ok"], ["303"],
    ]  # fmt: skip
    return rounds + [[*rng.choices(faults, k=rng.randrange(1, TRIES)), "ok"] for _ in range(8)]


@pytest.mark.parametrize("covered", [True, False], ids=["covered", "asked"])
@pytest.mark.parametrize("name", STACKS)
def test_each_body_has_taken_one_hold(
    counter: BodyCounter, gate: PricedGate, gated: Observed, name: str, covered: bool
) -> None:
    gate.covered = covered
    for behaviours in _rounds(random.Random(name)):
        counter.behaviours, counter.seen = list(behaviours), []
        gated.calls.clear()
        gate.holds.clear()
        STACKS[name](counter.url + CHAT, 3)
        assert counter.seen, behaviours
        assert len(gate.holds) == len(counter.seen), (behaviours, counter.seen)
        billed = len(counter.billed)
        if "303" in counter.seen:  # what it leads to is charged as the answer, where it is followed
            billed = len(gated.events)
        assert len(gated.events) == billed, (behaviours, counter.seen)
        assert len(gate.ends) == len(gate.holds), "each has ended once"
        assert charged(gated) >= len(counter.billed) * (PROMPT + OUTPUT), behaviours
    assert gated.instrumentation.failures == 0
    assert gated.instrumentation.unseen.counts() == ()


@pytest.mark.parametrize("covered", [True, False], ids=["covered", "asked"])
@pytest.mark.parametrize("name", STACKS)
def test_what_has_no_hold_is_not_sent(
    counter: BodyCounter, gate: PricedGate, gated: Observed, name: str, covered: bool
) -> None:
    """By none of the redirects, resends and tries either."""
    gate.covered, gate.left = covered, 2
    counter.behaviours = ["307", "503", "502", "401", "close", "ok", "ok", "ok"]
    with contextlib.suppress(Refusal):
        STACKS[name](counter.url + CHAT, 6)
    assert len(counter.seen) == 2
    assert len(gated.events) == len(counter.billed)
    assert len(gate.ends) == 2


@pytest.mark.parametrize("name", STACKS)
def test_what_a_redirect_leads_to_a_model_is_held_or_refused(
    counter: BodyCounter, gate: PricedGate, gated: Observed, name: str
) -> None:
    """Where the address that was asked for is no model's, and nothing was held for it."""
    gated.instrumentation.refuse_unseen = refuse_unseen
    counter.behaviours, counter.leads_to = ["307", "ok"], CHAT
    with contextlib.suppress(Refusal):
        STACKS[name](f"{counter.url}/v1/files", 1)
    assert counter.seen[:1] == ["307"]
    assert len(gate.holds) == len(gated.events) == len(counter.billed)


@pytest.mark.parametrize("name", STACKS)
def test_what_finds_no_connection_costs_nothing(
    counter: BodyCounter, gate: PricedGate, gated: Observed, name: str
) -> None:
    counter.close()
    STACKS[name](counter.url + CHAT, 2)
    assert set(gate.ends) == {"back"}
    assert gated.events == []
