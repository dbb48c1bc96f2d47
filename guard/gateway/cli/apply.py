"""Activating a file of budgets, policies, prices and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from guard.gateway.cli.files import FILE, read_rules
from guard.gateway.cli.output import admin_options, client_of, safe, show, wants_json, where


@click.command()
@click.argument("file", type=FILE)
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@click.option("--prune", is_flag=True, help="Also remove what the file does not name.")
@admin_options
def apply(file: Path, dry_run: bool, prune: bool, **options: Any) -> None:
    """Activate the budgets, policies, prices and settings of a TOML, YAML or JSON file.

    Applying the same file again changes nothing.

    \b
    Examples:
      guard gateway apply guard.toml --dry-run
      guard gateway apply guard.toml --prune
    """
    wanted = read_rules(file)
    with client_of(options) as client:
        plan = client.request("POST", "/apply", {**wanted, "dry_run": dry_run, "prune": prune})
        if wants_json():
            show(plan["changes"], [])
            return
        for change in plan["changes"]:
            click.echo(safe(f"{change['change']:9} {change['kind']} {change['name']}"))
        tense = "would change" if dry_run else "changed"
        click.echo(safe(f"{plan['changed']} {tense} on {where()}"))
