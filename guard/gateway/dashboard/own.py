"""The page of whoever is signed in: their keys, what these have spent, their budgets."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard.charts import stacked
from guard.gateway.dashboard.site import OWN, PageGroup, RequestContext, divided, only
from guard.gateway.dashboard.spend import SHOWN_MAX, asked_range
from guard.gateway.domain.records import Key
from guard.gateway.domain.usage import QUARTER_MS
from guard.gateway.domain.windows import period_of
from guard.gateway.ledger import logins
from guard.gateway.unit.state import within


class OwnPage(PageGroup):
    """Serves ``/own``, all that a member sees."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page, action = self._site.page, self._site.action
        return [
            Route(OWN, page(self.own, "member"), methods=["GET"]),
            Route(f"{OWN}/logins", page(self.confirm_end, "member"), methods=["GET"]),
            Route(f"{OWN}/logins", action(self.end_logins, "member"), methods=["POST"]),
        ]

    async def own(self, context: RequestContext) -> Response:
        """Show what belongs to who has signed in."""
        own, storage = context.org(), self._storage
        now_ms = self._site.parts.clock_ms()
        keys = await self._keys(context)
        live, ended = divided(keys, now_ms)
        ids = [key.key_id for key in keys]
        calendar = context.organisation.settings.calendar()
        month_ms, day_ms = (period_of(each, now_ms, calendar)[0] for each in ("month", "day"))
        edges_ms = [month_ms, day_ms, now_ms - now_ms % QUARTER_MS + QUARTER_MS]
        month = await storage.spend_of_each(own, "key", ids, sorted({*edges_ms}), len(ids))
        shown = asked_range(context, now_ms, default="30d")
        spend = await storage.spend_of_each(own, "key", ids, shown.edges(), SHOWN_MAX)
        names = {key.key_id: f"{key.team}: {key.name}" if key.team else key.name for key in keys}
        return await self._site.render(
            context,
            "own.html",
            keys=live[::-1],
            ended=ended[::-1][:20],
            month=month.total,
            spent={each.scope_id: each.cost_nanousd for each in month.series},
            shown=shown,
            chart=stacked(spend, shown, "other keys", names=names),
            balances=await storage.balances_over(own, live),
            may_log_in=self._site.parts.logins is not None,
            base_url=self._site.base_url(context.request),
        )

    async def _keys(self, context: RequestContext) -> list[Key]:
        return await self._storage.keys_of(context.org(), context.session.operator)

    async def confirm_end(self, context: RequestContext) -> Response:
        """Ask before every login of an account is ended."""
        found = only("key", await self._keys(context), key_id=context.query("key"), signs_in=True)
        return await self._site.render(context, "confirm_logins.html", key=found)

    async def end_logins(self, context: RequestContext) -> Response:
        """End every login of an account."""
        own, operator_id = context.org(), context.session.operator.operator_id
        await self._storage.write(
            within(own), logins.end_logins, context.call().actor, own, operator_id,
            context.form.text("key"),
        )  # fmt: skip
        return self._site.done(context, "logins-ended", OWN)
