"""From bytes to messages: event streams (SSE), JSON lines, AWS event-stream frames.

A long stream is recorded with its beginning and its end only. A message that is cut off at either
side of the gap is left out; the end of a message that is larger than the recorded end can still be
searched for its usage with :func:`last_object` and :func:`outline`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from guard.core.usage.message import Message, mapping, parse

Framing = Literal["body", "sse", "lines", "aws"]

_PRELUDE: Final = struct.Struct(">III")
_FRAME_BYTES_MIN: Final = 16
_FRAME_BYTES_MAX: Final = 24 * 1024 * 1024  # the protocol's own limit
_DECODER: Final = json.JSONDecoder()


class Recorded(msgspec.Struct, frozen=True):
    """The recorded part of a response's decoded body.

    Attributes:
        head: its first bytes.
        tail: its last bytes; empty when ``head`` holds all of it.
        size: how many bytes were seen.
        cut: whether it could not be observed to the end (cap, or bad encoding).
    """

    head: bytes
    tail: bytes = b""
    size: int = 0
    cut: bool = False


class Pieces:
    """Messages that are already split, undecoded."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self._payloads = payloads

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._payloads)

    def __bool__(self) -> bool:
        return bool(self._payloads)

    def newest(self, marker: bytes) -> Iterator[bytes]:
        """Yield those that contain ``marker``, the last one first."""
        return (payload for payload in reversed(self._payloads) if marker in payload)


class EventStream:
    """Messages of server-sent events, split only as far as they are requested.

    The usage is in one of the last or one of the first of thousands of events. An event's data is
    nearly always one line; several are one message, unless each is one by itself: some servers
    leave out the empty line between events.
    """

    def __init__(self, data: bytes) -> None:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        data, start = self._data, 0
        while start < len(data):
            end = data.find(_EMPTY_LINE, start)
            end = len(data) if end < 0 else end
            yield from event_messages(data[start:end])
            start = end + len(_EMPTY_LINE)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def newest(self, marker: bytes) -> Iterator[bytes]:
        """Yield those that contain ``marker``, the last one first."""
        data, start = self._data, len(self._data)
        while (found := data.rfind(marker, 0, start)) >= 0:
            start = data.rfind(_EMPTY_LINE, 0, found)
            start = 0 if start < 0 else start + len(_EMPTY_LINE)
            end = data.find(_EMPTY_LINE, found)
            end = len(data) if end < 0 else end
            messages = event_messages(data[start:end])
            if len(messages) == 1 and marker in messages[0]:  # nearly always
                yield messages[0]
                continue
            for message in reversed(messages):
                if marker in message:
                    yield message


_EMPTY_LINE: Final = b"\n\n"


def event_messages(event: bytes) -> list[bytes]:
    """Return the messages of one server-sent event, or of several without empty lines between.

    >>> event_messages(b'id: 1\\ndata: {"a":\\ndata: 1}'), event_messages(b"data: {}\\ndata: []")
    ([b'{"a":\\n1}'], [b'{}', b'[]'])
    """
    if event.startswith(b"data:") and b"\n" not in event:  # nearly always
        return [event[5:].strip()]
    # Only the end of a line that began in a gap may be here: it lacks the field's name.
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    if len(lines) < 2 or parse(lines[0]) is not None:
        return lines
    joined = b"\n".join(lines)
    return [joined] if parse(joined) is not None else lines


class Events(msgspec.Struct, frozen=True):
    """The messages of a stream, undecoded.

    Attributes:
        first: those from the beginning.
        last: those up to the end; the same object when nothing is missing between them.
        end: the last bytes of a stream whose middle is missing.
        scale: size of the stream as a multiple of the size of ``first`` and ``last``.
    """

    first: Pieces | EventStream
    last: Pieces | EventStream
    end: bytes = b""
    scale: float = 1.0

    def newest(self, marker: bytes) -> Iterator[Message]:
        """Yield the messages that contain ``marker``, the last one first."""
        for payload in self.last.newest(marker):
            yield mapping(parse(payload))
        if self.first is not self.last:
            for payload in self.first.newest(marker):
                yield mapping(parse(payload))

    def every(self) -> Iterator[Message]:
        """Yield all messages in order."""
        for payload in self.first:
            yield mapping(parse(payload))
        if self.first is not self.last:
            for payload in self.last:
                yield mapping(parse(payload))

    def late(self, name: str) -> Message:
        """Return the last object under ``name`` of a stream whose middle is missing.

        Its last message may have begun in the missing middle; then it is not in ``last``.
        """
        return {} if self.first is self.last else last_object(self.end, name)

    def opening(self) -> Message:
        """Return the first message that is a JSON object."""
        for payload in self.first:
            message = parse(payload)
            if isinstance(message, dict):
                return message
        return {}


def framing_of(content_type: str, head: bytes) -> Framing:
    """Tell how messages are framed: by the content type, else by the first bytes."""
    content_type = content_type.lower()
    if "vnd.amazon.eventstream" in content_type:
        return "aws"
    if "ndjson" in content_type or "jsonl" in content_type or "stream+json" in content_type:
        return "lines"
    head = head.lstrip()
    is_json = head[:1] in (b"{", b"[")  # whatever it is called: no event begins like this
    if not is_json and ("event-stream" in content_type or _EVENT.match(head)):
        return "sse"
    first, separator, second = head.partition(b"\n")
    if separator and first[:1] == b"{" and second[:1] == b"{" and first.rstrip()[-1:] == b"}":
        return "lines"
    return "body"


_EVENT: Final = re.compile(rb"(?:data|event|id|retry)?:")
"""How the first line of an event stream begins; one without a name is a comment."""


def events_of(framing: Framing, recorded: Recorded) -> Events:
    """Split the recorded bytes into messages."""
    split = _SPLITTERS[framing]
    first = split(recorded.head, False)
    if not recorded.tail:
        return Events(first, first)
    tail = recorded.tail
    scale = max(1.0, recorded.size / (len(recorded.head) + len(tail)))
    # A message over several lines may have begun in the gap: only its JSON is left then.
    end = tail.replace(b"\ndata:", b"\n") if framing == "sse" else tail
    return Events(first, split(tail, True), end, scale)


def _lines(data: bytes, resumed: bool) -> Pieces:
    lines = data.split(b"\n")
    if resumed:
        del lines[0]
    return Pieces([line for line in lines if line.strip()])


def _aws(data: bytes, resumed: bool) -> Pieces:
    payloads: list[bytes] = []
    position = 0
    while position + _FRAME_BYTES_MIN <= len(data):
        total, headers, checksum = _PRELUDE.unpack_from(data, position)
        if zlib.crc32(data[position : position + 8]) != checksum:
            if not resumed:
                break
            # Inside a frame that began in the gap: frames start with their length, so with a zero.
            position = data.find(b"\0", position + 1)
            if position < 0:
                break
            continue
        if total > _FRAME_BYTES_MAX or position + total > len(data):
            break
        payloads.append(unpacked(data[position + 12 + headers : position + total - 4]))
        position += total
    return Pieces(payloads)


def take_frames(data: bytearray) -> list[bytes]:
    """Remove the whole frames at the start of an AWS event stream, and return their payloads.

    Raises:
        ValueError: this is no such stream.
    """
    payloads: list[bytes] = []
    position = 0
    while position + _FRAME_BYTES_MIN <= len(data):
        total, headers, checksum = _PRELUDE.unpack_from(data, position)
        if zlib.crc32(data[position : position + 8]) != checksum or total > _FRAME_BYTES_MAX:
            raise ValueError("not an AWS event stream")
        if position + total > len(data):
            break
        payloads.append(bytes(data[position + 12 + headers : position + total - 4]))
        position += total
    del data[:position]
    return payloads


def aws_frame(payload: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a frame of an AWS event stream.

    https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html

    Args:
        payload: the payload of the frame.
        headers: the headers of the frame, all of them texts.

    >>> take_frames(bytearray(aws_frame(b"{}") + b"more"))
    [b'{}']
    """
    head = b"".join(_text_header(name, value) for name, value in (headers or {}).items())
    lengths = struct.pack(">II", len(head) + len(payload) + _FRAME_BYTES_MIN, len(head))
    frame = lengths + struct.pack(">I", zlib.crc32(lengths)) + head + payload
    return frame + struct.pack(">I", zlib.crc32(frame))


def _text_header(name: str, value: str) -> bytes:
    """Return a header of a frame; 7 is the type of a text."""
    packed = struct.pack(">B", len(name)) + name.encode("ascii")
    return packed + struct.pack(">BH", 7, len(value)) + value.encode("ascii")


def unpacked(payload: bytes) -> bytes:
    """Return a frame's payload; Bedrock wraps model output in base64."""
    if payload[:10] == b'{"bytes":"' or (b'"bytes"' in payload and b'"chunk"' in payload):
        message = mapping(parse(payload))
        inner = mapping(message.get("chunk", message)).get("bytes")
        if isinstance(inner, str):
            try:
                return base64.b64decode(inner)
            except (binascii.Error, ValueError):
                return payload
    return payload


_SPLITTERS: Final[dict[Framing, Callable[[bytes, bool], Pieces | EventStream]]] = {
    "sse": lambda data, resumed: EventStream(data),
    "lines": _lines,
    "aws": _aws,
    "body": lambda data, resumed: Pieces([] if resumed else [data]),
}


def outline(recorded: Recorded) -> Message:
    """Return what can be read of a JSON body of which only the beginning and the end are recorded.

    Quotes inside a JSON string are escaped, so text that looks like a field is not found.
    """
    message: Message = {}
    end = recorded.tail
    for name in _TEXTS:
        found = re.search(_TEXT % name, recorded.head) or re.search(_TEXT % name, end)
        if found:
            message[name.decode()] = found[1].decode("utf-8", "replace")
    for name in _NUMBERS:
        found = re.search(_NUMBER % name, end) or re.search(_NUMBER % name, recorded.head)
        if found:
            message[name.decode()] = int(found[1])
    for key in _OBJECTS:
        inner = last_object(end, key) or last_object(recorded.head, key)
        if inner:
            message[key] = inner
    return message


_TRIES_MAX: Final = 8
"""How many matches are tried: hostile data may consist of nothing else."""

_TEXTS: Final = (b"id", b"responseId", b"model", b"modelVersion", b"object", b"type", b"status")
_NUMBERS: Final = (b"prompt_eval_count", b"eval_count")
_OBJECTS: Final = ("usage", "usageMetadata", "meta")
_TEXT: Final = rb'"%s"\s*:\s*"([^"\\]{1,512})"'
_NUMBER: Final = rb'"%s"\s*:\s*(\d{1,12})\b'


def last_object(data: bytes, name: str) -> Message:
    """Return the last JSON object under ``"name":`` in a fragment of JSON."""
    key = b'"' + name.encode() + b'"'
    position = len(data)
    for _ in range(_TRIES_MAX):
        position = data.rfind(key, 0, position)
        if position < 0:
            break
        text = data[position + len(key) :].decode("utf-8", "replace").lstrip()
        if text[:1] == ":" and (text := text[1:].lstrip())[:1] == "{":
            try:
                return mapping(_DECODER.raw_decode(text)[0])
            except (ValueError, RecursionError):
                continue
    return {}
