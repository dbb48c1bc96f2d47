"""The command group, its lazy commands, and how errors look."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import click

from spamdetect.errors import SpamError
from spamdetect.version import __version__

_COMMANDS: Final[dict[str, str]] = {
    "predict": "spamdetect.cli.predict",
    "explain": "spamdetect.cli.predict",
    "classify": "spamdetect.cli.classify",
    "lists": "spamdetect.cli.rules",
    "feedback": "spamdetect.cli.rules",
    "serve": "spamdetect.cli.serve",
    "keys": "spamdetect.cli.keys",
    "bot": "spamdetect.cli.bot",
    "train": "spamdetect.cli.training",
    "evaluate": "spamdetect.cli.training",
    "doctor": "spamdetect.cli.doctor",
}


@contextlib.contextmanager
def _in_two_lines() -> Iterator[None]:
    """Have a mistake in a command line say what it is, and where the rest stands."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        hint = "" if error.ctx is None else f"\nTry '{error.ctx.command_path} --help'."
        raise click.UsageError(f"{error.format_message()}{hint}") from None


class _LazyGroup(click.Group):
    """Imports a command's module only when the command is run or its help shown."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _in_two_lines():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_two_lines():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(_COMMANDS[cmd_name]), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Start here: spamdetect predict 'You won! Claim your prize now'",
)
@click.version_option(__version__, prog_name="spamdetect")
def cli() -> None:
    """Tell spam from ham: here, on files, or as a service."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments; None takes those of the process.

    Returns:
        The exit code: 0 on success, 1 on an error, 2 on wrong usage, 130 after Ctrl-C.
    """
    try:
        outcome = cli.main(args=arguments, prog_name="spamdetect", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SpamError as error:
        click.echo(f"Error: {error.message}", err=True)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); nothing is wrong.
        sys.stderr.close()
        return 0
    return outcome if isinstance(outcome, int) else 0
