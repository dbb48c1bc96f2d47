"""Listens for the commits of other replicas, on a connection and a thread of its own.

Notifications may be lost with a connection. So the listener also queries the newest numbers every
few seconds, and after each reconnection: a lost notification delays a message by that much at most.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import psycopg
from psycopg import sql

from guard.core import wire
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreLostError
from guard.gateway.storage.postgres.connection import (
    IDLE_TIMEOUT_MS,
    WRITER,
    PostgresReadConnection,
)
from guard.gateway.storage.postgres.notices import Feed, newest_of_all, notices_of
from guard.gateway.storage.postgres.peers import RETURNS

logger = logging.getLogger(__name__)

WAIT_S: Final = 0.25
"""How long the thread waits for a notification before it looks whether it has to end."""

ASK_S: Final = 3.0
"""How often the listener queries for new messages by itself: a server that sends nothing has no
news, or is lost."""

ANSWER_WAIT_S: Final = 10.0
"""A server that does not answer for so long counts as lost."""
RETRY_S: Final = 1.0
"""A lost connection is opened again after about so long; the time is jittered."""

_END_SILENT: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND usename = current_user AND application_name = %s AND wait_event = 'ClientRead'"
    " AND xact_start IS NOT NULL AND query_start < clock_timestamp() - %s * interval '1 ms'"
)
"""Ends transactions in which the server waits for a silent replica.

The server does so by itself when the replica is silent between two statements. In the middle of a
pipeline the session does not count as idle, and would hold its locks until the connection is found
dead.
"""

Deliver = Callable[[list[PostCommitEvent]], None]
Leases = dict[str, list[str]]


class Listener:
    """Delivers the control messages and the changes of rules that other replicas commit.

    Args:
        connect: opens a connection.
        channel: of the notifications.
        feed: the numbers of the messages that were delivered.
        deliver: called on the listener's thread, with events that may be known already.
        replica: returns the name under which this replica writes now.
    """

    def __init__(
        self,
        connect: Callable[[], PostgresReadConnection],
        channel: str,
        feed: Feed,
        deliver: Deliver,
        replica: Callable[[], str],
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._feed = feed
        self._deliver = deliver
        self._replica = replica
        # Set by :meth:`close`; the thread checks it between two waits.
        self._closing = threading.Event()
        # Monotonic time of the last query for new messages. Used by the thread only.
        self._asked_s = 0.0
        # Whether the connection works. Written by the thread only, which logs a loss once.
        self.healthy = True
        self._thread = threading.Thread(target=self._run, name="guard-gateway-notices", daemon=True)

    def start(self) -> None:
        """Begin to listen; when it returns, every later commit is noticed."""
        connection = self._open()
        # After LISTEN: a commit between the two is notified although it is known. The other way
        # round it would be missed.
        self._feed.start(newest_of_all(connection.psycopg))
        # Handed over to the thread, which takes it before anything else.
        self._first: PostgresReadConnection | None = connection
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(WAIT_S * 5)

    def _open(self) -> PostgresReadConnection:
        connection = self._connect()
        connection.expect(ANSWER_WAIT_S)
        try:
            connection.psycopg.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except psycopg.Error:
            connection.close()
            raise
        connection.rest()
        return connection

    def _run(self) -> None:
        connection, self._first = self._first, None
        while not self._closing.is_set():
            try:
                if connection is None:
                    connection = self._open()
                    # After LISTEN: commits between the two are notified.
                    self._catch_up(connection)
                self.healthy = True
                self._hear(connection)
            # Anything, such as a message that cannot be read: if the thread ended, nobody would
            # notice, and the kills of other replicas would not reach this one's clients.
            except Exception as exc:
                if self.healthy:
                    is_lost = isinstance(exc, (psycopg.Error, StoreLostError))
                    logger.warning(
                        "other replicas are not heard: %s",
                        type(exc).__name__,
                        exc_info=None if is_lost else exc,
                    )
                self.healthy = False
                if connection is not None:
                    connection.close()
                connection = None
                self._closing.wait(RETRY_S * random.uniform(0.2, 1.0))
        if connection is not None:
            connection.close()

    def _catch_up(self, connection: PostgresReadConnection) -> None:
        """Deliver the changes that were committed while there was no connection.

        Control messages have numbers; of other changes only a notification shows them, so the
        catalogue is announced as changed in any case.
        """
        self._deliver([PostCommitEvent("catalogue", None), *self._unseen(connection)])

    def _unseen(self, connection: PostgresReadConnection) -> list[PostCommitEvent]:
        """Read the messages of all organisations that were not delivered yet."""
        events: list[PostCommitEvent] = []
        connection.expect(ANSWER_WAIT_S)
        for organisation_id, newest in newest_of_all(connection.psycopg).items():
            seen = self._feed.seen(organisation_id)
            if newest > seen:
                events += notices_of(connection, organisation_id, seen)
        connection.psycopg.execute(_END_SILENT, (WRITER, IDLE_TIMEOUT_MS))
        connection.rest()
        self._asked_s = time.monotonic()
        return events

    def _hear(self, connection: PostgresReadConnection) -> None:
        # All are taken first: those that arrive during a query inside the loop would be lost.
        notices = list(connection.psycopg.notifies(timeout=WAIT_S, stop_after=1))
        # Equal ones once: a notification without a payload of its own only wakes.
        for payload in dict.fromkeys(notice.payload for notice in notices):
            try:
                replica, kind, organisation_id, *rest = payload.split(" ", 3)
                told = _TOLD[kind](rest[0]) if kind in _TOLD else None
            except (ValueError, IndexError):  # any user of the database can send one
                logger.warning("a notification that no replica sends was passed over")
                continue
            if replica != self._replica():
                self._deliver(self._events(connection, kind, organisation_id or None, told))
        if time.monotonic() - self._asked_s > ASK_S:
            self._deliver(self._unseen(connection))

    def _events(
        self,
        connection: PostgresReadConnection,
        kind: str,
        organisation_id: str | None,
        told: Callable[[str | None], PostCommitEvent] | None,
    ) -> list[PostCommitEvent]:
        if told is not None:
            return [told(organisation_id)]
        if kind == "catalogue":
            return [PostCommitEvent("catalogue", organisation_id)]
        if organisation_id is None:
            return []
        connection.expect(ANSWER_WAIT_S)
        events = notices_of(connection, organisation_id, self._feed.seen(organisation_id))
        connection.rest()
        return events


_Told = Callable[[str | None], PostCommitEvent]


def _recall(text: str) -> _Told:
    leases = wire.decode(text, Leases)
    returns_ms = int((leases.pop(RETURNS, None) or ["0"])[0])
    return lambda own: PostCommitEvent("recall", own, leases=leases, returns_ms=returns_ms)


def _answered(text: str) -> _Told:
    leases = wire.decode(text, Leases)
    return lambda own: PostCommitEvent("answered", own, leases=leases)


def _room(text: str) -> _Told:
    ids = wire.decode(text, tuple[int, ...])
    return lambda own: PostCommitEvent("room_at_peer", own, balance_ids=ids)


def _waits(text: str) -> _Told:
    ids = wire.decode(text, tuple[int, ...])
    return lambda own: PostCommitEvent("waits_at_peer", own, balance_ids=ids)


_TOLD: Final[Mapping[str, Callable[[str], _Told]]] = {
    "recall": _recall, "answered": _answered, "room": _room, "waits": _waits,
}  # fmt: skip
"""Decoders of the notifications that carry their content; the others only wake."""
