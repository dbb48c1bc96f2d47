"""What a store answers to operators, on connections of its own.

No request and no kill waits for a report. The queries are plain functions of a connection; here
they become the methods of a store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from guard.core import globs
from guard.gateway.domain import records
from guard.gateway.storage.sql import (
    alert_reports,
    analytics,
    call_details,
    dashboard,
    finding,
    latency,
    spend,
    spend_rate,
    spend_series,
    usage_report,
    usage_rows,
    verify,
)
from guard.gateway.unit import doubts, repeat_tables
from guard.gateway.unit import usage as usage_table
from guard.gateway.unit.connection import Connection, ReadingStore

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[ReadingStore, P], Coroutine[Any, Any, T]]


def _report(query: Callable[Concatenate[Connection, P], T]) -> Method[P, T]:
    @functools.wraps(query)
    async def run(self: ReadingStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.report(lambda connection: query(connection, *args, **kwargs))

    return run


def _report_at(query: Callable[Concatenate[Connection, int, P], T]) -> Method[P, T]:
    """The same for a query that takes the time, in Unix milliseconds."""

    @functools.wraps(query)
    async def run(self: ReadingStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        now_ms = self.clock_ms()
        return await self.report(lambda connection: query(connection, now_ms, *args, **kwargs))

    return run


class SqlReports(ReadingStore):
    """The reports of the admin API and of the dashboard."""

    workflows = _report_at(analytics.workflows)
    workflow = _report_at(analytics.workflow)
    count_targets = _report_at(analytics.count_targets)
    runs = _report_at(analytics.runs)
    seen = _report(analytics.seen)
    charged_hours = _report(usage_table.charged_hours)
    names_of = _report(analytics.names_of)
    events = _report(analytics.events)
    doubts = _report(doubts.list_doubts)
    usage = _report(usage_report.usage)
    usage_rows = _report(usage_rows.usage_rows)
    balances_over = _report_at(spend.balances_over)
    spend = _report_at(spend.spend)
    balances = _report_at(analytics.balances)
    approvals = _report(analytics.approvals)
    deliveries = _report(analytics.deliveries)
    audit = _report(analytics.audit)
    audit_head = _report(analytics.audit_head)
    verify_audit = _report(verify.verify_audit)
    verify_ledger = _report(verify.verify_ledger)

    async def target_exists(
        self, organisation_id: str, target: str, run_id: str | None
    ) -> records.TargetExists:
        """Return whether a directive's target names anything; a kill of one name waits for it."""
        now_ms = self.clock_ms()

        def query(connection: Connection) -> records.TargetExists:
            return analytics.target_exists(connection, now_ms, organisation_id, target, run_id)

        # A glob may have to look at every workflow.
        return await (self.report if globs.is_pattern(target) else self.look_up)(query)

    spend_over_time = _report(dashboard.spend_over_time)
    usage_by_model = _report(dashboard.usage_by_model)
    workflow_page = _report_at(dashboard.workflow_page)
    active_directives = _report_at(dashboard.active_directives)
    newest_runs = _report_at(dashboard.newest_runs)
    newest_events = _report(dashboard.newest_events)
    refusals = _report(dashboard.refusals)
    refusal = _report(call_details.refusal)
    refusals_of_call = _report(call_details.refusals_of_call)
    event_details = _report(call_details.event_details)
    used_lately = _report_at(spend_rate.used_lately)
    newest_audit = _report(dashboard.newest_audit)
    newest_charges = _report(dashboard.newest_charges)
    fullest_balances = _report_at(dashboard.fullest_balances)
    spend_by = _report(spend_series.spend_by)
    spend_of = _report(spend_series.spend_of)
    spend_of_each = _report(spend_series.spend_of_each)
    tag_names = _report(spend_series.tag_names)
    find = _report(finding.find)
    events_of_scope = _report(finding.events_of_scope)
    balances_of = _report_at(finding.balances_of)
    latency = _report(latency.latency)
    forecast_exhausted = _report_at(alert_reports.forecast_exhausted)
    newest_refusals = _report(alert_reports.newest_refusals)
    fallback_models = _report_at(alert_reports.fallback_models)
    uncounted_traffic = _report_at(alert_reports.uncounted_traffic)
    loops = _report(repeat_tables.loops)
    repeat_counts = _report(repeat_tables.repeat_counts)
    spend_by_run = _report_at(repeat_tables.spend_by_run)
    spend_by_minute = _report_at(repeat_tables.spend_by_minute)
    failure_recipients = _report(alert_reports.failure_recipients)
