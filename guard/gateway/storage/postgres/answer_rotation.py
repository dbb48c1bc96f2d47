"""Empties the older table of stored answers in an instant, when nothing else reads it.

``TRUNCATE`` waits for every open transaction that has read the table, and new readers wait behind
it: units of work, and so requests. So it gives up after a moment, and is tried again later.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.errors import DeadlockDetected, LockNotAvailable

from guard.gateway.unit.replay import TURN, Turn

LOCK_WAIT_MS: Final = 100
"""How long requests wait behind an attempt at most; units of work end sooner."""

_TURN: Final = TURN.encode() + b" ORDER BY name FOR UPDATE"
_SAVE: Final = (
    "INSERT INTO facts VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)


def turn_answers(connection: psycopg.Connection[Any], now_ms: int) -> Turn:
    """Turn the tables, unless another replica has done so or the table is in use.

    Args:
        connection: outside of a transaction.
        now_ms: the store's time.

    Returns:
        The turn that is stored now; it is still due if the table is in use.
    """
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}".encode())
            # Locks the facts: of replicas that turn at the same time, the second finds it done.
            turn = Turn.of(connection.execute(_TURN))
            if turn.is_due(now_ms):
                turn = turn.next(now_ms)
                # In one transaction with the facts: after a crash in between, neither is done.
                connection.execute(f"TRUNCATE idempotency_{turn.period % 2}".encode())
                for fact in turn.facts().items():
                    connection.execute(_SAVE, fact)
            return turn
    except (LockNotAvailable, DeadlockDetected):
        return Turn.of(connection.execute(TURN.encode()))
