"""Rows as operators see them."""

from __future__ import annotations

from typing import Any, Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.control import Directives, TargetState
from guard.gateway.domain.ledger import BudgetBalance
from guard.gateway.domain.usage import QUARTER_MS
from guard.gateway.unit.rows import BALANCES, BUDGETS
from guard.gateway.unit.usage import DOUBT, FOREVER

SELECT_WORKFLOWS: Final = (
    "SELECT scope_id, first_ms, last_ms, cost_nanousd, calls, events, doubt_nanousd,"
    " llm_calls FROM usage WHERE organisation_id = ? AND scope_kind = 'workflow' AND size_ms = 0"
    " AND start_ms = 0 AND last_ms IS NOT NULL"
)
"""The beginning of a query of an organisation's workflows, in the order of
:func:`workflow_record`."""

SELECT_RUNS: Final = (
    "SELECT scope_id, owner, first_ms, last_ms, cost_nanousd, doubt_nanousd FROM usage"
    " WHERE organisation_id = ? AND scope_kind = 'run' AND size_ms = 0 AND start_ms = 0"
    " AND first_ms IS NOT NULL"
)
"""The beginning of a query of an organisation's runs, in the order of :func:`run_record`."""

OF_BALANCE: Final = (
    "(SELECT CAST(coalesce(sum(CASE u.unit WHEN 'usd' THEN d.doubt_nanousd WHEN 'tokens' THEN"
    " d.doubt_tokens ELSE 0 END), 0) AS BIGINT) FROM usage d INDEXED BY usage_doubt"
    " WHERE d.organisation_id = u.organisation_id AND (d.doubt_nanousd <> 0 OR d.doubt_tokens <> 0)"
    f" AND d.scope_kind IN (u.scope_kind, '{DOUBT}' || u.scope_kind) AND d.scope_id = b.scope_id"
    " AND (u.scope_kind <> 'key' OR d.scope_kind = 'key' OR u.scope_id = b.scope_id)"
    f" AND d.size_ms = CASE WHEN b.period_start_ms = 0 THEN 0 ELSE {QUARTER_MS} END"
    f" AND d.start_ms >= b.period_start_ms - b.period_start_ms % {QUARTER_MS}"
    f" AND d.start_ms < coalesce(b.ends_ms, {FOREVER}))"
)
"""What a balance ``b`` of a budget ``u`` was charged in doubt, in the balance's period; one that
begins at 0 is of all time. Windows of a length begin within a quarter hour, all of which counts."""

SELECT_BALANCE_VIEWS: Final = (
    f"SELECT {BALANCES.names('b')}, {BUDGETS.names('u')}, {OF_BALANCE} FROM"
)
"""The same of balances ``b`` with their budgets ``u``."""


def balance_view_from_row(row: tuple[Any, ...]) -> records.BalanceView:
    """Build a balance from its row of ``SELECT_BALANCE_VIEWS``."""
    balance = BALANCES.read(row)
    account = BudgetBalance(BUDGETS.read(row[BALANCES.width :]), balance)
    return balance_view(account, row[-1])


def balance_view(account: BudgetBalance, uncertain: int) -> records.BalanceView:
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
        limit=rule.limit,
        committed=balance.committed,
        reserved=balance.reserved,
        remaining=account.room(),
        overshoot=balance.overspend,
        limit_cents=wire.cents(rule.limit) if is_money else 0.0,
        committed_cents=wire.cents(balance.committed) if is_money else 0.0,
        reserved_cents=wire.cents(balance.reserved) if is_money else 0.0,
        exhausted=account.is_exhausted(),
        unit=rule.unit,
        counts=rule.counts,
        uncertain=uncertain,
        uncertain_cents=wire.cents(uncertain) if is_money else 0.0,
        kept=rule.kept,
        zone=balance.zone,
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
        llm_calls=row[7],
    )


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
