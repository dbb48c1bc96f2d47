"""Commands over budgets."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Collection
from typing import Any, Final

import click

from guard.core.globs import is_pattern
from guard.core.wire import amount_in
from guard.core.written_numbers import read_amounts, read_dollars
from guard.gateway.admin import AdminClient
from guard.gateway.cli.numbers import Count, Finite, Whole, read_by
from guard.gateway.cli.output import (
    anyway_option,
    limited,
    note,
    safe,
    scope_of,
    show,
    wants_json,
    where,
    with_client,
    with_key_names,
)
from guard.gateway.domain.windows import length_ms, moment

_UNITS: Final = {"usd": "dollars", "tokens": "tokens", "calls": "calls"}


@click.group()
def budgets() -> None:
    """List, set, raise and remove budgets.

    \b
    Examples:
      guard gateway budgets list
      guard gateway budgets raise nightly --by '$2'
    """


_OF_A_BALANCE: Final = {
    f"{name}{unit}" for name in ("committed", "uncertain", "reserved", "left", "used", "set_aside")
    for unit in ("", "_nanousd", "_cents")
}  # fmt: skip


@budgets.command("list")
@with_client
def budgets_list(client: AdminClient) -> None:
    """List balances: limit, spent, reserved and left per window.

    A call that needs more than what is left is refused, also when that is not nothing. A budget is
    exhausted when all is spent, or when it has refused a call, has let none through since, and what
    is left is still less than that call needed. What is kept for winding down is a part of what is
    left. A budget that matches nothing yet is for something that guard has never seen.

    \b
    Examples:
      guard gateway budgets list
      guard gateway budgets list --json
    """
    columns = ["scope", "window", "mode", "limit_nanousd", "committed_nanousd", "uncertain_nanousd",
               "reserved_nanousd", "left_nanousd"]  # fmt: skip
    counted = ["scope", "window", "mode", "counted", "limit", "used", "uncertain", "set_aside",
               "left"]  # fmt: skip
    end = ["ends", "exhausted", "budget_id"]
    rows, unmatched = client.ledger(), client.unmatched()
    known = {row["budget_id"] for row in rows}
    rows += [
        {**b, "committed": 0, "uncertain": 0, "reserved": 0,
         "ends_ms": None, "remaining": b["limit"], "exhausted": False,
         "kept": b["limit"] * b["wind_down_percent"] // 100}
        for b in client.budgets() if b["budget_id"] not in known
    ]  # fmt: skip
    if any(row["scope_kind"] == "key" for row in rows):
        rows = with_key_names(client, rows, "scope_id")
    shown = [{**row, **_figures(row), "scope": scope_of(row, unmatched), "ends": _ends(row)}
             for row in rows]  # fmt: skip
    for row in shown:
        if "balance_id" not in row and is_pattern(row["scope_id"]):  # it has no figures of its own
            row.update(dict.fromkeys(_OF_A_BALANCE & row.keys()))
    money = [row for row in shown if row["unit"] == "usd"]
    if wants_json() or len(money) == len(shown):
        show(shown, [*columns, *_kept(shown, "kept_nanousd"), *end])
        return
    if money:
        show(money, [*columns, *_kept(money, "kept_nanousd"), *end])
    others = [row for row in shown if row["unit"] != "usd"]
    show(others, [*counted, *_kept(others, "kept"), *end])


def _kept(rows: list[dict[str, Any]], column: str) -> list[str]:
    """Return the column of what is kept for winding down, of which ``left`` has its part."""
    return [column] if any(row["kept"] for row in rows) else []


def _ends(row: dict[str, Any]) -> str:
    """Return when a balance's window ends, in the zone that it is a day, week or month of."""
    return "" if row["ends_ms"] is None else moment(row["ends_ms"], row["zone"])


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    """Return a balance's figures in money, or as so many tokens or calls."""
    left = max(0, row["remaining"])
    if row["unit"] == "usd":
        names = ("limit", "committed", "uncertain", "reserved", "kept")
        money = {**{name: row[name] for name in names}, "left": left}
        nanousd = {f"{name}_nanousd": amount for name, amount in money.items()}
        return nanousd | {f"{name}_cents": amount / 1e7 for name, amount in money.items()}
    return {
        "counted": _counted_of(row), "used": row["committed"], "set_aside": row["reserved"],
        "left": left,
    }  # fmt: skip


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
    type=click.Choice(
        ["organisation", "workflow", "agent", "chain", "user", "key", "tag", "model", "run"]
    ),
)
@click.option(
    "--id",
    "scope_id",
    default="",
    help="An id (of a tag: team=search), or a budget for each match of '*' or a glob ('user-*', "
    "'team=*').",
)
@click.option(
    "--window", default="total", show_default=True, metavar="WINDOW",
    help="total, hour, day, week, month; or a length from its first use: 5h, 30d.",
)  # fmt: skip
@click.option(
    "--from-first-use", is_flag=True,
    help="The window opens with its first charge; one of a length always does.",
)  # fmt: skip
@click.option(
    "--zone", default="", metavar="ZONE",
    help="The time zone of its days, weeks and months, such as Europe/Berlin; the organisation's "
    "by default (guard gateway settings set zone=ZONE).",
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
@anyway_option
@with_client
def budgets_set(
    client: AdminClient,
    soft: bool,
    counts: tuple[str, ...],
    ask_seconds: float,
    window: str,
    from_first_use: bool,
    **limit_and_scope: Any,
) -> None:
    """Set the budget of a scope and window.

    A key may be given by its id, its name or its prefix. A key, a tag or a model that does not
    exist is refused, unless --anyway; workflows, agents, chains, users and globs may come later.

    \b
    Examples:
      guard gateway budgets set --limit '$50' --window month
      guard gateway budgets set --scope workflow --id '*' --window day --limit '$2'
      guard gateway budgets set --scope user --id '*' --window month --limit '$5'
      guard gateway budgets set --window day --zone Asia/Kolkata --limit '$20'
      guard gateway budgets set --scope user --id '*' --window 5h --from-first-use --limit '$3'
      guard gateway budgets set --scope tag --id team=search --window week --limit '$200'
      guard gateway budgets set --scope workflow --id '*' --window day --limit-tokens 2M
      guard gateway budgets set --scope workflow --id research --limit-calls 20 --of search
      guard gateway budgets set --scope workflow --id nightly --limit '$2' --on-exhausted ask
    """
    money = [limit_and_scope[name] for name in ("limit_nanousd", "limit_cents")]
    given = [*money, limit_and_scope["limit_tokens"], limit_and_scope["limit_calls"]]
    if sum(each is not None for each in given) != 1:
        raise click.UsageError("give one of --limit, --limit-tokens and --limit-calls")
    kind, of = limit_and_scope["scope_kind"], limit_and_scope["scope_id"]
    if (kind == "organisation") != (not of):
        raise click.UsageError(
            "--id needs the --scope that it is one of" if of
            else f"--scope {kind} needs --id: which {kind}, or '*' for each on its own"
        )  # fmt: skip
    if counts and limit_and_scope["limit_calls"] is None:
        raise click.UsageError("--of belongs to --limit-calls")
    if limit_and_scope["limit_calls"] is not None and limit_and_scope["wind_down_percent"]:
        raise click.UsageError(
            "--wind-down-percent belongs to --limit and --limit-tokens: a limit of calls keeps no "
            "share; set it lower"
        )
    limit_and_scope["ask_ms"] = round(ask_seconds * 1000)
    made = client.set_budget(
        window=_from_first_use(window) if from_first_use else window,
        mode="soft" if soft else "hard",
        counts=list(counts) or None,
        **limit_and_scope,
    )
    is_for = scope_of(made, client.unmatched())
    note(f"budget {made['budget_id']} version {made['version']} on {where()}: {is_for}", made)


def _from_first_use(window: str) -> str:
    """Return the window of a length for one with a name.

    Raises:
        click.UsageError: its length is not always the same.
    """
    length = {"hour": "1h", "day": "1d", "week": "7d"}.get(window, window)
    if length_ms(length) is None:
        raise click.UsageError("--from-first-use takes a --window of a length, such as 5h or 30d")
    return length


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
@click.option("--by", metavar="AMOUNT", callback=read_by(read_amounts), required=True,
              help="How much, in the budget's unit: '$2', 0.50; 500k; 10 calls.")  # fmt: skip
@click.option("--key", default="", help="Raises once for this key, however often it is repeated.")
@with_client
def budgets_raise(client: AdminClient, name: str, by: dict[str, int], key: str) -> None:
    """Raise the limit of a budget; calls that wait for it go on.

    NAME is the id of what the budget is for (a workflow, a user), the name of a key or of a run of
    `guard run`, or the id of the budget itself; 'organisation' is the organisation's. The limit
    stays raised, in later windows too, until it is set anew.

    \b
    Examples:
      guard gateway budgets raise nightly --by '$2'
      guard gateway budgets raise research --by '500k tokens'
      guard budgets raise agent-3f09ab --by 0.50 --local
    """
    budget = found(client, name, by)
    unit = budget["unit"]
    raised = client.raise_budget(
        budget["budget_id"], by[unit], key or secrets.token_hex(8), unit=unit
    )
    limit = amount_in(unit, raised["budget"]["limit"])
    text = f"raised by {amount_in(unit, by[unit])} to {limit}: {scope_of(raised['budget'])}"
    note(f"{text} on {where()}", raised)


@budgets.command("refuse")
@click.argument("name")
@click.option("--call", "call_id", metavar="ID", help="Only this call; all that wait by default.")
@click.option("--reason", default="", help="Shown to the program and kept in the audit log.")
@with_client
def budgets_refuse(client: AdminClient, name: str, call_id: str | None, reason: str) -> None:
    """Refuse the calls that wait for a budget to be raised; each ends at once.

    NAME is what `guard gateway budgets raise` takes.

    \b
    Examples:
      guard gateway budgets refuse nightly
      guard gateway budgets refuse nightly --reason 'enough for today'
    """
    asks = client.budget_asks(1000)
    asked = {ask["budget_id"] for ask in asks if call_id in (None, ask["call_id"])}
    budgets = [rule for rule in _named(client, name, asks) if rule["budget_id"] in asked]
    if not budgets:
        raise click.ClickException(
            f"no such call waits for a raise for {safe(name)}: see guard gateway budgets waiting"
        )
    refused, lines = [], []
    for budget in budgets:
        done = client.refuse_raise(budget["budget_id"], call_id, reason=reason)
        calls = "1 call" if len(done) == 1 else f"{len(done)} calls"
        lines.append(f"refused {calls}: {scope_of(budget)} on {where()}")
        refused += done
    note("\n".join(lines), refused)


@budgets.command("raises")
@click.argument("name", required=False)
@limited()
@with_client
def budgets_raises(client: AdminClient, name: str | None, limit: int) -> None:
    """List what was raised, when and by whom; newest first.

    \b
    Examples:
      guard gateway budgets raises
      guard gateway budgets raises nightly --json
    """
    columns = ["raised_at_ms", "raised_by", "by", "limit", "budget_id"]
    budget_id = None if name is None else found(client, name)["budget_id"]
    rows = client.budget_raises(budget_id, limit)
    show(_with_units(rows, "by", "limit"), columns, limit=limit,
         among="" if name is None else f"of {safe(name)}")  # fmt: skip


@budgets.command("waiting")
@limited()
@with_client
def budgets_waiting(client: AdminClient, limit: int) -> None:
    """List the calls that wait for a budget to be raised.

    \b
    Example:
      guard gateway budgets waiting
    """
    columns = ["scope", "limit", "spent", "needed", "workflow_id", "function", "model",
               "asked_at_ms", "deadline_ms", "budget_id", "call_id"]  # fmt: skip
    rows = _with_units(client.budget_asks(limit), "limit", "spent", "needed")
    show(rows, columns, limit=limit)


def _with_units(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Return rows with some amounts as people read them; for JSON as they are."""
    if wants_json():
        return rows
    return [{**row, **{n: amount_in(row["unit"], row[n]) for n in names}} for row in rows]


def found(
    client: AdminClient, name: str, units: Collection[str] = ("usd", "tokens", "calls")
) -> dict[str, Any]:
    """Return the budget that a name means.

    Args:
        client: of the gateway.
        name: of what the budget is for, or its id.
        units: what it may count.

    Raises:
        ClickException: it means none, or several of which none is waited for.
    """
    asks = client.budget_asks(1000)
    named = _named(client, name, asks)
    if not named:
        raise click.ClickException(f"no budget is for {safe(name)}: see guard gateway budgets list")
    several = [rule for rule in named if rule["unit"] in units]
    if not several:
        counted = " and ".join(sorted({_UNITS[rule["unit"]] for rule in named}))
        raise click.ClickException(f"what is for {safe(name)} is limited in {counted}")
    # A number without a unit is never read as dollars where it can be tokens or calls.
    counted_in = {rule["unit"] for rule in several}
    if len(several) > 1 and ("usd" not in counted_in or len(counted_in) == 1):
        asked = {ask["budget_id"] for ask in asks}
        several = [rule for rule in several if rule["budget_id"] in asked] or several
    if len(several) == 1:
        return several[0]
    ids = ", ".join(
        f"{rule['budget_id']} ({rule['window']}, {_counted_of(rule)})" for rule in several
    )
    raise click.ClickException(
        f"several budgets are for {safe(name)}; name one by its id, or write '$2', '500k tokens' "
        f"or '10 calls': {ids}"
    )


def _named(client: AdminClient, name: str, asks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the budgets that a name can mean: for it, else asked for by a workflow of the name."""
    rules, listed = client.budgets(), client.keys()
    keys = {
        key["key_id"] for key in listed
        if key["name"] == f"run {name}"[:100] or name in (key["name"], key["prefix"])
    }  # fmt: skip
    named = [
        rule for rule in rules
        if name in (rule["budget_id"], rule["scope_id"] or "organisation")
        or (rule["scope_kind"] == "key" and rule["scope_id"] in keys)
    ]  # fmt: skip
    if named:
        return named
    asked_by = {ask["budget_id"] for ask in asks if ask["workflow_id"] == name}
    return [rule for rule in rules if rule["budget_id"] in asked_by]


def _counted_of(rule: dict[str, Any]) -> str:
    of = f" of {', '.join(rule['counts'])}" if rule["counts"] else ""
    return f"{_UNITS[rule['unit']]}{of}"
