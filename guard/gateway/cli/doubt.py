"""``guard gateway doubt``: charges of which it is not known what the vendor bills."""

from __future__ import annotations

import functools
from typing import Any

import click

from guard.core.wire import dollars
from guard.core.written_numbers import read_dollars
from guard.gateway.admin import AdminClient
from guard.gateway.cli.numbers import read_by
from guard.gateway.cli.output import limited, note, show, wants_json, where, with_client

_SHOWN = ("event_id", "time_ms", "model", "workflow_id", "in_doubt", "why")


@click.group()
def doubt() -> None:
    """List charges in doubt, and say what they have cost.

    If an answer is lost, or a process dies, guard charges the most that it can have cost. A late
    event, a journal or the vendor's bill (reconcile) corrects that; these commands correct the
    rest. Each settlement is in the audit log.

    \b
    Examples:
      guard gateway doubt list
      guard gateway doubt free expired-01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """


@doubt.command("list")
@limited()
@with_client
def doubt_list(client: AdminClient, limit: int) -> None:
    """List charges in doubt, newest first.

    \b
    Examples:
      guard gateway doubt list
      guard gateway doubt list --limit 1000 --json
    """
    rows = client.doubts(limit)
    show(rows if wants_json() else [_for_people(row) for row in rows], _SHOWN, limit=limit)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    why = "its process is gone" if row["holder_gone"] else "its answer was lost"
    amount = dollars(row["doubt_nanousd"])
    return {**row, "time_ms": row["charged_at_ms"], "in_doubt": amount, "why": why}


@doubt.command("settle")
@click.argument("event_id")
@click.option(
    "--cost", "cost_nanousd", metavar="AMOUNT",
    callback=read_by(functools.partial(read_dollars, option="--cost", or_nothing=True)),
    help="What it has cost, such as '$0.02'. By default, what was charged.",
)  # fmt: skip
@with_client
def doubt_settle(client: AdminClient, event_id: str, cost_nanousd: int | None) -> None:
    """Settle a charge in doubt: keep it, or say what it has cost.

    \b
    Examples:
      guard gateway doubt settle expired-01981f5e-6c3a-7b21-9d52-3f0a51c8e677
      guard gateway doubt settle expired-01981f5e-6c3a-7b21-9d52-3f0a51c8e677 --cost '$0.02'
    """
    _settle(client, event_id, cost_nanousd)


@doubt.command("free")
@click.argument("event_id")
@with_client
def doubt_free(client: AdminClient, event_id: str) -> None:
    """Take back a charge in doubt that has cost nothing.

    \b
    Example:
      guard gateway doubt free expired-01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """
    _settle(client, event_id, 0)


def _settle(client: AdminClient, event_id: str, cost_nanousd: int | None) -> None:
    settled = client.settle_doubt(event_id, cost_nanousd)
    cost = dollars(settled["charged_nanousd"])
    note(f"{event_id} has cost {cost}, on {where()}", settled)
