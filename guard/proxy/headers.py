"""Forwards headers: all but those that belong to one connection; no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from guard.core.usage.decoding import readable

Pairs = list[tuple[bytes, bytes]]

OWN_KEY: Final = b"x-guard-key"
"""Header with the guard key that a request is charged to."""

_OWN: Final = b"x-guard-"
"""How guard's own headers begin, which are never sent upstream."""

_HOP_BY_HOP: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""Headers of one connection (RFC 9110, 7.6.1)."""

_NOT_SENT: Final = _HOP_BY_HOP | {b"host", b"expect"}


def sent_upstream(headers: Pairs) -> Pairs:
    """Return the headers of a request for its upstream, in order."""
    dropped = _NOT_SENT | _named(headers)
    return readably(
        [pair for pair in headers if pair[0] not in dropped and not pair[0].startswith(_OWN)]
    )


def readably(headers: Pairs) -> Pairs:
    """Return headers that ask for no content encoding that guard cannot decode.

    The tools and the usage of such an answer could not be read.
    """
    return [
        (name, readable(value.decode("latin-1")).encode("latin-1"))
        if name == b"accept-encoding"
        else (name, value)
        for name, value in headers
    ]


def sent_back(headers: Iterable[tuple[bytes, bytes]], *, length: bool, coding: bool) -> Pairs:
    """Return the headers of an answer for the program, in order.

    Args:
        headers: the headers of the answer.
        length: whether its length is unchanged, and can be forwarded.
        coding: whether its body is forwarded as it is encoded.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    dropped = _HOP_BY_HOP | _named(pairs)
    if not length:
        dropped |= {b"content-length"}
    if not coding:
        dropped |= {b"content-encoding"}
    return [pair for pair in pairs if pair[0] not in dropped]


def value_of(headers: Pairs, name: bytes) -> bytes | None:
    """Return the first value of a header, by its lower-case name."""
    return next((value for key, value in headers if key == name), None)


def _named(headers: Pairs) -> frozenset[bytes]:
    """Return the headers that ``Connection`` names as its own."""
    found = [value for name, value in headers if name == b"connection"]
    return frozenset(word.strip().lower() for value in found for word in value.split(b","))
