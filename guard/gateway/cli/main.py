"""``guard gateway``: runs a gateway and talks to one over the admin API."""

from __future__ import annotations

import shlex
import time
from typing import Any, Final

import click

from guard.core import wire
from guard.core.written_numbers import read_duration
from guard.gateway.admin import AdminClient
from guard.gateway.cli.alerts import alerts
from guard.gateway.cli.apply import apply
from guard.gateway.cli.approvals import approvals
from guard.gateway.cli.budgets import budgets
from guard.gateway.cli.copy import copy
from guard.gateway.cli.database import backup, migrate, restore
from guard.gateway.cli.directives import directives
from guard.gateway.cli.doubt import doubt
from guard.gateway.cli.facts import facts
from guard.gateway.cli.local import local
from guard.gateway.cli.numbers import Finite, read_by
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
from guard.gateway.cli.sign_on import sign_on


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
    show(rows, columns, limit=limit, rest=f"--after {last}",
         among=after and f"after {safe(after)}")  # fmt: skip


# -- keys --------------------------------------------------------------------------------------

_MAY_NAME: Final = (
    "What requests with the key may name themselves behind a proxy: user, workflow, run, tags."
)
_SHOWS_COST: Final = "A proxy tells its requests what they have cost, and what is left."
_EXPIRES: Final = "When the key ends, from now on: 90d, 12h, never."


@gateway.group()
def keys() -> None:
    """Make, list, change, rotate and revoke keys.

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
        "person",
        "purpose",
        "may_name",
        "secrets",
        "workflow_id",
        "signed",
        "expires_at_ms",
        "revoked_at_ms",
    ]
    rows = client.keys()
    if not wants_json():
        rows = [
            {
                **row,
                "may_name": ", ".join(row["may_name"]),
                "secrets": ", ".join(map(_secret, row["secrets"])),
            }
            for row in rows
        ]
    show(rows, columns)


def _may_name(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    if text is None:
        return None
    found = [each.strip() for each in text.split(",") if each.strip()]
    if unknown := [each for each in found if each not in wire.NAMED]:
        raise click.BadParameter(
            f"{unknown[0]!r} is none of {', '.join(wire.NAMED)}, divided by commas"
        )
    return found


def _end(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Read how long a key lasts, in milliseconds; 0 for ever."""
    if text is None or text == "never":
        return None if text is None else 0
    try:
        if lasts_ms := read_duration(text):
            return lasts_ms
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is no length of time; write 90d, 12h, or never")


def _ends_at(lasts_ms: int | None) -> int | None:
    return round(time.time() * 1000) + lasts_ms if lasts_ms else lasts_ms


def _secret(secret: dict[str, Any]) -> str:
    ends_ms, used_ms = secret["ends_at_ms"], secret["used_at_ms"]
    until = f" until {moment(ends_ms)}" if ends_ms else ""
    return f"{secret['prefix']}…{until} ({f'used {moment(used_ms)}' if used_ms else 'unused'})"


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
@click.option("--team", default="",
              help="Whose work the key is for; reports sum it, and budgets have it as the tag "
              "team=TEAM.")  # fmt: skip
@click.option("--person", default="", help="Who has the key; reports sum it.")
@click.option("--purpose", default="", help="What the key is for; lists show it.")
@click.option("--may-name", metavar="KIND,...", default="", callback=_may_name, help=_MAY_NAME)
@click.option("--shows-cost", is_flag=True, help=_SHOWS_COST)
@click.option("--expires", "lasts_ms", metavar="TIME", callback=_end, help=_EXPIRES)
@click.option("--signed", is_flag=True, help="Its requests must be signed; prints the secret.")
@with_client
def keys_create(client: AdminClient, name: str, lasts_ms: int | None, **wanted: Any) -> None:
    """Make a key and print it once.

    \b
    Examples:
      guard gateway keys create worker --team search
      guard gateway keys create laptop --team search --person alice@example.com --purpose coding
      guard gateway keys create billing --workflow billing --signed
      guard gateway keys create ops --role admin --organisation acme
      guard gateway keys create team-proxy --role proxy
      guard gateway keys create ci --may-name run,tags --expires 90d
    """
    _show_key(client.create_key_full(name, expires_at_ms=_ends_at(lasts_ms) or None, **wanted))


@keys.command("set")
@click.argument("key_id")
@click.option("--name", help="What the key is called.")
@click.option("--person", help="Who has the key; '' for nobody.")
@click.option("--purpose", help="What the key is for.")
@click.option(
    "--may-name", metavar="KIND,...", callback=_may_name, help=f"{_MAY_NAME} '' for none."
)
@click.option("--shows-cost/--hides-cost", default=None, help=_SHOWS_COST)
@click.option("--expires", "lasts_ms", metavar="TIME", callback=_end, help=_EXPIRES)
@with_client
def keys_set(client: AdminClient, key_id: str, lasts_ms: int | None, **wanted: Any) -> None:
    """Change a key's name, its end, who has it, what it is for, or what it may name.

    What is set for the key stays, since that goes by its id. Its team never changes.

    \b
    Example:
      guard gateway keys set 01981f5e-6c3a-7b21-9d52-3f0a51c8e677 --person alice@example.com
    """
    wanted["expires_at_ms"] = _ends_at(lasts_ms)
    changes = {name: value for name, value in wanted.items() if value is not None}
    if not changes:
        raise click.UsageError("nothing to change: give --name, --person, --expires or another one")
    note(f"changed {key_id} on {where()}", client.change_key(key_id, **changes))


@keys.command("rotate")
@click.argument("key_id")
@click.option("--overlap", "overlap_ms", default="0", show_default=True, metavar="TIME",
              callback=read_by(read_duration), help="How long old secrets stay valid.")  # fmt: skip
@click.option("--overlap-seconds", hidden=True, type=Finite(min=0), help="As 0.7 had it.")
@with_client
def keys_rotate(
    client: AdminClient, key_id: str, overlap_ms: int, overlap_seconds: float | None
) -> None:
    """Give a key a new secret and end the old ones.

    Its id, its budgets and what they have counted, its policies and its end stay.

    \b
    Example:
      guard gateway keys rotate 01981f5e-6c3a-7b21-9d52-3f0a51c8e677 --overlap 1h
    """
    if overlap_seconds is not None:
        overlap_ms = round(overlap_seconds * 1000)
    _show_key(client.rotate_key(key_id, overlap_ms))


@keys.command("revoke")
@click.argument("key_id")
@click.option("--secret", metavar="PREFIX", help="Only its secret that begins so in `keys list`.")
@with_client
def keys_revoke(client: AdminClient, key_id: str, secret: str | None) -> None:
    """Revoke a key at once, or one of its secrets.

    \b
    Examples:
      guard gateway keys revoke 01981f5e-6c3a-7b21-9d52-3f0a51c8e677
      guard gateway keys revoke 01981f5e-6c3a-7b21-9d52-3f0a51c8e677 --secret gdk_Yb1w8qZk
    """
    if secret is None:
        note(f"revoked {key_id} on {where()}", client.revoke_key(key_id))
    else:
        revoked = client.revoke_secret(key_id, secret.rstrip("…"))
        note(f"revoked the secret {secret} of {key_id} on {where()}", revoked)


def _show_key(made: dict[str, Any]) -> None:
    lines = [f"key {made['key']['key_id']} on {where()}, shown once:", f"  {made['api_key']}"]
    if made.get("hmac_secret"):
        lines.append(f"  GUARD_HMAC_SECRET={made['hmac_secret']}")
    note("\n".join(lines), made)


for _command in (
    serve, organisations, operators, sessions, sign_on, password, sign_in_link, local, settings,
    budgets, policies, prices, facts, approvals, alerts, usage, reconcile, doubt, audit, apply,
    backup, restore, migrate, copy, *directives("guard gateway"),
):  # fmt: skip
    gateway.add_command(_command)
