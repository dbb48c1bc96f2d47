"""Work that vendors finish later, and whose request has begun it."""

from __future__ import annotations

import json
from typing import Final

from guard.core import wire
from guard.gateway.unit.control_tables import UnitPart
from guard.gateway.unit.record import Table

_LATER: Final = Table("later_work")
_ADD: Final = _LATER.insert(ignore=True)
_DELETE: Final = _LATER.delete()
_FIND: Final = (
    "SELECT key_id, charged_as, reservation_id, workflow_id, run_id, chain_id, agent, user_id,"
    " call_id, tags FROM later_work WHERE organisation_id = ? AND provider = ? AND work_id = ?"
)
_DROPPED_MAX: Final = 500
"""Rows that one sweep deletes."""

KEPT_MS: Final = 40 * 86_400_000
"""Vendors keep the result of a batch for 30 days, and that of a response
(https://developers.openai.com/api/docs/guides/your-data, 2026-11)."""


class LaterTables(UnitPart):
    """Who has begun the work that vendors finish later, by the vendor's id of it."""

    def begun(self, organisation_id: str, key_id: str, event: wire.Event) -> None:
        """Keep who has begun a piece of work, as a ``later`` event says; the first who says so."""
        work = wire.convert(event.data, wire.LaterData)
        self._unit.write(
            _ADD,
            (
                organisation_id, work.provider, work.work_id, work.charged_as, key_id,
                event.reservation_id, event.workflow_id, event.run_id, event.chain_id, event.agent,
                event.user, event.call_id, json.dumps(event.tags), self._unit.now_ms,
            ),
        )  # fmt: skip

    def maker(
        self, organisation_id: str, provider: str, work_id: str, event: wire.Event
    ) -> tuple[str, wire.Event] | None:
        """Return the key of whoever has begun a piece of work, and an event as its own.

        Args:
            organisation_id, provider, work_id: which work.
            event: that reports what the work used.
        """
        row = self._unit.row(_FIND, organisation_id, provider, work_id)
        if row is None:
            return None
        key_id, charged_as, held, workflow, run, chain, agent, user, call, tags = row
        return key_id, wire.Event(
            charged_as or event.event_id,
            event.type,
            event.at_ms,
            workflow_id=workflow,
            run_id=run,
            chain_id=chain,
            agent=agent,
            call_id=call,
            reservation_id=held,
            data=event.data,
            user=user,
            tags=json.loads(tags),
        )

    def prune(self) -> None:
        """Forget some of the work whose result no vendor has any more."""
        rows = self._unit.rows(
            "SELECT organisation_id, provider, work_id FROM later_work WHERE begun_ms < ? LIMIT ?",
            self._unit.now_ms - KEPT_MS, _DROPPED_MAX,
        )  # fmt: skip
        if rows:
            self._unit.write_many(_DELETE, rows)
