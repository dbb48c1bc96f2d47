"""What a workflow and one of its runs have spent, and the budgets over them."""

from __future__ import annotations

from typing import Any

import msgspec

from guard.core import wire
from guard.gateway.domain import records, windows
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.ledger import Balance, BudgetAccount
from guard.gateway.ledger.accounts import applying, index_of, metered_index
from guard.gateway.ledger.state import ScopeKeys
from guard.gateway.ledger.winding import run_of
from guard.gateway.storage.sql import token_sums
from guard.gateway.storage.sql.connection import Connection
from guard.gateway.storage.sql.rows import BALANCES, BUDGETS
from guard.gateway.storage.sql.uncertain import FOREVER, of_one, stored_kind


def spend(
    reading: Connection, now_ms: int, organisation_id: str, keys: ScopeKeys, run_id: str | None
) -> wire.SpendReply:
    """Return the spend of a workflow.

    Args:
        reading: where to read.
        organisation_id: the tenant.
        keys: the workflow, and the other scopes whose budgets apply.
        run_id: one of its runs.
        now_ms: the time.

    Raises:
        NotFoundError: the run is one of another workflow.
    """
    workflow_id = keys[0]
    assert workflow_id is not None
    total = _total(reading, organisation_id, "workflow", workflow_id)
    reply = wire.SpendReply(workflow_id, total is not None, 0 if total is None else total[0])
    reply.uncertain_nanousd = of_one(reading, organisation_id, "workflow", workflow_id)
    if run_id is not None:
        owners = reading.rows(
            "SELECT workflow_id FROM runs WHERE organisation_id = ? AND run_id = ?",
            organisation_id, run_id,
        )  # fmt: skip
        if owners and owners[0][0] != workflow_id:
            raise NotFoundError("no such run of this workflow")
        run = _total(reading, organisation_id, "run", run_id)
        reply.run_id, reply.run_spent_nanousd = run_id, 0 if run is None else run[0]
        reply.run_uncertain_nanousd = of_one(reading, organisation_id, "run", run_id)
    rows = reading.rows(f"{BUDGETS.select()} WHERE organisation_id = ?", organisation_id)
    budgets = [*map(BUDGETS.read, rows)]
    for index in metered_index(budgets).values():
        for budget, scope_id in applying(index, keys):
            account = _account(reading, budget, scope_id, now_ms)
            counted = account.counted()
            counted.uncertain = _uncertain(reading, budget, scope_id, now_ms)
            counted.winding_down = _winds_down(reading, account, workflow_id, run_id)
            reply.counted.append(counted)
    for budget, scope_id in applying(index_of(b for b in budgets if b.unit == "usd"), keys):
        account = _account(reading, budget, scope_id, now_ms)
        shown = msgspec.structs.asdict(account.view())
        uncertain = _uncertain(reading, budget, scope_id, now_ms)
        spent = wire.SpentBudget(
            **shown,
            uncertain_nanousd=uncertain,
            kept_nanousd=budget.kept_nanousd,
            winding_down=_winds_down(reading, account, workflow_id, run_id),
        )
        reply.budgets.append(spent)
    return reply


def _winds_down(
    reading: Connection, account: BudgetAccount, workflow_id: str, run_id: str | None
) -> bool:
    """Return whether all but the kept share is spent, or was not enough for a run's request."""
    balance, rule = account.balance, account.rule
    if not rule.kept_nanousd:
        return False
    if account.unspent() <= rule.kept_nanousd:
        return True
    run = run_of(rule.scope_kind, workflow_id, run_id)
    sql = "SELECT 1 FROM wind_downs WHERE balance_id = ? AND winding_run = ?"
    return bool(reading.rows(sql, balance.balance_id, run))


def _total(
    reading: Connection, organisation_id: str, kind: str, scope_id: str
) -> tuple[Any, ...] | None:
    """Return the running totals of a scope: in all, and of its newest hour, day, month and week."""
    rows = reading.rows(
        "SELECT cost_nanousd, hour_ms, hour_nanousd, day_ms, day_nanousd, month_ms, month_nanousd,"
        " week_ms, week_nanousd"
        " FROM scope_totals WHERE organisation_id = ? AND scope_kind = ? AND scope_id = ?",
        organisation_id, kind, scope_id,
    )  # fmt: skip
    return tuple(rows[0]) if rows else None


def _uncertain(reading: Connection, budget: records.BudgetRule, scope_id: str, now_ms: int) -> int:
    start_ms, end_ms = windows.period_of(budget.window, now_ms)
    ends_ms = FOREVER if end_ms is None else end_ms
    own, kind = budget.organisation_id, stored_kind(budget.unit, budget.scope_kind)
    found = of_one(reading, own, kind, scope_id, start_ms, ends_ms)
    if budget.scope_kind == "key":
        found += of_one(reading, own, f"below {kind}", scope_id, start_ms, ends_ms)
    return found


def _account(
    reading: Connection, budget: records.BudgetRule, scope_id: str, now_ms: int
) -> BudgetAccount:
    """Return a budget with its balance; one that no call has opened yet begins with its totals."""
    start_ms, end_ms = windows.period_of(budget.window, now_ms)
    rows = reading.rows(
        f"{BALANCES.select()} WHERE budget_id = ? AND scope_id = ? AND period_start_ms = ?",
        budget.budget_id, scope_id, start_ms,
    )  # fmt: skip
    if rows:
        return BudgetAccount(budget, BALANCES.read(rows[0]))
    total = None
    if budget.unit == "usd" and budget.scope_kind != "tag":
        total = _total(reading, budget.organisation_id, budget.scope_kind, scope_id)
    at = {"total": 0, "hour": 1, "day": 3, "month": 5, "week": 7}[budget.window]
    spent = 0
    if budget.opens_with_tokens(start_ms):
        scope = (budget.organisation_id, budget.scope_kind, scope_id)
        spent = token_sums.used(reading.rows, *scope, start_ms, end_ms)
    if total is not None and (at == 0 or total[at] == start_ms):
        spent = total[at + (at > 0)]
    balance = Balance(0, budget.budget_id, scope_id, start_ms, end_ms, spent, spent)
    return BudgetAccount(budget, balance)
