"""Limits on the cost of reading: bytes held and time on the loop, by address and by organisation.

Connections that have not shown a key share the account of their address. One that has shown a key
uses its organisation's account, and the address gets its charges back.

All of it runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
import weakref
from collections.abc import Callable
from typing import Final, Protocol

SLICE_BYTES: Final = 4096
"""Bytes that are parsed in one turn of the loop: at most a millisecond, whatever they are."""

_SHARE: Final = 0.25
"""The share of the loop's time that one account may use in the long run."""
_BURST_S: Final = 0.05
"""Time that it may use at once."""
READ_S: Final = 0.000_005
"""The cost of a read besides its parsing."""
ANSWER_S: Final = 0.000_5
"""The cost of answering a stranger's request, about: it is not measured, because the answer is
made later, among other work."""
_HELD_BY_STRANGERS_MAX: Final = 8 << 20
_HELD_MAX: Final = 64 << 20
"""Bytes that have been received for one account and wait for their turn: 256 reads of uvloop."""


class Reader(Protocol):
    """A connection that has received more than it may read at once."""

    def read_on(self) -> None:
        """Read the next slice."""


class ReadQuota:
    """The use of the connections of one address or of one organisation.

    Time is a leaky bucket: each second that is used is paid back over ``1 / _SHARE`` seconds.

    Attributes:
        held: bytes in the backlogs of its connections, which add and subtract them.
    """

    __slots__ = (
        "__weakref__", "_clear_at_s", "_clock_s", "_held_max", "_timer", "_waiting", "held",
    )  # fmt: skip

    def __init__(self, held_max: int, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self.held = 0
        self._held_max = held_max
        self._clock_s = clock_s
        # When all used time will be paid back, by ``clock_s``.
        self._clear_at_s = 0.0
        # The connections that wait for a turn, in order; a dictionary for the order.
        self._waiting: dict[Reader, None] = {}
        # The next turn. Runs exactly while a connection waits.
        self._timer: asyncio.Handle | None = None

    @property
    def wait_s(self) -> float:
        """How long until the account may use more; not positive if it may now."""
        return self._clear_at_s - self._clock_s() - _BURST_S / _SHARE

    @property
    def is_clear(self) -> bool:
        """Whether all used time is paid back."""
        return self._clear_at_s <= self._clock_s()

    def charge(self, used_s: float) -> None:
        """Add used time; a negative time is given back."""
        # Time that is paid back does not add up to a credit: it counts from now at the earliest.
        self._clear_at_s = max(self._clear_at_s, self._clock_s()) + used_s / _SHARE

    def may_hold(self, size: int) -> bool:
        """Whether there is room for more bytes that wait."""
        return self.held + size <= self._held_max

    def wait_turn(self, reader: Reader) -> None:
        """Call a connection's ``read_on`` after those before it, as soon as the share allows."""
        self._waiting[reader] = None
        self._schedule()

    def forget(self, reader: Reader) -> None:
        """Remove a connection from those that wait. Idempotent."""
        self._waiting.pop(reader, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        # Through the loop even if there is nothing to wait for, so that other connections are read
        # in between.
        if self._timer is None and self._waiting:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self.wait_s), self._run)

    def _run(self) -> None:
        self._timer = None
        reader = next(iter(self._waiting))
        del self._waiting[reader]
        # With more in its backlog it goes to the end, so that all of them advance.
        try:
            reader.read_on()
        finally:
            # The others get their turns even if this one fails.
            self._schedule()


class ReadQuotas:
    """The accounts of one server, by address or organisation."""

    def __init__(self) -> None:
        # Weak: an account lives as long as a connection that uses it.
        self._accounts: weakref.WeakValueDictionary[str, ReadQuota] = weakref.WeakValueDictionary()
        # Or as long as it owes time: otherwise a client could connect anew to be free of it.
        self._owing: set[ReadQuota] = set()

    def of_address(self, host: str) -> ReadQuota:
        """Return the account of an address, for a connection that has not shown a key.

        >>> accounts = ReadQuotas()
        >>> accounts.of_address("2001:db8::1") is accounts.of_address("2001:db8::2")
        True
        """
        return self._of(f"address {network_of(host)}", _HELD_BY_STRANGERS_MAX)

    def of_organisation(self, organisation_id: str) -> ReadQuota:
        """Return the account of an organisation."""
        return self._of(f"organisation {organisation_id}", _HELD_MAX)

    def _of(self, whose: str, held_max: int) -> ReadQuota:
        account = self._accounts.get(whose)
        if account is None:
            account = self._accounts[whose] = ReadQuota(held_max)
        return account

    def keep(self, account: ReadQuota) -> None:
        """Keep the account of a connection that ends for as long as it owes."""
        if not account.is_clear:
            self._owing.add(account)

    def drop_clear(self) -> None:
        """Forget accounts that owe nothing any more."""
        self._owing = {each for each in self._owing if not each.is_clear}


def network_of(host: str) -> str:
    """Return the smallest range that belongs to one client: an IPv4 address, or 64 bits of IPv6.

    Text that is not an IPv6 address is returned unchanged.
    """
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
