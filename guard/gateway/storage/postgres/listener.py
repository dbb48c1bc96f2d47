"""Hears what other replicas have committed, on a connection and a thread of its own."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import sql

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.storage.postgres.connection import ReadConnection
from guard.gateway.storage.postgres.notices import Feed, newest_of_all, notices_of

logger = logging.getLogger(__name__)

WAIT_S: Final = 0.25
RETRY_S: Final = 1.0
"""A lost connection is opened again after about so long; the time is jittered."""

Deliver = Callable[[list[PostCommitEvent]], None]


class Listener:
    """Delivers the control messages and the changes of rules that other replicas commit.

    Args:
        connect: opens a connection.
        channel: of the notifications.
        feed: what was delivered.
        deliver: called on the listener's thread.
        replica: returns the name under which this replica writes now.
    """

    def __init__(
        self,
        connect: Callable[[], ReadConnection],
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
        self._closing = threading.Event()
        self.healthy = True
        self._thread = threading.Thread(target=self._run, name="guard-gateway-notices", daemon=True)

    def start(self) -> None:
        """Listen; returns when whatever is committed from now on is heard."""
        connection = self._open()
        self._feed.start(newest_of_all(connection.psycopg))
        self._first: ReadConnection | None = connection
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(WAIT_S * 5)

    def _open(self) -> ReadConnection:
        connection = self._connect()
        connection.psycopg.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        return connection

    def _run(self) -> None:
        connection, self._first = self._first, None
        while not self._closing.is_set():
            try:
                if connection is None:
                    connection = self._open()
                    self._catch_up(connection)
                self.healthy = True
                self._hear(connection)
            except psycopg.Error as exc:
                if self.healthy:
                    logger.warning("other replicas are not heard: %s", type(exc).__name__)
                self.healthy = False
                if connection is not None:
                    connection.close()
                connection = None
                self._closing.wait(RETRY_S * random.uniform(0.2, 1.0))
        if connection is not None:
            connection.close()

    def _catch_up(self, connection: ReadConnection) -> None:
        """Read what was committed while nothing was heard."""
        events = [PostCommitEvent("catalogue", None)]
        for organisation_id, newest in newest_of_all(connection.psycopg).items():
            seen = self._feed.seen(organisation_id)
            if newest > seen:
                events += notices_of(connection, organisation_id, seen)
        self._deliver(events)

    def _hear(self, connection: ReadConnection) -> None:
        # All are taken first: those that arrive during a query inside the loop would be lost.
        notices = list(connection.psycopg.notifies(timeout=WAIT_S, stop_after=1))
        for payload in dict.fromkeys(notice.payload for notice in notices):
            replica, kind, organisation_id, *rest = payload.split(" ", 3)
            if replica == self._replica():
                continue
            if kind in ("recall", "answered"):
                leases = json.loads(rest[0])
                self._deliver([PostCommitEvent(kind, organisation_id, leases=leases)])  # type: ignore[arg-type]  # one of the two
            else:
                self._deliver(self._events(connection, kind, organisation_id or None))

    def _events(
        self, connection: ReadConnection, kind: str, organisation_id: str | None
    ) -> list[PostCommitEvent]:
        if kind == "catalogue":
            return [PostCommitEvent("catalogue", organisation_id)]
        if organisation_id is None:
            return []
        return notices_of(connection, organisation_id, self._feed.seen(organisation_id))
