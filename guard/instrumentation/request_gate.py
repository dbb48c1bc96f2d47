"""The interface between the transport hooks and the gate: cover for each request before it is sent.

A cover is money that is set aside for one request, from a lease of this process or at the gateway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from guard.breaker.exceptions import GuardError
from guard.core.events import OpenEntry
from guard.core.request_bound import RequestBound
from guard.scope.scope import Scope

if TYPE_CHECKING:
    from guard.core.usage import Usage


PutLimit = Callable[[int, bool], bool]
"""Limits a request's output to so many tokens, and makes it ask for a last answer where the second
argument is true; returns whether that was possible."""


def takes_no_limit(output_tokens: int, is_last: bool) -> bool:
    """The :data:`PutLimit` of a request into which no limit can be put."""
    return False


class RequestCover(Protocol):
    """Money set aside for one request. Thread-safe; only the first end counts.

    It ends once: by :meth:`settle`, :meth:`give_back` or :meth:`keep`. Until then its money is
    missing for other requests, so every way out of the code around a request ends its cover.

    Attributes:
        reservation_id: the lease, or the request's own reservation; its event names it. None when
            the request goes out without cover (``open`` mode, gateway away).
        output_tokens: the largest output that it pays for; None if that is unknown. Raised on the
            background loop while a stream is read.
        refusal: why a stream that has outgrown it must stop; None while it may continue. Set on
            the background loop.
    """

    @property
    def entry(self) -> OpenEntry | None:
        """Its place in the journal; None where it has none."""

    reservation_id: str | None
    output_tokens: int | None
    refusal: GuardError | None

    @property
    def amount_nanousd(self) -> int | None:
        """The money that is set aside now."""

    @property
    def cost_nanousd(self) -> int | None:
        """What the request has cost; None while that is not known here."""

    def cost_at_most(self, input_tokens: int, output_tokens: int) -> int | None:
        """Return what the request costs at most with so many tokens; None without rates."""

    def prices(self, model: str | None) -> bool:
        """Return whether an answer of this model is paid for by the rates that are known here."""

    def has_lapsed(self) -> bool:
        """Return whether others may have its money: it was not renewed in time."""

    def settle(self, usage: Usage) -> None:
        """End the cover: pay for what the answer used, return the rest."""

    def give_back(self) -> None:
        """End the cover of a request that cost nothing: not sent, or refused by the vendor."""

    def keep(self) -> None:
        """End the cover of a request whose cost is unknown here: the whole amount counts as spent.

        The caller records an event that costs as much, or a poll will record the cost.
        """

    def grow(self, output_tokens: int) -> None:
        """Ask for more in the background, for a stream that nears what the hold pays for.

        The hold's ``output_tokens`` rises, or its ``refusal`` is set.

        Args:
            output_tokens: those of the stream so far.
        """

    def raise_input(self, input_tokens: int) -> None:
        """Hold more for a prompt that may have more tokens than was known, if there is money."""


class RequestGate(Protocol):
    """Decides whether an LLM request may go out."""

    def hold(self, scope: Scope, bound: RequestBound) -> RequestCover | None:
        """Cover a request from a lease, without a round trip; None when the gateway must be asked.

        Raises:
            Refusal: refused.
        """

    def counted(self, scope: Scope, bound: RequestBound, path: str, body: bytes) -> RequestBound:
        """Return a request's bound with the digest of its prompt, where repeats are counted."""

    def ask(self, scope: Scope, bound: RequestBound, limit: PutLimit) -> RequestCover:
        """Ask the gateway; blocks the calling thread.

        Args:
            scope: the scope of the request.
            bound: what it can cost at most.
            limit: puts an output limit into the request, where the gateway has set less aside
                than was asked for. Called before this returns, in the same thread or task.

        Raises:
            Refusal: refused, or the gateway cannot be asked and there is no fallback.
            WorkflowKilledInterrupt: the workflow is killed.
        """

    async def ask_async(self, scope: Scope, bound: RequestBound, limit: PutLimit) -> RequestCover:
        """Like :meth:`ask`, without blocking the caller's loop."""
