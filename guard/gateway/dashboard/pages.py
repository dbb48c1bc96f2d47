"""The read-only pages: overview, workflows, one workflow, events, approvals, audit."""

from __future__ import annotations

from typing import Any, Final, cast, get_args

from msgspec import Struct
from msgspec.structs import asdict
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard import charts, spans
from guard.gateway.dashboard.audit_text import audit_action, audit_details, audit_target
from guard.gateway.dashboard.budget_forecasts import budget_forecasts
from guard.gateway.dashboard.charts import stacked
from guard.gateway.dashboard.event_filter import TYPES, event_filter
from guard.gateway.dashboard.formatting import count, in_doubt, money
from guard.gateway.dashboard.refusal_groups import grouped
from guard.gateway.dashboard.site import OWN, PageGroup, RequestContext
from guard.gateway.dashboard.spend import SHOWN_MAX, asked_range, others
from guard.gateway.dashboard.time_ranges import ALL, TimeRange
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.records import (
    BalanceView,
    EventSearch,
    FoundEvents,
    StoredEvent,
    Workflow,
)
from guard.gateway.domain.spend_series import SpendSeries
from guard.gateway.domain.usage import DAY_MS, QUARTER_MS, Refused, WorkflowSort
from guard.gateway.domain.windows import period_of
from guard.gateway.storage.port import NEWEST

PAGE: Final = 50
REFUSALS: Final = 1000
"""Refused calls that are looked at for a page, where those that are alike are one row."""
OVERVIEW_ROWS: Final = 8
ACTIVE_MS: Final = 15 * 60_000
BALANCES_MAX: Final = 4
COUNT_MAX: Final = 100
RUN_EVENTS_MAX: Final = 500
_TABS: Final = ("calls", "spans", "models", "decisions", "errors")
_TOTAL_SHOWN_MS: Final = 30 * DAY_MS


class Figure(Struct):
    """One of the large numbers of the overview."""

    label: str
    value: str
    note: str = ""
    href: str = ""


class Pages(PageGroup):
    """Views over the storage port."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        views = {
            "/workflows": self.workflows,
            "/workflow": self.workflow,
            "/users": self.users,
            "/events": self.events,
            "/approvals": self.approvals,
            "/audit": self.audit,
        }
        return [
            Route("/", self._site.page(self.overview, "member"), methods=["GET"]),
            *(Route(path, self._site.page(view), methods=["GET"]) for path, view in views.items()),
        ]

    # -- overview ------------------------------------------------------------------------------

    async def overview(self, context: RequestContext) -> Response:
        """Show spend over time and against budgets, and running workflows; members go on."""
        if not context.may("viewer"):
            return self._site.redirect(OWN)
        now_ms, own = self._site.parts.clock_ms(), context.org()
        shown = asked_range(context, now_ms, default="24h")
        spend = await self._storage.spend_by(own, "model", shown.edges(), SHOWN_MAX)
        balances = await self._storage.fullest_balances(own, OVERVIEW_ROWS)
        workflows = await self._storage.workflow_page(own, "", "seen", 0, COUNT_MAX)
        refused = await self._storage.refusals(own, None, NEWEST, COUNT_MAX, within=shown.within())
        calendar = context.organisation.settings.calendar()
        day_ms, _ = period_of("day", now_ms, calendar)
        edges_ms = [day_ms, now_ms - now_ms % QUARTER_MS + QUARTER_MS]
        today = (await self._storage.spend_by(own, "model", edges_ms, 0)).total
        watched = _watched(balances)
        return await self._site.render(
            context, "overview.html", shown=shown, chart=stacked(spend, shown, others("model")),
            figures=self._figures(context, shown, today, workflows, refused, now_ms),
            balances=balances,
            forecasts=await budget_forecasts(self._storage, own, balances, now_ms),
            names=await self._storage.key_names(own), watched=watched,
            budgets_set=0 if watched else await self._storage.budget_count(own),
            burn=None if watched is None else await self._burn(own, watched, now_ms),
            workflows=workflows[:OVERVIEW_ROWS], refused=grouped(refused)[:6],
            directives=await self._storage.active_directives(own),
            models=await self._storage.usage_by_model(own, *shown.within(), None, 6),
            base_url=self._site.base_url(context.request),
        )  # fmt: skip

    def _figures(
        self, context: RequestContext, shown: TimeRange, today: SpendSeries,
        workflows: list[Workflow], refused: list[Refused], now_ms: int,
    ) -> list[Figure]:  # fmt: skip
        calls = sum(today.llm_calls)
        note = (
            in_doubt(today.uncertain_nanousd),
            f"{count(calls)} LLM call{'' if calls == 1 else 's'}",
        )
        running = sum(
            w.state == "active" and now_ms - (w.last_seen_ms or 0) < ACTIVE_MS for w in workflows
        )
        stopped = sum(w.state != "active" for w in workflows)
        return [
            Figure("Spent today", money(today.cost_nanousd), ", ".join(filter(None, note))),
            Figure("Active workflows", _capped(running, len(workflows)),
                   f"{stopped} paused or killed" if stopped else "in the last 15 minutes",
                   context.link("/workflows", range=ALL)),
            Figure("Refused calls", _capped(len(refused), len(refused)), shown.label,
                   context.link("/events", show="refused", **shown.query())),
        ]  # fmt: skip

    async def _burn(self, own: str, balance: BalanceView, now_ms: int) -> charts.Chart:
        since_ms = max(balance.epoch_ms, now_ms - _TOTAL_SHOWN_MS)
        since_ms -= since_ms % QUARTER_MS
        ends_ms = balance.ends_ms or now_ms + 1
        step_ms = charts.burn_step(balance.window)
        size_ms = min(step_ms, QUARTER_MS)
        workflow_id = balance.scope_id if balance.scope_kind == "workflow" else None
        points = await self._storage.spend_over_time(
            own, size_ms, since_ms, ends_ms, size_ms, workflow_id
        )
        return charts.spend_against_limit(
            points,
            since_ms=since_ms,
            ends_ms=ends_ms,
            now_ms=now_ms,
            step_ms=step_ms,
            committed_nanousd=balance.committed,
            limit_nanousd=balance.limit,
            zone=balance.zone,
        )

    # -- workflows -----------------------------------------------------------------------------

    async def workflows(self, context: RequestContext) -> Response:
        """List workflows with their state and spend."""
        search, offset = context.query("q"), min(context.number("offset", 0), 10**6)
        sort = context.query("sort", "seen")
        if sort not in get_args(WorkflowSort):
            sort = "seen"
        shown = asked_range(context, self._site.parts.clock_ms(), default=ALL)
        found = await self._storage.workflow_page(
            context.org(), search, cast("WorkflowSort", sort), offset, PAGE + 1, shown.within()
        )
        return await self._site.render(
            context, "workflows.html", shown=shown, workflows=found[:PAGE], search=search,
            sort=sort, offset=offset, page_size=PAGE, has_more=len(found) > PAGE,
            directives=await self._storage.active_directives(context.org()),
            base_url=self._site.base_url(context.request),
        )  # fmt: skip

    async def workflow(self, context: RequestContext) -> Response:
        """Show one workflow: spend, calls, spans, models, decisions, errors."""
        own, workflow_id = context.org(), context.query("id")
        now_ms = self._site.parts.clock_ms()
        if not workflow_id:
            raise NotFoundError("no workflow without a name")
        found = await self._storage.workflow(own, workflow_id)
        tab = context.query("tab", "calls")
        tab = tab if tab in _TABS else "calls"
        shown = asked_range(context, now_ms)
        spend = await self._storage.spend_of(own, "workflow", workflow_id, shown.edges())
        runs = await self._storage.newest_runs(own, workflow_id, 20, shown.within())
        details = await self._tab(context, tab, workflow_id, [run.run_id for run in runs], shown)
        balances = await self._storage.balances_of(
            own, [("workflow", workflow_id), ("organisation", "")], BALANCES_MAX
        )
        return await self._site.render(
            context, "workflow.html", workflow=found, tab=tab, tabs=_TABS, shown=shown,
            chart=stacked(spend, shown, "", only=workflow_id), runs=runs, balances=balances,
            forecasts=await budget_forecasts(self._storage, own, balances, now_ms), **details,
        )  # fmt: skip

    async def _tab(
        self,
        context: RequestContext,
        tab: str,
        workflow_id: str,
        run_ids: list[str],
        shown: TimeRange,
    ) -> dict[str, Any]:
        own, storage, within = context.org(), self._storage, shown.within()
        before = context.number("before", NEWEST)
        if tab == "spans":
            run_id = context.query("run") or (run_ids[0] if run_ids else "")
            search = EventSearch(workflow_id=workflow_id, run_id=run_id)
            found = (
                await storage.newest_events(own, NEWEST, RUN_EVENTS_MAX, search)
                if run_id
                else FoundEvents([])
            )
            events = found.events
            return {"lines": spans.lines(spans.tree(events)), "run_id": run_id,
                    "loops": await storage.loops(own, workflow_id, run_id),
                    "is_cut": len(events) == RUN_EVENTS_MAX}  # fmt: skip
        if tab == "models":
            return {"models": await storage.usage_by_model(own, *within, workflow_id, PAGE)}
        if tab == "decisions":
            refused = await storage.refusals(own, workflow_id, before, REFUSALS + 1, within=within)
            approvals = await storage.approvals(own, None, 200, within)
            return {
                "refused": grouped(refused[:REFUSALS]),
                "has_more": len(refused) > REFUSALS,
                "last": refused[:REFUSALS][-1].refusal_seq if refused else 0,
                "approvals": [a for a in approvals if a.workflow_id == workflow_id][:20],
            }
        limit = 10 * PAGE if tab == "errors" else PAGE + 1
        search = EventSearch(workflow_id=workflow_id, since_ms=within[0], until_ms=within[1])
        events = (await storage.newest_events(own, before, limit, search)).events
        if tab == "errors":
            return {"events": [e for e in events if is_error(e)][:PAGE], "looked_at": len(events)}
        return {"events": events[:PAGE], "has_more": len(events) > PAGE,
                "is_older": before != NEWEST}  # fmt: skip

    async def users(self, context: RequestContext) -> Response:
        """Show the spend of each user, most expensive first."""
        shown = asked_range(context, self._site.parts.clock_ms(), default="30d")
        found = await self._storage.usage(context.org(), "user", *shown.within(), PAGE + 1)
        return await self._site.render(
            context, "users.html", users=found[:PAGE], is_cut=len(found) > PAGE, shown=shown
        )  # fmt: skip

    # -- lists ---------------------------------------------------------------------------------

    async def events(self, context: RequestContext) -> Response:
        """Show events as they arrive, or refused calls, newest first."""
        own, wanted = context.org(), event_filter(context, self._site.parts.clock_ms())
        found = FoundEvents([])
        refused: list[Refused] = []
        if wanted.show == "events":
            found = await wanted.events(self._storage, own, wanted.before, PAGE + 1)
        events = found.events
        if wanted.show == "refused" or wanted.search.call_id:
            refused = await wanted.refused(self._storage, own, wanted.before, REFUSALS + 1)
        return await self._site.render(
            context, "events.html", events=events[:PAGE], refused=grouped(refused[:REFUSALS]),
            last_refusal=refused[:REFUSALS][-1].refusal_seq if refused else 0, wanted=wanted,
            types=TYPES, further=found.further,
            has_more=len(events) > PAGE or len(refused) > REFUSALS,
        )  # fmt: skip

    async def approvals(self, context: RequestContext) -> Response:
        """Show calls that wait for an answer, and the newest answers."""
        own = context.org()
        pending = await self._storage.approvals(own, "pending", 100)
        shown = asked_range(context, self._site.parts.clock_ms(), default=ALL)
        newest = await self._storage.approvals(own, None, PAGE, shown.within())
        return await self._site.render(
            context, "approvals.html", shown=shown,
            pending=sorted(pending, key=lambda approval: approval.deadline_ms),
            answered=[approval for approval in newest if approval.status != "pending"],
        )  # fmt: skip

    async def audit(self, context: RequestContext) -> Response:
        """Show who did what, newest first."""
        before = context.number("before", NEWEST)
        is_wide = context.session.operator.organisation_id is None
        now_ms = self._site.parts.clock_ms()
        shown = asked_range(context, now_ms, default=ALL)
        names = await self._storage.key_names(context.org())
        for budget in await self._storage.budgets(context.org()):
            names[budget.budget_id] = audit_target("", asdict(budget), names)
        entries = await self._storage.newest_audit(
            context.org(), before, PAGE + 1, with_gateway=is_wide, within=shown.within()
        )
        return await self._site.render(
            context, "audit.html", shown=shown,
            entries=entries[:PAGE], has_more=len(entries) > PAGE,
            is_wide=is_wide, is_newest=before == NEWEST,
            details=lambda each: audit_details(each, now_ms), action=audit_action,
            target=lambda each: audit_target(each.target, each.details, names),
        )  # fmt: skip


def is_error(event: StoredEvent) -> bool:
    """Return whether an event reports a failure."""
    data = event.data
    return (
        event.type == "sdk.loss"
        or any(flag != "local" for flag in event.flags)
        or bool(data.get("error_code"))
        or data.get("outcome") not in (None, "", "ok", "success")
    )


def _capped(number: int, looked_at: int) -> str:
    return f"{number}+" if number and number == looked_at == COUNT_MAX else str(number)


def _watched(balances: list[BalanceView]) -> BalanceView | None:
    money = [b for b in balances if b.unit == "usd"]
    drawn = [b for b in money if b.scope_kind in ("organisation", "workflow")]
    whole = [b for b in drawn if b.scope_kind == "organisation"]
    return next(iter(whole or drawn), None)
