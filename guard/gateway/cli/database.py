"""Backup, restore and migrations: commands on a database, not on a gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from guard.gateway.cli.files import FILE
from guard.gateway.cli.output import safe, store_errors
from guard.gateway.settings import DATABASE, DATABASE_VARIABLE, DatabaseUrl, database_of

F = TypeVar("F", bound=Callable[..., Any])


class Database(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """The name of a SQLite file, or a PostgreSQL URI.

    Args:
        exists: a file must be there already.
    """

    name = "database"

    def __init__(self, *, exists: bool = False) -> None:
        self._file = click.Path(exists=exists, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Tell the two apart."""
        try:
            found = database_of(value)
        except ValueError as exc:
            self.fail(f"it takes {exc}", param, ctx)
        return found if isinstance(found, DatabaseUrl) else self._file.convert(found, param, ctx)


class _File(Database):
    """The name of a SQLite file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a PostgreSQL URI, whose password must not be shown."""
        found = super().convert(value, param, ctx)
        if isinstance(found, DatabaseUrl):
            self.fail("this command is for a SQLite file; use pg_dump and pg_restore", param, ctx)
        return found


def _database(text: str, kind: click.ParamType[Any] | None = None) -> Callable[[F], F]:
    return click.option(
        "--database", type=kind or _File(), default=DATABASE,
        show_default=True, envvar=DATABASE_VARIABLE, show_envvar=True, help=text,
    )  # fmt: skip


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@_database("The database of a gateway on this machine, running or not.", _File(exists=True))
def backup(target: Path, database: Path) -> None:
    """Copy the database while the gateway runs, and check the copy.

    \b
    Example:
      guard gateway backup /backups/gateway-monday.sqlite3
    """
    import sqlite3

    from guard.gateway.databases import backup as copy

    try:
        size = copy(database, target)
    except (OSError, sqlite3.Error) as exc:
        raise click.ClickException(safe(exc)) from None
    click.echo(f"{size} bytes in {target}")


@click.command()
@click.argument("source", type=FILE)
@_database("Where the gateway will open it; the gateway has to be stopped.")
@click.option("--replace", is_flag=True, help="Replace a database that is there; it is kept.")
@click.option("--expect", metavar="SEQ:HASH", help="An audit head noted earlier; it must be there.")
def restore(source: Path, database: Path, replace: bool, expect: str | None) -> None:
    """Make a backup the gateway's database, once it has been checked.

    \b
    Examples:
      guard gateway restore /backups/gateway-monday.sqlite3
      guard gateway restore monday.sqlite3 --database /var/lib/guard/gateway.sqlite3 --replace
    """
    from guard.gateway.databases import restore as put_back

    with store_errors():
        done = put_back(source, database, replace=replace, expect=_head(expect))
    seq, digest = done.audit_head
    click.echo(f"restored {database} from {source} (schema {done.version})")
    click.echo(f"ledger: {done.ledger.balances} balances, {done.ledger.events} events, correct")
    click.echo(f"audit head: {seq}:{digest}")
    if done.kept is not None:
        click.echo(f"the database that was there is now {done.kept}")


def _head(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    seq, _, digest = text.strip().partition(":")
    if not seq.isdigit() or not digest:
        raise click.BadParameter("SEQ:HASH, as `guard gateway audit head` prints it")
    return int(seq), digest


@click.group()
def migrate() -> None:
    """Look at the schema of a database, and bring it up to date.

    A gateway does that by itself when it starts.

    \b
    Examples:
      guard gateway migrate status
      guard gateway migrate up --dry-run
    """


@migrate.command("status")
@_database("The database of a gateway, running or not.", Database())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def migrate_status(database: Path | str, as_json: bool) -> None:
    """Show the schema's version, and the steps that are pending.

    \b
    Example:
      guard gateway migrate status --database /var/lib/guard/gateway.sqlite3 --json
    """
    from guard.gateway.databases import migrator

    with store_errors():
        found = migrator(database).status()
    if as_json:
        pending = [{"number": step.number, "name": step.name} for step in found.pending]
        shown = {"version": found.version, "newest": found.newest, "oldest": found.oldest}
        click.echo(json.dumps({**shown, "pending": pending}))
        return
    if found.version > found.newest:
        click.echo(f"schema {found.version}; this gateway knows {found.newest}, and can run on it")
    else:
        click.echo(f"schema {found.version} of {found.newest}")
    for step in found.pending:
        click.echo(f"  pending: {step.number} {step.name}".rstrip())


@migrate.command("up")
@_database("The database; a gateway on a SQLite file has to be stopped.", Database())
@click.option("--dry-run", is_flag=True, help="Try every step, and take it back.")
@click.option(
    "--preview", is_flag=True, help="Say which rotated keys of release 0.7 become one; do nothing."
)
@click.option(
    "--carry",
    is_flag=True,
    help="From 0.7: the budget of a joined key that is above its limit keeps what it has counted.",
)
def migrate_up(database: Path | str, dry_run: bool, preview: bool, carry: bool) -> None:
    """Apply the pending steps.

    \b
    Examples:
      guard gateway migrate up
      guard gateway migrate up --preview
      guard gateway migrate up --dry-run --database /var/lib/guard/gateway.sqlite3
    """
    from guard.gateway.databases import migrator

    with store_errors():
        found = migrator(database)
        lines = found.preview(carry=carry)
        steps = () if preview else found.up(dry_run=dry_run, carry=carry)
    for line in lines:
        click.echo(safe(line))
    if preview:
        if not lines:
            click.echo("no keys are joined")
        return
    for step in steps:
        done = "would be applied" if dry_run else "applied"
        click.echo(f"{done}: {step.number} {step.name}".rstrip())
    if not steps:
        click.echo("nothing to do")
