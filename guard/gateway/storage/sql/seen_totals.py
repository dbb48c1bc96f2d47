"""Spend and last use of workflows and runs; written once for each commit."""

from __future__ import annotations

from typing import Any, Final

from guard.gateway.storage.sql.record import Table
from guard.gateway.storage.sql.tables import CACHE_MAX, Tables, restore_list

_ADD_TO_WORKFLOW: Final = Table("workflows").upsert(
    keep=("first_seen_ms",), add=("spent_nanousd", "calls", "events")
)
_ADD_TO_RUN: Final = Table("runs").upsert(
    keep=("workflow_id", "first_seen_ms"), add=("spent_nanousd",)
)
FRESH_MS: Final = 1000
"""If nothing was spent, the last use of a run is written no more often than this."""


class SeenTotals:
    """Used by the unit of work, inside its transactions."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        # Of this unit, by organisation and id, in the order of the columns: first and last use,
        # then numbers to add; for runs, the workflow first. The lists are changed in place.
        self._workflows: dict[tuple[str, str], list[int]] = {}
        self._runs: dict[tuple[str, str], list[Any]] = {}
        # When runs were last written. Only saves writes, so it may forget.
        self._runs_seen_ms: dict[tuple[str, str], int] = {}

    def count_workflow(
        self, organisation_id: str, workflow_id: str, spent: int, calls: int, events: int
    ) -> None:
        """Add to the totals of a workflow."""
        key, now_ms = (organisation_id, workflow_id), self._tables.now_ms
        delta = self._workflows.get(key)
        if delta is None:
            self._workflows[key] = [now_ms, now_ms, spent, calls, events]
            self._tables.undo_log.append((self._workflows.pop, key, None))
            return
        self._tables.undo_log.append((restore_list, delta, delta[:]))
        delta[2] += spent
        delta[3] += calls
        delta[4] += events

    def count_run(
        self, organisation_id: str, run_id: str, workflow_id: str | None, spent: int
    ) -> None:
        """Add to the totals of a run."""
        key, now_ms = (organisation_id, run_id), self._tables.now_ms
        delta = self._runs.get(key)
        if delta is None:
            if not spent and now_ms - self._runs_seen_ms.get(key, -FRESH_MS) < FRESH_MS:
                return
            self._runs[key] = [workflow_id, now_ms, now_ms, spent]
            self._tables.undo_log.append((self._runs.pop, key, None))
        elif spent:
            self._tables.undo_log.append((delta.__setitem__, 3, delta[3]))
            delta[3] += spent

    def flush(self) -> None:
        """Write the totals of this unit."""
        change = self._tables.connection.change
        if self._workflows:
            change(_ADD_TO_WORKFLOW, [(*key, *delta) for key, delta in self._workflows.items()])
            self._workflows.clear()
        if self._runs:
            change(_ADD_TO_RUN, [(*key, *delta) for key, delta in self._runs.items()])
            if len(self._runs_seen_ms) + len(self._runs) > CACHE_MAX:
                self._runs_seen_ms.clear()
            self._runs_seen_ms.update(dict.fromkeys(self._runs, self._tables.now_ms))
            self._runs.clear()

    def forget(self) -> None:
        """Drop the totals that were not committed."""
        self._workflows.clear()
        self._runs.clear()
        self._runs_seen_ms.clear()
