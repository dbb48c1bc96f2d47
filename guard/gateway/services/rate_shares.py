"""Shares of rate caps: calls that the holder of a lease may make without asking.

The counters may live in another store than the money, so no transaction spans both. Calls are lent
before the money is decided, under a name made from the question; after the decision the loan is
renamed to its lease, or ended. If the process dies in between, the loan ends after a lease's time,
and until then the cap allows fewer calls than it could, never more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs

from guard.core import wire
from guard.gateway.domain.commands import EncodedAnswer, GateCommand, RequestOrigin
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.policy import CapUse

logger = logging.getLogger(__name__)


class RateStore(Protocol):
    """Counts calls against caps (against all of them or none), and lends calls in advance.

    Any method raises StoreError while the counters cannot be reached.
    """

    async def take(self, organisation_id: str, uses: Sequence[CapUse]) -> int | None:
        """Return ``None`` for a call that may proceed, else the wait in milliseconds."""

    async def lend(
        self, organisation_id: str, uses: Sequence[CapUse], name: str, wanted: int, ttl_ms: int
    ) -> int:
        """Count calls in advance, which the borrower may make within a time; return how many."""

    async def settle(
        self, organisation_id: str, name: str, unused: int, *, unless: str | None = None
    ) -> None:
        """End a loan and free what is unused; do nothing if it was made under the name ``unless``.

        Ending a loan that is unknown, or has ended, changes nothing.
        """

    async def extend(
        self, organisation_id: str, name: str, ttl_ms: int, new_name: str | None = None
    ) -> None:
        """Give the holder of a loan more time, and the loan another name."""


@attrs.frozen(eq=False)
class RateShares:
    """Lends calls with leases, and takes back what is unused.

    Args:
        rates: the counters.
    """

    _rates: RateStore

    async def lend(
        self, request: RequestOrigin, call: wire.GateRequest, caps: Sequence[CapUse], ttl_ms: int
    ) -> int:
        """Take back what the caller's lease has left, and lend what it is expected to need.

        Args:
            request: the caller and its key.
            call: the question; the call itself is counted already.
            caps: those that count every call of the lane.
            ttl_ms: how long a lease lasts.

        Returns:
            How many calls the lease allows, this one included if caps count it.
        """
        assert call.lease is not None
        own, name = request.organisation_id, _name(request, call)
        if call.lease.lease_id is not None:
            # A repeat of the question must not end the loan that its first run has made, and bound
            # to this lease.
            unused = call.lease.calls_left
            lent = _lent(request, call.lease.lease_id)
            await self._rates.settle(own, lent, unused, unless=name)
        # A request within a protected call is no call of its own under the caps.
        counted = 0 if call.within is not None and call.kind == "llm" else 1
        wanted = call.lease.demand_calls - counted
        if wanted < 1:
            return counted
        return counted + await self._rates.lend(own, caps, name, wanted, ttl_ms)

    async def decided(self, command: GateCommand, answer: EncodedAnswer, ttl_ms: int) -> None:
        """Bind what was lent to the lease that was granted, or take it back if there is none."""
        own, name = command.request.organisation_id, _name(command.request, command.call)
        with _decided_anyway():
            if answer.lease_id is None:
                await self._rates.settle(own, name, command.call.lease.demand_calls)  # type: ignore[union-attr]  # only asks for leases borrow
            else:
                lent = _lent(command.request, answer.lease_id)
                await self._rates.extend(own, name, ttl_ms, lent)

    async def update(self, request: RequestOrigin, update: wire.LeaseUpdate, ttl_ms: int) -> None:
        """Take back the unused calls of a lease that gives back or closes, else extend its loan."""
        own, name = request.organisation_id, _lent(request, update.lease_id)
        with _decided_anyway():
            if update.close or update.calls_left or update.unused_nanousd:
                await self._rates.settle(own, name, update.calls_left)
            else:
                await self._rates.extend(own, name, ttl_ms)


@contextlib.contextmanager
def _decided_anyway() -> Iterator[None]:
    """Log a failure of the counters: the money is decided by now, and loans end by themselves."""
    try:
        yield
    except StoreError as exc:
        logger.warning("a share of a rate cap was not updated: %s", exc)


def _name(request: RequestOrigin, call: wire.GateRequest) -> str:
    """Name a loan until its lease is known; a repeat of the question has the same name."""
    return f"{request.key_id}/{request.idempotency_key or call.call_id}"


def _lent(request: RequestOrigin, lease_id: str) -> str:
    """Name the loan of a lease. The caller's key is in it, so no key can name another's loan."""
    return f"{request.key_id}:{lease_id}"
