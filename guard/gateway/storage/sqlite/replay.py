"""Answers kept for repeated requests, in two tables that take turns.

Each table takes the answers of one period; when a period begins, the table of the one before the
last is emptied. So an answer lives for one period at least, and no row ever needs an expiry index.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Final

from guard.gateway.domain.commands import Answer, Request
from guard.gateway.domain.render import conflict
from guard.gateway.domain.windows import HOUR_MS

PERIOD_MS: Final = 12 * HOUR_MS

_FIND: Final = (
    "SELECT i.request, i.fingerprint, i.status, i.body FROM json_each(:names) j"
    " CROSS JOIN idempotency_0 i ON i.request = j.value UNION ALL"
    " SELECT i.request, i.fingerprint, i.status, i.body FROM json_each(:names) j"
    " CROSS JOIN idempotency_1 i ON i.request = j.value"
)
_KEEP: Final = (
    "INSERT OR REPLACE INTO idempotency_0 VALUES (?,?,?,?)",
    "INSERT OR REPLACE INTO idempotency_1 VALUES (?,?,?,?)",
)
_EMPTY: Final = ("DELETE FROM idempotency_0", "DELETE FROM idempotency_1")

_Kept = tuple[bytes, int, bytes]


def request_hint(request: Request) -> str | None:
    """Return the name under which a request's answer is kept."""
    if request.idempotency_key is None:
        return None
    return f"{request.key_id}/{request.idempotency_key}"


class ReplayTable:
    """Used by the writer thread, inside its transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._found: dict[str, _Kept] = {}
        self._new: dict[str, _Kept] = {}
        row = connection.execute("SELECT value FROM facts WHERE name = 'replay_period'").fetchone()
        self._period = -2 if row is None else int(row[0])

    def begin(self, now_ms: int, hints: list[str]) -> None:
        """Look up the whole group at once."""
        period = now_ms // PERIOD_MS
        if period != self._period:
            self._turn(period)
        self._found.clear()
        if hints:
            for name, *kept in self._connection.execute(_FIND, {"names": json.dumps(hints)}):
                self._found[name] = (kept[0], kept[1], kept[2])

    def _turn(self, period: int) -> None:
        execute = self._connection.execute
        execute(_EMPTY[period % 2])
        if period != self._period + 1:
            execute(_EMPTY[(period + 1) % 2])
        execute("INSERT OR REPLACE INTO facts VALUES ('replay_period', ?)", (str(period),))
        self._period = period

    def find(self, request: Request) -> Answer | None:
        """Return the kept answer, a conflict, or ``None``. The request's hint was given."""
        name = request_hint(request)
        assert name is not None
        kept = self._new.get(name) or self._found.get(name)
        if kept is None:
            return None
        if kept[0] != request.fingerprint:
            return conflict()
        return Answer(kept[1], kept[2], replay=True)

    def keep(self, request: Request, answer: Answer) -> None:
        """Keep an answer; written by :meth:`flush`."""
        name = request_hint(request)
        assert name is not None
        self._new[name] = (request.fingerprint, answer.status, answer.body)

    def flush(self) -> None:
        """Write what was kept in this transaction."""
        if self._new:
            rows = [(name, *kept) for name, kept in self._new.items()]
            self._connection.executemany(_KEEP[self._period % 2], rows)
            self._new.clear()
