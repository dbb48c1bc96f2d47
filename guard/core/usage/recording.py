"""Keeps the beginning and the end of a body that passes by, in bounded memory."""

from __future__ import annotations

from typing import Final

from guard.core.usage.decoding import Decoder, DecodingError, decoder_for
from guard.core.usage.framing import Recorded

HEAD_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 64 * 1024
DECODED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes that are decoded: what a compressed body holds beyond them is not seen."""

PENDING_BYTES: Final = HEAD_BYTES + TAIL_BYTES
"""How many bytes of chunks wait as they are: most streams are over before that."""


class Recording:
    """Takes a body's chunks as they are on the wire.

    A chunk costs an append: chunks are kept as they are until they amount to 128 KiB, then decoded
    and cut down to the first and the last 64 KiB.

    A transport's innermost loop may append to :attr:`pending` itself, and call :meth:`settle` after
    every ``PENDING_BYTES``.

    Args:
        content_encoding: value of the header; empty for identity.

    Example:
        >>> recording = Recording("")
        >>> recording.feed(b"data: {}")
        >>> recording.recorded().head
        b'data: {}'
    """

    __slots__ = ("_cut", "_decoder", "_head", "_room", "_size", "_tail", "pending")

    def __init__(self, content_encoding: str) -> None:
        self.pending: list[bytes] = []
        self._room = PENDING_BYTES
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._cut = False
        self._decoder: Decoder | None = None
        if content_encoding:
            try:
                self._decoder = decoder_for(content_encoding)
            except DecodingError:
                self._cut = True

    def feed(self, chunk: bytes) -> None:
        """Take a chunk."""
        self.pending.append(chunk)
        self._room -= len(chunk)
        if self._room < 0:
            self.settle()

    def recorded(self) -> Recorded:
        """Return what is left of everything so far."""
        if self._decoder is None and not self._size and not self._cut:
            data = b"".join(self.pending)
            if len(data) <= HEAD_BYTES + TAIL_BYTES:  # copied once, as it will be read
                self.pending[:] = [data]
                return Recorded(data, size=len(data))
        self.settle()
        head, tail = bytes(self._head), bytes(self._tail)
        if self._size == len(head) + len(tail):  # nothing in between was let go
            head, tail = head + tail, b""
        return Recorded(head, tail, self._size, self._cut)

    def settle(self) -> None:
        """Decode and cut down what is pending; never raises."""
        pending = self.pending.copy()
        self.pending.clear()
        self._room = PENDING_BYTES
        if self._cut:
            return
        try:
            data = b"".join(pending)
            if self._decoder is None:
                self._keep(data)
                return
            for piece in self._decoder.decode(data):
                self._keep(piece)
                if self._size > DECODED_BYTES_MAX:
                    self._cut = True
                    break
        except Exception:  # noqa: BLE001  # whatever it is: a user's stream never fails for it
            self._cut = True

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        if len(data) >= 2 * TAIL_BYTES:
            self._tail[:] = data[-TAIL_BYTES:]
            return
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
