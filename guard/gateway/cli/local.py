"""``guard gateway local``: this user's own gateway, for as long as it is used."""

from __future__ import annotations

import contextlib
import json
import signal

import click

from guard.gateway.cli.output import local_gateway


@click.command()
@click.option("--once", is_flag=True, help="Do not stay: it ends some seconds after its last user.")
@click.option("--show-keys", is_flag=True, help="Print its keys too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and do not stay.")
def local(once: bool, show_keys: bool, as_json: bool) -> None:
    """Show this user's local gateway, and keep it running until Ctrl-C.

    Programs start and join it with GUARD_API_URL=local; it needs no key. It listens on loopback,
    and ends some seconds after the last program that uses it. Its data is kept in
    ~/.local/share/guard/local, or in GUARD_LOCAL_DIR.

    \b
    Examples:
      guard gateway local
      guard gateway local --once --show-keys
    """
    with local_gateway() as gateway:
        keys = {
            "GUARD_API_KEY": gateway.identity.api_key,
            "GUARD_HMAC_SECRET": gateway.identity.hmac_secret,
            "GUARD_ADMIN_KEY": gateway.identity.admin_key,
        }
        shown = keys if show_keys else {}
        if as_json:
            facts = {"url": gateway.url, "directory": str(gateway.files.directory), **shown}
            click.echo(json.dumps(facts))
            return
        click.echo(f"local gateway on {gateway.url}")
        click.echo(f"Data: {gateway.files.directory}")
        click.echo(f"Dashboard: {gateway.url}/")
        click.echo("  set the password of its operator, admin: guard gateway password --local")
        for name, value in shown.items():
            click.echo(f"  {name}={value}")
        if not once:
            click.echo("It stays until Ctrl-C.")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
