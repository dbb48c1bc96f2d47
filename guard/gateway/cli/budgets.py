"""Commands over budgets."""

from __future__ import annotations

from typing import Any

import click

from guard.gateway.cli.admin_client import AdminClient
from guard.gateway.cli.numbers import Finite
from guard.gateway.cli.output import note, scope_of, show, where, with_client


@click.group()
def budgets() -> None:
    """List, set and remove budgets.

    \b
    Example:
      guard gateway budgets list
    """


@budgets.command("list")
@with_client
def budgets_list(client: AdminClient) -> None:
    """List balances: limit, spent, reserved and left per window.

    A call that needs more than what is left is refused, also when that is not nothing. A budget is
    exhausted when all is spent, or when it has refused a call, has let none through since, and what
    is left is still less than that call needed.

    \b
    Examples:
      guard gateway budgets list
      guard gateway budgets list --json
    """
    columns = ["scope", "window", "mode", "limit_cents", "committed_cents",
               "uncertain_cents", "reserved_cents", "left_cents", "exhausted",
               "budget_id"]  # fmt: skip
    rows = client.ledger()
    for row in rows:
        row["left_cents"] = max(0, row["remaining_nanousd"]) / 1e7
    known = {row["budget_id"] for row in rows}
    rows += [
        {**b, "limit_cents": b["limit_nanousd"] / 1e7, "committed_cents": 0.0,
         "uncertain_cents": 0.0, "reserved_cents": 0.0, "exhausted": False,
         "left_cents": b["limit_nanousd"] / 1e7}
        for b in client.budgets() if b["budget_id"] not in known
    ]  # fmt: skip
    show([{**row, "scope": scope_of(row)} for row in rows], columns)


@budgets.command("set")
@click.option("--limit-cents", type=Finite(min=0), required=True)
@click.option(
    "--scope",
    "scope_kind",
    default="organisation",
    show_default=True,
    type=click.Choice(["organisation", "workflow", "agent", "chain", "user", "key", "model"]),
)
@click.option(
    "--id", "scope_id", default="", help="An id; '*' or a glob ('user-*'): a budget for each match."
)
@click.option(
    "--window", default="total", show_default=True,
    type=click.Choice(["total", "hour", "day", "month"]),
)  # fmt: skip
@click.option("--soft", is_flag=True, help="Warn instead of refusing.")
@with_client
def budgets_set(client: AdminClient, limit_cents: float, soft: bool, **scope: Any) -> None:
    """Set the budget of a scope and window.

    \b
    Examples:
      guard gateway budgets set --limit-cents 5000 --window month
      guard gateway budgets set --scope workflow --id '*' --window day --limit-cents 200
      guard gateway budgets set --scope user --id '*' --window month --limit-cents 500
    """
    made = client.set_budget(limit_cents, mode="soft" if soft else "hard", **scope)
    note(f"budget {made['budget_id']} version {made['version']} on {where()}", made)


@budgets.command("delete")
@click.argument("budget_id")
@with_client
def budgets_delete(client: AdminClient, budget_id: str) -> None:
    """Remove a budget.

    \b
    Example:
      guard gateway budgets delete 01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """
    client.delete_budget(budget_id)
    note(f"removed {budget_id} on {where()}", {"budget_id": budget_id})
