"""The page of the commands, made from the commands themselves when the site is built."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from guard.cli import cli as guard
from guard.gateway.cli.output import admin_options
from spamdetect.cli.main import cli as spamdetect

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGE: Final = "commands"
"""The page that this follows on."""


@click.command()
@admin_options
def _of_a_gateway() -> None:
    """Carry the options that all commands share that ask a gateway."""


_SHARED: Final = {each.name: each for each in _of_a_gateway.params}


def text() -> str:
    """Return the reference of every command, as Markdown."""
    shared = "".join(_rows(_of_a_gateway, _of_a_gateway.params))
    parts = [
        "\n## Options of commands that ask a gateway\n\nMarked *and those of a gateway* below.\n\n",
        f"| Option | |\n|---|---|\n{shared}",
    ]
    gateway = guard.get_command(click.Context(guard), "gateway")
    assert isinstance(gateway, click.Group)
    for name, command in (("guard", guard), ("spamdetect", spamdetect)):
        parts.extend(_command(name, command, gateway, 2))
    return "".join(parts)


def _command(name: str, command: click.Command, gateway: click.Group, level: int) -> Iterator[str]:
    short = name.removeprefix("guard ")
    if gateway.commands.get(short) is command and name == f"guard {short}":
        yield f"\n### {name}\n\nShort for `guard gateway {short}`.\n"
        return
    with click.Context(command, info_name=name) as context:
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        yield f"\n{'#' * level} {name}\n\n```text\n{usage}\n```\n\n{_help(command)}"
        own = [each for each in command.params if not _is_shared(each)]
        rows = list(_rows(command, own))
        if rows:
            yield "\n| Option | |\n|---|---|\n" + "".join(rows)
        if len(own) < len(command.params):
            yield "\nAnd those of a gateway.\n"
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                below = command.get_command(context, each)
                if below is not None and not below.hidden:
                    yield from _command(f"{name} {each}", below, gateway, 3)


def _is_shared(option: click.Parameter) -> bool:
    shared = _SHARED.get(option.name or "")
    return shared is not None and _record(shared) == _record(option)


def _record(option: click.Parameter) -> tuple[str, str]:
    return " ".join(option.opts), getattr(option, "help", "") or ""


def _help(command: click.Command) -> str:
    """Return what a command says of itself; what it prints as it stands is a block."""
    written = inspect.cleandoc(command.help or "").partition("\f")[0]
    parts = []
    for part in re.split(r"\n\s*\n", written):
        told, is_block, lines = part.partition("\b\n")
        if told.strip():
            parts.append(f"{_plain(' '.join(told.split()))}\n")
        if is_block:
            as_it_is = lines.replace("\b\n", "\n")
            parts.append(f"```text\n{as_it_is}\n```\n")
    return "\n".join(parts)


def _rows(command: click.Command, options: list[click.Parameter]) -> Iterator[str]:
    with click.Context(command) as context:
        for option in options:
            record = option.get_help_record(context)
            if record is not None and record[1] and not getattr(option, "hidden", False):
                names, said = (each.replace("|", r"\|") for each in record)
                yield f"| `{names}` | {_plain(' '.join(said.split()))} |\n"


def _plain(written: str) -> str:
    """Return a text of a command whose signs Markdown leaves alone, but for those of code."""
    parts = re.split(r"(`[^`]*`)", written)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>\[\]$])", r"\\\1", part) for part in parts
    )


def _follow(_app: Sphinx, name: str, source: list[str]) -> None:
    if name == PAGE:
        source[0] += text()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _follow)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
