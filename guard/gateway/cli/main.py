"""``guard gateway``: runs a gateway and talks to one over the admin API."""

from __future__ import annotations

import shlex
from typing import Any

import click

from guard.gateway.cli.admin_client import AdminClient
from guard.gateway.cli.alerts import alerts
from guard.gateway.cli.apply import apply
from guard.gateway.cli.approvals import approvals
from guard.gateway.cli.budgets import budgets
from guard.gateway.cli.copy import copy
from guard.gateway.cli.database import backup, migrate, restore
from guard.gateway.cli.directives import directives
from guard.gateway.cli.local import local
from guard.gateway.cli.numbers import Finite
from guard.gateway.cli.output import (
    limited,
    moment,
    note,
    safe,
    show,
    wants_json,
    where,
    with_client,
)
from guard.gateway.cli.password import password, sign_in_link
from guard.gateway.cli.people import operators, organisations, sessions
from guard.gateway.cli.policies import policies
from guard.gateway.cli.prices import prices
from guard.gateway.cli.reconcile import reconcile
from guard.gateway.cli.reports import audit, usage
from guard.gateway.cli.serve import serve
from guard.gateway.cli.settings import settings


@click.group()
def gateway() -> None:
    """Run and operate a self-hosted gateway.

    \b
    Examples:
      guard gateway serve
      guard gateway workflows --json
    """


@gateway.command()
@limited()
@click.option("--after", default="", help="Start after this workflow id.")
@with_client
def workflows(client: AdminClient, limit: int, after: str) -> None:
    """List workflows with their state and spend.

    \b
    Examples:
      guard gateway workflows
      guard gateway workflows --after research --limit 20 --json
    """
    rows = client.workflows(after=after, limit=limit)
    columns = ["workflow_id", "state", "reason", "spent_nanousd", "uncertain_nanousd", "calls",
               "events"]  # fmt: skip
    last = shlex.quote(safe(rows[-1]["workflow_id"])) if rows else ""
    show(rows, columns, limit=limit, rest=f"--after {last}")


# -- keys --------------------------------------------------------------------------------------


@gateway.group()
def keys() -> None:
    """Make, list, rotate and revoke keys.

    \b
    Example:
      guard gateway keys list
    """


@keys.command("list")
@with_client
def keys_list(client: AdminClient) -> None:
    """List keys, without their secrets.

    \b
    Example:
      guard gateway keys list
    """
    columns = [
        "key_id",
        "role",
        "name",
        "team",
        "secrets",
        "workflow_id",
        "signed",
        "revoked_at_ms",
    ]
    rows = client.keys()
    if not wants_json():
        rows = [{**row, "secrets": ", ".join(map(_secret, row["secrets"]))} for row in rows]
    show(rows, columns)


def _secret(secret: dict[str, Any]) -> str:
    ends_ms = secret["ends_at_ms"]
    return f"{secret['prefix']}…" + (f" until {moment(ends_ms)}" if ends_ms else "")


@keys.command("create")
@click.argument("name")
@click.option("--workflow", "workflow_id", help="Confine the key to one workflow.")
@click.option(
    "--role",
    type=click.Choice(["sdk", "admin", "proxy"]),
    default="sdk",
    show_default=True,
    help="proxy: for `guard proxy serve`, which names the keys of its callers.",
)
@click.option(
    "--every-organisation",
    is_flag=True,
    default=None,
    help="With --role proxy: for the callers of all organisations.",
)
@click.option("--team", default="", help="Whose work the key is for; lists show it.")
@click.option("--signed", is_flag=True, help="Its requests must be signed; prints the secret.")
@with_client
def keys_create(client: AdminClient, name: str, **wanted: Any) -> None:
    """Make a key and print it once.

    \b
    Examples:
      guard gateway keys create worker --team search
      guard gateway keys create billing --workflow billing --signed
      guard gateway keys create ops --role admin --organisation acme
      guard gateway keys create team-proxy --role proxy
    """
    _show_key(client.create_key_full(name, **wanted))


@keys.command("rotate")
@click.argument("key_id")
@click.option(
    "--overlap-seconds", default=0.0, type=Finite(min=0), help="How long old secrets stay valid."
)
@with_client
def keys_rotate(client: AdminClient, key_id: str, overlap_seconds: float) -> None:
    """Give a key a new secret and end the old ones.

    Its id, its budgets and what they have counted, its policies and its end stay.

    \b
    Example:
      guard gateway keys rotate 01981f5e-6c3a-7b21-9d52-3f0a51c8e677 --overlap-seconds 3600
    """
    _show_key(client.rotate_key(key_id, round(overlap_seconds * 1000)))


@keys.command("revoke")
@click.argument("key_id")
@with_client
def keys_revoke(client: AdminClient, key_id: str) -> None:
    """Revoke a key at once.

    \b
    Example:
      guard gateway keys revoke 01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """
    note(f"revoked {key_id} on {where()}", client.revoke_key(key_id))


def _show_key(made: dict[str, Any]) -> None:
    lines = [f"key {made['key']['key_id']} on {where()}, shown once:", f"  {made['api_key']}"]
    if made.get("hmac_secret"):
        lines.append(f"  GUARD_HMAC_SECRET={made['hmac_secret']}")
    note("\n".join(lines), made)


for _command in (
    serve, organisations, operators, sessions, password, sign_in_link, local, settings, budgets,
    policies, prices, approvals, alerts, usage, reconcile, audit, apply, backup, restore, migrate,
    copy, *directives("guard gateway"),
):  # fmt: skip
    gateway.add_command(_command)
