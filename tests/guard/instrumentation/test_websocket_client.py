"""What is ``websocket-client``'s own: fragments, timeouts, raw frames, connections used again."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import websocket
from websockets.sync.server import ServerConnection

from guard.breaker.refusals import Refusal
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.frames import RESPONSES, create
from tests.guard.instrumentation.standin.sockets import SocketVendor, socket_vendor
from tests.support.socket_server import socket_server
from tests.support.waiting import WAIT_S, until


@pytest.fixture
def vendor() -> Iterator[SocketVendor]:
    with socket_vendor() as running:
        yield running


def _opened(vendor: SocketVendor, **options: Any) -> websocket.WebSocket:
    return websocket.create_connection(vendor.url + RESPONSES.path, timeout=WAIT_S, **options)


def _to_the_end(connection: websocket.WebSocket) -> None:
    while json.loads(connection.recv())["type"] != "response.completed":
        pass


DONE = {"id": "resp_1", "model": "gpt-5", "usage": {"input_tokens": 7, "output_tokens": 5}}


def _speak_in_fragments(connection: ServerConnection) -> None:
    for _ in connection:
        for kind in ("response.created", "response.completed"):
            text = json.dumps({"type": kind, "response": DONE})
            connection.send([text[:9], text[9:20], text[20:]])


def test_answers_in_fragments_are_read_whole(gated: Observed, gate: FakeGate) -> None:
    came: list[str] = []
    with socket_server(_speak_in_fragments, open_timeout=WAIT_S) as url:
        app = websocket.WebSocketApp(
            f"{url}/v1/responses",
            on_open=lambda app: app.send(json.dumps(create("5"))),
            on_message=lambda app, text: (came.append(text), len(came) > 1 and app.close()),
            on_cont_message=lambda app, text, _: came.append(text),
        )
        app.run_forever()
    assert [json.loads(each)["type"] for each in came] == ["response.created", "response.completed"]
    (event,) = gated.events
    assert (event.input_tokens, event.output_tokens, event.estimated) == (7, 5, False)


def test_a_timeout_ends_no_session(vendor: SocketVendor, gated: Observed, gate: FakeGate) -> None:
    connection = _opened(vendor)
    connection.settimeout(0.01)
    with pytest.raises(websocket.WebSocketTimeoutException):
        connection.recv()
    connection.settimeout(WAIT_S)
    connection.send(json.dumps(create("5")))
    _to_the_end(connection)
    connection.close()
    (event,) = gated.events
    assert (event.output_tokens, event.estimated) == (5, False)


def test_a_connection_that_is_used_again(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    connection = _opened(vendor)
    connection.send(json.dumps(create("50 silent")))
    until(lambda: vendor.bill)
    connection.shutdown()
    connection.connect(vendor.url + RESPONSES.path)
    connection.send(json.dumps(create("6")))
    _to_the_end(connection)
    connection.close()
    assert [each.estimated for each in gated.events] == [True, False]
    assert len(gate.ends) == 2


@pytest.mark.parametrize("opcode", [websocket.ABNF.OPCODE_TEXT, websocket.ABNF.OPCODE_BINARY])
def test_raw_frames_are_held_too(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, opcode: int
) -> None:
    at = urlsplit(vendor.url)
    plain = socket.create_connection((at.hostname, at.port))
    url = "ws://api.openai.com/v1/responses"
    connection = websocket.create_connection(url, timeout=WAIT_S, socket=plain)
    text = json.dumps(create("5"))
    connection.send_frame(websocket.ABNF.create_frame(text, opcode))
    _to_the_end(connection)
    # A part of a message may ask for anything.
    gate.left = 0
    with pytest.raises(Refusal):
        connection.send_frame(websocket.ABNF.create_frame(text[:30], opcode, 0))
    connection.close()
    gated.instrumentation.read_answers()
    assert [each.output_tokens for each in gate.ends] == [5]
    assert vendor.frames == ["response.create"]


def test_pings_and_closes_are_no_frames_that_ask(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    connection = _opened(vendor)
    connection.ping("hello")
    opcode, frame = connection.recv_data_frame(True)
    assert (opcode, frame.data) == (websocket.ABNF.OPCODE_PONG, b"hello")
    connection.close()
    assert gate.holds == []


def test_other_connections_are_left_alone(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    connection = websocket.create_connection(f"{vendor.url}/chat", fire_cont_frame=True)
    assert connection.cont_frame.fire_cont_frame
    connection.send(json.dumps({"setup": {"model": "models/x"}}))
    connection.recv()
    connection.close()
    assert gate.holds == []
