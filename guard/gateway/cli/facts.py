"""``guard gateway facts``: what operators have judged of requests, beside what a release knows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from guard.core.gateway_facts import TRUST
from guard.core.vendors.bodies import FORMATS
from guard.gateway.admin import AdminClient
from guard.gateway.cli.fact_files import read_facts, written
from guard.gateway.cli.files import FILE
from guard.gateway.cli.output import note, safe, show, where, with_client
from guard.gateway.domain.facts import JUDGED, OwnFact

_SHOWN: Final = ("format", "at", "judged", "name", "date", "source")
_format = click.option(
    "--format", "format_", type=click.Choice(FORMATS), help="Only in bodies of this format."
)
_at = click.option("--at", default="", metavar="PLACE", help="The object's place in the body.")


@click.group()
def facts() -> None:
    """List, set, import and remove facts about requests, for a whole organisation.

    Under a limit, guard reserves the most that something unknown in a request could cost. A fact
    says what it is; each running program has it within seconds.

    \b
    Example:
      guard gateway facts list
    """


@facts.command("list")
@click.option("--toml", is_flag=True, help="Print a file for `facts import`.")
@with_client
def facts_list(client: AdminClient, toml: bool) -> None:
    """List the facts that operators have set.

    \b
    Examples:
      guard gateway facts list
      guard gateway facts list --toml > facts.toml
    """
    rows = client.facts()
    if toml:
        click.echo(written(msgspec.convert(rows, list[OwnFact])))
    else:
        show(rows, _SHOWN)


@facts.command("set")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--judged", type=click.Choice(JUDGED), default="neutral", show_default=True,
              help="What it is.")  # fmt: skip
@_format
@_at
@click.option("--source", default="", help="What says so, such as a page of the vendor's.")
@with_client
def facts_set(
    client: AdminClient,
    names: tuple[str, ...],
    judged: str,
    format_: str | None,
    at: str,
    source: str,
) -> None:
    """Judge names in requests: KIND:NAME as a refusal writes it, or with --format a plain name.

    \b
    Examples:
      guard gateway facts set tool:namespace member:theme --source "the agent runs it itself"
      guard gateway facts set deep_search --format chat --judged repeats
    """
    day = dt.datetime.now(dt.UTC).date().isoformat()
    shared = {"judged": judged, "format": format_ or TRUST, "at": at, "source": source,
              "date": day}  # fmt: skip
    _changed(client.change_facts([{**shared, "name": name} for name in names]))


@facts.command("import")
@click.argument("file", type=FILE)
@click.option("--replace", is_flag=True, help="Also remove what the file does not name.")
@with_client
def facts_import(client: AdminClient, file: Path, replace: bool) -> None:
    """Import facts from a TOML file: one of a newer release, or of `facts list --toml`.

    \b
    Examples:
      guard gateway facts import facts.toml
      guard gateway facts import facts.toml --replace
    """
    found, left_out = read_facts(file)
    for sentence in left_out:
        click.echo(safe(sentence), err=True)
    given = msgspec.to_builtins(found)
    _changed(client.change_facts(given, "replace" if replace else "add"))


@facts.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_format
@_at
@with_client
def facts_delete(client: AdminClient, names: tuple[str, ...], format_: str | None, at: str) -> None:
    """Remove facts, so that this release's own count again.

    \b
    Examples:
      guard gateway facts delete tool:namespace
      guard gateway facts delete deep_search --format chat
    """
    gone = [
        each
        for each in client.facts()
        if each["name"] in names and (each["format"], each["at"]) == (format_ or TRUST, at)
    ]
    if missing := set(names) - {each["name"] for each in gone}:
        raise click.ClickException(f"no fact is about {safe(min(missing))}: see `facts list`")
    _changed(client.change_facts(gone, "remove"))


def _changed(found: dict[str, Any]) -> None:
    parts = [f"{found[name]} {name}" for name in ("added", "changed", "removed") if found[name]]
    said = ", ".join(parts) or "nothing changed"
    note(f"{said}; {found['total']} facts on {where()}", found)
