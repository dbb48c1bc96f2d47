"""Refused calls: collected in a unit of work, written once; the newest are kept."""

from __future__ import annotations

from typing import Any, Final

from guard.core import wire
from guard.gateway.domain.commands import CallRefusal, RequestOrigin
from guard.gateway.unit.record import Table
from guard.gateway.unit.tables import UnitBase

REFUSALS_MAX: Final = 100_000
PRUNED_MAX: Final = 5000
_REASON_MAX: Final = 512
_ADD: Final = Table("refusals").insert(
    ("organisation_id", "at_ms", "workflow_id", "run_id", "agent", "call_id", "kind", "function",
     "tool_name", "model", "status", "error_code", "reason", "user_id", "refused_by")
)  # fmt: skip


class Refusals:
    """Used by the unit of work, inside its transactions."""

    def __init__(self, tables: UnitBase) -> None:
        self._tables = tables
        # Of this unit, in order: an undo removes the last one.
        self._new: list[tuple[Any, ...]] = []

    def add(self, request: RequestOrigin, call: wire.GateRequest, why: CallRefusal) -> None:
        """Record one refusal."""
        self._tables.tally.add("refusal", why.error_code)
        model = None if call.model == wire.UNKNOWN_MODEL else call.model
        self._new.append(
            (request.organisation_id, self._tables.now_ms, call.workflow_id, call.run_id,
             call.agent, call.call_id, call.kind, call.function,
             why.tool_name or call.tool_name, model, why.status, why.error_code,
             why.reason[:_REASON_MAX], call.user, why.refused_by()[:_REASON_MAX])
        )  # fmt: skip
        self._tables.on_undo(self._drop)

    def _drop(self) -> None:
        if self._new:  # empty if it was written in this unit already
            self._new.pop()

    def flush(self) -> None:
        """Write the refusals of this unit."""
        if self._new:
            self._tables.connection.change(_ADD, self._new)
            self._new.clear()

    def forget(self) -> None:
        """Drop the refusals that were not written."""
        self._new.clear()

    def prune(self) -> None:
        """Delete refusals beyond the newest ``REFUSALS_MAX``, at most ``PRUNED_MAX`` at once."""
        execute = self._tables.write
        first, last = execute("SELECT min(refusal_seq), max(refusal_seq) FROM refusals").fetchone()
        if last is not None and last - first >= REFUSALS_MAX:
            end = min(last - REFUSALS_MAX, first + PRUNED_MAX)
            execute("DELETE FROM refusals WHERE refusal_seq <= ?", (end,))
