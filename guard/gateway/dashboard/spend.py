"""Spend over time, divided by a choice; and what newest events know of models' durations."""

from __future__ import annotations

import zoneinfo
from collections.abc import AsyncIterator
from typing import Any, Final

from msgspec import Struct
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard.charts import stacked
from guard.gateway.dashboard.site import PageGroup, RequestContext
from guard.gateway.dashboard.time_ranges import COOKIE, TimeRange, time_range
from guard.gateway.domain.records import UsageRow
from guard.gateway.domain.spend_series import GROUPS, TAG, SpendOverTime
from guard.gateway.domain.usage import is_kept_by_model
from guard.gateway.domain.windows import UTC, zone_of
from guard.gateway.storage.port import Storage

SHOWN_MAX: Final = 7
"""Scopes that have a colour of their own; all others share one."""

TAGS_MAX: Final = 50
USAGE_BATCH: Final = 10_000
"""Rows that one query of usage reads."""

_OTHERS: Final = {
    "model": "others", "workflow": "others, or in no workflow", "user": "others, or for no user",
    "agent": "others, or by no named agent", "key": "others", "team": "others, or of no team",
    "person": "others, or of no person",
}  # fmt: skip


class SpendQuery(Struct):
    """What the query of a page of spend asks for."""

    group_by: str
    shown: TimeRange

    def query(self) -> dict[str, str]:
        """Return what a link needs to ask the same."""
        return {"by": self.group_by, **self.shown.query()}

    @property
    def by_model(self) -> bool:
        """Whether a file of all rows may be divided by model."""
        return is_kept_by_model(self.group_by)

    async def spend(self, storage: Storage, organisation_id: str) -> SpendOverTime:
        """Read the spend."""
        return await storage.spend_by(organisation_id, self.group_by, self.shown.edges(), SHOWN_MAX)


def asked_range(context: RequestContext, now_ms: int, default: str = "7d") -> TimeRange:
    """Return the range that a page's query asks for, in its viewer's time zone."""
    zone = viewers_zone(context)
    return time_range(
        context.query("range"), context.query("from"), context.query("to"), zone, now_ms, default
    )


def viewers_zone(context: RequestContext) -> zoneinfo.ZoneInfo:
    """Return the organisation's time zone.

    Where that is UTC, as it is unless it was set, each viewer has the one of their browser.
    """
    zone = zone_of(context.organisation.settings.zone)
    return zone if zone.key != UTC else zone_of(context.request.cookies.get(COOKIE, UTC))


def asked(context: RequestContext, now_ms: int) -> SpendQuery:
    """Read a query; by default, models of the last seven days."""
    group_by = context.query("by", "model")
    if group_by not in GROUPS and not (group_by.startswith(TAG) and group_by != TAG):
        group_by = "model"
    return SpendQuery(group_by, asked_range(context, now_ms))


def scope_link(context: RequestContext, group_by: str, scope_id: str, **query: Any) -> str:
    """Return the address of the page of one workflow, user, model, agent or value of a tag."""
    if group_by == "workflow":
        return context.link("/workflow", id=scope_id)
    if group_by in ("key", "person"):
        return context.link("/keys")
    if group_by.startswith(TAG):
        return context.link("/tag", name=group_by.removeprefix(TAG), id=scope_id, **query)
    return context.link(f"/{group_by}", id=scope_id, **query)


async def usage_of_keys(
    storage: Storage, organisation_id: str, shown: TimeRange
) -> dict[str, UsageRow]:
    """Return what each key has used in a range, by its id."""
    since_ms, until_ms = shown.within()
    found = dict[str, UsageRow]()
    async for rows in usage_pages(
        storage, organisation_id, group_by="key", since_ms=since_ms, until_ms=until_ms
    ):
        found |= {row.group: row for row in rows if row.group is not None}
    return found


async def usage_pages(
    storage: Storage, organisation_id: str, **query: Any
) -> AsyncIterator[list[UsageRow]]:
    """Yield all rows of usage of a query, page by page."""
    while True:
        found = await storage.usage_rows(organisation_id, **query, limit=USAGE_BATCH)
        yield found
        if len(found) < USAGE_BATCH or found[-1].group is None:
            return
        query |= {"after": found[-1].group, "after_model": found[-1].model or ""}


def others(group_by: str) -> str:
    """Return how all that has no name of its own is called."""
    return _OTHERS.get(group_by, "others, or without this tag")


class SpendPages(PageGroup):
    """Serves ``/spend`` and ``/latency``."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page = self._site.page
        return [
            Route("/spend", page(self.spend), methods=["GET"]),
            Route("/latency", page(self.latency), methods=["GET"]),
        ]

    async def spend(self, context: RequestContext) -> Response:
        """Show the spend in a range of time."""
        now_ms, own = self._site.parts.clock_ms(), context.org()
        wanted = asked(context, now_ms)
        found = await wanted.spend(self._storage, own)
        tags = [f"{TAG}{name}" for name in await self._storage.tag_names(own, TAGS_MAX)]
        if wanted.group_by.startswith(TAG) and wanted.group_by not in tags:
            tags.append(wanted.group_by)
        keys = await self._storage.keys(own) if wanted.group_by == "key" else []
        names = {key.key_id: f"{key.name} ({key.prefix}…)" for key in keys}
        return await self._site.render(
            context,
            "spend.html",
            asked=wanted,
            shown=wanted.shown,
            groups=GROUPS,
            tags=tags,
            chart=stacked(found, wanted.shown, others(wanted.group_by), names=names),
            scope_link=lambda scope_id: scope_link(
                context, wanted.group_by, scope_id, **wanted.shown.query()
            ),
            retention_days=self._site.parts.settings.retention_days,
        )

    async def latency(self, context: RequestContext) -> Response:
        """Show how long models took, and how often calls that used them failed."""
        shown = asked_range(context, self._site.parts.clock_ms())
        report = await self._storage.latency(context.org(), *shown.within())
        return await self._site.render(
            context, "latency.html", report=report, shown=shown,
            scope_link=lambda model: scope_link(context, "model", model),
        )  # fmt: skip
