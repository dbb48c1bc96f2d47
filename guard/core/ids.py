"""Identifiers: UUIDv7 (RFC 9562) and W3C Trace Context ids, made without locks.

An id holds the millisecond of its creation, 40 random bits of the process and a counter, so
creating one needs no random call and two processes never collide.
"""

from __future__ import annotations

import itertools
import os
from typing import Final

_COUNTER_BITS: Final = 34
_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62
_DRAWN_BYTES: Final = 10
_TRACE_BYTES: Final = 16
_DRAWN_AHEAD: Final = 100
"""Ids that one call of the system's random generator is enough for."""
_VARIANTS: Final = {digit: "89ab"[number & 3] for number, digit in enumerate("0123456789abcdef")}
_TAILS: Final = tuple(f"{number:02x}" for number in range(256))
"""The last two digits of ids: to format them takes as long as all the rest of an event's id."""


class IdFactory:
    """Makes ids for one process; a forked child must make its own factory.

    >>> factory = IdFactory()
    >>> factory.uuid7(1_700_000_000_000) != factory.uuid7(1_700_000_000_000)
    True
    """

    __slots__ = (
        "_drawn",
        "_head",
        "_prefix",
        "_process_bits",
        "_traces",
        "count",
    )

    def __init__(self, process_bits: int | None = None) -> None:
        bits = int.from_bytes(os.urandom(5), "big") if process_bits is None else process_bits
        self._process_bits = bits & ((1 << 40) - 1)
        # The prefixes that neighbouring ids share, as tuples that are replaced whole: threads need
        # no lock, and at worst two of them compute the same one. The uniqueness of an id comes from
        # `count` alone, whose `next` is atomic.
        self._prefix = (-1, "")
        self._head = (-1, -1, "")
        # Random digits that were drawn ahead; `list.pop` is atomic, so each is used once.
        self._drawn: list[str] = []
        self._traces: list[str] = []
        self.count = itertools.count(1)
        """The numbers of this process; ``next(ids.count)`` is :meth:`serial` without the call."""

    @property
    def process_bits(self) -> int:
        """The random bits of this process's ids; with them another process can make them again."""
        return self._process_bits

    def serial(self) -> int:
        """Return the next number of this process."""
        return next(self.count)

    def uuid7(self, at_ms: int, serial: int | None = None) -> str:
        """Return a UUIDv7 for a time in Unix milliseconds (and a number from :meth:`serial`)."""
        if serial is None:
            serial = next(self.count)
        # Neighbours share all but the last two digits; one tuple, so no thread sees a mixed state.
        block = serial >> 8
        head_ms, head_block, head = self._head
        if head_ms != at_ms or head_block != block:
            head = self._head_of(at_ms, block)
            self._head = (at_ms, block, head)
        return head + _TAILS[serial & 0xFF]

    def _head_of(self, at_ms: int, block: int) -> str:
        serial = (block << 8) & ((1 << _COUNTER_BITS) - 1)
        low = (self._process_bits << _COUNTER_BITS) | serial
        rand_a, rand_b = low >> 62, low & ((1 << 62) - 1)
        value = ((at_ms & ((1 << 48) - 1)) << 80) | _VERSION_7 | (rand_a << 64) | _VARIANT | rand_b
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:30]}"

    def unguessable(self, at_ms: int) -> str:
        """Return a UUIDv7 whose other 74 bits are random: one says nothing about the next."""
        known_ms, prefix = self._prefix
        if known_ms != at_ms:
            text = f"{at_ms & ((1 << 48) - 1):012x}"
            prefix = f"{text[:8]}-{text[8:]}-7"
            self._prefix = (at_ms, prefix)
        try:
            drawn = self._drawn.pop()
        except IndexError:
            # Another thread may do the same and replace this list: its digits are then unused.
            digits = os.urandom(_DRAWN_BYTES * _DRAWN_AHEAD).hex()
            ends = range(0, len(digits), 2 * _DRAWN_BYTES)
            self._drawn = [digits[at : at + 2 * _DRAWN_BYTES] for at in ends]
            drawn = self._drawn.pop()
        return f"{prefix}{drawn[:3]}-{_VARIANTS[drawn[3]]}{drawn[4:7]}-{drawn[7:19]}"

    def trace_id(self) -> str:
        """Return a W3C trace id: 32 lower-case hex digits, never all zero.

        Drawn ahead: a call of the system's generator lets go of the interpreter lock, and beside
        a busy thread the caller waits to get it back.
        """
        try:
            return self._traces.pop()
        except IndexError:
            digits = os.urandom(_TRACE_BYTES * _DRAWN_AHEAD).hex()
            ends = range(0, len(digits), 2 * _TRACE_BYTES)
            traces = [digits[at : at + 2 * _TRACE_BYTES] for at in ends]
            drawn = traces.pop()
            self._traces = traces
            return drawn

    def span_id(self) -> str:
        """Return a W3C span id: 16 lower-case hex digits, never all zero."""
        return f"{((self._process_bits or 1) << 24) | (next(self.count) & 0xFFFFFF):016x}"
