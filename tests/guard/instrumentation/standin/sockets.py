"""A vendor's WebSockets, which keep a bill of their own: Responses, realtime, Live.

What it answers is told by the frames: ``say`` in an answer's metadata (or the text of a turn) names
its output tokens, what goes wrong, and with ``tool`` that it asks for ``delete_files``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from tests.support.socket_server import socket_server
from tests.support.waiting import WAIT_S

PROMPT_TOKENS = 7
TOOL = "delete_files"


@attrs.define
class Billed:
    """One answer on the bill."""

    model: str
    input_tokens: int
    output_tokens: int


@attrs.define(eq=False)
class SocketVendor:
    """What the stand-in has seen.

    Attributes:
        url: its address.
        bill: the answers that it has worked on, each once.
        frames: the types of all frames that it has received.
        closed: how many connections have ended.
        answers_itself: whether it answers sound after each commit, as with turn detection.
        steps: how many pieces an answer has.
        go_on: is waited for in the middle of an answer that is told to ``stall``.
    """

    url: str = ""
    bill: list[Billed] = attrs.field(factory=list)
    frames: list[str] = attrs.field(factory=list)
    closed: int = 0
    answers_itself: bool = True
    steps: int = 3
    go_on: threading.Event = attrs.field(factory=threading.Event)
    _numbers: Iterator[int] = attrs.field(factory=lambda: iter(range(1, 1_000_000)))

    def speak(self, connection: ServerConnection) -> None:
        """Serve one connection."""
        assert connection.request is not None
        path = connection.request.path
        try:
            if "/responses" in path:
                self._responses(connection)
            elif "/realtime" in path:
                self._realtime(connection)
            else:
                self._live(connection)
        except ConnectionClosed:
            pass
        finally:
            self.closed += 1

    def _responses(self, connection: ServerConnection) -> None:
        for message in connection:
            frame = json.loads(message)
            self.frames.append(frame["type"])
            if frame["type"] != "response.create":
                continue
            lane = {"stream_id": frame["stream_id"]} if "stream_id" in frame else {}
            say = frame.get("metadata", {}).get("say", "5")
            if say == "refuse":
                error = {"type": "invalid_request_error", "message": "no"}
                _send(connection, {"type": "error", "status": 400, "error": error, **lane})
                continue
            named = f"resp_{next(self._numbers)}"
            output = min(int(say.split()[0]), frame.get("max_output_tokens", 10**6))
            billed = Billed(frame["model"], PROMPT_TOKENS, output)
            self.bill.append(billed)
            about = {"id": named, "object": "response", "model": frame["model"]}
            _send(connection, {"type": "response.created", "response": about, **lane})
            for _ in range(self.steps):
                _send(connection, {"type": "response.output_text.delta", "delta": "Hi", **lane})
            if "tool" in say:
                for event in _tool_call(named):
                    _send(connection, {**event, **lane})
            if not self._goes_on(connection, say):
                continue
            usage = _usage(billed)
            done = {**about, "status": "completed", "output": [], "usage": usage}
            _send(connection, {"type": "response.completed", "response": done, **lane})

    def _realtime(self, connection: ServerConnection) -> None:
        turns = {"type": "server_vad"} if self.answers_itself else None
        heard: dict[str, Any] = {"turn_detection": turns}
        session = {"type": "realtime", "model": "gpt-realtime", "audio": {"input": heard}}
        _send(connection, {"type": "session.created", "session": session})
        for message in connection:
            frame = json.loads(message)
            self.frames.append(frame["type"])
            match frame["type"]:
                case "session.update":
                    heard.update(frame["session"].get("audio", {}).get("input", {}))
                    _send(connection, {"type": "session.updated", "session": session})
                case "input_audio_buffer.commit" if heard["turn_detection"]:
                    _send(connection, {"type": "input_audio_buffer.speech_started"})
                    self._answer_realtime(connection, {})
                case "response.create":
                    self._answer_realtime(connection, frame)

    def _answer_realtime(self, connection: ServerConnection, frame: dict[str, Any]) -> None:
        wanted = frame.get("response", {})
        say = wanted.get("metadata", {}).get("say", "5")
        if say == "refuse":
            error = {"type": "invalid_request_error", "event_id": frame.get("event_id")}
            _send(connection, {"type": "error", "error": error})
            return
        named = f"resp_{next(self._numbers)}"
        output = min(int(say.split()[0]), wanted.get("max_output_tokens", 10**6))
        billed = Billed("gpt-realtime", PROMPT_TOKENS, output)
        self.bill.append(billed)
        about = {"id": named, "object": "realtime.response", "conversation_id": "conv_1"}
        _send(connection, {"type": "response.created", "response": about})
        for _ in range(self.steps):
            delta = {"type": "response.output_text.delta", "delta": "Hi", "response_id": named}
            _send(connection, delta)
        if "tool" in say:
            for event in _tool_call(named):
                _send(connection, {**event, "response_id": named})
        if self._goes_on(connection, say):
            done = {**about, "status": "completed", "output": [], "usage": _usage(billed)}
            _send(connection, {"type": "response.done", "response": done})

    def _live(self, connection: ServerConnection) -> None:
        model = ""
        for message in connection:
            frame = json.loads(message)
            self.frames.append(next(iter(frame)))
            if "setup" in frame:
                model = frame["setup"]["model"].rpartition("/")[2]
                _send(connection, {"setupComplete": {}})
                continue
            content = frame.get("clientContent") or frame.get("client_content") or {}
            is_sound = "realtimeInput" in frame or "realtime_input" in frame
            if not is_sound and not content.get("turnComplete", content.get("turn_complete")):
                continue
            say = content["turns"][0]["parts"][0]["text"] if content else "5"
            billed = Billed(model, PROMPT_TOKENS, int(say.split()[0]))
            self.bill.append(billed)
            for number in range(1, self.steps + 1):
                counts = {
                    "promptTokenCount": PROMPT_TOKENS,
                    "responseTokenCount": billed.output_tokens * number // self.steps,
                }
                said = {"modelTurn": {"parts": [{"text": "Hi"}]}}
                _send(connection, {"serverContent": said, "usageMetadata": counts})
            if "tool" in say:
                call = {"id": f"call_{len(self.bill)}", "name": TOOL, "args": {}}
                _send(connection, {"toolCall": {"functionCalls": [call]}})
            if self._goes_on(connection, say):
                _send(connection, {"serverContent": {"turnComplete": True}})

    def _goes_on(self, connection: ServerConnection, say: str) -> bool:
        """Do in the middle of an answer what it is told to; return whether it is finished."""
        if "cut" in say:
            connection.socket.shutdown(2)
            return False
        if "stall" in say:
            self.go_on.wait(WAIT_S)
        return "silent" not in say


def _tool_call(answer: str) -> Iterator[dict[str, Any]]:
    item = {"type": "function_call", "id": f"fc_{answer}", "call_id": f"call_{answer}"}
    begun = {**item, "name": TOOL, "arguments": "", "status": "in_progress"}
    yield {"type": "response.output_item.added", "item": begun}
    yield {"type": "response.function_call_arguments.done", "item_id": item["id"]}
    done = {**begun, "arguments": "{}", "status": "completed"}
    yield {"type": "response.output_item.done", "item": done}


def _usage(billed: Billed) -> dict[str, Any]:
    return {
        "input_tokens": billed.input_tokens,
        "output_tokens": billed.output_tokens,
        "total_tokens": billed.input_tokens + billed.output_tokens,
    }


def _send(connection: ServerConnection, event: dict[str, Any]) -> None:
    connection.send(json.dumps(event))


@contextmanager
def socket_vendor() -> Iterator[SocketVendor]:
    """Run the stand-in."""
    vendor = SocketVendor()
    # No pings: they would wake whoever waits for a message.
    with socket_server(vendor.speak, open_timeout=WAIT_S, ping_interval=None) as vendor.url:
        try:
            yield vendor
        finally:
            vendor.go_on.set()
