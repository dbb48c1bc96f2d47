"""What the frames of an LLM's WebSocket ask of a model: the vendors' facts, and one answer's state.

Free is what is listed in ``vendors/sockets/sockets.toml``; any other frame counts as asking.
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from guard.core.usage.message import Message, mapping, parse
from guard.core.usage.request_body import UnreadableError, read_request

Role = Literal["asks", "steers", "speaks", "free", "unknown"]
"""What a frame does: see the facts file; ``unknown`` is on no list."""

FRAME: Final = "frame:"
"""Begins the name of a type of frames that is not known here."""

_LABEL_LENGTH_MAX: Final = 100


class Asked(Struct, eq=False):
    """One answer of a model: asked for by a frame, or expected because of it.

    Attributes:
        body: what is asked, as the body of an HTTP request would say it.
        lane: the part of the connection that answers it; answers of one lane come one by one.
        is_ahead: whether the vendor decides by itself if it answers.
        event_id: the client's id of the frame, which an error names.
        unknown: the name of the frame's type, if that is not known here.
        steers: whether it goes on with an answer that is running.
        apart: whether its answer does not become part of the conversation.
        mark: how much of the conversation it has in its prompt.
        room: for how many tokens it has room that are sent later.
        after: the id of the answer whose prompt its own begins with.
        output_tokens: its largest output; None where nothing limits it.
        call: what holds its money; set by whoever sends the frame.
        merged: whether its input goes with the next frame that asks.
    """

    body: bytes
    lane: str = ""
    is_ahead: bool = False
    event_id: str | None = None
    unknown: str | None = None
    steers: bool = False
    apart: bool = False
    mark: int = 0
    room: int = 0
    after: str | None = None
    output_tokens: int | None = None
    call: Any = None
    merged: bool = False


class FrameFacts(Struct, frozen=True):
    """The types of frames of one kind of WebSocket; see the facts file."""

    asks: frozenset[str]
    steers: frozenset[str]
    speaks: frozenset[str]
    free: frozenset[str]
    ends: frozenset[str]

    def role(self, kind: str) -> Role:
        """Return what a frame of a type does."""
        if kind in self.asks:
            return "asks"
        if kind in self.steers:
            return "steers"
        if kind in self.speaks:
            return "speaks"
        return "free" if kind in self.free else "unknown"


@functools.cache
def facts_of(kind: str) -> FrameFacts:
    """Return the facts of a kind of WebSocket.

    >>> facts_of("realtime").role("session.update"), facts_of("realtime").role("session.dream")
    ('free', 'unknown')
    """
    file = resources.files("guard.core.vendors").joinpath("sockets", "sockets.toml")
    row = tomllib.loads(file.read_text("utf-8"))[kind]
    return FrameFacts(
        *(frozenset(row.get(name, "").split()) for name in FrameFacts.__struct_fields__)
    )


def read_frame(data: bytes) -> Message | None:
    """Return a client's frame; None where two readers may read it differently, or it is no object.

    >>> read_frame(b'{"type": "response.create", "type": "session.update"}') is None
    True
    """
    try:
        return read_request(data)[0]
    except UnreadableError:
        return None


def read_event(data: bytes) -> Message:
    """Return a server's event; an empty one for anything that is no object.

    >>> read_event(b"[1]")
    {}
    """
    return mapping(parse(data))


def type_of(message: Message) -> str:
    """Return the type of a frame or an event; empty where it has none."""
    kind = message.get("type")
    return kind if type(kind) is str else ""


def label(name: str) -> str:
    """Return the name of a type of frames that is not known, such as ``frame:NAME``."""
    return f"{FRAME}{name or 'unnamed'}"[:_LABEL_LENGTH_MAX]


def encoded(message: Message) -> bytes:
    """Return a message as JSON."""
    return msgspec.json.encode(message)
