"""The page of one user, agent, model or value of a tag: its spend, budgets and newest events."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard.budget_forecasts import budget_forecasts
from guard.gateway.dashboard.charts import stacked
from guard.gateway.dashboard.site import PageGroup, RequestContext
from guard.gateway.dashboard.spend import asked_range
from guard.gateway.domain import models
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.found import ScopeEvents, Use
from guard.gateway.domain.records import ScopeKind
from guard.gateway.domain.spend_series import TAG

EVENTS_MAX: Final = 50
USES_MAX: Final = 10
BALANCES_MAX: Final = 8


class ScopePages(PageGroup):
    """Serves ``/user``, ``/agent``, ``/model`` and ``/tag``."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        views = {"/user": self.user, "/agent": self.agent, "/model": self.model, "/tag": self.tag}
        return [Route(path, self._site.page(view), methods=["GET"]) for path, view in views.items()]

    async def user(self, context: RequestContext) -> Response:
        """Show one user."""
        scope_id = _id(context)
        return await self._page(context, "user", scope_id, [("user", scope_id)])

    async def agent(self, context: RequestContext) -> Response:
        """Show one agent."""
        scope_id = _id(context)
        return await self._page(context, "agent", scope_id, [("agent", scope_id)])

    async def model(self, context: RequestContext) -> Response:
        """Show one model; budgets of its family apply to it as well."""
        scope_id = _id(context)
        budgets: list[tuple[ScopeKind, str]] = [("model", each) for each in models.names(scope_id)]
        return await self._page(context, "model", scope_id, budgets)

    async def tag(self, context: RequestContext) -> Response:
        """Show one value of a tag."""
        scope_id, name = _id(context), context.query("name")
        if not name:
            raise NotFoundError("no tag without a name")
        return await self._page(context, f"{TAG}{name}", scope_id, [("tag", f"{name}={scope_id}")])

    async def _page(
        self, context: RequestContext, group_by: str, scope_id: str,
        budgets: list[tuple[ScopeKind, str]],
    ) -> Response:  # fmt: skip
        own, storage = context.org(), self._storage
        now_ms = self._site.parts.clock_ms()
        shown = asked_range(context, now_ms, default="30d")
        spend = await storage.spend_of(own, group_by, scope_id, shown.edges())
        events = await storage.events_of_scope(own, group_by, scope_id, EVENTS_MAX)
        balances = await storage.balances_of(own, [*budgets, ("organisation", "")], BALANCES_MAX)
        return await self._site.render(
            context,
            "scope.html",
            kind="tag" if group_by.startswith(TAG) else group_by,
            tag_name=group_by.removeprefix(TAG) if group_by.startswith(TAG) else "",
            scope_id=scope_id,
            shown=shown,
            chart=stacked(spend, shown, "", only=scope_id),
            events=events,
            workflows=_summed(events, "workflow_id"),
            models=[] if group_by == "model" else _summed(events, "model"),
            balances=balances,
            forecasts=await budget_forecasts(storage, own, balances, now_ms),
            path=f"/{'tag' if group_by.startswith(TAG) else group_by}",
        )


def _id(context: RequestContext) -> str:
    scope_id = context.query("id")
    if not scope_id:
        raise NotFoundError("no page without a name")
    return scope_id


def _summed(events: ScopeEvents, field: str) -> list[Use]:
    """Sum the events' costs by workflow or by model, the dearest first."""
    found: dict[str, Use] = {}
    for use in events.uses:
        name = getattr(use, field)
        if name is None:
            continue
        known = found.setdefault(name, Use(None, None, 0, 0))
        setattr(known, field, name)
        known.cost_nanousd += use.cost_nanousd
        known.llm_calls += use.llm_calls
    return sorted(found.values(), key=lambda use: -use.cost_nanousd)[:USES_MAX]
