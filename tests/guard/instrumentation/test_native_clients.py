"""Requests of clients that send in C or Rust are named, and refused where nothing goes unseen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import pytest
import uvloop

import guard
from guard.instrumentation import libcurl
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.standin.server import StandIn

CHAT = "/v1/chat/completions"
FREE = "/v1/models"
ASK = {"model": "gpt-5", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(ASK)

Send = Callable[[str, str | None], None]
"""Sends a request to a URL: a POST with a body, or a GET without."""


def of_pycurl(url: str, body: str | None) -> Any:
    import pycurl

    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, url)
    curl.setopt(pycurl.WRITEFUNCTION, lambda data: len(data))
    if body is not None:
        curl.setopt(pycurl.POSTFIELDS, body)
    return curl


def pycurl_performs(url: str, body: str | None) -> None:
    of_pycurl(url, body).perform()


def pycurl_multi(url: str, body: str | None) -> None:
    import pycurl

    multi, curl = pycurl.CurlMulti(), of_pycurl(url, body)
    multi.add_handle(curl)
    while multi.perform()[1]:
        multi.select(1)
    multi.remove_handle(curl)


def pycurl_copies(url: str, body: str | None) -> None:
    curl = of_pycurl(url, body)
    copy = curl.duphandle()
    curl.reset()
    copy.perform()


def curl_cffi_session(url: str, body: str | None) -> None:
    from curl_cffi import requests

    with requests.Session() as session:
        session.request("GET" if body is None else "POST", url, data=body)


def curl_cffi_async(url: str, body: str | None) -> None:
    from curl_cffi import requests

    async def send() -> None:
        async with requests.AsyncSession() as session:
            await session.request("GET" if body is None else "POST", url, data=body)

    asyncio.run(send())


def primp_client(url: str, body: str | None) -> None:
    import primp

    with_method = primp.Client().request
    with_method("GET", url) if body is None else with_method(url=url, method="POST", json=ASK)


def primp_function(url: str, body: str | None) -> None:
    import primp

    primp.get(url) if body is None else primp.post(url, json=ASK)


def primp_below_a_url(url: str, body: str | None) -> None:
    import primp

    base, _, rest = url.rpartition("/v1/")
    client = primp.Client(base_url=f"{base}/v1/")
    client.get(rest) if body is None else client.post(rest, json=ASK)


def primp_async(url: str, body: str | None) -> None:
    import primp

    async def send() -> None:
        client = primp.AsyncClient()
        await (client.get(url) if body is None else client.post(url, json=ASK))

    asyncio.run(send())


def rnet_client(url: str, body: str | None) -> None:
    import rnet

    async def send() -> None:
        client = rnet.Client()
        await (client.get(url) if body is None else client.post(url, json=ASK))

    asyncio.run(send())


def rnet_function(url: str, body: str | None) -> None:
    import rnet

    async def send() -> None:
        method = rnet.Method.GET if body is None else rnet.Method.POST
        await rnet.request(method, url, **({} if body is None else {"json": ASK}))

    asyncio.run(send())


def rnet_blocking(url: str, body: str | None) -> None:
    import rnet

    client = rnet.BlockingClient()
    client.get(url) if body is None else client.post(url, json=ASK)


WAYS: list[Send] = [
    pycurl_performs, pycurl_multi, pycurl_copies, curl_cffi_session, curl_cffi_async,
    primp_client, primp_function, primp_below_a_url, primp_async,
    rnet_client, rnet_function, rnet_blocking,
]  # fmt: skip


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def send(request: pytest.FixtureRequest) -> Send:
    pytest.importorskip(client_of(request.param))
    way: Send = request.param
    return way


def client_of(send: Send) -> str:
    name = send.__name__
    return "curl_cffi" if name.startswith("curl") else name.partition("_")[0]


def refuse(reason: str, scope: Any) -> None:
    raise guard.GuardBlockedException(workflow_id="w", reason=reason)


def test_a_request_to_a_model_is_named(
    standin: StandIn, observed: Observed, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    unseen, client = observed.instrumentation.unseen, client_of(send)
    send(standin.url + FREE, None)
    assert unseen.counts() == ()
    send(f"{standin.url}{CHAT}?key=secret", BODY)
    send(f"{standin.url}{CHAT}?key=secret", BODY)
    assert len([each for each in standin.bodies if each]) == 2
    assert unseen.counts() == ((f"127.0.0.1{CHAT} by {client}", 2),)
    (told,) = observed.told
    assert (told["host"], client in told["why"]) == ("127.0.0.1", True)
    (said,) = [each.message for each in caplog.records if "is not metered" in each.message]
    assert "secret" not in said
    assert observed.calls == []
    observed.instrumentation.uninstall()
    send(standin.url + CHAT, BODY)
    assert unseen.counts() == ((f"127.0.0.1{CHAT} by {client}", 2),)
    assert observed.instrumentation.failures == 0


def test_it_is_refused_before_it_is_sent(standin: StandIn, observed: Observed, send: Send) -> None:
    observed.instrumentation.refuse_unseen = refuse
    with pytest.raises(guard.GuardBlockedException, match=client_of(send)):
        send(standin.url + CHAT, BODY)
    assert standin.bodies == []
    send(standin.url + FREE, None)


@pytest.mark.parametrize("streams", [False, True], ids=["in this thread", "in another one"])
def test_the_transport_of_a_client_that_is_metered_is_not_named(
    standin: StandIn, gated: Observed, gate: FakeGate, streams: bool
) -> None:
    requests = pytest.importorskip("curl_cffi.requests")

    class ByCurl(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            body = request.read()
            with requests.Session() as session:
                sent = session.request(request.method, str(request.url), data=body, stream=streams)
                content = b"".join(sent.iter_content()) if streams else sent.content
                sent.close()
            headers = {"Content-Type": sent.headers["content-type"]}
            return httpx.Response(sent.status_code, content=content, headers=headers)

    gated.instrumentation.refuse_unseen = refuse
    with httpx.Client(transport=ByCurl()) as client:
        assert client.post(standin.url + CHAT, json=ASK).status_code == 200
    assert (len(gate.holds), len(gated.events), gated.told) == (1, 1, [])


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({}, "GET"),
        ({libcurl._POST: True}, "POST"),
        ({libcurl._POST: False}, "GET"),
        ({10015: False}, "POST"),
        ({10015: True, 80: True}, "GET"),
        ({80: True, 10015: True}, "POST"),
        ({46: True, 10036: "POST"}, "POST"),
        ({46: True}, "PUT"),
        ({10036: b"GET", 10015: False}, "GET"),
    ],
)
def test_the_method_of_a_handle(options: dict[int, Any], method: str) -> None:
    assert libcurl._method(options) == method


GEMINI = "generativelanguage.googleapis.com"
SERVICE = "/google.ai.generativelanguage.v1beta.GenerativeService"
OPTIONS = [("grpc.http_proxy", "http://127.0.0.1:9")]  # where nobody listens
CALLS = {
    "unary_unary": "GenerateContent", "unary_stream": "StreamGenerateContent",
    "stream_unary": "EmbedContent", "stream_stream": "BidiGenerateContent",
}  # fmt: skip


def call(method: Any, kind: str) -> None:
    import grpc

    request = iter([b"x"]) if kind.startswith("stream") else b"x"
    with pytest.raises(grpc.RpcError):
        list(method(request, timeout=5))


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("target", [GEMINI, f"{GEMINI}:443", f"dns:///{GEMINI}:443"])
def test_a_call_of_grpc_is_named(observed: Observed, kind: str, target: str) -> None:
    grpc = pytest.importorskip("grpc")
    credentials = grpc.ssl_channel_credentials()
    with grpc.secure_channel(target, credentials, OPTIONS) as channel:
        asks = getattr(channel, kind)(f"{SERVICE}/{CALLS[kind]}")
        counts = getattr(channel, kind)(f"{SERVICE}/CountTokens")
        assert observed.instrumentation.unseen.counts() == (), "a method that is not called"
        call(counts, kind)
        assert observed.instrumentation.unseen.counts() == ()
        call(asks, kind)
        named = f"{GEMINI}{SERVICE}/{CALLS[kind]} by grpc"
        assert observed.instrumentation.unseen.counts() == ((named, 1),)
        observed.instrumentation.refuse_unseen = refuse
        with pytest.raises(guard.GuardBlockedException, match="grpc"):
            asks(iter([b"x"]) if kind.startswith("stream") else b"x", timeout=5)
    assert [each["host"] for each in observed.told] == [GEMINI]


def test_a_call_of_grpc_in_a_loop_is_named(observed: Observed) -> None:
    grpc = pytest.importorskip("grpc")
    host, path = "us-central1-aiplatform.googleapis.com", "/google.cloud.aiplatform.v1.{}"
    asks, makes = path.format("PredictionService/GenerateContent"), path.format("JobService/Make")

    async def send(method: str) -> None:
        credentials = grpc.ssl_channel_credentials()
        async with grpc.aio.secure_channel(f"{host}:443", credentials, OPTIONS) as channel:
            with pytest.raises(grpc.RpcError):
                await channel.unary_unary(method)(b"x", timeout=5)

    asyncio.run(send(makes))
    assert observed.instrumentation.unseen.counts() == ()
    asyncio.run(send(asks))
    assert observed.instrumentation.unseen.counts() == ((f"{host}{asks} by grpc", 1),)
    observed.instrumentation.refuse_unseen = refuse
    with pytest.raises(guard.GuardBlockedException, match="grpc"):
        asyncio.run(send(asks))
    asyncio.run(send(makes))


@pytest.mark.parametrize(
    ("host", "method"),
    [
        ("pubsub.googleapis.com", "/google.pubsub.v1.Publisher/Publish"),
        ("127.0.0.1:9", "/my.Service/GenerateContent"),
        (GEMINI, "/google.ai.generativelanguage.v1beta.ModelService/ListModels"),
        ("api.x.ai", "/xai_api.Models/GetLanguageModel"),
        ("api.x.ai", "/xai_api.Chat/GetDeferredCompletion"),
    ],
)
def test_other_calls_of_grpc_go_on_under_a_limit(
    observed: Observed, host: str, method: str
) -> None:
    grpc = pytest.importorskip("grpc")
    observed.instrumentation.refuse_unseen = refuse
    with grpc.secure_channel(host, grpc.ssl_channel_credentials(), OPTIONS) as channel:
        call(channel.unary_unary(method), "unary_unary")
    assert observed.instrumentation.unseen.counts() == ()


def test_what_is_not_known_is_refused_as_an_unknown_path(observed: Observed) -> None:
    grpc = pytest.importorskip("grpc")
    observed.instrumentation.refuse_unseen = refuse
    method = "/google.ai.generativelanguage.v1beta.CacheService/CreateCachedContent"
    with (
        grpc.secure_channel(GEMINI, grpc.ssl_channel_credentials(), OPTIONS) as channel,
        pytest.raises(guard.GuardBlockedException, match="--trust path:"),
    ):
        channel.unary_unary(method)(b"x", timeout=5)


async def by_httpx(url: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.post(url + CHAT, json=ASK)
        await client.post(url + CHAT, json=ASK)


async def by_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(url + CHAT, json=ASK) as answer:
                await answer.read()


@pytest.mark.parametrize("send", [by_httpx, by_aiohttp])
def test_clients_over_uvloop_are_seen_above_it(
    standin: StandIn, gated: Observed, gate: FakeGate, send: Callable[[str], Any]
) -> None:
    gated.instrumentation.refuse_unseen = refuse
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(send(standin.url))
    assert (len(gate.holds), len(gated.events), len(standin.bodies)) == (2, 2, 2)
    assert gated.instrumentation.unseen.counts() == ()
