"""Rows as operators see them."""

from __future__ import annotations

import json
from typing import Any, Final

from guard.core import wire
from guard.gateway.domain import records, usage
from guard.gateway.domain.control import Directives, TargetState
from guard.gateway.domain.ledger import BudgetAccount
from guard.gateway.domain.nesting import DEPTH_MAX, nested_deeper
from guard.gateway.storage.sql.columns import BALANCE_COLUMNS, BALANCES_AND_BUDGETS
from guard.gateway.storage.sql.rows import balance_from_row, budget_from_row
from guard.gateway.storage.sql.uncertain import OF_BALANCE, of_scope

EVENT_COLUMNS: Final = (
    "event_seq, event_id, type, at_ms, received_at_ms, workflow_id, run_id, chain_id, agent,"
    " call_id, reservation_id, key_id, model, cost_nanousd, price_source, flags, data, trace_id,"
    " span_id, parent_span_id, user_id, tags"
)
"""The columns of an event that operators see, in the order of :func:`event_from_row`."""


REFUSAL_COLUMNS: Final = (
    "refusal_seq, at_ms, workflow_id, run_id, agent, call_id, kind, function, tool_name, model,"
    " status, error_code, reason, user_id, refused_by"
)
"""The columns of a refusal, in the order of :func:`refused_from_row`."""

SELECT_WORKFLOWS: Final = (
    "SELECT workflow_id, first_seen_ms, last_seen_ms, spent_nanousd, calls, events,"  # noqa: S608 (constant text)
    f" {of_scope('w.organisation_id', 'workflow', 'w.workflow_id')} FROM workflows w"
)
"""The beginning of a query of workflows, in the order of :func:`workflow_record`."""

SELECT_RUNS: Final = (
    "SELECT run_id, workflow_id, first_seen_ms, last_seen_ms, spent_nanousd,"  # noqa: S608 (constant text)
    f" {of_scope('r.organisation_id', 'run', 'r.run_id')} FROM runs r"
)
"""The same of runs, in the order of :func:`run_record`."""

SELECT_BALANCE_VIEWS: Final = f"SELECT {BALANCES_AND_BUDGETS}, {OF_BALANCE} FROM"
"""The same of balances ``b`` with their budgets ``u``."""


def event_from_row(row: tuple[Any, ...]) -> records.StoredEvent:
    """Build an event from ``EVENT_COLUMNS``."""
    return records.StoredEvent(
        event_seq=row[0], event_id=row[1], type=row[2], at_ms=row[3], received_at_ms=row[4],
        workflow_id=row[5], run_id=row[6], chain_id=row[7], agent=row[8], call_id=row[9],
        reservation_id=row[10], key_id=row[11], model=row[12], cost_nanousd=row[13],
        price_source=row[14], flags=row[15].split(), data=_event_data(row[16]), trace_id=row[17],
        span_id=row[18], parent_span_id=row[19], user=row[20],
        tags={} if row[21] is None else json.loads(row[21]),
    )  # fmt: skip


def refused_from_row(row: tuple[Any, ...]) -> usage.Refused:
    """Build a refusal from ``REFUSAL_COLUMNS``."""
    names = usage.Refused.__struct_fields__
    return usage.Refused(**dict(zip(names, row, strict=True)))


def balance_view_from_row(row: tuple[Any, ...]) -> records.BalanceView:
    """Build a balance from its row of ``SELECT_BALANCE_VIEWS``."""
    balance = balance_from_row(row)
    account = BudgetAccount(budget_from_row(row[BALANCE_COLUMNS:]), balance)
    return _balance_view(account, row[-1])


def _balance_view(account: BudgetAccount, uncertain: int) -> records.BalanceView:
    """Return a balance as the admin API shows it."""
    rule, balance = account.rule, account.balance
    is_money = rule.unit == "usd"
    return records.BalanceView(
        balance_id=balance.balance_id,
        budget_id=rule.budget_id,
        scope_kind=rule.scope_kind,
        scope_id=balance.scope_id,
        window=rule.window,
        epoch_ms=balance.period_start_ms,
        ends_ms=balance.ends_ms,
        mode=rule.mode,
        limit_nanousd=rule.limit_nanousd,
        committed_nanousd=balance.committed,
        reserved_nanousd=balance.reserved,
        remaining_nanousd=account.room(),
        overshoot_nanousd=balance.overspend,
        limit_cents=wire.cents(rule.limit_nanousd) if is_money else 0.0,
        committed_cents=wire.cents(balance.committed) if is_money else 0.0,
        reserved_cents=wire.cents(balance.reserved) if is_money else 0.0,
        exhausted=account.is_exhausted(),
        unit=rule.unit,
        counts=rule.counts,
        uncertain_nanousd=uncertain,
        uncertain_cents=wire.cents(uncertain) if is_money else 0.0,
        kept_nanousd=rule.kept_nanousd,
    )


def workflow_record(row: tuple[Any, ...], control: TargetState) -> records.Workflow:
    """Build a workflow from its row of ``SELECT_WORKFLOWS`` and its control state."""
    return records.Workflow(
        workflow_id=row[0],
        state=control.state,
        reason=control.reason,
        stopped_by=control.by,
        resume_at_ms=control.resume_at_ms,
        first_seen_ms=row[1],
        last_seen_ms=row[2],
        spent_nanousd=row[3],
        spent_cents=wire.cents(row[3]),
        calls=row[4],
        events=row[5],
        uncertain_nanousd=row[6],
        uncertain_cents=wire.cents(row[6]),
    )


def _event_data(text: str) -> dict[str, Any]:
    """Read an event's data; data nested too deeply to be shown does not fail the whole page."""
    if nested_deeper(text.encode(), DEPTH_MAX):
        return {"unreadable": "nested too deeply"}
    data: dict[str, Any] = json.loads(text)
    return data


def run_record(row: tuple[Any, ...], directives: Directives, now_ms: int) -> records.Run:
    """Build a run from its row of ``SELECT_RUNS`` and the directives in force."""
    return records.Run(
        run_id=row[0],
        workflow_id=row[1],
        first_seen_ms=row[2],
        last_seen_ms=row[3],
        spent_nanousd=row[4],
        uncertain_nanousd=row[5],
        state=directives.state_of(row[1], row[0], now_ms).state,
    )
