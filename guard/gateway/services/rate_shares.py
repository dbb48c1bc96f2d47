"""Shares of rate caps: calls that the holder of a lease may make without asking."""

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
    """Counts calls against caps, all or none, and lends calls in advance.

    Any method raises StoreError while the counters cannot be reached.
    """

    async def take(self, organisation_id: str, uses: Sequence[CapUse]) -> int | None:
        """Return ``None`` for a call that may proceed, else the wait in milliseconds."""

    async def lend(
        self, organisation_id: str, uses: Sequence[CapUse], name: str, wanted: int, ttl_ms: int
    ) -> int:
        """Count calls that are going to be made within a time; return how many."""

    async def settle(
        self, organisation_id: str, name: str, unused: int, *, unless: str | None = None
    ) -> None:
        """End a loan, unless it was made under that name: what is unused is free again."""

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
            request: who asks.
            call: the question; the call itself is counted already.
            caps: those that count every call of the lane.
            ttl_ms: how long a lease lasts.

        Returns:
            How many calls the lease allows, this one included if caps count it.
        """
        assert call.lease is not None
        own, name = request.organisation_id, _name(request, call)
        if call.lease.lease_id is not None:
            # Not what this very question has lent before, if it is a repeat.
            unused = call.lease.calls_left
            lent = _lent(request, call.lease.lease_id)
            await self._rates.settle(own, lent, unused, unless=name)
        counted = 0 if call.within is not None and call.kind == "llm" else 1
        wanted = call.lease.demand_calls - counted
        if wanted < 1:
            return counted
        return counted + await self._rates.lend(own, caps, name, wanted, ttl_ms)

    async def decided(self, command: GateCommand, answer: EncodedAnswer, ttl_ms: int) -> None:
        """Bind what was lent to the lease that was granted, or take it back."""
        own, name = command.request.organisation_id, _name(command.request, command.call)
        with _decided_anyway():
            if answer.lease_id is None:
                await self._rates.settle(own, name, command.call.lease.demand_calls)  # type: ignore[union-attr]  # only asks for leases borrow
            else:
                lent = _lent(command.request, answer.lease_id)
                await self._rates.extend(own, name, ttl_ms, lent)

    async def update(self, request: RequestOrigin, update: wire.LeaseUpdate, ttl_ms: int) -> None:
        """Take back the calls of the caller's lease that gives back, or give them more time."""
        own, name = request.organisation_id, _lent(request, update.lease_id)
        with _decided_anyway():
            if update.close or update.calls_left or update.unused_nanousd:
                await self._rates.settle(own, name, update.calls_left)
            else:
                await self._rates.extend(own, name, ttl_ms)


@contextlib.contextmanager
def _decided_anyway() -> Iterator[None]:
    """Go on without the counters: the money is settled, and loans end by themselves."""
    try:
        yield
    except StoreError as exc:
        logger.warning("a share of a rate cap was not updated: %s", exc)


def _name(request: RequestOrigin, call: wire.GateRequest) -> str:
    """Name a loan until its lease is known; a repeat of the question has the same name."""
    return f"{request.key_id}/{request.idempotency_key or call.call_id}"


def _lent(request: RequestOrigin, lease_id: str) -> str:
    """Name the loan of a lease: by the caller's key too, so that no other key's can be named."""
    return f"{request.key_id}:{lease_id}"
