"""Usage and the audit log."""

from __future__ import annotations

import time

import click

from guard.core.written_numbers import read_since
from guard.gateway.cli.admin_client import AdminClient
from guard.gateway.cli.numbers import Whole, read_by
from guard.gateway.cli.output import limited, note, show, wants_json, with_client


@click.command()
@click.option(
    "--by", "group_by", default="workflow", show_default=True,
    type=click.Choice(["workflow", "run", "agent", "chain", "user", "key", "model", "provider",
                       "type", "hour", "day", "total"]),
)  # fmt: skip
@click.option("--since", "since_then_ms", metavar="TIME",
              callback=read_by(lambda text: read_since(text, round(time.time() * 1000))),
              help="Only what came since: 24h or 7d (ago), or a date or time in UTC.")  # fmt: skip
@click.option("--since-ms", type=Whole(min=0), hidden=True)
@limited()
@with_client
def usage(
    client: AdminClient, group_by: str, since_then_ms: int | None, since_ms: int | None, limit: int
) -> None:
    """Sum usage by group, most expensive first.

    \b
    Examples:
      guard gateway usage --by model
      guard gateway usage --by user --since 24h --limit 20
      guard gateway usage --by day --since 2026-01-01 --json
    """
    if since_then_ms is not None and since_ms is not None:
        raise click.UsageError("give one of --since and --since-ms")
    since_ms = since_then_ms if since_ms is None else since_ms
    rows = client.usage(group_by, since_ms=since_ms, limit=limit)
    columns = ["group", "cost_nanousd", "uncertain_nanousd", "llm_calls", "tool_calls",
               "input_tokens", "output_tokens", "unpriced"]  # fmt: skip
    show(rows, columns, limit=limit)


@click.group()
def audit() -> None:
    """Read and check the audit log.

    \b
    Examples:
      guard gateway audit list
      guard gateway audit verify
    """


@audit.command("list")
@click.option(
    "--after", type=Whole(min=0), help="Those after this number, instead of the last ones."
)
@limited()
@with_client
def audit_list(client: AdminClient, after: int | None, limit: int) -> None:
    """List what operators did last, the newest at the bottom.

    With a key of the whole gateway that is also what was done to the gateway itself: organisations,
    operators of all of them, and keys of the whole gateway.

    \b
    Examples:
      guard gateway audit list
      guard gateway audit list --after 0 --limit 1000 --json
    """
    rows = client.audit(after=after, limit=limit)
    for row in rows if not wants_json() else ():
        row["of"] = "organisation" if row["organisation_id"] else "gateway"
    # Without `after` these are the newest, so what is left out lies before them.
    rest = "--after 0" if after is None else f"--after {rows[-1]['seq'] if rows else after}"
    show(rows, ["seq", "at_ms", "of", "actor", "action", "target"], limit=limit, rest=rest)


@audit.command("head")
@with_client
def audit_head(client: AdminClient) -> None:
    """Print the newest entry's number and hash, to be kept away from the gateway's machine.

    \b
    Example:
      guard gateway audit head >> audit-heads.txt
    """
    head = client.audit_head()
    note(f"{head['seq']}:{head['hash']}", head)


@audit.command("verify")
@click.option("--expect", metavar="SEQ:HASH", help="A head noted earlier; it has to be there.")
@with_client
def audit_verify(client: AdminClient, expect: str | None) -> None:
    """Check the log's hash chain and the ledger's sums; exit code 1 when something is wrong.

    \b
    Examples:
      guard gateway audit verify
      guard gateway audit verify --expect "$(tail -n 1 audit-heads.txt)"
    """
    chain, books = client.verify_audit(expect), client.verify_ledger()
    lines = [
        f"audit log: {chain['entries']} entries"
        + ("" if chain["ok"] else f", broken at {chain['first_bad_seq']}"),
        f"ledger: {books['balances']} balances, {books['events']} events",
        *books["problems"],
    ]
    note("\n".join(lines), {"audit": chain, "ledger": books})
    if not chain["ok"] or books["problems"]:
        raise click.exceptions.Exit(1)
