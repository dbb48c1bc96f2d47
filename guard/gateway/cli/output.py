"""What the gateway's commands share: options, the client, tables and JSON."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click

from guard.gateway.cli.admin_client import AdminClient, AdminError

_PIPE_WIDTH: Final = 1000

F = TypeVar("F", bound=Callable[..., Any])


def admin_options(command: F) -> F:
    """Add the options of every command that talks to a gateway."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--organisation", help="Id or name, when the gateway has several."),
        click.option(
            "--admin-key", envvar="GUARD_ADMIN_KEY", show_envvar=True, help="Starts with gda_."
        ),
        click.option(
            "--url",
            envvar="GUARD_GATEWAY_URL",
            default="http://127.0.0.1:8787",
            show_default=True,
            show_envvar=True,
        ),
    ):
        command = option(command)
    return command


def examples_of(*commands: str) -> str:
    """Return the part of a help text that shows commands, each after ``guard gateway``."""
    lines = "\n".join(f"  guard gateway {command}" for command in commands)
    return f"\b\nExample{'s' if len(commands) > 1 else ''}:\n{lines}"


@contextlib.contextmanager
def client_of(options: dict[str, Any]) -> Iterator[AdminClient]:
    """Open the admin client that the options describe; errors become one line."""
    if not options["admin_key"]:
        raise click.ClickException("an admin key is required: --admin-key or GUARD_ADMIN_KEY")
    client = AdminClient(options["url"], options["admin_key"], organisation=options["organisation"])
    try:
        yield client
    except AdminError as exc:
        raise click.ClickException(safe(str(exc))) from None
    finally:
        client.close()


def safe(value: Any) -> str:
    """Return a value for a terminal: names come from outside and may hold control characters."""
    text = "" if value is None else str(value)
    return "".join(
        char if not unicodedata.category(char).startswith("C") else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def show(options: dict[str, Any], rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print rows as a table, or as JSON when asked.

    Nothing is cut off: wide values are folded in a terminal, and output to a pipe or a file has
    one line for each row.
    """
    if options["as_json"]:
        click.echo(json.dumps(list(rows), indent=2))
        return
    if not rows:
        click.echo("none")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(
            column.removesuffix("_ms").replace("_cents", " ct").replace("_", " "),
            justify="right" if numbers and not column.endswith("_ms") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(safe(_shown(column, row.get(column)))) for column in columns))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(table)


def _shown(column: str, value: Any) -> str:
    """Return a value as people write it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if column.endswith(("_at_ms", "_seen_ms", "deadline_ms")) or column == "at_ms":
            moment = dt.datetime.fromtimestamp(value / 1000, dt.UTC)
            return moment.strftime("%Y-%m-%d %H:%M:%SZ")
        return f"{value:,.4f}" if column.endswith("_cents") else f"{value:,}"
    return str(value)


def note(options: dict[str, Any], text: str, value: Any) -> None:
    """Print one outcome as text, or as JSON when asked."""
    if options["as_json"]:
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo("\n".join(safe(line) for line in text.splitlines()))


def scope_of(record: dict[str, Any]) -> str:
    """Name a record's scope for a person."""
    return f"{record['scope_kind']} {record['scope_id']}".strip()
