"""Keeps the beginning and the end of a body that passes by, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from guard.core.usage.decoding import Decoder, decoder_for
from guard.core.usage.framing import Recorded, aws_frame, take_frames

HEAD_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 64 * 1024
DECODED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum number of decoded bytes: the rest of a compressed body is not observed."""

Condense = Callable[[bytes], bytes | None]

PENDING_BYTES: Final = HEAD_BYTES + TAIL_BYTES
"""How many bytes of raw chunks are held before decoding: most streams end before that."""


class Recording:
    """Takes a body's chunks as they arrive on the wire.

    A chunk costs an append: chunks are kept unchanged until they amount to 128 KiB, then decoded
    and trimmed to the first and the last 64 KiB.

    A transport's innermost loop may append to :attr:`pending` itself, and call :meth:`settle` after
    every ``PENDING_BYTES``.

    Args:
        content_encoding: value of the header, empty for identity; or a callable, called when
            the chunks are decoded, that returns it.
        condense: for AWS event streams, returns what to keep of a frame's payload, None for
            nothing.

    Example:
        >>> recording = Recording("")
        >>> recording.feed(b"data: {}")
        >>> recording.recorded().head
        b'data: {}'
    """

    __slots__ = ("_condense", "_encoding", "_ends", "_room", "pending")

    def __init__(
        self, content_encoding: str | Callable[[], str], condense: Condense | None = None
    ) -> None:
        # Chunks as they came, not decoded yet. The caller's thread appends; the loop's reads.
        self.pending: list[bytes] = []
        self._encoding = content_encoding
        self._condense = condense
        # Made with the first chunk that is decoded: many streams never get that far.
        self._ends: _HeadAndTail | None = None
        # How many more bytes may be pending.
        self._room = PENDING_BYTES

    def feed(self, chunk: bytes) -> None:
        """Take a chunk."""
        self.pending.append(chunk)
        self._room -= len(chunk)
        if self._room < 0:
            self.settle()

    def recorded(self) -> Recorded:
        """Return what has been kept of the body so far."""
        ends = self._started()
        if ends.untouched:
            data = b"".join(self.pending)
            if len(data) <= PENDING_BYTES:  # copied once, ready to be read
                self.pending[:] = [data]
                return Recorded(data, size=len(data))
        self.settle()
        return ends.recorded()

    def settle(self) -> None:
        """Decode and trim the pending chunks; never raises."""
        pending = self.pending.copy()
        self.pending.clear()
        self._room = PENDING_BYTES
        self._started().take(b"".join(pending))

    def _started(self) -> _HeadAndTail:
        if self._ends is None:
            if self._condense is None:
                self._ends = _HeadAndTail(self._encoding)
            else:
                self._ends = _Frames(self._encoding, self._condense)
        return self._ends


class _HeadAndTail:
    """The first and the last bytes of a body, decoded."""

    __slots__ = ("_cut", "_decoder", "_head", "_size", "_tail")

    def __init__(self, content_encoding: str | Callable[[], str]) -> None:
        self._head = bytearray()
        # Up to twice what is kept, so that it is trimmed once for many chunks.
        self._tail = bytearray()
        # Decoded bytes so far.
        self._size = 0
        # Whether the rest is not observed: too much of it, or it cannot be decoded.
        self._cut = False
        self._decoder: Decoder | None = None
        try:
            if not isinstance(content_encoding, str):
                content_encoding = content_encoding()
            if content_encoding:
                self._decoder = decoder_for(content_encoding)
        except Exception:  # noqa: BLE001  # whatever it is, it never breaks a user's stream
            self._cut = True

    @property
    def untouched(self) -> bool:
        """Whether nothing was taken yet, and chunks need no decoding."""
        return not self._size and not self._cut and self._decoder is None

    def take(self, data: bytes) -> None:
        """Decode the next chunk; never raises."""
        if self._cut:
            return
        try:
            if self._decoder is None:
                self._keep(data)
                return
            for piece in self._decoder.decode(data):
                self._keep(piece)
                if self._size > DECODED_BYTES_MAX:
                    self._cut = True
                    break
        except Exception:  # noqa: BLE001  # as above
            self._cut = True

    def recorded(self) -> Recorded:
        """Return what is kept."""
        head, tail = bytes(self._head), bytes(self._tail)
        if self._size == len(head) + len(tail):  # nothing in between was discarded
            head, tail = head + tail, b""
        return Recorded(head, tail, self._size, self._cut)

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


class _Frames(_HeadAndTail):
    """What was condensed of the frames of an AWS event stream."""

    __slots__ = ("_condense", "_rest")

    def __init__(self, content_encoding: str | Callable[[], str], condense: Condense) -> None:
        super().__init__(content_encoding)
        self._condense = condense
        # The beginning of a frame whose end has not arrived.
        self._rest = bytearray()

    @property
    def untouched(self) -> bool:
        """Never: what arrives is not what is kept."""
        return False

    def _keep(self, data: bytes) -> None:
        self._rest += data
        for payload in take_frames(self._rest):
            kept = self._condense(payload)
            if kept is not None:
                super()._keep(aws_frame(kept))
