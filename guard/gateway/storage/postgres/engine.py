"""Life cycle of the store over PostgreSQL: the writer, the readers, the listener to replicas.

Threads: the writer's, the readers', the listener's and the watch's. Each has connections of its
own; the watch ends those whose server does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import psycopg

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreError, StoreLostError
from guard.gateway.domain.statistics import StoreStatistics
from guard.gateway.storage.group_writer import GroupWriter
from guard.gateway.storage.postgres.answer_rotation import turn_answers
from guard.gateway.storage.postgres.connection import (
    ANSWER_WAIT_S,
    WRITER,
    PostgresReadConnection,
    WriteConnection,
    reason_of,
)
from guard.gateway.storage.postgres.listener import Listener
from guard.gateway.storage.postgres.migrations import (
    SchemaError,
    migrate,
    note_running,
    require_sessions,
)
from guard.gateway.storage.postgres.notices import Feed
from guard.gateway.storage.postgres.peers import PostgresPeers
from guard.gateway.storage.postgres.silence_watchdog import AnswerWatch
from guard.gateway.storage.postgres.unit_of_work import PostgresUnitOfWork
from guard.gateway.storage.sql.engine import SAMPLE_WAIT_S, SqlEngine
from guard.gateway.storage.sql.failures import store_error
from guard.gateway.storage.sql.retention import Retention
from guard.gateway.unit.replay import Turn
from guard.gateway.unit.rows import monotonic_clock_ms, wall_clock_ms
from guard.gateway.unit.state import NO_ORGANISATION

logger = logging.getLogger(__name__)

LOOKUP_CONNECTIONS: Final = 4
COUNT_PAUSES: Final = 100
"""The pause between two counts of open reservations, in multiples of a count's duration."""

TURN_RETRY_MS: Final = 60_000
"""The pause between two attempts to empty a table that is in use; jittered."""

RETRY_S: Final = 0.5
"""After a failed attempt to connect, others fail at once for about so long; jittered."""

OUTDATED_RETRY_S: Final = 10.0
"""The same for a gateway that finds the schema migrated beyond what it knows."""


_OPEN: Final = (
    "SELECT count(*), count(*) FILTER (WHERE basis = 'lease'),"
    " coalesce(sum(held) FILTER (WHERE basis = 'lease'), 0),"
    " (SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
    " WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r')"
    " FROM reservations WHERE state = 'open'"
)


class _Open(NamedTuple):
    """Open reservations and leases of all replicas, and the size of the database."""

    reservations: int = 0
    leases: int = 0
    leased_nanousd: int = 0
    database_bytes: int = 0


class PostgresEngine(SqlEngine[PostgresUnitOfWork, PostgresReadConnection]):
    """Connects to the database, and listens to the commits of other replicas.

    Args:
        dsn: a connection URI or string of libpq; tables are in the first schema of its
            ``search_path``.
        clock_ms: a clock in place of the database's, for tests.
        retention_days: how long data is kept; 0 keeps everything.
        audit_retention_days: how long the audit log is kept; 0 keeps all of it.
    """

    failures = (psycopg.Error,)
    retention_steps = 10  # few: reservations expire in the sweep, which waits for the steps

    def __init__(
        self,
        dsn: str,
        *,
        clock_ms: Callable[[], int] | None = None,
        monotonic_ms: Callable[[], int] | None = None,
        retention_days: int = 0,
        audit_retention_days: int = 0,
    ) -> None:
        self._dsn = dsn
        self._test_clock_ms = clock_ms
        super().__init__(
            self._read_connection,
            LOOKUP_CONNECTIONS,
            monotonic_ms or clock_ms or monotonic_clock_ms,
            Retention(retention_days, audit_retention_days),
        )
        self._listener: Listener | None = None
        # The numbers of the messages that were delivered to this gateway. Changed on the loop only;
        # the writer's and the listener's threads read single numbers of it. A message that both of
        # them read is dropped on the loop the second time.
        self._feed = Feed()
        # Ends connections whose server does not answer; started first and closed last.
        self._watch = AnswerWatch()
        # Monotonic time before which attempts to connect fail at once. Any thread that connects
        # reads and writes it, without a lock: if two fail at once, either value will do.
        self._next_try_s = 0.0
        self.peers = PostgresPeers(self.look_up, self._sender)
        # When the tables of stored answers are next tried to turn; only the sweep writes it.
        self._next_turn_ms = 0
        # The last count, for metrics, and when the next one is due; only the sweep writes them.
        self._open_now = _Open()
        self._next_count_s = 0.0

    def clock_ms(self) -> int:
        """Return the database's time as read by the newest unit, in Unix milliseconds."""
        if self._test_clock_ms is not None:
            return self._test_clock_ms()
        unit = self._unit
        return wall_clock_ms() if unit is None else unit.time_ms()

    # -- life cycle ----------------------------------------------------------------------------

    async def open(self, listener: Callable[[Sequence[PostCommitEvent]], None]) -> None:
        """Connect, bring the schema up to date, and start the writer and the listener.

        Raises:
            StoreError: the database cannot be reached or used.
        """
        loop = asyncio.get_running_loop()
        self._watch.start()
        try:
            unit = self._unit = await asyncio.to_thread(self._open)

            # On the loop: for the writer's commits and for the listener's messages.
            def deliver(events: list[PostCommitEvent]) -> None:
                fresh = self._feed.fresh(events)
                if fresh:
                    listener(fresh)

            # On the listener's thread.
            def hear(events: list[PostCommitEvent]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(deliver, events)

            self._listener = Listener(
                self._read_connection, self._channel, self._feed, hear, lambda: unit.replica
            )
            await asyncio.to_thread(self._listener.start)
        except (psycopg.Error, StoreLostError, RuntimeError, OSError) as exc:
            await asyncio.to_thread(self._close_connections)
            # ``from None``: the original text may quote the password. The cause says more, such as
            # too many connections.
            reason = reason_of(exc.__cause__ or exc, self._dsn)
            raise StoreError(f"cannot open the database: {reason}") from None
        self._writer = GroupWriter(unit, deliver, inline=False, remote=True, failures=self.failures)

    def _open(self) -> PostgresUnitOfWork:
        require_sessions(self._dsn)
        connection = WriteConnection(self._dsn, "guard-gateway", self._watch)
        try:
            for step in migrate(connection.psycopg):
                logger.info("the schema was migrated to %d (%s)", step.number, step.name)
            row = connection.psycopg.execute("SELECT current_database(), current_schema()")
            name = ".".join(row.fetchall()[0])
        finally:
            connection.close()
        self._channel = "guard_" + hashlib.sha256(name.encode()).hexdigest()[:16]
        return PostgresUnitOfWork(
            self._write_connection, self._test_clock_ms, self._monotonic_ms, self._channel,
            self._feed.seen, self.resume_in,
        )  # fmt: skip

    def resume_in(self, unit: PostgresUnitOfWork) -> None:
        """Renew leases after a lost connection, in a unit that has locked all organisations.

        Default: nothing to renew.
        """

    def _sender(self) -> tuple[str, str]:
        return self._channel, self._unit.replica if self._unit is not None else ""

    def _write_connection(self) -> WriteConnection:
        """Open a connection that writes.

        Raises:
            StoreLostError: the database cannot be reached, or its schema is too new.
        """
        try:
            with self._trying():
                return self._writing()
        except psycopg.Error as exc:
            raise StoreLostError("the database cannot be reached") from exc
        except SchemaError as exc:
            logger.error("this gateway serves no longer: %s", exc)
            self._next_try_s = time.monotonic() + OUTDATED_RETRY_S
            raise StoreLostError(str(exc)) from None

    def _writing(self) -> WriteConnection:
        connection = WriteConnection(self._dsn, WRITER, self._watch)
        connection.expect(ANSWER_WAIT_S)
        try:
            # On every new connection: the schema may have been migrated while there was none.
            note_running(connection.psycopg)
        except BaseException:
            connection.close()
            raise
        connection.rest()
        return connection

    def _read_connection(self) -> PostgresReadConnection:
        with self._trying():
            return PostgresReadConnection(self._dsn, "guard-gateway-reader", self._watch)

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Run an attempt to connect, unless one has just failed.

        Without the pause, each look-up of an unreachable server would wait for the full timeout and
        occupy its thread meanwhile.

        Raises:
            StoreLostError: one has just failed.
        """
        if time.monotonic() < self._next_try_s:
            raise StoreLostError("the database cannot be reached")
        try:
            yield
        except psycopg.Error:
            self._next_try_s = time.monotonic() + RETRY_S * random.uniform(0.5, 1.5)
            raise

    async def close(self) -> None:
        """Commit queued work and close the connections. Idempotent."""
        # The writer first: its commits need the connections and deliver events.
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        await asyncio.to_thread(self._close_connections)

    def _close_connections(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for pool in self._pools.values():
            pool.close()
        if self._unit is not None:
            self._unit.connection.close()
            self._unit = None
        self._watch.close()

    # -- periodic work -------------------------------------------------------------------------

    async def turn_answers(self) -> None:
        """Empty and use the older table of answers, on a connection of its own.

        Not in a unit of work: another user of the table, such as ``pg_dump``, may delay it.
        """
        unit = self._unit
        if unit is None or self._monotonic_ms() < self._next_turn_ms:
            return
        if not unit.answers.turn.is_due(unit.now_ms):
            return
        self._next_turn_ms = self._monotonic_ms() + int(TURN_RETRY_MS * random.uniform(0.5, 1.5))
        try:
            turn = await asyncio.to_thread(self._turn, unit.now_ms)
        except psycopg.Error as exc:
            raise store_error(exc) from exc
        # One assignment, on the loop, while the writer's thread may run a unit. A unit that still
        # writes into the table of the ended period does no harm: answers are looked up in both
        # tables, and that one is emptied only at the next turn.
        unit.answers.turn = turn
        # Turned, by this replica or another one: the next turn is due by the clock again.
        if not turn.is_due(unit.now_ms):
            self._next_turn_ms = 0

    def _turn(self, now_ms: int) -> Turn:
        with self._trying():
            connection = WriteConnection(self._dsn, "guard-gateway-upkeep", self._watch)
        try:
            connection.expect(ANSWER_WAIT_S)
            return turn_answers(connection.psycopg, now_ms)
        finally:
            connection.close()

    async def _step(self, work: Callable[[PostgresUnitOfWork], object]) -> None:
        """Run a long step, then pause for as long as it took.

        The step locks every organisation, so requests to all replicas wait for it.
        """
        started_s = time.monotonic()
        await super()._step(work)
        await asyncio.sleep(time.monotonic() - started_s)

    async def sample(self) -> bool:
        """Run the queries of the metrics if they are due; return whether they were."""
        is_time = await super().sample()
        if is_time and time.monotonic() >= self._next_count_s:
            started_s = time.monotonic()
            # With a shorter limit than reports have: the sweep waits for it, and reservations
            # expire in the sweep.
            rows = await self.report(lambda connection: connection.rows(_OPEN), SAMPLE_WAIT_S)
            self._open_now = _Open(*rows[0])
            ended_s = time.monotonic()
            self._next_count_s = ended_s + COUNT_PAUSES * (ended_s - started_s)
        return is_time

    async def ready(self) -> bool:
        """Return whether the database answers and its disk has room."""
        try:
            await self.write(NO_ORGANISATION, lambda unit: unit.now_ms)
            return await self.has_room()
        except StoreError:
            return False

    def statistics(self) -> StoreStatistics:
        """Return counters for metrics; nothing before the store is open."""
        found = super().statistics()
        if found:
            found["open_reservations"] = self._open_now.reservations
            found["leases"] = self._open_now.leases
            found["leased_nanousd"] = self._open_now.leased_nanousd
            found["files"] = {"database": self._open_now.database_bytes}
        return found
