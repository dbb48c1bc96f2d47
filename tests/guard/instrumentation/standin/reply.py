"""One answer of the stand-in: as a whole or as events, and the usage that it stands for."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import attrs

from guard.core.usage import Usage

WORDS = ("Disjoint ", "buckets, ", "exact ", "to the ", "token: ", "größer ", "than ", "zero.")
TEXT = "".join(WORDS)


@attrs.frozen
class Reply:
    """What to answer.

    Attributes:
        usage: what an exact observer has to report; None when there is nothing to report.
        body: of an answer in one piece.
        events: of a stream, each with its framing.
        content_type: of the answer.
        headers: more of them.
    """

    usage: Usage | None
    body: bytes = b""
    events: tuple[bytes, ...] = ()
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def sse(*messages: Any, name: str | None = None, done: bool = False) -> tuple[bytes, ...]:
    """Frame messages as events; with ``name`` the field of each that is the event's name."""
    events = []
    for message in messages:
        title = b"" if name is None else b"event: " + message[name].encode() + b"\n"
        events.append(title + b"data: " + encoded(message) + b"\n\n")
    return (*events, b"data: [DONE]\n\n") if done else tuple(events)


def lines(*messages: Any) -> tuple[bytes, ...]:
    return tuple(encoded(message) + b"\n" for message in messages)


def aws_frame(event_type: str, payload: bytes) -> bytes:
    """Frame a payload as Amazon's event stream does (headers of type string, two checksums)."""
    headers = b""
    for name, value in (
        (":event-type", event_type),
        (":content-type", "application/json"),
        (":message-type", "event"),
    ):
        headers += bytes([len(name)]) + name.encode() + b"\x07"
        headers += struct.pack(">H", len(value)) + value.encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return start + struct.pack(">I", zlib.crc32(start))
