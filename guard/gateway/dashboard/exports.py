"""What pages show, as files: the same filters and the same rights, read and sent in steps.

See :mod:`guard.gateway.services.turns`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast, get_args

import msgspec
from msgspec import Struct
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard import security, tables
from guard.gateway.dashboard.event_filter import event_filter
from guard.gateway.dashboard.site import PageGroup, RequestContext, View
from guard.gateway.dashboard.spend import asked, asked_range, usage_pages
from guard.gateway.dashboard.time_ranges import ALL, TimeRange
from guard.gateway.domain.records import BalanceView, BudgetRule, StoredEvent
from guard.gateway.domain.usage import WorkflowSort
from guard.gateway.domain.windows import zone_of
from guard.gateway.services.turns import Turns
from guard.gateway.storage.port import NEWEST

BATCH: Final = 100
"""Rows of one step."""

BALANCES_MAX: Final = 200
"""As many as the page of budgets looks at."""

Rows = list[dict[str, Any]]
Batches = AsyncIterator[Rows]
Parts = AsyncIterator[str | bytes]

_EVENT: Final = (
    "event_seq", "event_id", "type", "at_ms", "received_at_ms", "workflow_id", "run_id", "call_id",
    "agent", "user", "model", "name", "input_tokens", "output_tokens", "outcome", "error_code",
    "flags", "tags", "cost_nanousd",
)  # fmt: skip
_REFUSED: Final = (
    "refusal_seq", "refused_at_ms", "workflow_id", "run_id", "call_id", "agent", "user", "kind",
    "function", "tool_name", "model", "status", "error_code", "reason",
)  # fmt: skip


class Export(Struct, frozen=True):
    """One page as a table.

    Attributes:
        columns: of each row, in their order.
        batches: reads the rows.
    """

    columns: tuple[str, ...]
    batches: Callable[[RequestContext], Batches]

    async def rows(self, context: RequestContext) -> Batches:
        """Yield the rows of each step."""
        async for found in self.batches(context):
            for at in range(0, len(found), BATCH):
                yield found[at : at + BATCH]


class Exports(PageGroup):
    """Serves ``/export/NAME.csv`` and ``/export/NAME.json`` for the pages that have such links."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        names = {
            "spend": self._spend, "workflows": self._workflows,
            "events": self._events, "budgets": self._budgets, "audit": self._audit,
            "usage": self._usage,
        }  # fmt: skip
        return [
            Route(f"/export/{name}.{kind}", self._site.page(self._sent(name, kind, export)),
                  methods=["GET"])
            for name, export in names.items()
            for kind in ("csv", "json")
        ]  # fmt: skip

    def _spend(self, _: RequestContext) -> Export:
        columns = ("starts_at_ms", "ends_at_ms", "starts", "by", "name", "key_name", "is_rest",
                   "llm_calls", "cost_nanousd")  # fmt: skip
        return Export(columns, self._spend_rows)

    async def _spend_rows(self, context: RequestContext) -> Batches:
        wanted = asked(context, self._site.parts.clock_ms())
        found = await wanted.spend(self._storage, context.org())
        is_named = wanted.group_by == "key"
        names = await self._storage.key_names(context.org()) if is_named else {}
        for at, step in enumerate(wanted.shown.steps):
            yield [
                {"starts_at_ms": step.start_ms, "ends_at_ms": step.end_ms, "starts": step.begins,
                 "by": wanted.group_by, "name": each.scope_id,
                 "key_name": names.get(each.scope_id or ""), "is_rest": each.scope_id is None,
                 "llm_calls": each.llm_calls[at], "cost_nanousd": each.costs_nanousd[at]}
                for each in found.series
            ]  # fmt: skip

    def _usage(self, _: RequestContext) -> Export:
        return Export(tables.USAGE_COLUMNS, self._usage_rows)

    async def _usage_rows(self, context: RequestContext) -> Batches:
        wanted = asked(context, self._site.parts.clock_ms())
        edges_ms = wanted.shown.edges()
        names = await self._storage.key_names(context.org()) if wanted.group_by == "key" else {}
        pages = usage_pages(
            self._storage, context.org(), group_by=wanted.group_by, since_ms=edges_ms[0],
            until_ms=edges_ms[-1], by_model=context.query("rows") == "by-model",
        )  # fmt: skip
        async for found in pages:
            yield [_row(each, by=wanted.group_by, key_name=names.get(each.group or ""))
                   for each in found]  # fmt: skip

    def _workflows(self, _: RequestContext) -> Export:
        columns = ("workflow_id", "state", "reason", "first_seen_at_ms", "last_seen_at_ms", "calls",
                   "events", "spent_nanousd", "uncertain_nanousd")  # fmt: skip
        return Export(columns, self._workflow_rows)

    async def _workflow_rows(self, context: RequestContext) -> Batches:
        sort = context.query("sort", "seen")
        sort = sort if sort in get_args(WorkflowSort) else "seen"
        first = min(context.number("offset", 0), 10**6)
        within = self._shown(context).within()
        for offset in itertools.count(first, BATCH):
            found = await self._storage.workflow_page(
                context.org(), context.query("q"), cast("WorkflowSort", sort), offset, BATCH,
                within,
            )  # fmt: skip
            yield [
                _row(each, first_seen_at_ms=each.first_seen_ms, last_seen_at_ms=each.last_seen_ms)
                for each in found
            ]
            if len(found) < BATCH:
                return

    def _events(self, context: RequestContext) -> Export:
        if event_filter(context, self._site.parts.clock_ms()).show == "refused":
            return Export(_REFUSED, self._refused_rows)
        return Export(_EVENT, self._event_rows)

    async def _event_rows(self, context: RequestContext) -> Batches:
        wanted = event_filter(context, self._site.parts.clock_ms())
        before = wanted.before
        while True:
            found = await wanted.events(self._storage, context.org(), before, BATCH)
            yield [_event(each) for each in found.events]
            if len(found.events) == BATCH:
                before = found.events[-1].event_seq
            elif found.further is not None:
                before = found.further
            else:
                return

    async def _refused_rows(self, context: RequestContext) -> Batches:
        wanted = event_filter(context, self._site.parts.clock_ms())
        before = wanted.before
        while True:
            found = await wanted.refused(self._storage, context.org(), before, BATCH)
            yield [_row(each, refused_at_ms=each.at_ms) for each in found]
            if len(found) < BATCH:
                return
            before = found[-1].refusal_seq

    def _budgets(self, _: RequestContext) -> Export:
        columns = ("budget_id", "scope_kind", "scope_id", "window", "unit", "counts", "mode",
                   "limit", "of", "key_name", "since_at_ms", "until_at_ms", "committed",
                   "reserved", "remaining", "uncertain", "exhausted", "zone", "ends")  # fmt: skip
        return Export(columns, self._budget_rows)

    async def _budget_rows(self, context: RequestContext) -> Batches:
        budgets = await self._storage.budgets(context.org())
        balances = await self._storage.fullest_balances(context.org(), BALANCES_MAX)
        rows: Rows = []
        for budget in budgets:
            own = [each for each in balances if each.budget_id == budget.budget_id]
            rows += [_balance(budget, each) for each in own] or [_balance(budget, None)]
        names = await self._storage.key_names(context.org())
        yield [{**row, "key_name": names.get(row["of"] or row["scope_id"])} for row in rows]

    def _audit(self, _: RequestContext) -> Export:
        columns = ("seq", "done_at_ms", "actor", "action", "target", "details", "hash")
        return Export(columns, self._audit_rows)

    async def _audit_rows(self, context: RequestContext) -> Batches:
        before = context.number("before", NEWEST)
        is_wide = context.session.operator.organisation_id is None
        within = self._shown(context).within()
        while True:
            found = await self._storage.newest_audit(
                context.org(), before, BATCH, with_gateway=is_wide, within=within
            )
            yield [_row(each, done_at_ms=each.at_ms) for each in found]
            if len(found) < BATCH:
                return
            before = found[-1].seq

    def _shown(self, context: RequestContext, default: str = ALL) -> TimeRange:
        return asked_range(context, self._site.parts.clock_ms(), default)

    def _sent(self, name: str, kind: str, export: Callable[[RequestContext], Export]) -> View:
        """Return the view that sends one page as one kind of file."""

        async def view(context: RequestContext) -> Response:
            wanted = export(context)
            batches = wanted.rows(context)
            first: Rows = await anext(batches, [])  # what fails at once becomes a page that says so
            parts = (_csv if kind == "csv" else _json)(wanted.columns, first, batches)
            headers = security.PAGE_HEADERS | {
                "Content-Disposition": f'attachment; filename="{name}.{kind}"'
            }
            media_type = "text/csv; charset=utf-8" if kind == "csv" else "application/json"
            sent = _in_turn(self._site.turns, context.org(), parts)
            return StreamingResponse(sent, media_type=media_type, headers=headers)

        return view


async def _in_turn(turns: Turns, organisation_id: str, parts: Parts) -> Parts:
    while True:
        async with turns.step(organisation_id):
            part = await anext(parts, None)
        if part is None:
            return
        yield part


async def _csv(columns: tuple[str, ...], first: Rows, batches: Batches) -> Parts:
    yield tables.csv_head(columns) + tables.csv_lines(columns, first)
    async for rows in batches:
        yield tables.csv_lines(columns, rows)


async def _json(columns: tuple[str, ...], first: Rows, batches: Batches) -> Parts:
    is_first = not first
    yield b"[\n" + tables.json_rows(_only(columns, first), is_first=True)
    async for rows in batches:
        if rows:
            yield tables.json_rows(_only(columns, rows), is_first=is_first)
            is_first = False
    yield b"\n]\n"


def _only(columns: tuple[str, ...], rows: Rows) -> Rows:
    return [{column: row[column] for column in columns} for row in rows]


def _row(record: Struct, **values: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(record) | values


def _event(event: StoredEvent) -> dict[str, Any]:
    """Return the fields of an event that its page shows, without data from programs."""
    data = event.data
    name = data.get("tool_name" if event.type == "tool" else "name")
    return _row(
        event,
        name=_text(name) if event.type in ("tool", "span") else None,
        input_tokens=_number(data.get("input_tokens")),
        output_tokens=_number(data.get("output_tokens")),
        outcome=_text(data.get("outcome")),
        error_code=_text(data.get("error_code")),
    )


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _in_zone(balance: BalanceView) -> str | None:
    if balance.ends_ms is None:
        return None
    ends = dt.datetime.fromtimestamp(balance.ends_ms / 1000, zone_of(balance.zone))
    return ends.isoformat(timespec="seconds")


def _balance(budget: BudgetRule, balance: BalanceView | None) -> dict[str, Any]:
    of = {
        "of": None, "since_at_ms": None, "until_at_ms": None, "committed": 0,
        "reserved": 0, "remaining": budget.limit, "uncertain": 0,
        "exhausted": False, "ends": None,
    }  # fmt: skip
    if balance is not None:
        of = _row(balance, of=balance.scope_id, since_at_ms=balance.epoch_ms,
                  until_at_ms=balance.ends_ms, ends=_in_zone(balance))  # fmt: skip
        of.pop("scope_id")
    return msgspec.structs.asdict(budget) | of
