"""Messages cut, stretched and repeated in every phase, for servers of HTTP/1.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

Part = tuple[str, bytes]
"""A phase of a message, and its bytes."""


@attrs.frozen
class Message:
    """One request, or two, in parts."""

    name: str
    parts: list[Part]


def head(line: bytes, *fields: bytes) -> list[Part]:
    """Return the head of a request."""
    return [
        ("request line", line + b"\r\n"),
        ("header", b"".join(each + b"\r\n" for each in (b"Host: x", *fields))),
        ("header name", b"X-Other"),
        ("header value", b": other"),
        ("end of head", b"\r\n\r\n"),
    ]


AFTER: Final[Part] = ("after the message", b"\r\n")


def messages(line: bytes, body: bytes, *fields: bytes) -> list[Message]:
    """Return a request with this body in each form.

    Args:
        line: the request line, without its end.
        body: of the request.
        fields: of its head.
    """
    plain = [*head(line, *fields, b"Content-Length: %d" % len(body)), ("body", body)]
    chunked = [
        *head(line, *fields, b"Transfer-Encoding: chunked"),
        ("chunk size", b"%x" % len(body)),
        ("chunk extension", b";name=value"),
        ("end of chunk size", b"\r\n"),
        ("chunk data", body),
        ("end of chunk", b"\r\n0\r\n"),
        ("trailer name", b"X-Trailer"),
        ("trailer value", b": value"),
        ("end of trailer", b"\r\n\r\n"),
    ]
    return [
        Message("plain", [*plain, AFTER]),
        Message("chunked", [*chunked, AFTER]),
        Message("pipelined", [*plain, *chunked, *plain, AFTER]),
    ]


def cut(before: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Send the first half of a part, and nothing more."""
    return before + part[: len(part) // 2], b""


def stretched(before: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Send a part whose last byte but line ends comes for ever."""
    stem = part.rstrip(b"\r\n") or part
    return before + stem, stem[-1:]


def repeated(before: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Send a part for ever."""
    return before + part, part


def repeated_by_lines(before: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Send a part and a line end for ever."""
    return before + part, b"\r\n" + part


CHANGES: Final[list[Callable[[bytes, bytes], tuple[bytes, bytes]]]] = [
    cut,
    stretched,
    repeated,
    repeated_by_lines,
]
Case = tuple[str, bytes, bytes]


def cases(of: Sequence[Message]) -> Iterator[Case]:
    """Return what is sent first and what without an end, for each message, phase and change."""
    for message in of:
        for number, (phase, part) in enumerate(message.parts):
            before = b"".join(each for _, each in message.parts[:number])
            for change in CHANGES:
                if change is cut and phase == "after the message":
                    continue  # a complete message, and a connection that is kept for the next
                first, endless = change(before, part)
                yield f"{message.name}, {phase} {number}, {change.__name__}", first, endless
