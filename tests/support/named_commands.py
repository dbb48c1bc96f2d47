"""Commands of guard that a text names: do they exist, with these options and values?"""

from __future__ import annotations

import shlex

import click

from guard.cli import cli


def flaw_of(command: str) -> str | None:
    """Return what of a command does not exist; None: all of it does.

    The options of what it runs are looked up, with their values; nothing runs.
    """
    try:
        words = shlex.split(command)[1:]
    except ValueError as exc:
        return str(exc)
    at: click.Command = cli
    while isinstance(at, click.Group) and words and not words[0].startswith("-"):
        found = at.get_command(click.Context(at), words.pop(0))
        if found is None:
            return "no such command"
        at = found
    try:
        at.make_context("guard", words, resilient_parsing=False)
    except (click.UsageError, click.exceptions.NoArgsIsHelpError) as exc:
        return exc.format_message()
    return None
