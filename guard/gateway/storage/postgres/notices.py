"""Control messages that other replicas have committed, in order and without a gap.

The numbered row is authoritative. A notification only wakes a replica, which then reads every row
after the newest one that it has published. So a lost notification delays messages and loses none.
"""

from __future__ import annotations

from typing import Any

from guard.core import wire
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.storage.postgres.connection import PostgresReadConnection, WriteConnection


def notices_of(
    connection: PostgresReadConnection | WriteConnection, organisation_id: str, after: int
) -> list[PostCommitEvent]:
    """Return the stored messages of an organisation that are newer than ``after``, in order."""
    rows = connection.psycopg.execute(
        "SELECT message, key_id FROM control WHERE organisation_id = %s AND seq > %s ORDER BY seq",
        (organisation_id, after),
    ).fetchall()
    return [_event(organisation_id, *row) for row in rows]


def _event(organisation_id: str, message: str, key_id: str | None) -> PostCommitEvent:
    decoded = wire.decode(message, wire.ControlMessage)
    return PostCommitEvent("control", organisation_id, decoded, key_id)


class Feed:
    """Delivers each message once, in the order of its number.

    The writer's thread and the listener's both deliver messages, so one may arrive twice, and late.
    A message that is older than the newest one published is dropped: the thread that published the
    newest one had delivered all before it as well.
    """

    def __init__(self) -> None:
        # The newest number by organisation; it only rises. Written on the loop once the listener
        # has started. The writer's and the listener's threads read it without a lock: from an old
        # number they read messages that are known, which are dropped on the loop.
        self._newest: dict[str, int] = {}

    def start(self, newest: dict[str, int]) -> None:
        """Set the numbers of the messages that were stored before the listener began."""
        self._newest = dict(newest)

    def seen(self, organisation_id: str) -> int:
        """Return the number of the newest message that was delivered."""
        return self._newest.get(organisation_id, 0)

    def fresh(self, events: list[PostCommitEvent]) -> list[PostCommitEvent]:
        """Return the events that were not delivered before."""
        return [event for event in events if self._is_fresh(event)]

    def _is_fresh(self, event: PostCommitEvent) -> bool:
        own, message = event.organisation_id, event.message
        if event.kind != "control" or own is None or message is None:
            return True
        if message.seq <= self.seen(own):
            return False
        self._newest[own] = message.seq
        return True


def newest_of_all(connection: Any) -> dict[str, int]:
    """Return the number of every organisation's newest message."""
    rows = connection.execute("SELECT organisation_id, control_seq FROM organisations").fetchall()
    return dict(rows)
