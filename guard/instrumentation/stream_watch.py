"""Counts a stream that may outgrow the money set aside for it."""

from __future__ import annotations

import contextlib
from typing import Final

from guard.breaker.refusals import Refusal
from guard.core.request_bound import RequestBound
from guard.core.usage.decoding import DecodingError
from guard.core.usage.stream_meter import StreamMeter
from guard.instrumentation.request_gate import RequestCover
from guard.scope.scope import Scope

_GROWS_AT: Final = 0.8
"""Share of a hold's output at which a stream asks for more: early, so that the gateway's answer is
there before the rest is used."""


def watch_of(
    hold: RequestCover | None, bound: RequestBound | None, scope: Scope, content_encoding: str
) -> StreamWatch | None:
    """Return a watch that counts a request's stream; None where the request has its own limit."""
    if hold is None or bound is None or hold.output_tokens is None or not bound.streams:
        return None
    if bound.output_tokens is not None:
        return None
    try:
        meter = StreamMeter(content_encoding)
    except DecodingError:  # no installed package can decode it
        return None
    return StreamWatch(hold, scope, meter)


class StreamWatch:
    """Counts a stream whose hold rests on an assumed output, and ends it once its money is used up.

    Used by the stream's reader alone. The hold is shared: the background loop raises its
    ``output_tokens``, or sets its ``refusal``, when the gateway has answered.

    Args:
        hold: the money set aside.
        scope: the scope in which the request was made.
        meter: counts the tokens.
    """

    __slots__ = ("_asked", "_hold", "_meter", "_scope")

    def __init__(self, hold: RequestCover, scope: Scope, meter: StreamMeter) -> None:
        self._hold = hold
        self._scope = scope
        self._meter = meter
        # The allowed output at which more was asked for: one question for each grant.
        self._asked = -1

    def feed(self, chunk: bytes) -> None:
        """Count a chunk that has arrived.

        Raises:
            Refusal: the stream has passed its hold, and more was refused. Without an answer of
                the gateway it continues.
        """
        hold, meter = self._hold, self._meter
        with contextlib.suppress(DecodingError):  # what cannot be decoded is not counted
            meter.feed(chunk)
        # Read once for each chunk, because the background loop may raise it at any moment.
        allowed = hold.output_tokens
        if allowed is None or meter.tokens < _GROWS_AT * allowed:
            return
        if allowed != self._asked:
            self._asked = allowed
            hold.grow(meter.tokens)
        if hold.refusal is not None and meter.tokens > (hold.output_tokens or 0):
            self._scope.refuse(hold.refusal)
            # In a process's own workflow there is no edge that turns a carrier into its error.
            raise hold.refusal if self._scope.entry is None else Refusal(hold.refusal)
