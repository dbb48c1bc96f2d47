"""``guard gateway``: runs a gateway and talks to one over the admin API."""

from __future__ import annotations

from typing import Any

import click

from guard.gateway.cli.apply import apply
from guard.gateway.cli.approvals import approvals
from guard.gateway.cli.budgets import budgets
from guard.gateway.cli.copy import copy
from guard.gateway.cli.database import backup, migrate, restore
from guard.gateway.cli.directives import directives
from guard.gateway.cli.local import local
from guard.gateway.cli.output import (
    admin_options,
    client_of,
    note,
    show,
)
from guard.gateway.cli.password import password
from guard.gateway.cli.policies import policies
from guard.gateway.cli.prices import prices
from guard.gateway.cli.reports import audit, usage
from guard.gateway.cli.serve import serve


@click.group()
def gateway() -> None:
    """Run and operate a self-hosted gateway.

    \b
    Examples:
      guard gateway serve
      guard gateway workflows --json
    """


gateway.add_command(serve)
gateway.add_command(password)
gateway.add_command(local)


# -- control -----------------------------------------------------------------------------------

for directive in directives("guard gateway"):
    gateway.add_command(directive)


@gateway.command()
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@click.option("--after", default="", help="Start after this workflow id.")
@admin_options
def workflows(limit: int, after: str, **options: Any) -> None:
    """List workflows with their state and spend.

    \b
    Examples:
      guard gateway workflows
      guard gateway workflows --after research --limit 20 --json
    """
    with client_of(options) as client:
        rows = client.workflows(after=after, limit=limit)
        show(options, rows, ["workflow_id", "state", "reason", "spent_cents", "calls", "events"])


# -- keys --------------------------------------------------------------------------------------


@gateway.group()
def keys() -> None:
    """Make, list, rotate and revoke keys.

    \b
    Example:
      guard gateway keys list
    """


@keys.command("list")
@admin_options
def keys_list(**options: Any) -> None:
    """List keys, without their secrets.

    \b
    Example:
      guard gateway keys list
    """
    with client_of(options) as client:
        columns = ["key_id", "role", "name", "prefix", "workflow_id", "signed", "revoked_at_ms"]
        show(options, client.keys(), columns)


@keys.command("create")
@click.argument("name")
@click.option("--workflow", "workflow_id", help="Confine the key to one workflow.")
@click.option("--role", type=click.Choice(["sdk", "admin"]), default="sdk", show_default=True)
@click.option("--signed", is_flag=True, help="Its requests must be signed; prints the secret.")
@admin_options
def keys_create(
    name: str, workflow_id: str | None, role: str, signed: bool, **options: Any
) -> None:
    """Make a key and print it once.

    \b
    Examples:
      guard gateway keys create worker
      guard gateway keys create billing --workflow billing --signed
      guard gateway keys create ops --role admin --organisation acme
    """
    with client_of(options) as client:
        made = client.create_key_full(name, workflow_id=workflow_id, role=role, signed=signed)
        _show_key(options, made)


@keys.command("rotate")
@click.argument("key_id")
@click.option("--overlap-seconds", default=0.0, help="How long the old key stays valid.")
@admin_options
def keys_rotate(key_id: str, overlap_seconds: float, **options: Any) -> None:
    """Make a new key with the same scope and end the old one.

    \b
    Example:
      guard gateway keys rotate 01981f5e-6c3a-7b21-9d52-3f0a51c8e677 --overlap-seconds 3600
    """
    with client_of(options) as client:
        _show_key(options, client.rotate_key(key_id, round(overlap_seconds * 1000)))


@keys.command("revoke")
@click.argument("key_id")
@admin_options
def keys_revoke(key_id: str, **options: Any) -> None:
    """Revoke a key at once.

    \b
    Example:
      guard gateway keys revoke 01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """
    with client_of(options) as client:
        note(options, f"revoked {key_id}", client.revoke_key(key_id))


def _show_key(options: dict[str, Any], made: dict[str, Any]) -> None:
    lines = [f"key {made['key']['key_id']}, shown once:", f"  {made['api_key']}"]
    if made.get("hmac_secret"):
        lines.append(f"  GUARD_HMAC_SECRET={made['hmac_secret']}")
    note(options, "\n".join(lines), made)


for _command in (
    budgets,
    policies,
    prices,
    approvals,
    usage,
    audit,
    backup,
    restore,
    migrate,
    copy,
    apply,
):
    gateway.add_command(_command)
