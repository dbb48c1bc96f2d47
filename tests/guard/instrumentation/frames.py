"""What is said over an LLM's WebSockets, and how one sees the end of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.guard.instrumentation.lines import Line
from tests.guard.instrumentation.standin.sockets import SocketVendor

Open = Callable[[str], Line]


@attrs.frozen(eq=False)
class Kind:
    """How an answer is asked for, and how one sees its end."""

    path: str
    ask: Callable[[str], dict[str, Any]]
    is_done: Callable[[dict[str, Any]], bool]
    first: tuple[dict[str, Any], ...] = ()


def create(say: str, **more: Any) -> dict[str, Any]:
    asked = {"model": "gpt-5", "input": "Hello?", "metadata": {"say": say}}
    return {"type": "response.create", **asked, **more}


def respond(say: str, **more: Any) -> dict[str, Any]:
    return {"type": "response.create", "response": {"metadata": {"say": say}}, **more}


def turn(say: str) -> dict[str, Any]:
    content = {"turns": [{"role": "user", "parts": [{"text": say}]}], "turnComplete": True}
    return {"clientContent": content}


RESPONSES = Kind("/v1/responses", create, lambda event: event["type"] == "response.completed")
REALTIME = Kind(
    "/v1/realtime?model=gpt-realtime", respond, lambda event: event["type"] == "response.done"
)
LIVE = Kind(
    "/ws/x.BidiGenerateContent",
    turn,
    lambda event: "turnComplete" in event.get("serverContent", {}),
    ({"setup": {"model": "models/gemini-live"}},),
)
KINDS = [
    pytest.param(RESPONSES, id="responses"),
    pytest.param(REALTIME, id="realtime"),
    pytest.param(LIVE, id="live"),
]
APPEND = {"type": "input_audio_buffer.append", "audio": "AAAA" * 100}
COMMIT = {"type": "input_audio_buffer.commit"}


def opened_at(opened: Open, vendor: SocketVendor, kind: Kind) -> Line:
    line = opened(vendor.url + kind.path)
    for frame in kind.first:
        line.send(frame)
    return line


def to_the_end(line: Line, kind: Kind) -> None:
    while (event := line.receive()) is not None:
        if kind.is_done(event):
            return
