"""Running totals of every scope: in all, and in the current hour, day, week and month.

A balance that is opened at noon counts what its scope has cost since midnight. That sum is read
from one row, whatever the number of events. Totals are collected in a unit of work and written
once for each scope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from guard.gateway.domain.commands import PricedEvent
from guard.gateway.domain.windows import DAY_MS, HOUR_MS, WEEK_MS, period_of
from guard.gateway.ledger.state import SCOPE_KINDS, ScopeKeys
from guard.gateway.storage.sql.record import Table
from guard.gateway.storage.sql.tables import Tables

COLUMNS: Final = {"workflow": "workflow_id", "agent": "agent", "chain": "chain_id",
                  "user": "user_id", "key": "key_id", "model": "model",
                  "run": "run_id"}  # fmt: skip
"""The column of an event that names its scope, by kind; a run is not a scope of budgets."""

_SIZES: Final = ("hour", "day", "month", "week")
_ADD: Final = Table("scope_totals").upsert(
    add=("cost_nanousd", "events", "llm_calls", "tool_calls", "input_tokens", "output_tokens",
         "unpriced"),
    sets={
        f"{size}_nanousd":
        f"CASE WHEN excluded.{size}_ms > scope_totals.{size}_ms THEN excluded.{size}_nanousd"
        f" WHEN excluded.{size}_ms = scope_totals.{size}_ms"
        f" THEN scope_totals.{size}_nanousd + excluded.{size}_nanousd"
        f" ELSE scope_totals.{size}_nanousd END"
        for size in _SIZES
    } | {f"{size}_ms": f"max(scope_totals.{size}_ms, excluded.{size}_ms)" for size in _SIZES},
)  # fmt: skip


class ScopeTotals:
    """Used by the unit of work, inside its transactions."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        # Events of this unit that are not in the table yet, by organisation, kind and id of the
        # scope: the hour that each was charged in, and its numbers in the order of the columns.
        self._new: dict[tuple[str, str, str], list[tuple[int, tuple[int, ...]]]] = {}
        # The cost of each organisation in all, those events included. Valid from one unit to the
        # next: balances of whole organisations are the ones that are opened most.
        self._organisations: dict[str, int] = {}

    def count(
        self, organisation_id: str, keys: ScopeKeys, charged_at_ms: int, priced: PricedEvent
    ) -> None:
        """Add one event to the totals of its scopes."""
        event = priced.event
        added = (
            priced.cost, 1, int(event.type == "llm"), int(event.type == "tool"),
            priced.input_tokens, priced.output_tokens, int("unpriced" in priced.flags),
        )  # fmt: skip
        scopes = [(organisation_id, "organisation", "")]
        for kind, scope_id in (*zip(SCOPE_KINDS, keys[:5], strict=True), ("run", event.run_id)):
            if scope_id is None:
                scopes.append((organisation_id, f"no {kind}", ""))
            else:
                scopes.append((organisation_id, kind, scope_id))
        scopes += [(organisation_id, "model", name) for name in keys[-1]]
        # One tuple for all scopes, and nothing is summed before it is written: most units have one
        # event for each scope.
        entry = charged_at_ms - charged_at_ms % HOUR_MS, added
        for scope in scopes:
            entries = self._new.get(scope)
            if entries is None:
                self._new[scope] = [entry]
            else:
                entries.append(entry)
        if organisation_id in self._organisations:
            self._organisations[organisation_id] += priced.cost
        self._tables.undo_log.append((self._undo, scopes, priced.cost))

    def _undo(self, scopes: list[tuple[str, str, str]], cost: int) -> None:
        for scope in scopes:
            if entries := self._new.get(scope):  # empty if it was written in this unit already
                entries.pop()
        organisation_id = scopes[0][0]
        if organisation_id in self._organisations:
            self._organisations[organisation_id] -= cost

    def spent(
        self, organisation_id: str, kind: str, scope_id: str, start_ms: int, end_ms: int | None
    ) -> int:
        """Return the nano-dollars that a scope has cost in a period that begins with a window.

        Args:
            organisation_id: whose scope it is.
            kind: which kind of scope.
            scope_id: the concrete id, empty for the organisation.
            start_ms: when the period begins.
            end_ms: when it ends; ``None`` for the one that never does.
        """
        # For budgets of an organisation without an end: from the cache.
        if end_ms is None and kind == "organisation":
            known = self._organisations.get(organisation_id)
            if known is None:
                known = self._read(organisation_id, kind, scope_id, start_ms, end_ms)
                self._organisations[organisation_id] = known
            return known
        return self._read(organisation_id, kind, scope_id, start_ms, end_ms)

    def _read(
        self, organisation_id: str, kind: str, scope_id: str, start_ms: int, end_ms: int | None
    ) -> int:
        scope = (organisation_id, kind, scope_id)
        size = _size(start_ms, end_ms)
        row = self._tables.row(
            f"SELECT {'0, cost' if size is None else f'{size}_ms, {size}'}_nanousd"  # noqa: S608 (constants of this module)
            " FROM scope_totals WHERE organisation_id = ? AND scope_kind = ? AND scope_id = ?",
            *scope,
        )
        if row is not None and row[0] > start_ms:
            # The newest period of the scope is in the future: an earlier process had a wrong clock.
            return self._sum(*scope, start_ms, end_ms)
        total = row[1] if row is not None and row[0] == start_ms else 0
        for hour_ms, numbers in self._new.get(scope, ()):
            if start_ms <= hour_ms and (end_ms is None or hour_ms < end_ms):
                total += numbers[0]
        return int(total)

    def new_tokens(
        self, organisation_id: str, kind: str, scope_id: str, start_ms: int, end_ms: int | None
    ) -> int:
        """Return the tokens of a period's events that are not in the table yet."""
        found = self._new.get((organisation_id, kind, scope_id), ())
        return sum(
            numbers[4] + numbers[5]
            for hour_ms, numbers in found
            if start_ms <= hour_ms and (end_ms is None or hour_ms < end_ms)
        )

    def _sum(
        self, organisation_id: str, kind: str, scope_id: str, start_ms: int, end_ms: int | None
    ) -> int:
        self._tables.write_events()
        where, arguments = "", [organisation_id, start_ms, 2**62 if end_ms is None else end_ms]
        if kind != "organisation":
            where = f" AND {COLUMNS[kind]} = ?"
            arguments.append(scope_id)
        row = self._tables.row(
            "SELECT coalesce(sum(cost_nanousd), 0) FROM events INDEXED BY events_charged"  # noqa: S608 (constants of this module)
            f" WHERE organisation_id = ? AND charged_at_ms >= ? AND charged_at_ms < ?{where}",
            *arguments,
        )
        return int(row[0])

    def forget_organisation(self, organisation_id: str) -> None:
        """Drop an organisation's cached total."""
        self._organisations.pop(organisation_id, None)

    def flush(self) -> None:
        """Write the totals of this unit, one row for each scope."""
        if not self._new:
            return
        rows = [(*scope, *_row(entries)) for scope, entries in self._new.items() if entries]
        if rows:
            self._tables.connection.change(_ADD, rows)
        self._new.clear()

    def forget(self) -> None:
        """Drop the events that were not written, and the cached totals."""
        self._new.clear()
        self._organisations.clear()


def _row(entries: list[tuple[int, tuple[int, ...]]]) -> list[int]:
    """Return the row that adds a scope's events to the table.

    It is one row, since a statement of PostgreSQL must not write a row twice. Of each size of
    period it has the newest one only, as the table keeps no other.
    """
    if len(entries) == 1:
        hour_ms, (cost, *counts) = entries[0]
        day_ms, month_ms, week_ms = (
            start_of(hour_ms) for start_of in (_day_of, _month_of, _week_of)
        )
        return [cost, hour_ms, cost, day_ms, cost, month_ms, cost, *counts, week_ms, cost]
    cost, *counts = (sum(column) for column in zip(*(each for _, each in entries), strict=True))
    hour, day, month, week = (
        _newest(entries, start_of) for start_of in (_hour_of, _day_of, _month_of, _week_of)
    )
    return [cost, *hour, *day, *month, *counts, *week]


def _newest(
    entries: list[tuple[int, tuple[int, ...]]], start_of: Callable[[int], int]
) -> tuple[int, int]:
    """Return the newest period of entries, and their cost in it."""
    newest_ms = max(start_of(hour_ms) for hour_ms, _ in entries)
    return newest_ms, sum(each[0] for hour_ms, each in entries if start_of(hour_ms) == newest_ms)


def _hour_of(at_ms: int) -> int:
    return at_ms - at_ms % HOUR_MS


def _day_of(at_ms: int) -> int:
    return at_ms - at_ms % DAY_MS


def _week_of(at_ms: int) -> int:
    return period_of("week", at_ms)[0]


@functools.lru_cache(maxsize=64)
def _month_of(at_ms: int) -> int:
    return period_of("month", at_ms)[0]


def _size(start_ms: int, end_ms: int | None) -> str | None:
    if end_ms is None:
        return None
    return {HOUR_MS: "hour", DAY_MS: "day", WEEK_MS: "week"}.get(end_ms - start_ms, "month")
