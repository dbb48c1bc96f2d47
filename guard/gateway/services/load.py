"""Back pressure: a limit on the bytes of all requests in flight."""

from __future__ import annotations

from typing import Final

REQUEST_BYTES: Final = 4096
"""Counted for each request besides its body."""

_EVENTS_SHARE: Final = 0.5
"""Share of the limit for event batches, so that a flood of them never causes a call's refusal."""
_OWNER_SHARE: Final = 0.5
"""Share of either limit for one organisation, so that it never causes another's refusals."""


class Load:
    """Counts the bytes of requests that are being read, decided or committed.

    Used on the loop only. Each :meth:`take` that returned ``True`` is followed by a :meth:`release`
    of the same bytes, however the request ends.

    Args:
        bytes_max: maximum bytes in flight; a request beyond it is to be refused.
    """

    __slots__ = ("_by_owner", "_bytes_max", "in_flight", "refused")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # Bytes of each organisation's requests; one without any has no entry.
        self._by_owner: dict[str, int] = {}
        # The sum of all organisations' bytes.
        self.in_flight = 0
        # Requests since the start that did not fit.
        self.refused = 0

    def take(self, owner: str, size: int, *, events: bool = False, held: int = 0) -> bool:
        """Add bytes; False, and nothing added, when they do not fit.

        A request always fits when nothing else is in flight.

        Args:
            owner: the organisation that the request is for.
            size: bytes to count.
            events: whether it is a batch of events.
            held: bytes counted for this request before.

        >>> load = Load(16)
        >>> load.take("a", 8), load.take("a", 1), load.take("b", 8), load.take("c", 1)
        (True, False, True, False)
        """
        most = self._bytes_max * _EVENTS_SHARE if events else self._bytes_max
        own = self._by_owner.get(owner, 0)
        crowded = self.in_flight > held and self.in_flight + size > most
        greedy = own > held and own + size > most * _OWNER_SHARE
        if crowded or greedy:
            self.refused += 1
            return False
        self._by_owner[owner] = own + size
        self.in_flight += size
        return True

    def release(self, owner: str, size: int) -> None:
        """Subtract the bytes of an answered request."""
        left = self._by_owner[owner] - size
        if left:
            self._by_owner[owner] = left
        else:
            del self._by_owner[owner]
        self.in_flight -= size
