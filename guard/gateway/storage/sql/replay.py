"""Answers stored for repeated requests, in two tables used in turn.

Each table takes the answers of one period, and is emptied before it is used again. So an answer
lives for one period at least, and no row needs an expiry index.
"""

from __future__ import annotations

from typing import Final

from guard.core import wire
from guard.gateway.domain.windows import HOUR_MS
from guard.gateway.ledger.state import StoredAnswer
from guard.gateway.storage.sql.connection import Cursor
from guard.gateway.storage.sql.tables import Tables

PERIOD_MS: Final = 12 * HOUR_MS

_FIND: Final = (
    "SELECT i.request, i.fingerprint, i.status, i.body FROM json_each(?1) j"
    " CROSS JOIN idempotency_0 i ON i.request = j.value UNION ALL"
    " SELECT i.request, i.fingerprint, i.status, i.body FROM json_each(?1) j"
    " CROSS JOIN idempotency_1 i ON i.request = j.value"
)
_FIND_ONE: Final = (
    "SELECT request, fingerprint, status, body FROM idempotency_0 WHERE request = ? UNION ALL"
    " SELECT request, fingerprint, status, body FROM idempotency_1 WHERE request = ?"
)
"""The same query for a group of one, in a third of the time."""
_KEEP: Final = (
    *(
        f"INSERT INTO idempotency_{number} VALUES (?,?,?,?) ON CONFLICT (request) DO UPDATE SET"  # noqa: S608 (constant text)
        " fingerprint = excluded.fingerprint, status = excluded.status, body = excluded.body"
        for number in (0, 1)
    ),
)
_EMPTY: Final = ("DELETE FROM idempotency_0", "DELETE FROM idempotency_1")


class ReplayTable:
    """Used by the unit of work, inside its transactions."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._found: dict[str, StoredAnswer] = {}
        self._new: dict[str, StoredAnswer] = {}
        row = tables.row("SELECT value FROM facts WHERE name = 'replay_period'")
        self._period = -2 if row is None else int(row[0])

    def begin(self, lookup_keys: list[str]) -> None:
        """Look up the answers of a whole group at once."""
        self.turn()
        self.take(self.ask(lookup_keys))

    def turn(self) -> bool:
        """Empty the older table and use it, if it is time; tell whether it was."""
        period = self._tables.now_ms // PERIOD_MS
        is_time = period != self._period
        if is_time:
            self._rotate(period)
        return is_time

    def ask(self, lookup_keys: list[str]) -> Cursor | None:
        """Look up answers; :meth:`take` reads what was found."""
        if not lookup_keys:
            return None
        execute = self._tables.connection.execute
        if len(lookup_keys) == 1:
            return execute(_FIND_ONE, lookup_keys * 2)
        return execute(_FIND, (wire.encode(lookup_keys).decode(),))

    def take(self, asked: Cursor | None) -> None:
        """Read the answers that were looked up for a group."""
        self._found.clear()
        self._new.clear()
        for name, fingerprint, status, body in () if asked is None else asked:
            if status or name not in self._found:  # the same name may be in both tables
                self._found[name] = StoredAnswer(fingerprint, status, body)

    def _rotate(self, period: int) -> None:
        execute = self._tables.connection.execute
        stored = self._tables.locked_fact("replay_period")
        if stored is not None and int(stored) >= period:  # another replica has done it
            self._period = int(stored)
            return
        execute(_EMPTY[period % 2])
        if period != self._period + 1:
            execute(_EMPTY[(period + 1) % 2])
        self._tables.save_fact("replay_period", str(period))
        self._tables.on_undo(setattr, self, "_period", self._period)
        self._period = period

    def find(self, lookup_key: str) -> StoredAnswer | None:
        """Return the stored answer, if any. The key was named at the beginning of the unit."""
        return self._new.get(lookup_key) or self._found.get(lookup_key)

    def keep(self, lookup_key: str, answer: StoredAnswer) -> None:
        """Store an answer; written by :meth:`flush`."""
        self._new[lookup_key] = answer
        self._tables.on_undo(self._new.pop, lookup_key, None)

    def flush(self) -> None:
        """Write the new answers."""
        if not self._new:
            return
        rows = [(name, a.fingerprint, a.status, a.body) for name, a in self._new.items()]
        self._tables.connection.executemany(_KEEP[self._period % 2], rows)
        self._found.update(self._new)
        self._new.clear()

    def forget(self) -> None:
        """Drop answers that were not written."""
        self._new.clear()
