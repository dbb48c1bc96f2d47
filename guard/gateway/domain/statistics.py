"""What a store tells of itself: counters in memory, which cost a scrape no query."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Final, TypedDict

from msgspec import Struct

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
COMMANDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Histogram:
    """Counts values by size. One thread adds to it; any may read.

    Args:
        bounds: the largest value of each bucket, ascending; larger values have a bucket too.

    >>> sizes = Histogram((1, 10))
    >>> sizes.add(10); sizes.add(11)
    >>> sizes.counts, sizes.total
    ([0, 1, 1], 21.0)
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class WriterStatistics:
    """Times and sizes of a writer's units of work.

    Attributes:
        sizes: commands in a unit.
        lock_waits: seconds from the wish for a transaction until its locks were held and its
            balances read.
        commits: seconds of the write back and the commit.
    """

    __slots__ = ("commits", "lock_waits", "sizes")

    def __init__(self) -> None:
        self.sizes = Histogram(COMMANDS)
        self.lock_waits = Histogram(SECONDS)
        self.commits = Histogram(SECONDS)


class PoolUse(Struct, frozen=True):
    """Connections of one pool.

    Attributes:
        size: how many there may be.
        in_use: how many work now.
        waiting: pieces of work that wait for one.
    """

    size: int
    in_use: int
    waiting: int


class StoreStatistics(TypedDict, total=False):
    """Counters of a store; a store leaves out what it does not have.

    Attributes:
        groups: transactions that have been committed.
        items: commands in them.
        healthy: whether the last commit succeeded.
        queued: commands that wait for the writer.
        writer: times and sizes of its units of work.
        pools: the use of each pool of connections.
        open_reservations: those of leases included.
        leases: that are open.
        leased_nanousd: what they hold.
        expired_reservations: since the start; those of leases included.
        retention_lag_s: how long the oldest event has been due for deletion.
        webhook_backlog: messages that are not delivered yet, up to 10,000.
        files: bytes on disk by what they are: ``database``, ``log``.
    """

    groups: int
    items: int
    healthy: bool
    queued: int
    writer: WriterStatistics
    pools: Mapping[str, PoolUse]
    open_reservations: int
    leases: int
    leased_nanousd: int
    expired_reservations: int
    retention_lag_s: float
    webhook_backlog: int
    files: Mapping[str, int]
