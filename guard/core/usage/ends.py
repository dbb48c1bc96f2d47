"""What a request is charged when it has ended: one table for every transport. Pure.

In doubt, dear: what is not known to be free costs its bound, until something shows what it cost.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

from msgspec import Struct

UsageKind = Literal["exact", "counted", "pending", "none"]
"""What an answer says of its usage: all of it; nothing, but its texts could be counted; that it is
not finished yet; nothing at all."""


class Ending(Enum):
    """How a request ended."""

    UNSENT = "unsent"
    """Nothing of its body has left: no connection, no name, cancelled in the pool."""

    COMPLETE = "complete"
    """Its answer reached its end."""

    CLOSED = "closed"
    """We closed a stream: its reader left, its task was cancelled, its workflow killed."""

    LOST = "lost"
    """Anything else: reset, disconnected, timed out, closed before an answer began."""


class ChargeBy(Enum):
    """What a request is charged."""

    NOTHING = "nothing"
    USAGE = "usage"
    LATER = "later"
    """A poll reports what it cost; until then its hold stays."""

    COUNTED = "counted"
    """The prompt's bound, and the output that was counted."""

    SPEED = "speed"
    """The prompt's bound, and what the model can have written in the time that it had."""

    BOUND = "bound"
    """All that it could have cost."""


class Evidence(Struct, frozen=True):
    """What was seen of a request and its answer.

    Attributes:
        ending: how it ended.
        status: the status of the answer; None when no head arrived.
        usage: what the answer says of its usage.
        is_llm: whether it went to an LLM, as far as can be told.
        streamed: whether its answer was a stream of messages.
        began: whether any of the answer's body arrived.
        may_hide: whether the model can have written what no reader sees (reasoning).
        stops: whether the vendor stops, and bills no more, when its stream is closed.
    """

    ending: Ending
    status: int | None = None
    usage: UsageKind = "none"
    is_llm: bool = True
    streamed: bool = False
    began: bool = False
    may_hide: bool = True
    stops: bool = False


_OF_PROXIES: Final = frozenset({502, 504, 520, 524})
"""Statuses by which a proxy says that it lost the vendor, which may still work and bill. 520 and
524 are Cloudflare's (https://developers.cloudflare.com/support/troubleshooting/http-status-codes/
cloudflare-5xx-errors/)."""


def may_be_billed(status: int) -> bool:
    """Tell whether the vendor may bill a request that was answered with this status.

    A redirect is no answer of a model: where it leads to is asked by a request of its own.

    >>> may_be_billed(200), may_be_billed(307), may_be_billed(429), may_be_billed(504)
    (True, False, False, True)
    """
    return status < 300 or status in _OF_PROXIES


def charge_of(seen: Evidence) -> ChargeBy:
    """Return what a request is charged; the first row that fits decides."""
    if seen.ending is Ending.UNSENT:
        return ChargeBy.NOTHING
    if seen.status is not None and not may_be_billed(seen.status):
        return ChargeBy.NOTHING
    if seen.usage == "exact":
        return ChargeBy.USAGE
    if seen.usage == "pending":
        return ChargeBy.LATER
    if not seen.is_llm:
        return ChargeBy.NOTHING
    counts = seen.streamed and seen.usage == "counted"
    if seen.ending is Ending.COMPLETE and counts and not seen.may_hide:
        return ChargeBy.COUNTED
    if seen.ending is Ending.CLOSED and seen.began and seen.stops:
        return ChargeBy.SPEED
    return ChargeBy.BOUND


GRACE_S: Final = 2.0
"""How long a vendor may take to notice that its stream was closed."""


def output_by_time(seconds: float, tokens_per_s: int) -> int:
    """Return the most tokens that a model can have written before it noticed the end.

    >>> output_by_time(3.0, 100)
    500
    """
    return int((max(0.0, seconds) + GRACE_S) * tokens_per_s)
