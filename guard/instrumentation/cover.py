"""The money set aside for one LLM request, from before its first byte to its end."""

from __future__ import annotations

import contextlib
from typing import Final

from guard.breaker.refusals import Refusal
from guard.core.input_ratios import InputRatios
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.core.usage.decoding import DecodingError
from guard.core.usage.stream_meter import StreamMeter
from guard.instrumentation.request_gate import Hold, RequestGate
from guard.scope.scope import Scope

_GROWS_AT: Final = 0.8
"""Share of a hold's output at which a stream asks for more."""


class Cover:
    """One request's hold, or the question that it waits for.

    Args:
        gate: decides about requests.
        scope: the scope in which the request was made.
        bound: what it can cost at most.
        ratios: learn how many tokens its prompt had.

    Attributes:
        hold: the money set aside; None until the gateway has answered.
    """

    __slots__ = ("_bound", "_gate", "_ratios", "_scope", "hold")

    def __init__(
        self, gate: RequestGate, scope: Scope, bound: RequestBound, ratios: InputRatios
    ) -> None:
        self._gate = gate
        self._scope = scope
        self._bound = bound
        self._ratios = ratios
        self.hold: Hold | None = None

    # -- before the first byte ----------------------------------------------------------------

    def take(self) -> bool:
        """Take the hold from a lease; tell whether that was possible without a round trip.

        Raises:
            Refusal: refused.
        """
        try:
            self.hold = self._gate.hold(self._scope, self._bound)
        except Refusal as exc:
            self._scope.refuse(exc.error)
            raise
        return self.hold is not None

    def ask(self) -> None:
        """Ask the gateway; blocks the calling thread.

        Raises:
            Refusal: refused.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        try:
            self.hold = self._gate.ask(self._scope, self._bound)
        except Refusal as exc:
            self._scope.refuse(exc.error)
            raise

    async def ask_async(self) -> None:
        """Like :meth:`ask`; the caller's loop goes on meanwhile."""
        try:
            self.hold = await self._gate.ask_async(self._scope, self._bound)
        except Refusal as exc:
            self._scope.refuse(exc.error)
            raise

    # -- the answer ---------------------------------------------------------------------------

    @property
    def reservation_id(self) -> str | None:
        """What the request's event names."""
        return None if self.hold is None else self.hold.reservation_id

    def watch(self, content_encoding: str) -> StreamWatch | None:
        """Return what counts the request's stream; None where the request bounds it itself."""
        hold, bound = self.hold, self._bound
        if hold is None or hold.output_tokens is None or not bound.streams:
            return None
        if bound.output_tokens is not None:
            return None
        try:
            meter = StreamMeter(content_encoding)
        except DecodingError:  # nothing installed can decode it
            return None
        return StreamWatch(hold, self._scope, meter)

    def settle(self, usage: Usage) -> None:
        """The answer was read: pay for what it used, return the rest."""
        bound, hold = self._bound, self.hold
        tokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        if tokens > (bound.input_tokens or 0) and bound.measured_bytes and not usage.estimated:
            self._ratios.learn(bound.model, bound.measured_bytes, tokens)
        if hold is not None:
            hold.settle(usage)

    def keep(self, input_tokens: int) -> Usage | None:
        """What the answer cost stays unknown: the whole hold counts as spent.

        Returns:
            What to record instead: the hold's largest output; None when nothing was held.
        """
        hold = self.hold
        if hold is None or hold.reservation_id is None:
            self.keep_pending()
            return None
        output_tokens = hold.output_tokens
        hold.keep()
        return Usage(
            model=self._bound.model,
            input_tokens=input_tokens,
            output_tokens=output_tokens or 0,
            estimated=True,
        )

    def keep_pending(self) -> None:
        """The answer is not ready: a poll reports what it cost, until then the hold is spent."""
        if self.hold is not None:
            self.hold.keep()

    def give_back(self) -> None:
        """The request cost nothing."""
        if self.hold is not None:
            self.hold.give_back()


class StreamWatch:
    """Counts a stream whose hold rests on an assumed output, and ends it when it may not go on.

    Args:
        hold: the money set aside.
        scope: the scope in which the request was made.
        meter: counts the tokens.
    """

    __slots__ = ("_asked", "_hold", "_meter", "_scope")

    def __init__(self, hold: Hold, scope: Scope, meter: StreamMeter) -> None:
        self._hold = hold
        self._scope = scope
        self._meter = meter
        self._asked = -1

    def feed(self, chunk: bytes) -> None:
        """Count a chunk that has arrived.

        Raises:
            Refusal: the stream has passed its hold, and more was refused.
        """
        hold, meter = self._hold, self._meter
        with contextlib.suppress(DecodingError):  # what cannot be decoded is not counted
            meter.feed(chunk)
        allowed = hold.output_tokens
        if allowed is None or meter.tokens < _GROWS_AT * allowed:
            return
        if allowed != self._asked:
            self._asked = allowed
            hold.grow(meter.tokens)
        if hold.refusal is not None and meter.tokens > (hold.output_tokens or 0):
            self._scope.refuse(hold.refusal)
            # In a process's own workflow there is no edge that would make a carrier public.
            raise hold.refusal if self._scope.entry is None else Refusal(hold.refusal)
