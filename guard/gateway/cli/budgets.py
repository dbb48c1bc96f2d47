"""Commands over budgets."""

from __future__ import annotations

import functools
import secrets
from typing import Any

import click

from guard.core.wire import dollars
from guard.core.written_numbers import read_dollars
from guard.gateway.cli.admin_client import AdminClient
from guard.gateway.cli.numbers import Count, Finite, Whole, read_by
from guard.gateway.cli.output import note, safe, scope_of, show, wants_json, where, with_client


@click.group()
def budgets() -> None:
    """List, set, raise and remove budgets.

    \b
    Examples:
      guard gateway budgets list
      guard gateway budgets raise nightly --by '$2'
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
    columns = ["scope", "window", "mode", "limit_nanousd", "committed_nanousd",
               "uncertain_nanousd", "reserved_nanousd", "left_nanousd", "exhausted",
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
    """Return a balance's figures in money, or as so many tokens or calls."""
    left = max(0, row["remaining_nanousd"])
    if row["unit"] == "usd":
        names = ("limit", "committed", "uncertain", "reserved")
        cents = {f"{name}_cents": row[f"{name}_nanousd"] / 1e7 for name in names}
        return {**cents, "left_nanousd": left, "left_cents": left / 1e7}
    of = f" of {', '.join(row['counts'])}" if row["counts"] else ""
    return {
        "counted": f"{row['unit']}{of}",
        "limit": row["limit_nanousd"],
        "used": row["committed_nanousd"],
        "set_aside": row["reserved_nanousd"],
        "left": left,
    }


@budgets.command("set")
@click.option("--limit", "limit_nanousd", metavar="AMOUNT",
              callback=read_by(functools.partial(read_dollars, option="--limit", or_nothing=True)),
              help="In dollars: '$50', 0.50.")  # fmt: skip
@click.option("--limit-cents", type=Finite(min=0), hidden=True)
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
@click.option(
    "--on-exhausted", default="refuse", show_default=True, type=click.Choice(["refuse", "ask"]),
    help="ask: a call that it does not pay for waits for an operator to raise it.",
)  # fmt: skip
@click.option(
    "--ask-seconds", default=300.0, show_default=True, type=Finite(0.001, 366 * 86_400),
    help="With --on-exhausted ask: how long a call waits.",
)  # fmt: skip
@click.option(
    "--wind-down-percent", default=0, type=Whole(0, 99),
    help="Kept for calls that wind down, and the last request of a run.",
)  # fmt: skip
@with_client
def budgets_set(
    client: AdminClient,
    soft: bool,
    counts: tuple[str, ...],
    ask_seconds: float,
    **limit_and_scope: Any,
) -> None:
    """Set the budget of a scope and window.

    \b
    Examples:
      guard gateway budgets set --limit '$50' --window month
      guard gateway budgets set --scope workflow --id '*' --window day --limit '$2'
      guard gateway budgets set --scope user --id '*' --window month --limit '$5'
      guard gateway budgets set --scope workflow --id '*' --window day --limit-tokens 2M
      guard gateway budgets set --scope workflow --id research --limit-calls 20 --of search
      guard gateway budgets set --scope workflow --id nightly --limit '$2' --on-exhausted ask
    """
    money = [limit_and_scope[name] for name in ("limit_nanousd", "limit_cents")]
    given = [*money, limit_and_scope["limit_tokens"], limit_and_scope["limit_calls"]]
    if sum(each is not None for each in given) != 1:
        raise click.UsageError("give one of --limit, --limit-tokens and --limit-calls")
    if counts and limit_and_scope["limit_calls"] is None:
        raise click.UsageError("--of belongs to --limit-calls")
    if money == [None, None] and (
        limit_and_scope["on_exhausted"] == "ask" or limit_and_scope["wind_down_percent"]
    ):
        raise click.UsageError(
            "--on-exhausted ask and --wind-down-percent belong to --limit: only budgets of money "
            "ask for more and keep a share"
        )
    limit_and_scope["ask_ms"] = round(ask_seconds * 1000)
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


# -- raises ------------------------------------------------------------------------------------


@budgets.command("raise")
@click.argument("name")
@click.option("--by", "by_nanousd", metavar="AMOUNT", callback=read_by(read_dollars), required=True,
              help="How much, in dollars: '$2', 0.50.")  # fmt: skip
@click.option("--key", default="", help="Raises once for this key, however often it is repeated.")
@with_client
def budgets_raise(client: AdminClient, name: str, by_nanousd: int, key: str) -> None:
    """Raise the limit of a budget; calls that wait for it go on.

    NAME is the id of what the budget is for (a workflow, a user), of a run of `guard run`, or of
    the budget itself; 'organisation' is the organisation's. The limit stays raised, in later
    windows too, until it is set anew.

    \b
    Examples:
      guard gateway budgets raise nightly --by '$2'
      guard budgets raise agent-3f09ab --by 0.50 --local
    """
    budget_id = found(client, name)
    raised = client.raise_budget(budget_id, by_nanousd, key or secrets.token_hex(8))
    limit = dollars(raised["budget"]["limit_nanousd"])
    text = f"raised by {dollars(by_nanousd)} to {limit}: {scope_of(raised['budget'])}"
    note(f"{text} on {where()}", raised)


@budgets.command("raises")
@click.argument("name", required=False)
@with_client
def budgets_raises(client: AdminClient, name: str | None) -> None:
    """List what was raised, when and by whom; newest first.

    \b
    Examples:
      guard gateway budgets raises
      guard gateway budgets raises nightly --json
    """
    columns = ["raised_at_ms", "raised_by", "by_nanousd", "limit_nanousd", "budget_id"]
    rows = client.budget_raises(None if name is None else found(client, name))
    show([{**row, "by_cents": row["by_nanousd"] / 1e7, "limit_cents": row["limit_nanousd"] / 1e7}
          for row in rows], columns)  # fmt: skip


@budgets.command("waiting")
@with_client
def budgets_waiting(client: AdminClient) -> None:
    """List the calls that wait for a budget to be raised.

    \b
    Example:
      guard gateway budgets waiting
    """
    columns = ["scope", "limit_nanousd", "spent_nanousd", "needed_nanousd", "workflow_id",
               "function", "model", "asked_at_ms", "deadline_ms", "budget_id"]  # fmt: skip
    cents = ("limit", "spent", "needed")
    rows = client.budget_asks()
    show([{**row, **{f"{each}_cents": row[f"{each}_nanousd"] / 1e7 for each in cents}}
          for row in rows], columns)  # fmt: skip


def found(client: AdminClient, name: str) -> str:
    """Return the id of the budget that a name means.

    Raises:
        ClickException: it means none, or several of which none is waited for.
    """
    rules, asks = client.budgets(), client.budget_asks(1000)
    listed = client.keys()
    keys = {key["key_id"] for key in listed if key["name"] == f"run {name}"[:100]}
    named = [
        rule for rule in rules
        if name in (rule["budget_id"], rule["scope_id"] or "organisation")
        or (rule["scope_kind"] == "key" and rule["scope_id"] in keys)
    ]  # fmt: skip
    asked = {ask["budget_id"] for ask in asks}
    several: set[str] = {rule["budget_id"] for rule in named}
    if len(several) != 1:
        several = several & asked or several
    if not several:
        several = {ask["budget_id"] for ask in asks if ask["workflow_id"] == name}
    if len(several) == 1:
        return several.pop()
    if not several:
        raise click.ClickException(f"no budget is for {safe(name)}: see guard gateway budgets list")
    ids = ", ".join(f"{rule['budget_id']} ({rule['window']})" for rule in named)
    raise click.ClickException(f"several budgets are for {safe(name)}, name one by its id: {ids}")
