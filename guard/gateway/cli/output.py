"""What the gateway's commands share: options, the client, tables and JSON."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import attrs
import click

from guard.core.plaintext import HOSTS_VARIABLE, flaw_in_address, hosts_in
from guard.core.visible import visible
from guard.core.wire import dollars
from guard.gateway.admin import LIST_MAX, AdminClient, AdminError
from guard.gateway.cli.address import LOCAL, RULE, AddressError, address_of
from guard.gateway.cli.numbers import Whole
from guard.tls import read_fingerprint

if TYPE_CHECKING:
    from guard.local_gateway import LocalGateway

_PIPE_WIDTH: Final = 1000
_WHERE: Final = "guard.where"
_Rows = Sequence[dict[str, Any]]
_ADMIN_OPTIONS: Final = (
    "as_json", "organisation", "admin_key", "url", "tls_fingerprint", "local"
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def _fingerprint(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    try:
        return read_fingerprint(text) if text else None
    except ValueError as exc:
        raise click.BadParameter(f"it takes {exc}") from None


def admin_options(command: F) -> F:
    """Add the options of every command that talks to a gateway."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--organisation", help="Id or name, when the gateway has several."),
        click.option(
            "--admin-key", envvar="GUARD_ADMIN_KEY", show_envvar=True, help="Starts with gda_."
        ),
        click.option("--url", help=RULE),
        click.option(
            "--tls-fingerprint",
            envvar="GUARD_TLS_FINGERPRINT",
            show_envvar=True,
            callback=_fingerprint,
            help="The gateway's certificate, when it made that itself.",
        ),
        click.option(
            "--local",
            is_flag=True,
            help="This user's local gateway, started if need be; no key is needed.",
        ),
    ):
        command = option(command)
    return command


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Add the admin options to a command, which gets the client that they describe first."""

    @admin_options
    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = {name: given.pop(name) for name in _ADMIN_OPTIONS}
        with client_of(options) as client:
            command(client, **given)

    return run


def examples_of(program: str, *commands: str) -> str:
    """Return the part of a help text that shows commands, each after the program's name."""
    lines = "\n".join(f"  {program} {command}" for command in commands)
    return f"\b\nExample{'s' if len(commands) > 1 else ''}:\n{lines}"


@contextlib.contextmanager
def client_of(options: dict[str, Any]) -> Iterator[AdminClient]:
    """Open the admin client that the options describe; errors become one line."""
    with _gateway_of(options) as (admin_key, at):
        click.get_current_context().meta[_WHERE] = at
        client = AdminClient(
            at.url,
            admin_key,
            organisation=options["organisation"],
            tls_fingerprint=options["tls_fingerprint"],
        )
        try:
            yield client
        except AdminError as exc:
            number = f"{exc.status}: " if exc.status < 500 else ""  # of no use to a person
            raise click.ClickException(safe(str(exc).removeprefix(number))) from None
        finally:
            client.close()


@contextlib.contextmanager
def _gateway_of(options: dict[str, Any]) -> Iterator[tuple[str, Where]]:
    """Yield the admin key of a command's gateway, and where that is."""
    admin_key = options["admin_key"]
    try:
        url = address_of(
            os.environ, url=options["url"], local=options["local"], admin_key=admin_key
        )
    except AddressError as exc:
        raise click.ClickException(str(exc)) from None
    if url == LOCAL:
        with local_gateway() as gateway:
            at = Where(gateway.url, gateway.files.directory)
            yield gateway.identity.admin_key, at
        return
    if not admin_key:
        raise click.ClickException(
            f"an admin key is required for {safe(url)}: --admin-key or GUARD_ADMIN_KEY (for this "
            "user's local gateway none is: --local)"
        )
    _require_secure(url)
    yield admin_key, Where(url)


def _require_secure(url: str) -> None:
    """Send a key over no network in clear text; the rule is the one for programs."""
    try:
        allowed = hosts_in(os.environ.get(HOSTS_VARIABLE, ""))
    except ValueError as exc:
        raise click.ClickException(f"{HOSTS_VARIABLE} takes {exc}") from None
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise click.ClickException(
            "write the address without a user and a password; the key goes into --admin-key"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.ClickException(
            f"{safe(url)!r} is no address; write one such as http://127.0.0.1:8787, "
            "https://guard.example.com, or local"
        )
    flaw = flaw_in_address(url, allowed)
    if flaw is not None:
        raise click.ClickException(safe(flaw))


@attrs.frozen
class Where:
    """The gateway that a command has gone to; its text is what answers call it.

    Args:
        url: its address.
        local_directory: of this user's local gateway; None for another one.
    """

    url: str
    local_directory: Path | None = None

    def __str__(self) -> str:
        return safe(f"{self.url}, this user's local gateway" if self.local_directory else self.url)


def where() -> Where:
    """Return the gateway that the command has gone to."""
    found = click.get_current_context().meta[_WHERE]
    assert isinstance(found, Where)
    return found


@contextlib.contextmanager
def local_gateway() -> Iterator[LocalGateway]:
    """Use this user's local gateway in the block; errors become one line."""
    from guard.local_gateway import LocalGatewayError, join

    try:
        gateway = join()
    except LocalGatewayError as exc:
        raise click.ClickException(str(exc)) from None
    try:
        yield gateway
    finally:
        gateway.leave()


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turn a database's errors in the block into one line."""
    from guard.gateway.domain.errors import StoreError

    try:
        yield
    except StoreError as exc:
        raise click.ClickException(safe(exc)) from None


def safe(value: Any) -> str:
    """Return a value for a terminal: names come from outside and may hold control characters."""
    text = visible("" if value is None else str(value))
    return text.replace("\n", "⟨U+000A⟩").replace("\t", "⟨U+0009⟩")


def wants_json() -> bool:
    """Return whether the running command was asked for JSON."""
    return bool(click.get_current_context().params["as_json"])


def limited(default: int = 100) -> Callable[[F], F]:
    """Return the option of a list that may be long, for :func:`show`."""
    return click.option(
        "--limit", default=default, show_default=True, type=Whole(1, LIST_MAX),
        help="How many at most.",
    )  # fmt: skip


def show(
    rows: _Rows, columns: Sequence[str], *, limit: int = 0, rest: str = "", among: str = ""
) -> None:
    """Print rows as a table, or as JSON when asked.

    No value is cut off: wide values are folded in a terminal, and output to a pipe or a file has
    one line for each row.

    Args:
        rows: what to print.
        columns: of the table.
        limit: how many were asked for; 0: all. As many rows may not be all, which stderr says.
        rest: the option that gives the next rows.
        among: which ones were looked for, if not all: "none" says no more than that.
    """
    if limit and len(rows) >= limit:
        ways = [f"--limit (at most {LIST_MAX})"] if limit < LIST_MAX else []
        more = " or ".join([*ways, *([rest] if rest else [])])
        hint = f"; there may be more: {more}" if more else "; there may be more"
        click.echo(f"these are {len(rows)}, the limit{hint}", err=True)
    if wants_json():
        click.echo(json.dumps(list(rows), indent=2))
        return
    if not rows:
        click.echo(f"none {among} on {where()}" if among else f"none on {where()}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(
            column.removesuffix("_ms").removesuffix("_nanousd").replace("_", " "),
            justify="right" if numbers and not column.endswith("_ms") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(safe(_shown(column, row.get(column)))) for column in columns))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(table)


def moment(at_ms: float) -> str:
    """Return a time as people write it."""
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _shown(column: str, value: Any) -> str:
    """Return a value as people write it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if column.endswith(("_at_ms", "_seen_ms", "deadline_ms")) or column == "at_ms":
            return moment(value)
        return dollars(int(value)) if column.endswith("_nanousd") else f"{value:,}"
    return str(value)


def note(text: str, value: Any) -> None:
    """Print one outcome as text, or as JSON when asked."""
    if wants_json():
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo("\n".join(safe(line) for line in text.splitlines()))


def key_names(client: AdminClient) -> dict[str | None, str]:
    """Return the names of an organisation's keys, by id."""
    listed = client.keys()
    return {each["key_id"]: each["name"] for each in listed}


def with_key_names(client: AdminClient, rows: _Rows, column: str) -> list[dict[str, Any]]:
    """Return rows for a person, in which a column names keys before their ids."""
    if wants_json():
        return list(rows)
    names = key_names(client)
    return [
        {**row, column: f"{names[row[column]]} ({row[column]})"} if row[column] in names else row
        for row in rows
    ]


UNMATCHED: Final = "matches nothing yet"
anyway_option: Final = click.option(
    "--anyway", is_flag=True, help="Also for a key, a tag or a model that does not exist yet."
)


def scope_of(record: dict[str, Any], unmatched: Collection[tuple[str, str]] = ()) -> str:
    """Name a record's scope for a person, and say if it is among those that match nothing yet."""
    scope = f"{record['scope_kind']} {record['scope_id']}".strip()
    found = (record["scope_kind"], record["scope_id"]) in unmatched
    return f"{scope} ({UNMATCHED})" if found else scope
