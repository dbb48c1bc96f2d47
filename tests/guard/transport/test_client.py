"""The transport client at the edges of HTTP: answers that no healthy gateway gives."""

from __future__ import annotations

import asyncio
import email.utils
import gzip
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import respx

from guard.breaker.exceptions import GuardError, GuardTransportError, RateLimitError
from guard.core.wire import GateRequest
from guard.settings import Settings
from guard.transport import client as client_module
from guard.transport import http as http_module
from guard.transport.client import GatewayClient
from guard.transport.replies import BodyRefusedError
from tests.support.closing import close_server
from tests.support.waiting import PATIENT

pytestmark = pytest.mark.asyncio

URL = "http://127.0.0.1:9"
EVENTS = f"{URL}/api/v1/events"
GATE = f"{URL}/gate"
TAKEN = httpx.Response(202, json={"accepted": 0})
NOW_S = 1_800_000_000.0


class Clock:
    """The client's time; only the test moves it."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def monotonic(self) -> float:
        return self.now_s - NOW_S

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock in place of the client's."""
    made = Clock()
    for module in (client_module, http_module):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def gateway() -> Iterator[respx.MockRouter]:
    """Answers by the test, to httpx."""
    with respx.mock(assert_all_called=False) as router:
        yield router


@pytest_asyncio.fixture
async def client(gateway: respx.MockRouter) -> AsyncIterator[GatewayClient]:
    """The client on its own, with a minute for each call."""
    made = GatewayClient(
        Settings.load({}, api_key="k" * 24, api_url=URL, timeout_ms=60_000), _heard
    )
    yield made
    await made.close()


def _heard(error: BaseException | None) -> None:
    """Nobody listens."""


async def refused(client: GatewayClient) -> GuardError:
    with pytest.raises(GuardError) as caught:
        await client.gate(GateRequest(call_id="c", kind="call", function="f"))
    return caught.value


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("header", "silent_s"),
        [
            pytest.param("7", 7.0, id="seconds"),
            pytest.param("1.5", 1.5, id="fraction"),
            pytest.param(email.utils.formatdate(NOW_S + 60, usegmt=True), 60.0, id="date"),
            pytest.param("999999999", 300.0, id="capped"),
            pytest.param("1" + "0" * 400, 300.0, id="beyond any number"),
            pytest.param(email.utils.formatdate(NOW_S + 9e6, usegmt=True), 300.0, id="far date"),
        ],
    )
    async def test_silence_until_then(
        self,
        client: GatewayClient,
        gateway: respx.MockRouter,
        clock: Clock,
        header: str,
        silent_s: float,
    ) -> None:
        route = gateway.post(EVENTS)
        route.side_effect = [httpx.Response(429, headers={"Retry-After": header}, json={}), TAKEN]
        with pytest.raises(RateLimitError) as caught:
            await client.send("b", b"{}")
        assert caught.value.retry_after == silent_s
        clock.now_s += silent_s - 0.25
        with pytest.raises(RateLimitError) as caught:
            await client.send("b", b"{}")
        assert caught.value.retry_after == pytest.approx(0.25)
        assert route.call_count == 1
        clock.now_s += 0.25
        await client.send("b", b"{}")
        assert route.call_count == 2

    @pytest.mark.parametrize("header", [None, "", "soon", "-5", "inf", "nan", "1e3", "7 8"])
    async def test_without_a_usable_one_the_silence_is_our_own(
        self, client: GatewayClient, gateway: respx.MockRouter, clock: Clock, header: str | None
    ) -> None:
        headers = {} if header is None else {"Retry-After": header}
        route = gateway.post(EVENTS)
        route.side_effect = [httpx.Response(429, headers=headers, json={}), TAKEN]
        for _ in range(2):
            with pytest.raises(RateLimitError):
                await client.send("b", b"{}")
        assert route.call_count == 1
        clock.now_s += 300
        await client.send("b", b"{}")

    async def test_a_date_that_has_passed_asks_for_no_silence(
        self, client: GatewayClient, gateway: respx.MockRouter, clock: Clock
    ) -> None:
        date = email.utils.formatdate(NOW_S - 60, usegmt=True)
        route = gateway.post(EVENTS)
        route.side_effect = [httpx.Response(429, headers={"Retry-After": date}, json={}), TAKEN]
        with pytest.raises(RateLimitError) as caught:
            await client.send("b", b"{}")
        assert caught.value.retry_after == 0
        await client.send("b", b"{}")
        assert route.call_count == 2

    async def test_the_silence_of_one_endpoint_is_not_that_of_another(
        self, client: GatewayClient, gateway: respx.MockRouter, clock: Clock
    ) -> None:
        gateway.post(EVENTS).respond(429, headers={"Retry-After": "300"}, json={})
        gateway.post(GATE).respond(200, json={"decision": "allow", "call_id": "c"})
        with pytest.raises(RateLimitError):
            await client.send("b", b"{}")
        reply = await client.gate(GateRequest(call_id="c", kind="call", function="f"))
        assert reply.decision == "allow"


ALLOW = b'{"decision":"allow","call_id":"c"}'
NO_ANSWER: dict[str, httpx.Response] = {
    "empty": httpx.Response(200),
    "no content": httpx.Response(204),
    "truncated JSON": httpx.Response(200, content=ALLOW[:-1]),
    "JSON, and more": httpx.Response(200, content=ALLOW + b"}"),
    "HTML that says it is JSON": httpx.Response(
        200, content=b"<html>allow</html>", headers={"Content-Type": "application/json"}
    ),
    "HTML": httpx.Response(200, html="<html>allow</html>"),
    "another call": httpx.Response(200, json={"decision": "allow", "call_id": "d"}),
    "a wrong type": httpx.Response(200, json={"decision": True, "call_id": "c"}),
    "not UTF-8": httpx.Response(200, content=ALLOW.replace(b"allow", b"allow\xff")),
    "depth": httpx.Response(200, content=b"[" * 100_000),
    "a redirect": httpx.Response(307, headers={"Location": GATE}, content=ALLOW),
    "a redirect elsewhere": httpx.Response(302, headers={"Location": "https://example.org/gate"}),
    "a permanent redirect": httpx.Response(308, headers={"Location": "/gate"}, content=ALLOW),
    "not modified": httpx.Response(304),
    "an error that says allow": httpx.Response(500, content=ALLOW),
    "not gzip, though it says so": httpx.Response(
        200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(ALLOW)
    ),
    "a bomb": httpx.Response(
        200,
        headers={"Content-Encoding": "gzip"},
        stream=httpx.ByteStream(gzip.compress(b" " * 50_000_000 + ALLOW)),
    ),
    "ten megabytes": httpx.Response(200, stream=httpx.ByteStream(b" " * 10_000_000 + ALLOW)),
}


@pytest.mark.parametrize("name", NO_ANSWER)
async def test_what_is_no_answer_is_never_allow(
    client: GatewayClient, gateway: respx.MockRouter, name: str
) -> None:
    given = NO_ANSWER[name]
    elsewhere = gateway.route(host="example.org")
    gateway.post(GATE).mock(return_value=given)
    error = await refused(client)
    assert isinstance(error, GuardTransportError)
    assert error.source in ("GATEWAY_ERROR", "NETWORK_ERROR")
    assert len(str(error)) < 500
    assert not elsewhere.called


@pytest.mark.parametrize(
    "content_type", ["text/html", "text/plain; charset=utf-16", "nonsense", ""]
)
async def test_the_body_counts_and_not_what_is_said_of_it(
    client: GatewayClient, gateway: respx.MockRouter, content_type: str
) -> None:
    gateway.post(GATE).respond(200, content=ALLOW, headers={"Content-Type": content_type})
    reply = await client.gate(GateRequest(call_id="c", kind="call", function="f"))
    assert reply.decision == "allow"


FAILURES: list[Any] = [
    httpx.ConnectError("no route"),
    httpx.ReadError("reset"),
    httpx.RemoteProtocolError("half an answer"),
    httpx.Response(500),
    httpx.Response(502, html="<html>bad gateway</html>"),
    httpx.Response(503),
    httpx.Response(504),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: repr(failure)[:30])
async def test_a_failure_that_passes_is_tried_again_with_the_same_key(
    client: GatewayClient, gateway: respx.MockRouter, failure: Any
) -> None:
    route = gateway.post(EVENTS)
    route.side_effect = [failure, failure, TAKEN]
    await client.send("batch", b"{}")
    keys = [call.request.headers["Idempotency-Key"] for call in route.calls]
    assert keys == ["batch"] * 3


async def test_retries_end(client: GatewayClient, gateway: respx.MockRouter) -> None:
    route = gateway.post(EVENTS).respond(500)
    with pytest.raises(GuardTransportError):
        await client.send("b", b"{}")
    assert route.call_count == client_module._ATTEMPTS_MAX


@pytest.mark.parametrize(
    ("status", "code"), [(413, None), (400, "GD-P001"), (415, "GD-P001")], ids=str
)
async def test_a_body_that_is_never_taken_is_not_sent_again(
    client: GatewayClient, gateway: respx.MockRouter, status: int, code: str | None
) -> None:
    route = gateway.post(EVENTS).respond(status, json={"status": status, "error_code": code})
    with pytest.raises(BodyRefusedError):
        await client.send("b", b"{}")
    assert route.call_count == 1


async def test_422_is_taken_and_says_so(client: GatewayClient, gateway: respx.MockRouter) -> None:
    gateway.post(EVENTS).respond(422, json={"accepted": 3})
    status, reply = await client.send("b", b"{}")
    assert (status, reply.accepted) == (422, 3)


async def test_a_key_is_in_no_error_and_its_causes(
    client: GatewayClient, gateway: respx.MockRouter
) -> None:
    gateway.post(GATE).mock(side_effect=httpx.ConnectError("no route"))
    error: BaseException | None = await refused(client)
    while error is not None:
        assert "k" * 24 not in repr(error) + str(vars(error))
        error = error.__cause__


class TestOneEndpointThatFails:
    """Nothing is known of the gate from an error that another endpoint answers."""

    @pytest.mark.parametrize("status", [500, 502, 503])
    async def test_the_gate_is_still_asked(
        self, client: GatewayClient, gateway: respx.MockRouter, clock: Clock, status: int
    ) -> None:
        events = gateway.post(EVENTS).respond(status, json={})
        gateway.post(GATE).respond(200, content=ALLOW)
        await _until_open(client, clock)
        # The events themselves are left alone.
        asked = events.call_count
        with pytest.raises(GuardError):
            await client.send("b", b"{}")
        assert events.call_count == asked
        reply = await client.gate(GateRequest(call_id="c", kind="call", function="f"))
        assert reply.decision == "allow"

    async def test_a_gate_that_fails_too_is_asked_once(
        self, client: GatewayClient, gateway: respx.MockRouter, clock: Clock
    ) -> None:
        gateway.post(EVENTS).respond(500, json={})
        gate = gateway.post(GATE).respond(500, json={})
        await _until_open(client, clock)
        for _ in range(3):
            await refused(client)
        assert gate.call_count == 1

    async def test_a_gateway_that_does_not_answer_is_not_asked(
        self, client: GatewayClient, gateway: respx.MockRouter, clock: Clock
    ) -> None:
        gateway.post(EVENTS).mock(side_effect=httpx.ConnectError("refused"))
        gate = gateway.post(GATE).respond(200, content=ALLOW)
        await _until_open(client, clock)
        await refused(client)
        assert gate.call_count == 0


async def _until_open(client: GatewayClient, clock: Clock) -> None:
    while client.circuit.state == "closed":
        clock.now_s += 400.0  # no longer than that does an endpoint ask to be left alone
        with pytest.raises(GuardError):
            await client.send("b", b"{}")


class TestAfterTheEnd:
    async def test_a_request_says_that_guard_was_shut_down(self, client: GatewayClient) -> None:
        await client.close()
        assert (await refused(client)).error_code == "GD-B006"

    async def test_a_request_that_is_interrupted_is_not_sent_again(self) -> None:
        arrived: list[bytes] = []
        ended = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.append(await reader.readuntil(b"\r\n\r\n"))
            await reader.read()  # until the client closes
            writer.close()
            ended.set()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            made = GatewayClient(Settings.load(PATIENT, api_key="k" * 24, api_url=url), _heard)
            asking = asyncio.create_task(refused(made))
            while not arrived:
                await asyncio.sleep(0.01)
            await made.close()
            assert (await asking).error_code == "GD-B006"
            await ended.wait()
        assert len(arrived) == 1


async def test_a_gateway_that_has_answered_is_not_taken_for_one_that_speaks_tls() -> None:
    """It has just died: its address is right."""
    answers = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answers:
            writer.write(answers.pop())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = Settings.load({}, api_key="gdk_test", api_url=f"http://127.0.0.1:{port}")
    request = http_module.HttpRequest.of("GET", "/api/v1/capabilities")
    knows, is_new = http_module.GatewayHttp(settings), http_module.GatewayHttp(settings)
    assert (await knows.send(request)).status == 200
    with pytest.raises(GuardTransportError) as told:
        await knows.send(request)
    assert "TLS" not in str(told.value)
    with pytest.raises(GuardTransportError, match="if it serves TLS"):
        await is_new.send(request)
    await knows.close()
    await is_new.close()
    await close_server(server)
