"""Activating a file of rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from guard.gateway.cli.files import FILE, read_rules
from guard.gateway.cli.output import (
    UNMATCHED,
    admin_options,
    anyway_option,
    client_of,
    safe,
    show,
    wants_json,
    where,
)


@click.command()
@click.argument("file", type=FILE)
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@click.option("--prune", is_flag=True, help="Also remove what the file does not name.")
@anyway_option
@admin_options
def apply(file: Path, dry_run: bool, prune: bool, anyway: bool, **options: Any) -> None:
    """Activate the budgets, policies, prices, settings, channels and alerts of a TOML, YAML or
    JSON file. A channel's secret stays out of it: secret_env names the variable that holds it.

    Applying the same file again changes nothing. A rule for a key, a tag or a model that does not
    exist refuses the file, unless --anyway or the rule itself says anyway = true.

    \b
    Examples:
      guard gateway apply guard.toml --dry-run
      guard gateway apply guard.toml --prune
    """
    wanted = read_rules(file)
    _take_secrets(wanted)
    with client_of(options) as client:
        flags = {"dry_run": dry_run, "prune": prune, "anyway": anyway}
        plan = client.request("POST", "/apply", {**wanted, **flags})
        if wants_json():
            show(plan["changes"], [])
            return
        for change in plan["changes"]:
            still = f" ({UNMATCHED})" if change["unmatched"] else ""
            click.echo(safe(f"{change['change']:9} {change['kind']} {change['name']}{still}"))
        tense = "would change" if dry_run else "changed"
        click.echo(safe(f"{plan['changed']} {tense} on {where()}"))


def _take_secrets(wanted: dict[str, Any]) -> None:
    """Put the secrets of channels in the place of the variables that hold them."""
    channels = wanted.get("channels")
    for channel in channels if isinstance(channels, list) else ():
        if not isinstance(channel, dict):
            continue
        for field in ("secret", "signing_secret"):
            variable = channel.pop(f"{field}_env", None)
            if variable is None:
                continue
            value = os.environ.get(str(variable))
            if not value:
                raise click.ClickException(safe(f"{field}_env: the variable {variable} is not set"))
            channel[field] = value
