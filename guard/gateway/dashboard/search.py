"""The results of the search box."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard.site import PageGroup, RequestContext
from guard.gateway.dashboard.spend import scope_link
from guard.gateway.domain.found import Found

EACH_MAX: Final = 10
"""Results of each kind."""

_TITLES: Final = {
    "workflow": "Workflows", "run": "Runs", "call": "Calls", "event": "Events", "user": "Users",
    "agent": "Agents", "model": "Models",
}  # fmt: skip


class Search(PageGroup):
    """Serves ``/search``."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route("/search", self._site.page(self.search), methods=["GET"])]

    async def search(self, context: RequestContext) -> Response:
        """Show what begins with the text, by kind."""
        text = context.query("q").strip()
        results = await self._site.parts.storage.find(context.org(), text, EACH_MAX + 1)
        kinds = {
            title: [each for each in results if each.kind == kind]
            for kind, title in _TITLES.items()
        }
        return await self._site.render(
            context,
            "search.html",
            text=text,
            kinds={title: found for title, found in kinds.items() if found},
            each_max=EACH_MAX,
            address=lambda found: _address(context, found),
        )


def _address(context: RequestContext, found: Found) -> str:
    if found.kind == "run":
        if found.workflow_id is None:
            return context.link("/events", run=found.id)
        return context.link("/workflow", id=found.workflow_id, tab="spans", run=found.id)
    if found.kind == "call":
        return context.link("/events", call=found.id)
    if found.kind == "event":
        return context.link("/events", event=found.id)
    return scope_link(context, found.kind, found.id)
