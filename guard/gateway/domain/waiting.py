"""A place in line: calls that wait for money that is only set aside. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

RETRY_MS: Final = 1000
"""A call that waits asks again after so long, unless it is woken before."""
LAPSE_MS: Final = 4 * RETRY_MS
"""A place that nobody has asked for lapses after so long."""
BLOCKS_AFTER: Final = 4
"""A call blocks smaller ones behind it after this part of its wait: a quarter."""
NEVER_MS: Final = 2**62


class Waiter(Struct, frozen=True):
    """A call that waits.

    Attributes:
        call_id: of the call.
        since_ms: when it was asked first.
        blocks_from_ms: from then on smaller calls behind it wait as well.
        amount: what it needs, in nano-dollars.
        balance_ids: the balances that have less room than it needs.
        others: by balance, what it needs of those of other units.
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
        """What calls are ordered by: of two that were asked in one millisecond one is first."""
        return self.since_ms, self.call_id


class Place(Struct, frozen=True):
    """A call's own place.

    Attributes:
        since_ms: when it was asked first.
        from_ms: when money came back last that it may use, or when it was asked first.
        wait_ms: how long it waits from then on.
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
        """Return the call as those see it who come after it.

        Args:
            call_id: of the call.
            amount: what it needs, in nano-dollars.
            balance_ids: the balances that have less room than it needs.
            others: by balance, what it needs of those of other units.
            asks: whether it waits for an operator to raise a limit.
            blocks: whether smaller calls behind it wait as well after a while. What comes back does
                not help one that needs more than is unspent.
        """
        blocks_from_ms = self.since_ms + self.wait_ms // BLOCKS_AFTER if blocks else NEVER_MS
        ids = frozenset(balance_ids)
        return Waiter(call_id, self.since_ms, blocks_from_ms, amount, ids, others or {}, asks)


def promised(
    waiters: Iterable[Waiter], call_id: str, since_ms: int, amount: int, now_ms: int
) -> dict[int, int]:
    """Return, by balance, the money that goes first to those who were there before a call.

    A call that waits for its user's budget blocks nobody on the organisation's, and a large one
    blocks smaller ones only after a part of its wait.

    Args:
        waiters: who waits, in order.
        call_id: of the call that asks.
        since_ms: when it was asked first.
        amount: what it needs.
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
