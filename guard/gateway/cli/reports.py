"""Usage and the audit log."""

from __future__ import annotations

import heapq
import itertools
import operator
import time
from collections.abc import Iterator
from typing import Any, Final, get_args

import click

from guard.core.written_numbers import read_since
from guard.gateway.admin import AdminClient
from guard.gateway.cli.numbers import Whole, read_by
from guard.gateway.cli.output import (
    key_names,
    limited,
    moment,
    note,
    show,
    wants_json,
    with_client,
    with_key_names,
)
from guard.gateway.dashboard.tables import USAGE_COLUMNS, csv_head, csv_lines
from guard.gateway.domain.spend_series import TAG
from guard.gateway.domain.usage import LISTED_GROUPS, UsageGroup
from guard.gateway.domain.windows import zone_of


def _is_time(text: str) -> str:
    read_since(text, 0)
    return text


_MOMENT: Final = read_by(_is_time)
_ROWS_AT_ONCE: Final = 1000
"""Rows that are written at once; each write goes out by itself."""


class _Groups(click.Choice[str]):
    """The groups of usage, or a tag."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take a tag by its name too."""
        is_tag = str(value).startswith(TAG) and value != TAG
        return value if is_tag else super().convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the choices."""
        return f"[{'|'.join(self.choices)}|{TAG}NAME]"


@click.command()
@click.option(
    "--by", "group_by", default="workflow", show_default=True, type=_Groups(get_args(UsageGroup))
)
@click.option(
    "--by-model",
    is_flag=True,
    help="A row for each model of a team, person, key, user, workflow or tag.",
)
@click.option("--since", metavar="TIME", callback=_MOMENT,
              help="From this time on: 24h or 7d (ago), or a date or time in the "
                   "organisation's zone.")  # fmt: skip
@click.option("--until", metavar="TIME", callback=_MOMENT,
              help="Until this time: 24h or 7d (ago), or a date or time.")  # fmt: skip
@click.option("--since-ms", type=Whole(min=0), hidden=True)
@click.option("--csv", "as_csv", is_flag=True,
              help="Print all rows as CSV, in the order of their names; times are widened to whole "
                   "quarter hours.")  # fmt: skip
@limited()
@with_client
def usage(
    client: AdminClient, group_by: str, by_model: bool, since: str | None, until: str | None,
    since_ms: int | None, as_csv: bool, limit: int,
) -> None:  # fmt: skip
    """Sum usage by group, most expensive first.

    Teams and persons are those of keys; the keys below a key are for its team and its person. A
    tool has the calls that were reported with its name. Days are those of the organisation's zone
    (`guard gateway settings set zone=Europe/Berlin`). What belongs to no group is a row too, so
    that the rows of a month add up to what it has cost.

    \b
    Examples:
      guard gateway usage --by model
      guard gateway usage --by user --since 24h --limit 20
      guard gateway usage --by team --since 2026-01-01 --until 2026-02-01 --csv > january.csv
      guard gateway usage --by tag:project --by-model --since 2026-01-01
      guard gateway usage --by day --since 2026-01-01 --json
    """
    if since is not None and since_ms is not None:
        raise click.UsageError("give one of --since and --since-ms")
    until_ms = None
    if since or until:
        now_ms, zone = round(time.time() * 1000), zone_of(client.settings()["zone"])
        since_ms = read_since(since, now_ms, zone) if since else since_ms
        until_ms = read_since(until, now_ms, zone) if until else None
    if as_csv or by_model or group_by.startswith(TAG):
        given = "--csv" if as_csv else "--by-model"
        if as_csv and wants_json():
            raise click.UsageError("give one of --csv and --json")
        if group_by not in LISTED_GROUPS and not group_by.startswith(TAG):
            raise click.UsageError(
                f"usage by {group_by} has no list of all rows: leave out {given}"
            )
        every = client.usage_rows(group_by, by_model=by_model, since_ms=since_ms, until_ms=until_ms)
        if as_csv:
            _print_csv(client, group_by, every)
            return
        rows = heapq.nlargest(limit, every, key=operator.itemgetter("cost_nanousd"))
    else:
        rows = client.usage(group_by, since_ms=since_ms, until_ms=until_ms, limit=limit)
    if group_by == "key":
        rows = with_key_names(client, rows, "group")
    columns = ["group", "cost_nanousd", "uncertain_nanousd", "llm_calls", "tool_calls",
               "input_tokens", "output_tokens", "unpriced"]  # fmt: skip
    if by_model:
        columns.insert(1, "model")
    among = [
        f"{word} {moment(at_ms)}"
        for word, at_ms in (("since", since_ms), ("until", until_ms))
        if at_ms is not None
    ]
    show(rows, columns, limit=limit, among=" ".join(among))


def _print_csv(client: AdminClient, group_by: str, rows: Iterator[dict[str, Any]]) -> None:
    """Print rows as they come, in the form of the dashboard's files."""
    names = key_names(client) if group_by == "key" else {}
    text = csv_head(USAGE_COLUMNS)
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        named = ({**row, "by": group_by, "key_name": names.get(row["group"])} for row in some)
        click.echo(text + csv_lines(USAGE_COLUMNS, named), nl=False)
        text = ""
    click.echo(text, nl=False)


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
    rows = with_key_names(client, rows, "target")
    # Without `after` these are the newest, so what is left out lies before them.
    rest = "--after 0" if after is None else f"--after {rows[-1]['seq'] if rows else after}"
    show(rows, ["seq", "at_ms", "of", "actor", "action", "target"], limit=limit, rest=rest,
         among="" if after is None else f"after {after}")  # fmt: skip


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
