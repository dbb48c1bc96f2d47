"""Answers in UTF-16, UTF-32 or with a byte order mark, as clients read them: as plain UTF-8.

JSON may come in any of them (``json.loads`` and httpx tell by the first bytes, as here); a server
on Windows may put a mark before an event stream.
"""

from __future__ import annotations

import codecs
import json
from typing import Final

from guard.core.usage.framing import Recorded

_MARK: Final = codecs.BOM_UTF8
_ODD_FIRST: Final = frozenset({b"\xef", b"\xff", b"\xfe", b"\0"})
_FIRST: Final = 4
"""How many bytes tell the encoding."""


def is_odd(head: bytes) -> bool:
    """Tell cheaply whether an answer's first bytes are of no text in plain UTF-8."""
    return head[:1] in _ODD_FIRST or head[1:2] == b"\0"


def plain(data: bytes) -> bytes:
    """Return a whole text as UTF-8 without a mark; anything else as it is.

    >>> plain("{}".encode("utf-16"))
    b'{}'
    """
    return as_utf8(Recorded(data)).head if is_odd(data) else data


def as_utf8(recorded: Recorded) -> Recorded:
    """Return what was recorded of a text as UTF-8 without a mark."""
    head, tail = recorded.head, recorded.tail
    codec, width = _codec(head)
    if codec == "utf-8":
        return Recorded(head, tail, recorded.size, recorded.cut)
    if codec == "utf-8-sig":
        return Recorded(head[len(_MARK) :], tail, recorded.size, recorded.cut)
    start = recorded.size - len(tail)  # the recorded end may begin inside a character
    text = _decoded(head, codec)
    rest = _decoded(tail[-start % width :], _in_the_middle(codec, head)) if tail else b""
    held = len(head) + len(tail)
    size = recorded.size * (len(text) + len(rest)) // held if held else 0
    return Recorded(text, rest, size, recorded.cut)


class Utf8:
    """Turns an answer into UTF-8 chunk by chunk; nearly all are already.

    Example:
        >>> text = Utf8()
        >>> b"".join(text.feed(bytes([byte])) for byte in "{}".encode("utf-16"))
        b'{}'
    """

    __slots__ = ("_decoder", "_first", "_is_plain")

    def __init__(self) -> None:
        # Chunks before the encoding is known: some few bytes.
        self._first = b""
        self._is_plain = False
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Return the next part of the text."""
        if self._is_plain:
            return chunk
        if self._decoder is None:
            data = self._first + chunk
            if len(data) < _FIRST and (is_odd(data) or not data[1:]):
                self._first = data
                return b""
            self._first = b""
            if not is_odd(data):
                self._is_plain = True
                return data
            codec, _ = _codec(data)
            self._decoder = codecs.getincrementaldecoder(codec)("replace")
            chunk = data
        return self._decoder.decode(chunk).encode("utf-8", "replace")

    def rest(self) -> bytes:
        """Return what was too short to tell."""
        first, self._first = self._first, b""
        return first


def _codec(head: bytes) -> tuple[str, int]:
    """Return the encoding of a text, and the bytes of its smallest character."""
    codec = json.detect_encoding(head[:_FIRST]) if is_odd(head) else "utf-8"
    return codec, {"utf-16": 2, "utf-32": 4}.get(codec[:6], 1)


def _decoded(data: bytes, codec: str) -> bytes:
    return data.decode(codec, "replace").encode("utf-8", "replace")


def _in_the_middle(codec: str, head: bytes) -> str:
    """Return the name of an encoding whose mark is elsewhere."""
    if codec not in ("utf-16", "utf-32"):
        return codec
    return f"{codec}-be" if head[:1] in (b"\xfe", b"\0") else f"{codec}-le"
