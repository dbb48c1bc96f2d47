"""Answers stored for repeated requests, in two tables used in turn.

Each table takes the answers of one period, and is emptied before it is used again. So an answer
lives for one period at least, and no row needs an expiry index. The sweep empties it, outside of
units that requests wait for. While it cannot, because a backup reads the table, the period
continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain.windows import HOUR_MS
from guard.gateway.unit.connection import Cursor
from guard.gateway.unit.record import Table
from guard.gateway.unit.state import StoredAnswer
from guard.gateway.unit.tables import UnitBase

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
_KEEP: Final = (Table("idempotency_0").upsert(), Table("idempotency_1").upsert())
EMPTY_ROWS: Final = 2000
"""Answers that one step deletes, on an engine that does not empty a table at once."""

_EMPTY: Final = (
    *(
        f"DELETE FROM idempotency_{number} WHERE request IN"
        f" (SELECT request FROM idempotency_{number} LIMIT ?)"
        for number in (0, 1)
    ),
)
TURN: Final = "SELECT name, value FROM facts WHERE name IN ('replay_period', 'replay_turned_ms')"
"""What :meth:`Turn.of` reads."""


class Turn(Struct, frozen=True):
    """Which of the two tables takes new answers, and since when.

    Attributes:
        period: its remainder by two is the table's number.
        at_ms: when this period began, in Unix milliseconds.
    """

    period: int = -2
    at_ms: int = -2 * PERIOD_MS

    @classmethod
    def of(cls, rows: Iterable[Any]) -> Turn:
        """Return what is stored. A gateway of an earlier version stored the period only."""
        facts = {name: int(value) for name, value in rows}
        period = facts.get("replay_period", -2)
        return cls(period, max(facts.get("replay_turned_ms", 0), period * PERIOD_MS))

    def is_due(self, now_ms: int) -> bool:
        """Return whether every answer in the other table has lived for a whole period."""
        return now_ms // PERIOD_MS > self.period and now_ms - self.at_ms >= PERIOD_MS

    def next(self, now_ms: int) -> Turn:
        """Return the period that begins now, in the other table.

        >>> Turn(4, 0).next(6 * PERIOD_MS).period
        5
        """
        # The remainder by two has to change. If an even number of periods has passed, the one
        # before the current one has the right remainder.
        period = now_ms // PERIOD_MS
        return Turn(period - (period - self.period + 1) % 2, now_ms)

    def facts(self) -> dict[str, str]:
        """Return what is stored, by name."""
        return {"replay_period": str(self.period), "replay_turned_ms": str(self.at_ms)}


class ReplayTable:
    """Used by the unit of work, inside its transactions."""

    def __init__(self, tables: UnitBase) -> None:
        self._tables = tables
        # Of this unit, by lookup key: answers in the tables that its commands name, and answers
        # that it is going to write.
        self._found: dict[str, StoredAnswer] = {}
        self._new: dict[str, StoredAnswer] = {}
        # Which table takes new answers. Set by ``empty_some`` inside a unit, or on the loop by a
        # store whose sweep turns the tables outside of units.
        self.turn = Turn.of(tables.connection.execute(TURN).fetchall())

    def send_lookup(self, lookup_keys: list[str]) -> Cursor | None:
        """Look up answers; :meth:`take` reads the result."""
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
            # A name may be in both tables, if the tables turned between an undecided answer
            # (``idempotency.keep_undecided``, without a status) and the final one, which counts.
            if status or name not in self._found:
                self._found[name] = StoredAnswer(fingerprint, status, body)

    def empty_some(self) -> None:
        """Delete some answers of the older table; use it once it is empty."""
        turn = self.turn.next(self._tables.now_ms)
        deleted = self._tables.write(_EMPTY[turn.period % 2], (EMPTY_ROWS,)).rowcount
        # Perhaps not empty yet. The next step deletes more; new answers still go to the other one.
        if deleted == EMPTY_ROWS:
            return
        for name, value in turn.facts().items():
            self._tables.save_fact(name, value)
        self._tables.on_undo(setattr, self, "turn", self.turn)
        self.turn = turn

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
        self._tables.connection.change(_KEEP[self.turn.period % 2], rows)
        self._found.update(self._new)
        self._new.clear()

    def forget(self) -> None:
        """Drop answers that were not written."""
        self._new.clear()
