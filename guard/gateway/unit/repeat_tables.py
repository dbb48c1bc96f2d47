"""Counts of identical calls by run: in a unit of work over SQL, and in reports."""

from __future__ import annotations

from typing import Final

from guard.gateway.domain import acceleration
from guard.gateway.domain.acceleration import SpendOfRun
from guard.gateway.domain.repeats import PREVIEWED_MAX, LoopKind, RepeatCount, RepeatPlace
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.control_tables import UnitPart
from guard.gateway.unit.rows import REPEATS

_SELECT: Final = REPEATS.select()
_SAVE: Final = REPEATS.upsert(keep=("subject", "workflow_id", "agent", "key_id"))
_DELETE: Final = REPEATS.delete()
_PLACE: Final = "organisation_id = ? AND run_id = ? AND loop_kind = ? AND digest = ?"
_DROPPED_MAX: Final = 500
"""Rows that one sweep deletes."""

LOOPS_MAX: Final = 50
SCANNED_MAX: Final = 100_000
"""How many of the newest charges are searched for accelerating runs."""


class RepeatTables(UnitPart):
    """How often runs have made the same call, and which were flagged."""

    def repeat(self, place: RepeatPlace) -> RepeatCount | None:
        """Return how often a call was made."""
        row = self._unit.row(f"{_SELECT} WHERE {_PLACE}", *_key(place))
        return None if row is None else REPEATS.read(row)

    def save_repeat(self, place: RepeatPlace, count: RepeatCount) -> None:
        """Write how often a call was made."""
        self._unit.write(_SAVE, REPEATS.row(count, place.organisation_id, place.digest))

    def is_foreign_run(self, place: RepeatPlace) -> bool:
        """Return whether a run is recorded as another workflow's."""
        row = self._unit.row(
            "SELECT owner FROM usage WHERE organisation_id = ? AND scope_kind = 'run'"
            " AND size_ms = 0 AND start_ms = 0 AND scope_id = ? AND first_ms IS NOT NULL",
            place.organisation_id, place.run_id,
        )  # fmt: skip
        return row is not None and row[0] != place.workflow_id

    def count_loop(self, kind: LoopKind) -> None:
        """Count a run that was flagged, for the metrics."""
        self._unit.tally.add("loop", kind)

    def drop_repeats(self, unnoticed_ms: int, noticed_ms: int) -> None:
        """Delete counts that last changed before a time; those of flagged runs, before another."""
        for where, before_ms in (
            ("noticed_ms IS NULL", unnoticed_ms),
            ("noticed_ms IS NOT NULL", noticed_ms),
        ):
            rows = self._unit.rows(
                "SELECT organisation_id, run_id, loop_kind, digest FROM repeats"
                f" WHERE {where} AND counted_ms < ? ORDER BY counted_ms LIMIT ?",
                before_ms, _DROPPED_MAX,
            )  # fmt: skip
            if rows:
                self._unit.write_many(_DELETE, rows)


def _key(place: RepeatPlace) -> tuple[str, ...]:
    return place.organisation_id, place.run_id, place.kind, place.digest


# -- reports ---------------------------------------------------------------------------------------


def loops(
    connection: Connection, organisation_id: str, workflow_id: str, run_id: str
) -> list[RepeatCount]:
    """Return the counts for which a run of a workflow was flagged, newest first."""
    rows = connection.rows(
        f"{_SELECT} WHERE organisation_id = ? AND run_id = ? AND workflow_id = ?"
        " AND noticed_ms IS NOT NULL ORDER BY noticed_ms DESC, subject LIMIT ?",
        organisation_id, run_id, workflow_id, LOOPS_MAX,
    )  # fmt: skip
    return [REPEATS.read(row) for row in rows]


def repeat_counts(connection: Connection, organisation_id: str) -> list[RepeatCount]:
    """Return the newest counts of all runs, for a preview."""
    rows = connection.rows(
        f"{_SELECT} WHERE organisation_id = ? AND loop_kind <> 'spend'"
        " ORDER BY counted_ms DESC LIMIT ?",
        organisation_id, PREVIEWED_MAX,
    )  # fmt: skip
    return [REPEATS.read(row) for row in rows]


def spend_by_run(connection: Connection, now_ms: int, organisation_id: str) -> list[SpendOfRun]:
    """Return the spend of runs in each step before now; step 0 is the newest.

    Runs whose spend in the newest step is not worth a message are left out.
    """
    since_ms = now_ms - acceleration.STEPS * acceleration.STEP_MS
    step = f"({now_ms:d} - charged_at_ms) / {acceleration.STEP_MS:d}"
    runs = _spend(connection, step, organisation_id, since_ms, now_ms)
    return [run for run in runs if run.spent.get(0, 0) >= acceleration.LEAST_NANOUSD]


def spend_by_minute(connection: Connection, now_ms: int, organisation_id: str) -> list[SpendOfRun]:
    """Return the spend of the last days' runs in each minute, for a preview."""
    minute = f"charged_at_ms / {acceleration.MINUTE_MS:d}"
    return _spend(connection, minute, organisation_id, now_ms - acceleration.PREVIEWED_MS, now_ms)


def _spend(
    connection: Connection, when: str, organisation_id: str, since_ms: int, until_ms: int
) -> list[SpendOfRun]:
    rows = connection.rows(
        f"SELECT run_id, workflow_id, agent, key_id, {when} AS at, sum(cost_nanousd)"
        " FROM (SELECT run_id, workflow_id, agent, key_id, charged_at_ms, cost_nanousd FROM events"
        " INDEXED BY events_charged WHERE organisation_id = ? AND charged_at_ms > ?"
        " AND charged_at_ms <= ? ORDER BY charged_at_ms DESC LIMIT ?) newest"
        " WHERE run_id IS NOT NULL AND cost_nanousd > 0"
        " GROUP BY run_id, workflow_id, agent, key_id, at",
        organisation_id, since_ms, until_ms, SCANNED_MAX,
    )  # fmt: skip
    found: dict[tuple[str, str | None], SpendOfRun] = {}
    for run_id, workflow_id, agent, key_id, at, cost in rows:
        place = run_id, workflow_id
        if place not in found:
            found[place] = SpendOfRun(run_id=run_id, workflow_id=workflow_id)
        found[place].add(int(at), int(cost), agent, key_id)
    return list(found.values())
