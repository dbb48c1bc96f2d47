"""Which events the page of events and its export show."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from guard.gateway.dashboard.site import RequestContext
from guard.gateway.domain.records import StoredEvent
from guard.gateway.domain.usage import Refused
from guard.gateway.storage.port import NEWEST, Storage

TYPES: Final = {
    "llm": "LLM requests", "tool": "tool calls", "span": "spans", "chain": "chains",
    "sdk.loss": "events lost by a program", "sdk.unseen": "hosts that cannot be metered",
    "sdk.observed": "refusals in observe mode",
    "adjustment": "corrections by a vendor's bill, or of what was in doubt",
}  # fmt: skip
"""The types that the project's own programs send, and their labels."""


class EventFilter(Struct, kw_only=True):
    """What a query asks for; empty: any.

    Attributes:
        show: reported events, or refused calls.
        workflow_id: only of this workflow.
        kind: only of this type.
        run_id: only of this run.
        call_id: only of this call.
        event_id: only this event.
        before: only those with a lower number.
    """

    show: Literal["events", "refused"]
    workflow_id: str
    kind: str
    run_id: str
    call_id: str
    event_id: str
    before: int

    @property
    def is_newest(self) -> bool:
        """Return whether they begin with the newest."""
        return self.before == NEWEST

    def query(self) -> dict[str, str]:
        """Return the query of a link to the same events, without the position."""
        found = {
            "show": "refused" if self.show == "refused" else "", "workflow": self.workflow_id,
            "type": self.kind, "run": self.run_id, "call": self.call_id, "event": self.event_id,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value}

    async def events(
        self, storage: Storage, organisation_id: str, before: int, limit: int
    ) -> list[StoredEvent]:
        """Read events, newest first."""
        return await storage.newest_events(
            organisation_id, before, limit, self.workflow_id or None, self.kind or None,
            self.run_id or None, self.call_id or None, self.event_id or None,
        )  # fmt: skip

    async def refused(
        self, storage: Storage, organisation_id: str, before: int, limit: int
    ) -> list[Refused]:
        """Read refused calls, newest first."""
        return await storage.refusals(
            organisation_id, self.workflow_id or None, before, limit, self.call_id or None
        )


def event_filter(context: RequestContext) -> EventFilter:
    """Read the filter from a page's query."""
    return EventFilter(
        show="refused" if context.query("show") == "refused" else "events",
        workflow_id=context.query("workflow"), kind=context.query("type"),
        run_id=context.query("run"), call_id=context.query("call"),
        event_id=context.query("event"), before=context.number("before", NEWEST),
    )  # fmt: skip
