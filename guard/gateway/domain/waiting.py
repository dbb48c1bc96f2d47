"""A place in line: calls that wait for money that is only set aside. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

RETRY_MS: Final = 1000
"""How long a waiting call waits before it asks again, unless it is woken."""
LAPSE_MS: Final = 4 * RETRY_MS
"""How long a place is kept without being asked for."""
BLOCKS_AFTER: Final = 4
"""A call blocks smaller ones behind it after this fraction of its wait: a quarter."""
NEVER_MS: Final = 2**62
"""A time that never comes."""


class Waiter(Struct, frozen=True):
    """A call that waits.

    Attributes:
        call_id: of the call.
        since_ms: when it asked first.
        blocks_from_ms: from then on smaller calls behind it wait as well.
        amount: what it needs, in nano-dollars.
        balance_ids: the balances that have less room than it needs.
        others: what it needs on balances of other units, by balance.
        asks: whether it waits for an operator to raise a limit.
    """

    call_id: str
    since_ms: int
    blocks_from_ms: int
    amount: int
    balance_ids: frozenset[int]
    others: dict[int, int] = {}
    asks: bool = False

    @property
    def turn(self) -> tuple[int, str]:
        """The sort key of the line; the id orders two calls of the same millisecond."""
        return self.since_ms, self.call_id


class Place(Struct, frozen=True):
    """A call's own place.

    Attributes:
        since_ms: when the call asked first, which decides its turn.
        from_ms: when money that it may use came back last, or when it asked first.
        wait_ms: how long it waits, counted from ``from_ms``.
    """

    since_ms: int
    from_ms: int
    wait_ms: int

    @property
    def until_ms(self) -> int:
        """When its wait is over, unless money comes back before."""
        return self.from_ms + self.wait_ms

    def waiter(
        self,
        call_id: str,
        amount: int,
        balance_ids: Iterable[int],
        others: dict[int, int] | None = None,
        *,
        asks: bool = False,
        blocks: bool = True,
    ) -> Waiter:
        """Return the call's entry in the line, by which calls behind it are decided.

        Args:
            call_id: of the call.
            amount: what it needs, in nano-dollars.
            balance_ids: the balances that have less room than it needs.
            others: what it needs on balances of other units, by balance.
            asks: whether it waits for an operator to raise a limit.
            blocks: whether smaller calls behind it wait as well after a while. A call that needs
                more than is unspent must not block: no money that comes back can help it.
        """
        blocks_from_ms = self.since_ms + self.wait_ms // BLOCKS_AFTER if blocks else NEVER_MS
        ids = frozenset(balance_ids)
        return Waiter(call_id, self.since_ms, blocks_from_ms, amount, ids, others or {}, asks)


def promised(
    waiters: Iterable[Waiter], call_id: str, since_ms: int, amount: int, now_ms: int
) -> dict[int, int]:
    """Return, by balance, the money that is kept for calls ahead of this one in line.

    A call that waits for its user's budget blocks no call on the organisation's. A large call lets
    smaller ones pass for a part of its wait; after that it blocks them, or it might wait in vain.

    Args:
        waiters: the waiting calls, in order.
        call_id: of the call that asks.
        since_ms: when it asked first.
        amount: what it needs, in nano-dollars.
        now_ms: the time.

    >>> first = Waiter("a", 0, 2500, 70, frozenset([1]))
    >>> promised([first], "b", 10, 80, 20), promised([first], "b", 10, 20, 20)
    ({1: 70}, {})
    """
    found: dict[int, int] = {}
    for waiter in waiters:
        if waiter.turn >= (since_ms, call_id):
            continue
        if waiter.amount <= amount or now_ms >= waiter.blocks_from_ms:
            for balance_id in waiter.balance_ids:
                amount_there = waiter.others.get(balance_id, waiter.amount)
                found[balance_id] = found.get(balance_id, 0) + amount_there
    return found
