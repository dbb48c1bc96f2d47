"""The figures of a store: counters in memory, so that a scrape needs no query."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypedDict

from msgspec import Struct

from guard.gateway.domain.records import BalanceView

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
COMMANDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Histogram:
    """Counts values by size. One thread at a time adds to it; any may read, without a lock.

    A reader may see a value that is counted and not yet in the total.

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


class Spent(NamedTuple):
    """Seconds of the writer's time, and the number of commands that took them."""

    seconds: float
    commands: int


class TimeByOrganisation:
    """The writer's time by organisation: those that take most by name, all others in one sum.

    An organisation that gets a name begins at 0: what it took before stays with the others. When it
    loses the name, its whole sum is added to the others, so that their sum never falls.

    One thread at a time adds; any may read, without a lock.

    Args:
        named: how many organisations have a name.
        known: how many others are counted one by one, to find out which gets a name.

    >>> times = TimeByOrganisation(named=1)
    >>> times.add("a", 1.0); times.add("b", 3.0); times.add("b", 1.0)
    >>> times.read()
    {'b': Spent(seconds=1.0, commands=1), '': Spent(seconds=4.0, commands=2)}
    """

    __slots__ = ("_candidates", "_known", "_named", "_names", "_others")

    def __init__(self, named: int = 20, known: int = 1000) -> None:
        self._names = named
        self._known = known
        # The sums of organisations with a name.
        self._named: dict[str, Spent] = {}
        # The seconds of other organisations, which ``_others`` includes. Emptied when it is full.
        self._candidates: dict[str, float] = {}
        # The sum of all organisations without a name.
        self._others = Spent(0.0, 0)

    def add(self, organisation_id: str, seconds: float) -> None:
        """Add a command; an empty id stands for no organisation."""
        known = self._named.get(organisation_id)
        if known is None and organisation_id and self._takes_name(organisation_id):
            known = Spent(0.0, 0)
        if known is not None:
            self._named[organisation_id] = Spent(known.seconds + seconds, known.commands + 1)
            return
        self._others = Spent(self._others.seconds + seconds, self._others.commands + 1)
        if organisation_id:
            if len(self._candidates) >= self._known:
                self._candidates.clear()
            before = self._candidates.get(organisation_id, 0.0)
            self._candidates[organisation_id] = before + seconds

    def _takes_name(self, organisation_id: str) -> bool:
        """Make room for an organisation that has taken more time than one with a name.

        Returns:
            Whether it gets a name.
        """
        if len(self._named) < self._names:
            return True
        taken = self._candidates.get(organisation_id, 0.0)
        if not taken:
            return False
        least = min(self._named, key=lambda each: self._named[each].seconds)
        if taken <= self._named[least].seconds:
            return False
        ended, others = self._named.pop(least), self._others
        self._others = Spent(others.seconds + ended.seconds, others.commands + ended.commands)
        del self._candidates[organisation_id]
        return True

    def read(self) -> dict[str, Spent]:
        """Return the sums by organisation, and that of all others under the empty id."""
        return {**self._named, "": self._others}


class WriterStatistics:
    """Times and sizes of a writer's units of work.

    Attributes:
        sizes: commands in a unit.
        lock_waits: seconds from the beginning of a transaction until its locks were held and its
            balances read.
        commits: seconds of writing back and committing.
        organisations: the time that the commands of each organisation took.
    """

    __slots__ = ("commits", "lock_waits", "organisations", "sizes")

    def __init__(self) -> None:
        self.sizes = Histogram(COMMANDS)
        self.lock_waits = Histogram(SECONDS)
        self.commits = Histogram(SECONDS)
        self.organisations = TimeByOrganisation()


class PoolUse(Struct, frozen=True):
    """Connections of one pool.

    Attributes:
        size: maximum connections.
        in_use: connections that are working.
        waiting: pieces of work that wait for a connection.
    """

    size: int
    in_use: int
    waiting: int


class OrganisationSpend(NamedTuple):
    """An organisation's spend in all.

    Attributes:
        nanousd: what it was charged.
        tokens: of its LLM requests, input, output and cached.
        requests: LLM requests.
    """

    nanousd: int
    tokens: int
    requests: int


class MoneySample(Struct, frozen=True):
    """Newest figures of budgets and spend.

    Attributes:
        budgets: the fullest budgets: the organisation and the fullest open balance of each.
        spent: by organisation, for the oldest organisations; all others under the empty id.
        budget_count: how many budgets there are.
        asks: calls that wait for a budget to be raised.
        approvals: that are pending.
    """

    budgets: Sequence[tuple[str, BalanceView]] = ()
    spent: Mapping[str, OrganisationSpend] = {}
    budget_count: int = 0
    asks: int = 0
    approvals: int = 0


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
        money: of budgets and spend.
        tally: decisions of this process since the start, by kind and label.
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
    money: MoneySample
    tally: Mapping[tuple[str, str], int]
