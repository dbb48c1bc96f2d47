"""Rate caps in PostgreSQL, counted by all replicas together.

The counting is that of :class:`guard.gateway.storage.memory_rates.RateCounters`. Calls that arrive
together are counted in one transaction, on a connection and a thread of their own, so that they do
not wait for the ledger. As in the ledger, a row of each organisation is locked; it names the
replica that wrote last. If that is this one, the cached counters are still valid.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreError, StoreLostError
from guard.gateway.domain.policy import CapUse
from guard.gateway.ledger.state import Scopes
from guard.gateway.storage.group_writer import GroupWriter
from guard.gateway.storage.memory_rates import Bucket, Loan, RateCounters, Windows
from guard.gateway.storage.postgres.connection import ANSWER_WAIT_S, CLOCK, WriteConnection

KEEP_MS: Final = 86_400_000
"""Rows of unused counters are deleted after so long."""

_LoanRow = tuple[str, int, int]
"""First name, calls and end of a loan."""


class _Stored(Windows):
    """The cached counters of one organisation, with the state of their rows in the database."""

    def __init__(self, organisation_id: str) -> None:
        super().__init__()
        self.organisation_id = organisation_id
        # Buckets that this unit has used, by name: their rows are written by the commit.
        self.touched: dict[str, Bucket] = {}
        # The rows of loans by name, and the buckets of each. A commit writes the differences.
        self.stored: dict[str, tuple[_LoanRow, list[Bucket]]] = {}


class RateUnit(RateCounters):
    """Implements :class:`guard.gateway.ledger.unit_of_work.Transaction` over the counters.

    Used by the thread of its group writer only. There is no undo log: a failed unit drops the
    cached counters of its organisations, and the next one reads them again.

    Args:
        connect: opens a connection.
        clock_ms: a clock in place of the database's, for tests.
    """

    def __init__(
        self, connect: Callable[[], WriteConnection], clock_ms: Callable[[], int] | None
    ) -> None:
        super().__init__(lambda: self.now_ms)
        self._connect = connect
        self.connection = connect()
        self._test_clock_ms = clock_ms
        # The name under which this replica writes; a new one after each lost connection, so that
        # rows of a commit whose answer was lost are read again.
        self._replica = secrets.token_hex(8)
        # The database's time when the unit began, in milliseconds. Never runs backwards.
        self.now_ms = 0
        # The counters of the organisations that the unit has locked.
        self._in_use: list[_Stored] = []
        # Those of them that another replica wrote last; the commit puts this one's name there.
        self._taken: list[str] = []

    # -- transaction ---------------------------------------------------------------------------

    def begin(self, scopes: Sequence[Scopes]) -> None:
        """Lock the counters of the organisations of a group."""
        if self.connection.is_broken():
            self.connection.close()
            self.connection = self._connect()
            self._forget()
        # Locked in one order by all replicas, so that no two units deadlock.
        own = sorted({each for scope in scopes for each in scope.organisations or ()})
        found = self.connection.psycopg
        self.connection.expect(ANSWER_WAIT_S)
        try:
            with found.pipeline():
                found.execute("BEGIN")
                found.execute(
                    "INSERT INTO rate_owners SELECT unnest(%s::text[]), ''"
                    " ON CONFLICT DO NOTHING", (own,)
                )  # fmt: skip
                rows = found.execute(
                    "SELECT organisation_id, writer FROM rate_owners"
                    " WHERE organisation_id = ANY(%s) ORDER BY organisation_id FOR UPDATE", (own,)
                )  # fmt: skip
                clock = found.execute(CLOCK)
            self._start(rows.fetchall(), clock.fetchall()[0][0])
        except psycopg.Error as exc:
            self._lost(exc)
            raise

    def _start(self, rows: list[tuple[str, str]], database_ms: int) -> None:
        now_ms = database_ms if self._test_clock_ms is None else self._test_clock_ms()
        self.now_ms = max(self.now_ms, now_ms)
        self._in_use, self._taken = [], []
        for organisation_id, writer in rows:
            known = self.organisations.get(organisation_id)
            if writer != self._replica or not isinstance(known, _Stored):
                self._taken.append(organisation_id)
                known = self.organisations[organisation_id] = self._read(organisation_id)
            known.touched = {}
            self._in_use.append(known)

    def _read(self, organisation_id: str) -> _Stored:
        own = _Stored(organisation_id)
        for name, first_name, calls, until_ms, buckets in self.connection.psycopg.execute(
            "SELECT name, first_name, calls, until_ms, buckets FROM rate_loans"
            " WHERE organisation_id = %s", (organisation_id,)
        ).fetchall():  # fmt: skip
            found = [self._stored_bucket(own, bucket) for bucket in buckets]
            known = [bucket for bucket in found if bucket is not None]
            if not known:
                continue  # its counters have been deleted for their age
            own.loans[name] = Loan(first_name, known, calls, until_ms)
            own.stored[name] = (first_name, calls, until_ms), known
        return own

    def _stored_bucket(self, own: _Stored, name: str) -> Bucket | None:
        if name in own.buckets:
            return own.buckets[name]
        row = self.connection.psycopg.execute(
            "SELECT per_ms, lent, times FROM rate_buckets"
            " WHERE organisation_id = %s AND bucket = %s", (own.organisation_id, name)
        ).fetchone()  # fmt: skip
        if row is None:
            return None
        found = own.buckets[name] = Bucket(name, row[0])
        found.lent = row[1]
        found.window.extend(row[2])
        return found

    def bucket(self, own: Windows, use: CapUse, now_ms: int) -> Bucket | None:
        """Return the counter of a cap; ``None`` when the organisation has too many."""
        assert isinstance(own, _Stored)
        if use.bucket not in own.buckets:
            self._stored_bucket(own, use.bucket)
        found = super().bucket(own, use, now_ms)
        if found is not None:
            own.touched[found.name] = found
        return found

    def commit(self) -> list[PostCommitEvent]:
        """Write the changed rows, and commit."""
        found = self.connection.psycopg
        self.connection.expect(ANSWER_WAIT_S)
        try:
            with found.pipeline():
                for own in self._in_use:
                    self._write(own)
                if self._taken:
                    found.execute(
                        "UPDATE rate_owners SET writer = %s WHERE organisation_id = ANY(%s)",
                        (self._replica, self._taken),
                    )
                found.execute("COMMIT")
        except psycopg.Error as exc:
            self._lost(exc)
            raise
        self.connection.rest()
        return []

    def _write(self, own: _Stored) -> None:
        execute, key = self.connection.psycopg.execute, own.organisation_id
        now = {
            name: (each.first_name, each.calls, each.until_ms) for name, each in own.loans.items()
        }
        # 1. Loans that have ended. Their buckets have fewer calls lent, so they are written too.
        for name, (_, buckets) in list(own.stored.items()):
            if name not in now:
                own.touched |= {bucket.name: bucket for bucket in buckets}
                execute(
                    "DELETE FROM rate_loans WHERE organisation_id = %s AND name = %s", (key, name)
                )
                del own.stored[name]
        # 2. Loans that are new or have changed.
        for name, row in now.items():
            known = own.stored.get(name)
            if known is not None and known[0] == row:
                continue
            buckets = own.loans[name].buckets
            own.touched |= {bucket.name: bucket for bucket in buckets}
            own.stored[name] = row, buckets
            execute(
                "INSERT INTO rate_loans VALUES (%s, %s, %s, %s, %s, %s::text[])"
                " ON CONFLICT (organisation_id, name) DO UPDATE SET"
                " first_name = excluded.first_name, calls = excluded.calls,"
                " until_ms = excluded.until_ms, buckets = excluded.buckets",
                (key, name, *row, [bucket.name for bucket in buckets]),
            )
        # 3. Buckets, after the loans have added theirs.
        for bucket in own.touched.values():
            times = list(bucket.window)
            # From now, not from the last call: a loan that is only extended uses it without one.
            ends_ms = self.now_ms + bucket.per_ms
            execute(
                "INSERT INTO rate_buckets VALUES (%s, %s, %s, %s, %s, %s::bigint[])"
                " ON CONFLICT (organisation_id, bucket) DO UPDATE SET lent = excluded.lent,"
                " ends_ms = excluded.ends_ms, times = excluded.times",
                (key, bucket.name, bucket.per_ms, bucket.lent, ends_ms, times),
            )

    def rollback(self) -> None:
        """Undo everything since :meth:`begin`."""
        # Read again by the next unit, because nothing is cached for them.
        for own in self._in_use:
            self.organisations.pop(own.organisation_id, None)
        if not self.connection.is_broken():
            self.connection.expect(ANSWER_WAIT_S)
            self.connection.psycopg.execute("ROLLBACK")
            self.connection.rest()

    def savepoint(self) -> None:
        """Do nothing: a command that fails fails the whole unit."""

    def undo(self) -> None:
        """Fail the whole unit: there is no undo log.

        Raises:
            StoreError: always.
        """
        raise StoreError("the transaction failed")

    def _lost(self, exc: psycopg.Error) -> None:
        if self.connection.is_broken():
            self._forget()
            raise StoreLostError("the connection to the database is lost") from exc

    def _forget(self) -> None:
        self._replica = secrets.token_hex(8)
        self.organisations.clear()

    def delete_old(self) -> None:
        """Delete the rows of counters and loans that were not used for a day."""
        old = (self.now_ms - KEEP_MS,)
        self.connection.psycopg.execute("DELETE FROM rate_buckets WHERE ends_ms < %s", old)
        # A loan goes after the last of its counters: while one is in use, its calls count there,
        # and only the loan's own end takes them out.
        self.connection.psycopg.execute(
            "DELETE FROM rate_loans l WHERE until_ms < %s AND NOT EXISTS (SELECT 1"
            " FROM rate_buckets b WHERE b.organisation_id = l.organisation_id"
            " AND b.bucket = ANY(l.buckets))", old,
        )  # fmt: skip


class PostgresRates:
    """Implements :class:`guard.gateway.services.rate_shares.RateStore` for all replicas.

    Args:
        connect: opens a connection.
        clock_ms: a clock in place of the database's, for tests.
    """

    def __init__(
        self, connect: Callable[[], WriteConnection], clock_ms: Callable[[], int] | None = None
    ) -> None:
        self._connect = connect
        self._clock_ms = clock_ms
        self._writer: GroupWriter[RateUnit] | None = None
        self._unit: RateUnit | None = None

    async def open(self) -> None:
        """Connect, and start the writer.

        Raises:
            psycopg.Error: the database cannot be reached.
        """
        self._unit = await asyncio.to_thread(RateUnit, self._connect, self._clock_ms)
        self._writer = GroupWriter(
            self._unit, lambda _: None, inline=False, failures=(psycopg.Error,)
        )

    async def close(self) -> None:
        """Finish queued work and disconnect. Idempotent."""
        writer, unit, self._writer, self._unit = self._writer, self._unit, None, None
        if writer is not None and unit is not None:
            await writer.close()
            unit.connection.close()

    def _run(self, organisation_id: str, work: Callable[[RateUnit], Any]) -> asyncio.Future[Any]:
        if self._writer is None:
            raise StoreError("the store is not open")
        return self._writer.submit(work, Scopes(organisations=(organisation_id,)))

    async def take(self, organisation_id: str, uses: Sequence[CapUse]) -> int | None:
        """Count one call under every cap, or under none."""
        found: int | None = await self._run(
            organisation_id, lambda unit: unit.take(organisation_id, uses)
        )
        return found

    async def lend(
        self, organisation_id: str, uses: Sequence[CapUse], name: str, wanted: int, ttl_ms: int
    ) -> int:
        """Count calls in advance."""
        found: int = await self._run(
            organisation_id, lambda unit: unit.lend(organisation_id, uses, name, wanted, ttl_ms)
        )
        return found

    async def settle(
        self, organisation_id: str, name: str, unused: int, *, unless: str | None = None
    ) -> None:
        """End a loan."""
        await self._run(
            organisation_id,
            lambda unit: unit.settle(organisation_id, name, unused, unless=unless),
        )

    async def extend(
        self, organisation_id: str, name: str, ttl_ms: int, new_name: str | None = None
    ) -> None:
        """Give the holder of a loan more time, and the loan another name."""
        await self._run(
            organisation_id, lambda unit: unit.extend(organisation_id, name, ttl_ms, new_name)
        )

    async def delete_old(self) -> None:
        """Delete the rows of counters and loans that were not used for a day."""
        if self._writer is not None:
            await self._writer.submit(lambda unit: unit.delete_old(), Scopes(organisations=()))
