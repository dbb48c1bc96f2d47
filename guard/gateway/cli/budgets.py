"""Commands over budgets."""

from __future__ import annotations

from typing import Any

import click

from guard.gateway.cli.admin_client import AdminClient
from guard.gateway.cli.numbers import Count, Finite
from guard.gateway.cli.output import note, scope_of, show, wants_json, where, with_client


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
    known = {row["budget_id"] for row in rows}
    rows += [
        {**b, "committed_nanousd": 0, "uncertain_nanousd": 0, "reserved_nanousd": 0,
         "remaining_nanousd": b["limit_nanousd"], "exhausted": False}
        for b in client.budgets() if b["budget_id"] not in known
    ]  # fmt: skip
    shown = [{**row, **_figures(row), "scope": scope_of(row)} for row in rows]
    money = [row for row in shown if row["unit"] == "usd"]
    if wants_json() or len(money) == len(shown):
        show(shown, columns)
        return
    if money:
        show(money, columns)
    counted = [row for row in shown if row["unit"] != "usd"]
    show(counted, ["scope", "window", "mode", "counted", "limit", "used", "set_aside", "left",
                   "exhausted", "budget_id"])  # fmt: skip


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    """Return a balance's figures in cents, or as so many tokens or calls."""
    left = max(0, row["remaining_nanousd"])
    if row["unit"] == "usd":
        names = ("limit", "committed", "uncertain", "reserved")
        cents = {f"{name}_cents": row[f"{name}_nanousd"] / 1e7 for name in names}
        return {**cents, "left_cents": left / 1e7}
    of = f" of {', '.join(row['counts'])}" if row["counts"] else ""
    return {
        "counted": f"{row['unit']}{of}",
        "limit": row["limit_nanousd"],
        "used": row["committed_nanousd"],
        "set_aside": row["reserved_nanousd"],
        "left": left,
    }


@budgets.command("set")
@click.option("--limit-cents", type=Finite(min=0), help="In cents.")
@click.option("--limit-tokens", type=Count(), metavar="N",
              help="In tokens, input, output and cached ones: 20k, 2M.")  # fmt: skip
@click.option("--limit-calls", type=Count(), metavar="N", help="In calls of tools and models.")
@click.option("--of", "counts", multiple=True, metavar="GLOB",
              help="With --limit-calls: the tools or models whose calls are counted; may be "
                   "repeated. All by default.")  # fmt: skip
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
def budgets_set(
    client: AdminClient, soft: bool, counts: tuple[str, ...], **limit_and_scope: Any
) -> None:
    """Set the budget of a scope and window.

    \b
    Examples:
      guard gateway budgets set --limit-cents 5000 --window month
      guard gateway budgets set --scope workflow --id '*' --window day --limit-cents 200
      guard gateway budgets set --scope user --id '*' --window month --limit-cents 500
      guard gateway budgets set --scope workflow --id '*' --window day --limit-tokens 2M
      guard gateway budgets set --scope workflow --id research --limit-calls 20 --of search
    """
    given = [limit_and_scope[name] for name in ("limit_cents", "limit_tokens", "limit_calls")]
    if sum(each is not None for each in given) != 1:
        raise click.UsageError("give one of --limit-cents, --limit-tokens and --limit-calls")
    if counts and limit_and_scope["limit_calls"] is None:
        raise click.UsageError("--of belongs to --limit-calls")
    made = client.set_budget(
        mode="soft" if soft else "hard", counts=list(counts) or None, **limit_and_scope
    )
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
