"""``guard gateway copy``: from one machine to replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from guard.gateway.cli.output import store_errors
from guard.gateway.settings import DATABASE_VARIABLE, DatabaseUrl, database_of


class _Only(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """The name of a SQLite file, or a PostgreSQL URI, and not the other one.

    Args:
        name: of what is wanted, for the help text.
        kind: its type.
        refusal: what is said of the other one.
    """

    def __init__(self, name: str, kind: type[Path | DatabaseUrl], refusal: str) -> None:
        self.name = name
        self._kind = kind
        self._refusal = refusal

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the file or the URI."""
        found = database_of(value)
        if not isinstance(found, self._kind):
            self.fail(self._refusal, param, ctx)
        return found


_SOURCE: Final = _Only(
    "file", Path, "a SQLite file is copied; use pg_dump and pg_restore for PostgreSQL"
)
_TARGET: Final = _Only(
    "uri", DatabaseUrl, "an address such as postgresql://guard@db.internal/guard"
)


@click.command()
@click.option(
    "--from", "source", type=_SOURCE, required=True, help="sqlite:FILE, of a stopped gateway."
)
@click.option(
    "--to", "target", type=_TARGET, required=True, envvar=DATABASE_VARIABLE, show_envvar=True,
    help="postgresql://..., an empty database.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Copy and check, and take it back.")
def copy(source: Path, target: DatabaseUrl, dry_run: bool) -> None:
    """Copy a gateway's SQLite database into PostgreSQL, and check the copy.

    Keys, budgets, balances, leases, events and the audit log are the same afterwards, so SDKs go on
    with the keys that they have. The file stays as it is.

    \b
    Examples:
      guard gateway copy --from sqlite:guard-gateway.sqlite3 --to postgresql://guard@db/guard
      guard gateway copy --from guard-gateway.sqlite3 --to postgresql://guard@db/guard --dry-run
    """
    from guard.gateway.databases import copy as put_over

    def told(table: str, rows: int) -> None:
        if rows:
            click.echo(f"  {table}: {rows}")

    with store_errors():
        done = put_over(source, str(target), dry_run=dry_run, told=told)
    seq, digest = done.audit_head
    ledger = done.ledger
    click.echo(f"{'could copy' if dry_run else 'copied'} {source} to {target.host}")
    click.echo(
        f"ledger: {ledger.balances} balances, {ledger.reservations_open} open reservations, "
        f"{ledger.events} events, the same and correct"
    )
    click.echo(f"audit head: {seq}:{digest}")
