"""``guard gateway password``: who may sign in to the dashboard."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from guard.gateway.admin import AdminClient
from guard.gateway.cli.database import Database
from guard.gateway.cli.output import admin_options, client_of, note, safe, where, with_client
from guard.gateway.settings import DatabaseUrl


@click.command()
@click.argument("name", default="admin")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option(
    "--database",
    type=Database(exists=True),
    help="Set it in the SQLite file of a gateway that is not running, or in a PostgreSQL database "
    "(running or not); no admin key needed.",
)
@admin_options
def password(
    name: str, password_stdin: bool, database: Path | DatabaseUrl | None, **options: Any
) -> None:
    """Set the password of a dashboard operator (admin by default) and end their sessions.

    An operator of a new name is added, as an owner. With --organisation the operator sees that
    organisation alone.

    \b
    Examples:
      guard gateway password
      guard gateway password alice --organisation acme
      printf %s "$SECRET" | guard gateway password --password-stdin
      guard gateway password --database guard-gateway.sqlite3
      guard gateway password --database postgresql://guard@db.internal/guard
    """
    if database is not None and options["organisation"]:
        raise click.ClickException("--database sets the password of operators of all organisations")
    secret = ask(password_stdin)
    if database is not None:
        set_in_database(database, name, secret)
        note(f"password set for {name}", {"name": name})
        return
    with client_of(options) as client:
        note(f"password set for {name} on {where()}", client.set_password(name, secret))


@click.command("sign-in-link")
@click.argument("name", default="admin")
@with_client
def sign_in_link(client: AdminClient, name: str) -> None:
    """Make a link for a dashboard operator whose browser is new, while others try passwords.

    Whoever opens it within ten minutes signs in with the password as usual, without
    waiting for anybody else's attempts. The link alone signs nobody in.

    \b
    Examples:
      guard gateway sign-in-link
      guard gateway sign-in-link alice
    """
    made = client.sign_in_link(name)
    link = client.base_url + made["path"]
    note(f"valid for ten minutes:\n  {link}", {**made, "link": link})


def ask(from_stdin: bool) -> str:
    """Return the wanted password: from standard input, or typed twice without echo."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise click.ClickException("no terminal to ask at; pipe it in with --password-stdin")
    wanted: str = click.prompt(
        "Password (12 characters or more)", hide_input=True, confirmation_prompt=True
    )
    return wanted


def set_in_database(database: Path | DatabaseUrl, name: str, secret: str) -> None:
    """Set a password in a file that no gateway has open, or in a PostgreSQL database."""
    from guard.gateway.databases import set_password
    from guard.gateway.domain.errors import ConflictError, StoreError

    try:
        asyncio.run(set_password(database, name, secret))
    except (StoreError, ConflictError, ValueError) as exc:
        raise click.ClickException(safe(exc)) from None


async def greet(app: Any, base_url: str, first_password: str | None = None) -> None:
    """Say where the dashboard is; without a first password, ask for one on a terminal.

    A store that fails meanwhile ends no gateway that serves already: its operators are not known.
    """
    from guard.gateway.domain.errors import StoreError

    try:
        await _greet(app, base_url, first_password)
    except StoreError as exc:
        click.echo(f"Dashboard: {base_url}/ ({exc}; `guard gateway password` sets one)", err=True)


async def _greet(app: Any, base_url: str, first_password: str | None) -> None:
    from guard.gateway.domain.commands import Actor
    from guard.gateway.domain.operators import FIRST_OPERATOR

    has_operators = await app.operators.has_operators()
    if first_password is not None and not has_operators:
        await app.operators.set_password(Actor("first run"), FIRST_OPERATOR, first_password, None)
        has_operators = True
    click.echo(f"Dashboard: {base_url}/")
    if has_operators:
        return
    while sys.stdin.isatty() and sys.stdout.isatty():
        secret = click.prompt(
            f"Password for the dashboard's operator {FIRST_OPERATOR!r} (empty: later)",
            default="", show_default=False, hide_input=True, confirmation_prompt=True,
        )  # fmt: skip
        if not secret:
            break
        try:
            await app.operators.set_password(Actor("terminal"), FIRST_OPERATOR, secret, None)
        except ValueError as exc:
            click.echo(f"  {exc}")
            continue
        click.echo(f"Sign in as {FIRST_OPERATOR}.")
        return
    click.echo(
        "  nobody can sign in yet: with its admin key in GUARD_ADMIN_KEY, set a password by "
        f"`guard gateway password --url {base_url}`"
    )
