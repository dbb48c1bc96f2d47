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
_TAIL_BITS: Final = 8
TAILS: Final = tuple(f"{number:02x}" for number in range(1 << _TAIL_BITS))


class IdFactory:
    """Makes ids for one process; a forked child must make its own factory.

    >>> factory = IdFactory()
    >>> factory.uuid7(1_700_000_000_000) != factory.uuid7(1_700_000_000_000)
    True
    """

    __slots__ = ("_process_bits", "count", "head")

    def __init__(self, process_bits: int | None = None) -> None:
        bits = int.from_bytes(os.urandom(5), "big") if process_bits is None else process_bits
        self._process_bits = bits & ((1 << 40) - 1)
        self.count = itertools.count(1)
        """The numbers of this process; ``next(ids.count)`` is :meth:`serial` without the call."""
        self.head = (-1, -1, "")
        """``(at_ms, serial >> 8, text)``: the prefix that the newest ids share, for callers that
        append the last two digits themselves."""

    def serial(self) -> int:
        """Return the next number of this process."""
        return next(self.count)

    def uuid7(self, at_ms: int, serial: int | None = None) -> str:
        """Return a UUIDv7 for a time in Unix milliseconds (and a number from :meth:`serial`)."""
        if serial is None:
            serial = next(self.count)
        block = serial >> _TAIL_BITS
        # Neighbours share all but the last two digits; one tuple, so no thread sees a mixed state.
        head_ms, head_block, head = self.head
        if head_ms != at_ms or head_block != block:
            head = self._head_of(at_ms, block)
            self.head = (at_ms, block, head)
        return head + TAILS[serial & 0xFF]

    def _head_of(self, at_ms: int, block: int) -> str:
        serial = (block << _TAIL_BITS) & ((1 << _COUNTER_BITS) - 1)
        low = (self._process_bits << _COUNTER_BITS) | serial
        rand_a, rand_b = low >> 62, low & ((1 << 62) - 1)
        value = ((at_ms & ((1 << 48) - 1)) << 80) | _VERSION_7 | (rand_a << 64) | _VARIANT | rand_b
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:30]}"

    def unguessable(self, at_ms: int) -> str:
        """Return a UUIDv7 whose other 74 bits are random: one says nothing about the next."""
        value = (at_ms & ((1 << 48) - 1)) << 80 | _VERSION_7 | _VARIANT
        random = int.from_bytes(os.urandom(10), "big")
        value |= (random >> 62 & 0xFFF) << 64 | random & ((1 << 62) - 1)
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def trace_id(self) -> str:
        """Return a W3C trace id: 32 lower-case hex digits, never all zero."""
        return os.urandom(16).hex()

    def span_id(self) -> str:
        """Return a W3C span id: 16 lower-case hex digits, never all zero."""
        return f"{((self._process_bits << 24) | (next(self.count) & 0xFFFFFF)) or 1:016x}"
