"""What a workflow and one of its runs have spent, and the budgets over them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.ledger import BudgetBalance
from guard.gateway.domain.usage import DAY_MS
from guard.gateway.ledger.accounts import (
    applying,
    current,
    index_of,
    metered_index,
    opens_with_usage,
)
from guard.gateway.ledger.wind_down import run_of
from guard.gateway.storage.sql.admin_rows import SELECT_RUNS, balance_view
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.rows import BALANCES, BUDGETS, ORGANISATIONS
from guard.gateway.unit.state import ScopeKeys
from guard.gateway.unit.usage import doubt_of, used


def spend(
    connection: Connection, now_ms: int, organisation_id: str, keys: ScopeKeys, run_id: str | None
) -> wire.SpendReply:
    """Return the spend of a workflow.

    Args:
        connection: where to read.
        organisation_id: the tenant.
        keys: the workflow, and the other scopes whose budgets apply.
        run_id: one of its runs.
        now_ms: the time.

    Raises:
        NotFoundError: the run is one of another workflow.
    """
    workflow_id = keys[0]
    assert workflow_id is not None
    total = _total(connection, organisation_id, "workflow", workflow_id)
    reply = wire.SpendReply(workflow_id, total is not None)
    if total is not None:
        reply.spent_nanousd, reply.uncertain_nanousd = total
    if run_id is not None:
        owners = connection.rows(f"{SELECT_RUNS} AND scope_id = ?", organisation_id, run_id)
        if owners and owners[0][1] != workflow_id:
            raise NotFoundError("no such run of this workflow")
        run = _total(connection, organisation_id, "run", run_id)
        reply.run_id = run_id
        reply.run_spent_nanousd, reply.run_uncertain_nanousd = run or (0, 0)
    rows = connection.rows(f"{BUDGETS.select()} WHERE organisation_id = ?", organisation_id)
    budgets = [*map(BUDGETS.read, rows)]
    own = connection.rows(f"{ORGANISATIONS.select()} WHERE organisation_id = ?", organisation_id)
    settings = ORGANISATIONS.read(own[0]).settings
    for index in metered_index(budgets).values():
        for budget, scope_id in applying(index, keys):
            account = _account(connection, settings, budget, scope_id, now_ms)
            counted = account.counted()
            counted.uncertain = doubt_of(connection, account)
            counted.winding_down = _winds_down(connection, account, workflow_id, run_id)
            reply.counted.append(counted)
    for budget, scope_id in applying(index_of(b for b in budgets if b.unit == "usd"), keys):
        account = _account(connection, settings, budget, scope_id, now_ms)
        shown = msgspec.structs.asdict(account.view())
        uncertain = doubt_of(connection, account)
        spent = wire.SpentBudget(
            **shown,
            uncertain_nanousd=uncertain,
            kept_nanousd=budget.kept,
            winding_down=_winds_down(connection, account, workflow_id, run_id),
        )
        reply.budgets.append(spent)
    return reply


def balances_over(
    connection: Connection, now_ms: int, organisation_id: str, keys: Sequence[records.Key]
) -> list[records.BalanceView]:
    """Return the budgets over any call of some keys, with what has counted in their periods.

    Those of their teams are among them. Those of workflows, users, models or other tags are over
    some calls only, and left out.

    Args:
        connection: where to read.
        now_ms: the time.
        organisation_id: the tenant.
        keys: whose.
    """
    rows = connection.rows(f"{BUDGETS.select()} WHERE organisation_id = ?", organisation_id)
    budgets = [*map(BUDGETS.read, rows)]
    own = connection.rows(f"{ORGANISATIONS.select()} WHERE organisation_id = ?", organisation_id)
    settings = ORGANISATIONS.read(own[0]).settings
    indexes = [*metered_index(budgets).values(), index_of(b for b in budgets if b.unit == "usd")]
    over = {
        (budget.budget_id, scope_id): budget
        for key in keys
        for index in indexes
        for budget, scope_id in applying(
            index, (None, None, None, None, key.key_id, _team(key), ())
        )
    }
    found = []
    for (_, scope_id), budget in over.items():
        account = _account(connection, settings, budget, scope_id, now_ms)
        found.append(balance_view(account, doubt_of(connection, account)))
    return sorted(found, key=lambda each: -(each.committed + each.reserved) / max(each.limit, 1))


def _team(key: records.Key) -> tuple[str, ...]:
    return (f"team={key.team}",) if key.team else ()


def _winds_down(
    connection: Connection, account: BudgetBalance, workflow_id: str, run_id: str | None
) -> bool:
    """Return whether all but the kept share is spent, or was not enough for a run's request."""
    balance, rule = account.balance, account.rule
    if not rule.kept:
        return False
    if account.unspent() <= rule.kept:
        return True
    run = run_of(rule.scope_kind, workflow_id, run_id)
    sql = "SELECT 1 FROM wind_downs WHERE balance_id = ? AND winding_run = ?"
    return bool(connection.rows(sql, balance.balance_id, run))


def _total(
    connection: Connection, organisation_id: str, kind: str, scope_id: str
) -> tuple[int, int] | None:
    """Return what a workflow or a run has cost, and what of it was charged in doubt."""
    ((events, cost, doubt),) = connection.rows(
        "SELECT coalesce(sum(events), 0), CAST(coalesce(sum(cost_nanousd), 0) AS BIGINT),"
        " CAST(coalesce(sum(doubt_nanousd), 0) AS BIGINT) FROM usage WHERE organisation_id = ?"
        " AND scope_kind = ? AND size_ms = 0 AND start_ms = 0 AND scope_id = ?",
        organisation_id, kind, scope_id,
    )  # fmt: skip
    return (cost, doubt) if events else None


def _account(
    connection: Connection, settings: records.OrganisationSettings, budget: records.BudgetRule,
    scope_id: str, now_ms: int,
) -> BudgetBalance:  # fmt: skip
    """Return a budget with its balance; one that no call has opened yet begins with its totals."""
    rows = connection.rows(
        f"{BALANCES.select()} WHERE budget_id = ? AND scope_id = ? AND period_start_ms <= ?"
        " ORDER BY period_start_ms DESC LIMIT 1",
        budget.budget_id, scope_id, now_ms,
    )  # fmt: skip
    last = BALANCES.read(rows[0]) if rows else None
    balance = current(last, budget, scope_id, settings.calendar(budget.zone), now_ms)
    if balance is not last and opens_with_usage(balance, budget):
        start_ms, end_ms = balance.period_start_ms, balance.ends_ms
        until_ms = end_ms if end_ms is None else min(end_ms, now_ms + DAY_MS)
        scope = (budget.organisation_id, budget.scope_kind, scope_id)
        cost, tokens = used(connection.rows, *scope, start_ms, until_ms, budget.scope_id)
        balance.opening = balance.committed = cost if budget.unit == "usd" else tokens
    return BudgetBalance(budget, balance)
