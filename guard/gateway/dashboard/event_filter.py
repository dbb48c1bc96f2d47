"""Which events the page of events and its export show."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from guard.core.written_numbers import read_dollars
from guard.gateway.dashboard.site import RequestContext
from guard.gateway.dashboard.spend import asked_range
from guard.gateway.dashboard.time_ranges import ALL, TimeRange
from guard.gateway.domain.records import EventSearch, FoundEvents
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
    """What a query asks for.

    Attributes:
        show: reported events, or refused calls.
        given: the fields as they were typed, by the names in a query.
        search: the same for the store.
        before: only those with a lower number.
        shown: the range of time.
        error: why a field was left out.
    """

    show: Literal["events", "refused"]
    given: dict[str, str]
    search: EventSearch
    before: int
    shown: TimeRange
    error: str = ""

    @property
    def is_newest(self) -> bool:
        """Return whether they begin with the newest."""
        return self.before == NEWEST

    def query(self) -> dict[str, str]:
        """Return the query of a link to the same events, without the position and the range."""
        found = {"show": "refused" if self.show == "refused" else "", **self.given}
        return {name: value for name, value in found.items() if value}

    async def events(
        self, storage: Storage, organisation_id: str, before: int, limit: int
    ) -> FoundEvents:
        """Read events, newest first."""
        return await storage.newest_events(organisation_id, before, limit, self.search)

    async def refused(
        self, storage: Storage, organisation_id: str, before: int, limit: int
    ) -> list[Refused]:
        """Read refused calls, newest first."""
        return await storage.refusals(
            organisation_id, self.search.workflow_id, before, limit, self.search.call_id,
            self.shown.within(),
        )  # fmt: skip


FIELDS: Final = {
    "workflow": "workflow_id", "type": "type", "run": "run_id", "call": "call_id",
    "event": "event_id", "user": "user", "agent": "agent", "model": "model",
}  # fmt: skip
"""Fields of a query that name one thing, and what the store calls them."""


def event_filter(context: RequestContext, now_ms: int) -> EventFilter:
    """Read the filter from a page's query."""
    given = {name: context.query(name).strip() for name in (*FIELDS, "tag", "cost")}
    error, tag, cost = "", None, None
    if given["tag"]:
        name, _, value = given["tag"].partition("=")
        tag = (name.strip(), value.strip())
        if not all(tag):
            error, tag = "A tag is written team=search.", None
    if given["cost"]:
        try:
            cost = read_dollars(given["cost"], "Cost")
        except ValueError as exc:
            error = f"{exc}."
    shown = asked_range(context, now_ms, default=ALL)
    since_ms, until_ms = shown.within() if shown.steps else (None, None)
    return EventFilter(
        show="refused" if context.query("show") == "refused" else "events",
        given=given,
        search=EventSearch(
            **{field: given[name] or None for name, field in FIELDS.items()}, tag=tag,
            cost_nanousd=cost, since_ms=since_ms, until_ms=until_ms,
        ),
        before=context.number("before", NEWEST), shown=shown, error=error,
    )  # fmt: skip
