"""Counts the tokens of a stream while it passes, cheaply: the length of its texts."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from guard.core.usage.decoding import Decoder, decoder_for
from guard.core.usage.message import tokens_of

_TEXT: Final = re.compile(
    rb'"(?:text|content|arguments|thinking|partial_json|reasoning|reasoning_content|refusal'
    rb'|response|delta|input|bytes|transcript)"\s*:\s*"'
)
"""The members under which vendors put the text of a delta; ``bytes`` is Bedrock's envelope."""

_REST: Final = re.compile(rb'(?:[^"\\]|\\.)*+', re.DOTALL)
_KEY_BYTES_MAX: Final = 40
_ENVELOPE: Final = b'"bytes"'
_ENVELOPE_BYTES_MAX: Final = 1024 * 1024


class StreamMeter:
    """Bounds the tokens of a stream from below, whatever its framing.

    Each text counts its bytes, four to a token, and at least one token. Reasoning that the vendor
    does not show is not seen.

    Args:
        content_encoding: the encoding of the chunks; empty for identity.

    Example:
        >>> meter = StreamMeter("")
        >>> meter.feed(b'data: {"choices":[{"delta":{"content":"Hello wor')
        >>> meter.feed(b'ld"}}]}')
        >>> meter.tokens
        3
    """

    __slots__ = ("_bytes", "_decoder", "_held", "_inside", "_length", "_texts")

    def __init__(self, content_encoding: str) -> None:
        # Bytes of all texts so far, and how many texts were not empty.
        self._bytes = 0
        self._texts = 0
        # The end of the last chunk: a member's name, or an escape, may be cut in two.
        self._held = b""
        # Whether the last chunk ended inside a text, and how long that text is so far.
        self._inside = False
        self._length = 0
        self._decoder: Decoder | None = None
        if content_encoding:
            self._decoder = decoder_for(content_encoding)

    @property
    def tokens(self) -> int:
        """The tokens counted so far."""
        return max(self._texts, tokens_of(self._bytes))

    def feed(self, chunk: bytes) -> None:
        """Count a chunk.

        Raises:
            DecodingError: the chunk does not match its encoding.
        """
        if self._decoder is None:
            self._count(chunk)
            return
        for piece in self._decoder.decode(chunk):
            self._count(piece)

    def _count(self, chunk: bytes) -> None:
        data = self._held + chunk
        position = self._take(data, 0) if self._inside else 0
        while not self._inside:
            found = _TEXT.search(data, position)
            if found is None:
                self._held = data[max(position, len(data) - _KEY_BYTES_MAX) :]
                return
            if found[0].startswith(_ENVELOPE):
                position = self._envelope(data, found.end())
                if position < 0:
                    self._held = data[found.start() :]
                    return
                continue
            position = self._take(data, found.end())

    def _take(self, data: bytes, start: int) -> int:
        """Count the text that begins, or goes on, at ``start``; return where it ends."""
        end = _REST.match(data, start).end()  # type: ignore[union-attr]  # it may match nothing
        self._bytes += end - start
        self._length += end - start
        self._inside = data[end : end + 1] != b'"'
        if self._inside:
            self._held = data[end:]  # an escape that is cut off
            return end
        self._texts += self._length > 0
        self._length = 0
        return end + 1

    def _envelope(self, data: bytes, start: int) -> int:
        """Count what is inside Bedrock's base64; return where it ends, -1 if not in ``data``."""
        end = data.find(b'"', start)
        if end < 0:
            return -1 if len(data) < _ENVELOPE_BYTES_MAX else len(data)
        try:
            inner = base64.b64decode(data[start:end])
        except (binascii.Error, ValueError):
            return end + 1
        # An envelope holds whole messages, so a meter of its own has no state to carry over.
        meter = StreamMeter("")
        meter._count(inner)
        self._bytes += meter._bytes
        self._texts += meter._texts
        return end + 1
