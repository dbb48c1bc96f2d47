"""The storage port: the interface of a storage, and its guarantees.

A use case of :mod:`guard.gateway.ledger` is run with :meth:`Writer.write`; when that returns, it is
committed. The ledger's property (see :mod:`guard.gateway.domain.ledger`) is kept under any
interleaving, crash and retry. One conformance suite runs against every implementation.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.statistics import StoreStatistics
from guard.gateway.storage.sql.queries import SqlQueries
from guard.gateway.storage.sql.reports import SqlReports
from guard.gateway.unit.state import Touches
from guard.gateway.unit.unit_of_work import UnitOfWork

P = ParamSpec("P")
T = TypeVar("T")

NEWEST: Final = 2**62
"""Lists that go back from a number begin with the newest of all from this one."""


class Writer(Protocol):
    """Runs use cases, many to a transaction."""

    def write(
        self,
        touches: Touches,
        use_case: Callable[Concatenate[UnitOfWork, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[T]:
        """Run a use case in the next unit of work; its result comes after the commit.

        It may run twice, if the group that it belongs to could not be committed as a whole: so it
        must not change its arguments. The caller may await the result outside of any task
        (:mod:`guard.gateway.api.stepping`): a store whose commit needs a task, such as for
        ``asyncio.timeout``, returns one.

        Args:
            touches: what the use case touches.
            use_case: a function of the ledger, which gets the unit of work first.
            args: the rest of its arguments.
            kwargs: the same.
        """


class Storage(SqlQueries, SqlReports, Writer):
    """The complete storage, with its life cycle.

    Queries are the same on every engine, written once in the SQL that the engines share.
    """

    @abc.abstractmethod
    async def open(self, listener: Callable[[Sequence[PostCommitEvent]], None]) -> None:
        """Begin to serve; the listener gets the events of each commit, on the loop."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Commit queued work, and release the database."""

    @abc.abstractmethod
    async def ready(self) -> bool:
        """Return whether requests can be served."""

    @abc.abstractmethod
    def statistics(self) -> StoreStatistics:
        """Return figures for the metrics; empty before the store is open."""

    @abc.abstractmethod
    async def sweep(self) -> int:
        """Run the periodic work; return how many reservations have expired."""

    @abc.abstractmethod
    async def resume(self) -> int:
        """Renew open leases after a time without a gateway; return how many there are."""
