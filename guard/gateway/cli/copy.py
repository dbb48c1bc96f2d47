"""``guard gateway copy``: from one machine to replicas, and back."""

from __future__ import annotations

from pathlib import Path

import click

from guard.gateway.cli.database import Database
from guard.gateway.cli.output import safe, store_errors
from guard.gateway.settings import DATABASE_VARIABLE, DatabaseUrl


@click.command()
@click.option(
    "--from", "source", type=Database(), required=True,
    help="sqlite:FILE or postgresql://..., of gateways that are stopped.",
)  # fmt: skip
@click.option(
    "--to", "target", type=Database(), required=True, envvar=DATABASE_VARIABLE, show_envvar=True,
    help="postgresql://..., an empty database; or sqlite:FILE, a new file.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Copy and check, and take it back.")
def copy(source: Path | DatabaseUrl, target: Path | DatabaseUrl, dry_run: bool) -> None:
    """Copy a gateway's SQLite database into PostgreSQL, or back, and check the copy.

    Keys, budgets, balances, leases, events and the audit log are the same afterwards, so SDKs go on
    with the keys that they have. The source stays as it is.

    \b
    Examples:
      guard gateway copy --from sqlite:guard-gateway.sqlite3 --to postgresql://guard@db/guard
      guard gateway copy --from guard-gateway.sqlite3 --to postgresql://guard@db/guard --dry-run
      guard gateway copy --from postgresql://guard@db/guard --to sqlite:guard-gateway.sqlite3
    """
    if isinstance(source, Path) and isinstance(target, Path):
        raise click.UsageError("from file to file: use `guard gateway backup` and `restore`")
    if not isinstance(source, Path) and not isinstance(target, Path):
        raise click.UsageError("from PostgreSQL to PostgreSQL: use pg_dump and pg_restore")
    from guard.gateway.databases import copy as put_over

    def told(table: str, rows: int) -> None:
        if rows:
            click.echo(f"  {table}: {rows}")

    with store_errors():
        done = put_over(source, target, dry_run=dry_run, told=told)
    seq, digest = done.audit_head
    ledger = done.ledger
    did = "could copy" if dry_run else "copied"
    click.echo(f"{did} {_called(source)} to {_called(target)}")
    click.echo(
        f"ledger: {ledger.balances} balances, {ledger.reservations_open} open reservations, "
        f"{ledger.events} events, the same and correct"
    )
    click.echo(f"audit head: {seq}:{digest}")


def _called(database: Path | DatabaseUrl) -> str:
    return str(database) if isinstance(database, Path) else safe(database.host)
