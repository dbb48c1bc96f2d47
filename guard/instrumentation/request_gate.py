"""What the transport hooks need from the gate: cover for each request before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from guard.breaker.exceptions import GuardError
from guard.core.events import OpenEntry
from guard.core.request_bound import RequestBound
from guard.scope.scope import Scope

if TYPE_CHECKING:
    from guard.core.usage import Usage


PutLimit = Callable[[int], bool]
"""Limits a request's output to so many tokens; tells whether that was possible."""


def takes_no_limit(output_tokens: int) -> bool:
    """Stand for a request that takes no limit."""
    return False


class RequestCover(Protocol):
    """Money set aside for one request. Thread-safe; only the first end counts.

    Attributes:
        reservation_id: what the request's event names: the lease, or its own reservation. None
            when the request goes out without cover (``open`` mode, gateway away).
        output_tokens: the largest output that it pays for; None if that is unknown.
        refusal: why a stream that has outgrown it may not go on; None while it may.
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
        """Tell whether what this model answers is paid for by the rates that are known here."""

    def settle(self, usage: Usage) -> None:
        """The answer was read: pay for what it used, return the rest."""

    def give_back(self) -> None:
        """The request cost nothing: it was not sent, or refused by the vendor."""

    def keep(self) -> None:
        """What the answer cost stays unknown: the whole amount counts as spent.

        The caller records an event that costs as much, or a poll will record what it did cost.
        """

    def grow(self, output_tokens: int) -> None:
        """A stream nears what the hold pays for: ask for more in the background.

        The hold's ``output_tokens`` rises, or its ``refusal`` is set.

        Args:
            output_tokens: what the stream has had so far.
        """

    def raise_input(self, input_tokens: int) -> None:
        """Its prompt may have more tokens than was known: hold that too, if there is money."""


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
            scope: of the request.
            bound: what it can cost at most.
            limit: puts a limit on the output into it.

        Raises:
            Refusal: refused, or the gateway cannot be asked and there is no fallback.
            WorkflowKilledInterrupt: the workflow is killed.
        """

    async def ask_async(self, scope: Scope, bound: RequestBound, limit: PutLimit) -> RequestCover:
        """Like :meth:`ask`; the caller's loop goes on meanwhile."""
