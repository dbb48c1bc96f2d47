"""Realtime APIs over WebSockets, with the real clients against a local server of their format."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
import websocket
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection

import guard
from guard import WorkflowKilledInterrupt
from guard.core.usage.realtime import find_socket
from guard.core.wire import LlmData
from tests.guard.instrumentation.conftest import Observed
from tests.support.socket_server import socket_server
from tests.support.waiting import WAIT_S, until

USAGE = {
    "total_tokens": 260,
    "input_tokens": 200,
    "output_tokens": 60,
    "input_token_details": {"text_tokens": 60, "audio_tokens": 100, "cached_tokens": 40},
    "output_token_details": {"text_tokens": 20, "audio_tokens": 40},
}
DONE = {
    "type": "response.done",
    "response": {"id": "resp_1", "status": "completed", "usage": USAGE},
}


def _speak(connection: ServerConnection) -> None:
    """Answer as OpenAI's realtime endpoint does; ``silent`` says nothing of usage."""
    assert connection.request is not None
    silent = "silent" in connection.request.path
    connection.send(json.dumps({"type": "session.created", "session": {"model": "gpt-realtime"}}))
    for message in connection:
        if json.loads(message).get("type") != "response.create":
            continue
        connection.send(json.dumps({"type": "response.output_text.delta", "delta": "Hello"}))
        connection.send(json.dumps({"type": "response.done"} if silent else DONE))


@pytest.fixture(scope="module")
def realtime() -> Iterator[str]:
    """The address of a local realtime endpoint."""
    with socket_server(_speak, open_timeout=WAIT_S, ping_timeout=None) as url:
        yield f"{url}/v1/realtime"


ASK = json.dumps({"type": "response.create"})


def _with_websockets(url: str) -> None:
    with connect(url, open_timeout=WAIT_S) as session:
        session.recv()
        session.send(ASK)
        while json.loads(session.recv())["type"] != "response.done":
            pass


def _with_websockets_async(url: str) -> None:
    async def talk() -> None:
        async with connect_async(url, open_timeout=WAIT_S) as session:
            await session.send(ASK)
            async for message in session:
                if json.loads(message)["type"] == "response.done":
                    break

    asyncio.run(talk())


def _with_aiohttp(url: str) -> None:
    async def talk() -> None:
        async with aiohttp.ClientSession() as http, http.ws_connect(url) as session:
            await session.send_str(ASK)
            async for message in session:
                if message.json()["type"] == "response.done":
                    break

    asyncio.run(talk())


def _with_legacy_websockets(url: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from websockets.legacy.client import connect as connect_legacy

    async def talk() -> None:
        async with connect_legacy(url, open_timeout=WAIT_S) as session:
            await session.send(ASK)
            async for message in session:
                if json.loads(message)["type"] == "response.done":
                    break

    asyncio.run(talk())


def _with_websocket_client(url: str) -> None:
    session = websocket.create_connection(url, timeout=WAIT_S)
    session.send(ASK)
    for message in session:
        if json.loads(message)["type"] == "response.done":
            break
    session.close()


def _with_its_app(url: str) -> None:
    def on_message(app: websocket.WebSocketApp, message: str) -> None:
        if json.loads(message)["type"] == "response.done":
            app.close()

    websocket.WebSocketApp(
        url, on_open=lambda app: app.send(ASK), on_message=on_message
    ).run_forever()


CLIENTS = [
    _with_websockets,
    _with_websockets_async,
    _with_aiohttp,
    _with_legacy_websockets,
    _with_websocket_client,
    _with_its_app,
]


@pytest.mark.parametrize("talk", CLIENTS)
def test_usage_is_read_from_the_messages(
    observed: Observed, realtime: str, talk: Callable[[str], None]
) -> None:
    talk(realtime)
    (event,) = observed.events
    assert (event.model, event.provider, event.response_id) == ("gpt-realtime", "openai", "resp_1")
    assert _buckets(event) == (60, 20, 40, 140)
    assert event.streamed
    assert not event.estimated
    assert observed.instrumentation.unseen_hosts() == ()


def _buckets(event: LlmData) -> tuple[int, int, int, int]:
    return event.input_tokens, event.output_tokens, event.cache_read_tokens, event.audio_tokens


@pytest.mark.parametrize("talk", CLIENTS)
def test_an_answer_without_usage_is_estimated_by_what_it_shows(
    observed: Observed, realtime: str, talk: Callable[[str], None]
) -> None:
    talk(f"{realtime}?silent=1")
    (event,) = observed.events
    assert event.estimated
    assert event.output_tokens > 0


@pytest.mark.parametrize("talk", CLIENTS)
def test_a_killed_workflow_opens_no_session(
    runtime: Any, tenant: Any, realtime: str, talk: Callable[[str], None]
) -> None:
    tenant.admin.kill("w")
    until(lambda: runtime.enforcement.control.kills.find("w", None, 0) is not None)
    with pytest.raises(WorkflowKilledInterrupt), guard.workflow("w"):
        talk(realtime)
    assert tenant.llm_events("w") == []


def test_a_kill_ends_an_open_session(runtime: Any, tenant: Any, realtime: str) -> None:
    waiting = threading.Event()

    def agent() -> None:
        with guard.workflow("w"), connect(realtime, open_timeout=WAIT_S) as session:
            session.recv()
            session.send(ASK)
            session.recv()
            session.recv()  # the response's end, which says what it has used
            waiting.set()
            while True:  # a kill is seen by the next message at the latest
                session.send(ASK)
                session.recv()

    raised: list[BaseException] = []

    def run() -> None:
        try:
            agent()
        except BaseException as exc:  # the interrupt
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    assert waiting.wait(120)
    tenant.admin.kill("w")
    thread.join(120)
    assert not thread.is_alive()
    assert [type(exc) for exc in raised] == [WorkflowKilledInterrupt]
    runtime.flush()
    assert tenant.llm_events("w"), "what the session used is charged"


def _use_after_the_kill(url: str, killed: Callable[[], None]) -> None:
    with connect(url, open_timeout=WAIT_S) as session:
        session.recv()
        killed()
        session.close_socket()
        session.send(ASK)


def _use_after_the_kill_async(url: str, killed: Callable[[], None]) -> None:
    async def talk() -> None:
        async with connect_async(url, open_timeout=WAIT_S) as session:
            await session.recv()
            killed()
            session.transport.abort()
            await session.wait_closed()
            await session.send(ASK)

    asyncio.run(talk())


def _lose_while_sending(url: str, killed: Callable[[], None]) -> None:
    with connect(url, open_timeout=WAIT_S) as session:
        session.recv()
        send_text = session.protocol.send_text

        def lose(*args: Any) -> None:
            killed()
            session.socket.shutdown(socket.SHUT_RDWR)
            send_text(*args)

        session.protocol.send_text = lose  # type: ignore[method-assign]
        session.send(ASK)


@pytest.mark.parametrize(
    "use", [_use_after_the_kill, _use_after_the_kill_async, _lose_while_sending]
)
def test_a_kill_that_has_closed_the_connection_is_what_its_next_use_raises(
    runtime: Any, tenant: Any, realtime: str, use: Callable[[str, Callable[[], None]], None]
) -> None:
    def killed() -> None:
        tenant.admin.kill("w")
        until(lambda: runtime.enforcement.control.kills.find("w", None, 0) is not None)

    with pytest.raises(WorkflowKilledInterrupt), guard.workflow("w"):
        use(realtime, killed)


def test_other_websockets_are_left_alone(observed: Observed, realtime: str) -> None:
    chat = realtime.replace("/v1/realtime", "/chat")
    with connect(chat, open_timeout=WAIT_S) as session:
        session.recv()
        session.send(ASK)
        session.recv()
        session.recv()
    assert observed.events == []
    assert observed.instrumentation.unseen_hosts() == ()


def test_the_clients_exceptions_stay_their_own(observed: Observed, realtime: str) -> None:
    with connect(realtime, open_timeout=WAIT_S) as session:
        session.recv()
        with pytest.raises(TimeoutError):
            session.recv(timeout=0.01)
        session.close()
        with pytest.raises(ConnectionClosed):
            session.recv()


@pytest.mark.parametrize(
    ("host", "path", "kind"),
    [
        ("api.openai.com", "/v1/realtime", "realtime"),
        ("api.openai.com", "/v1/responses", "responses"),
        ("x.openai.azure.com", "/openai/realtime", "realtime"),
        ("generativelanguage.googleapis.com", "/ws/x.BidiGenerateContent", "live"),
        ("localhost", "/v1/realtime", "realtime"),
        ("localhost", "/v1/responses", "responses"),
        ("localhost", "/ws", None),
        ("localhost", "/game/realtime", None),
    ],
)
def test_hosts_and_paths(host: str, path: str, kind: str | None) -> None:
    found = find_socket(host, path, "model=&model=x")
    assert (None if found is None else found.conversation.kind) == kind
    assert found is None or found.conversation.model in ("x", None)
