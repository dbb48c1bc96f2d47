"""The unit of work over PostgreSQL: the organisations of a group are locked, and its rows are read.

A unit locks the rows of its organisations, in the order of their ids, before it reads anything
else. So the units of one organisation take turns, in whichever replica they run, those of different
organisations run side by side, and no two units deadlock. Each organisation's row names the replica
that wrote last: if that is this one, its cached rows of the organisation are still valid; if it is
another, the rows are read again.

A unit over all organisations holds an advisory lock alone that every other unit shares. It waits
for the units that run, and new ones wait for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import psycopg

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.clock import SteadyClock
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreError, StoreLostError
from guard.gateway.storage.postgres import schema
from guard.gateway.storage.postgres.connection import CLOCK, WriteConnection
from guard.gateway.storage.postgres.money import PostgresMoney
from guard.gateway.storage.postgres.notices import notices_of
from guard.gateway.storage.postgres.parts import ALONE, PostgresAlerts, PostgresDirectory
from guard.gateway.unit.record import RowChange
from guard.gateway.unit.state import ALL_ORGANISATIONS, NO_ORGANISATION, OrganisationState, Touches
from guard.gateway.unit.unit_of_work import AWAY_MS, UnitOfWork

_SHARED: Final = "SELECT pg_advisory_xact_lock_shared(%s::int, hashtext(current_schema()))"
_LOCK: Final = (
    "SELECT organisation_id, settings, control_seq, writer FROM organisations{}"
    " ORDER BY organisation_id FOR NO KEY UPDATE"
)
_LOCK_SOME: Final = _LOCK.format(" WHERE organisation_id = ANY(%s)")
_LOCK_ALL: Final = _LOCK.format("")
FOLLOWED_MAX: Final = 1000
"""With more new control messages than that, an organisation is read anew."""

FORGET_MS: Final = 3_600_000
"""A replica that was not seen for so long is forgotten."""


class PostgresUnitOfWork(PostgresMoney, UnitOfWork):
    """A unit of work over PostgreSQL.

    Args:
        connect: opens a connection.
        clock_ms: a clock in place of the database's, for tests.
        monotonic_ms: time that only passes, in milliseconds.
        channel: of notifications.
        seen_seq: returns the number of the newest control message of an organisation that was
            published by this replica.
        resume: called in a unit of its own, in which all organisations are locked, before anything
            else is done after a time in which no replica reached the database.
    """

    connection: WriteConnection

    def __init__(
        self,
        connect: Callable[[], WriteConnection],
        clock_ms: Callable[[], int] | None,
        monotonic_ms: Callable[[], int],
        channel: str,
        seen_seq: Callable[[str], int],
        resume: Callable[[PostgresUnitOfWork], None],
    ) -> None:
        self._connect = connect
        super().__init__(connect())
        self.directory = PostgresDirectory(self)
        self.alerts = PostgresAlerts(self)
        self._clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._channel = channel
        self._seen_seq = seen_seq
        self._resume = resume
        # Events of the unit that resumed after a lost connection; the next commit delivers them.
        # That unit is not one of the group writer's, which delivers the events of its own only.
        self._undelivered: list[PostCommitEvent] = []
        # Whether a lost commit may have changed keys, rules or prices, so that caches above the
        # store are to be read again; and whether leases may have run out meanwhile. Both stay set
        # until a later unit has dealt with it.
        self._may_have_missed = self._has_to_resume = False
        # The name under which this replica writes. A new one after each lost connection: what was
        # written under the old one is then another writer's, and is read again.
        self.replica = secrets.token_hex(8)
        # Organisations whose rows another replica has written last; this unit puts its name there.
        self._taken: list[str] = []
        row = self.row("SELECT value FROM facts WHERE name = 'clock_ms'")
        wall_ms = clock_ms() if clock_ms is not None else int(self.row(CLOCK)[0])
        self._clock = SteadyClock(0 if row is None else int(row[0]), wall_ms, monotonic_ms())
        self.now_ms = self._clock.now_ms
        # When the clock was read, in monotonic time. The writer's thread writes it and ``now_ms``,
        # the loop reads both between two units (``time_ms``), without a lock: a mixed pair is off
        # by the time between two units at most.
        self._read_at_ms = self._committed_ms = monotonic_ms()

    # -- transaction ---------------------------------------------------------------------------

    def begin(self, touches: Sequence[Touches]) -> None:
        """Lock the organisations of a group, and read what its commands name.

        Raises:
            StoreLostError: there is no connection.
        """
        # 1. The connection was lost, in this unit's predecessor or between two units.
        if self.connection.is_broken():
            self._reconnect()
        # 2. First unit on a new connection, or after a time in which this replica stood still:
        # leases that could not be renewed meanwhile must not expire, so they are renewed before any
        # command can expire them. Not by a clock that a test moves.
        if self._clock_ms is None and self._monotonic_ms() - self._committed_ms > AWAY_MS:
            self._has_to_resume = True
        if self._has_to_resume:
            # Asked with nothing locked: to lock all organisations stops every other replica.
            self._begin([NO_ORGANISATION])
            is_needed = not self.anybody_alive(AWAY_MS)
            self.rollback()
            if is_needed:
                self._begin([ALL_ORGANISATIONS])
                self._resume(self)
                self._undelivered = self.commit()
            # Only here: if one of the steps above fails, the next unit tries again.
            self._has_to_resume = False
        # 3. The unit itself.
        self._begin(touches)

    def _begin(self, touches: Sequence[Touches]) -> None:
        """Lock the organisations, and query all rows that the commands name, in one round trip."""
        self._undo_from = 0
        # The unit before has written its rows, or was rolled back; its look-ups are outdated.
        self.new_events.forget()
        lookup_keys = [s.lookup_key for s in touches if s.lookup_key is not None]
        named = set[str]().union(*(each.reservation_ids() for each in touches))
        events = [event for each in touches for event in each.priced_events()]
        try:
            with self.connection.psycopg.pipeline():
                self.connection.ask("BEGIN")
                rows = self._lock(_organisations(touches))
                # After the locks: a unit that waited for them has a later time than the one before.
                clock = self.connection.ask(CLOCK)
                answers = self.answers.send_lookup(lookup_keys)
                reservations = self.ask_named(named)
                recorded = self.new_events.send_lookup(events)
            self._read_clock(clock.fetchall()[0][0])
            # Before the answers are cached: it drops cached rows that another replica has changed,
            # and the answers were read under the lock.
            self._locked(rows.fetchall())
            self.answers.take(answers)
            self.take_named(reservations)
            # ``_locked`` may have dropped reservations that were cached when the query was sent.
            self.take_named(self.ask_named(named.difference(reservations.ids)))
            self.new_events.take(recorded)
        except psycopg.Error as exc:
            self._lost(exc)
            raise

    def _lock(self, wanted: list[str] | None) -> psycopg.Cursor[Any]:
        """Lock some organisations, or all of them for ``None``; return a cursor of their rows."""
        ask = self.connection.ask
        if wanted is None:
            ask(ALONE, (schema.WRITE,))
            return ask(_LOCK_ALL)
        ask(_SHARED, (schema.WRITE,))
        return ask(_LOCK_SOME, (wanted,))

    def _read_clock(self, database_ms: int) -> None:
        wall_ms = database_ms if self._clock_ms is None else self._clock_ms()
        self._read_at_ms = self._monotonic_ms()
        self.now_ms = self._clock.read(wall_ms, self._read_at_ms)

    def _locked(self, rows: Iterable[tuple[str, str, int, str]]) -> None:
        """Note which organisations are locked; read again rows that others may have changed."""
        self.forget_transient()
        self._taken = []
        self.locked = []
        stale = []
        for organisation_id, settings, control_seq, writer in rows:
            self.locked.append(organisation_id)
            if writer != self.replica or organisation_id not in self.orgs:
                stale.append((organisation_id, settings, control_seq))
        if stale:
            self._take_over(stale)

    def _take_over(self, rows: Iterable[tuple[str, str, int]]) -> None:
        """Read again rows that another replica may have changed."""
        for organisation_id, settings, control_seq in rows:
            # The name is written with the commit. If the unit fails, the row still names the other
            # replica, and the next unit reads everything again.
            self._taken.append(organisation_id)
            known = self.orgs.get(organisation_id)
            # 1. Settings, rules and directives: each change of one has a control message.
            if known is None or not self.follow(known, settings, control_seq):
                self.forget_accounts(organisation_id)
                self.load_organisation(organisation_id, settings, control_seq)
            # 2. Balances and the other rows that change without a message.
            self.read_again(self.orgs[organisation_id])
            # 3. Messages that this replica has not published: they come before its own.
            if control_seq > self._seen_seq(organisation_id):
                self._publish_missing(organisation_id)

    def follow(self, org: OrganisationState, settings: str, control_seq: int) -> bool:
        """Apply the control messages since this replica's last unit of the organisation.

        Returns:
            ``False`` if they are too many, or some are deleted: the organisation is read anew.
        """
        missing = control_seq - org.control_seq
        if missing == 0:
            return True
        if not 0 < missing <= FOLLOWED_MAX:
            return False
        messages = [
            wire.decode(text, wire.ControlMessage)
            for (text,) in self.rows(
                "SELECT message FROM control WHERE organisation_id = ? AND seq > ? ORDER BY seq",
                org.organisation_id, org.control_seq,
            )
        ]  # fmt: skip
        if len(messages) != missing:
            return False
        for message in messages:
            org.directives.apply(message)
        org.settings = wire.decode(settings, records.OrganisationSettings)
        org.control_seq = control_seq
        if any(message.type == "policy" for message in messages):
            org.budgets = None
            org.accounts.clear()
            self.forget_accounts(org.organisation_id)
        return True

    def _publish_missing(self, organisation_id: str) -> None:
        """Announce messages of other replicas, which precede any message of this unit."""
        self.earlier += notices_of(
            self.connection, organisation_id, self._seen_seq(organisation_id)
        )

    def commit(self) -> list[PostCommitEvent]:
        """Write back everything that changed, commit, and return the post-commit events."""
        ask = self.connection.ask
        try:
            # One round trip. If a statement fails, the server skips the rest with the COMMIT, and
            # the error is raised at the end of the block.
            with self.connection.psycopg.pipeline():
                self.flush()
                if self._taken:
                    ask(
                        "UPDATE organisations SET writer = %s WHERE organisation_id = ANY(%s)",
                        (self.replica, self._taken),
                    )
                # The server sends notifications when it commits, and none after a rollback.
                for payload in self._payloads():
                    ask("SELECT pg_notify(%s, %s)", (self._channel, payload))
                ask("COMMIT")
        except psycopg.Error as exc:
            self._lost(exc)
            raise
        self.connection.rest()
        self._committed_ms = self._monotonic_ms()
        # Committed for certain from here on. In the order of their numbers: events of the unit that
        # resumed, of other replicas, of this unit.
        earlier, self.earlier = [*self._undelivered, *self.earlier], []
        self._undelivered = []
        if self._may_have_missed:
            self._may_have_missed = False
            earlier.append(PostCommitEvent("catalogue", None))
        return [*earlier, *self.committed()]

    def _payloads(self) -> set[str]:
        """Return the notifications to other replicas: a kind of change and an organisation each.

        They only wake. The replicas read the changes themselves from the tables.
        """
        return {
            f"{self.replica} {event.kind} {event.organisation_id or ''}"
            for event in self.events
            if event.kind in ("control", "catalogue")
        }

    def rollback(self) -> None:
        """Undo everything since :meth:`begin`, in the database and in the caches.

        Rows of other replicas that ``begin`` has read stay cached: they are committed.
        """
        self.undo_all()
        self.earlier.clear()
        if not self.connection.is_broken():
            self.connection.ask("ROLLBACK")
            self.connection.rest()

    def undo(self) -> None:
        """Undo everything since the last savepoint, and nothing else.

        PostgreSQL refuses every further statement of a transaction in which one has failed, except
        a return to a savepoint from before the failure. A query opens no savepoint, so a query that
        fails in a command without one takes the whole transaction with it.

        Raises:
            StoreError: the transaction failed outside of a savepoint.
        """
        broken = self.connection.psycopg.info.transaction_status
        if not self._has_savepoint and broken != psycopg.pq.TransactionStatus.INTRANS:
            raise StoreError("the transaction failed")
        super().undo()

    # -- connection ----------------------------------------------------------------------------

    def _reconnect(self) -> None:
        """Open a connection, and drop all caches.

        The connection may have been lost between two units, where :meth:`_lost` is not called.
        """
        self.connection.close()
        self.connection = self._connect()
        self._has_to_resume = True
        self._forget_everything()

    def _lost(self, exc: psycopg.Error) -> None:
        """Raise ``StoreLostError`` if the connection is lost: whether it committed is not known.

        Any other failure of a statement leaves the connection usable, and the caller raises it.
        """
        if self.connection.is_broken():
            self._forget_everything()
            raise StoreLostError("the connection to the database is lost") from exc

    def _forget_everything(self) -> None:
        # The events of a lost commit were not delivered. Control messages are found again by their
        # number; a change of keys, rules or prices is announced anew by the next commit.
        self._may_have_missed = True
        # Under the old name the rows of a lost commit would count as this replica's own, and stay
        # cached as they were before it.
        self.replica = secrets.token_hex(8)
        # Restores the log into caches that are dropped next: it also clears the log and the sums.
        self.undo_all()
        self.orgs.clear()
        self.forget_money()

    def insert_numbered(self, column: str, change: RowChange, row: tuple[Any, ...]) -> int:
        """Insert a row whose number the database chooses, and return the number."""
        return int(self.write(f"{change.one} RETURNING {column}", row).fetchone()[0])

    def time_ms(self) -> int:
        """Return the time of the newest unit plus the time that has passed since."""
        return self.now_ms + max(0, self._monotonic_ms() - self._read_at_ms)

    # -- rows that a unit may change -----------------------------------------------------------

    def organisation(self, organisation_id: str) -> OrganisationState | None:
        """Return the state of an organisation that this unit has locked."""
        return self.orgs.get(organisation_id) if organisation_id in self.locked else None

    def adopt(self, org: OrganisationState) -> None:
        """Cache an organisation that this unit has inserted."""
        super().adopt(org)
        # No other replica can see the row before the commit, so it is as good as locked.
        self.locked.append(org.organisation_id)
        self._taken.append(org.organisation_id)

    def organisation_states(self) -> Iterable[OrganisationState]:
        """Return the state of every organisation that this unit has locked."""
        return [self.orgs[each] for each in self.locked]

    def note_alive(self) -> None:
        """Record that this replica is serving."""
        self.write(
            "INSERT INTO replicas VALUES (?, ?)"
            " ON CONFLICT (replica) DO UPDATE SET seen_ms = excluded.seen_ms",
            (self.replica, self.now_ms),
        )
        self.write("DELETE FROM replicas WHERE seen_ms < ?", (self.now_ms - FORGET_MS,))

    def others_alive(self, within_ms: int) -> bool:
        """Return whether another replica has served lately."""
        sql = "SELECT 1 FROM replicas WHERE replica <> ? AND seen_ms > ? LIMIT 1"
        return self.row(sql, self.replica, self.now_ms - within_ms) is not None

    def anybody_alive(self, within_ms: int) -> bool:
        """Return whether any replica has served lately."""
        row = self.row("SELECT 1 FROM replicas WHERE seen_ms > ? LIMIT 1", self.now_ms - within_ms)
        return row is not None

    def housekeep(self) -> None:
        """Drop old nonces and rollups; store the clock."""
        self.prune(self.locked)
        self.write("DELETE FROM nonces WHERE expires_at_ms < ?", (self.now_ms,))
        self.save_fact("clock_ms", str(self.now_ms))


def _organisations(touches: Sequence[Touches]) -> list[str] | None:
    """Return the organisations that a group may touch, in the order of locking; ``None``: any."""
    found: set[str] = set()
    for each in touches:
        named = each.organisations
        if named is None:
            return None
        found.update(named)
    return sorted(found)
