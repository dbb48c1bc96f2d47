"""``kill``, ``pause``, ``resume`` and ``revive``: below ``guard gateway``, and in short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from guard.gateway.cli.directive_target import DirectiveTarget
from guard.gateway.cli.numbers import Finite
from guard.gateway.cli.output import admin_options, client_of, examples_of, note, safe, where

_SUMMARIES: Final = {
    "kill": "Kill a workflow: an id, a glob such as 'billing-*', or '*' for everything.",
    "pause": "Pause a workflow (id, glob or '*').",
    "resume": "Lift a pause. A killed workflow stays killed.",
    "revive": "Lift a kill.",
}
_EXAMPLES: Final = {
    "kill": ("kill research --reason 'wrong prompt'", "kill '*'", "kill research --local"),
    "pause": ("pause 'billing-*' --for-seconds 600", "pause research --run 01981f5e-6c3a"),
    "resume": ("resume 'billing-*'",),
    "revive": ("revive research",),
}


def directives(program: str) -> list[click.Command]:
    """Return the commands.

    Args:
        program: what stands before them, for the examples.
    """
    return [_directive(action, program) for action in _SUMMARIES]


def _directive(action: str, program: str) -> click.Command:
    @click.command(
        action, help=f"{_SUMMARIES[action]}\n\n{examples_of(program, *_EXAMPLES[action])}"
    )
    @click.argument("name")
    @click.option("--run", "run_id", help="Only this run.")
    @click.option("--reason", default="", help="Shown to the program and kept in the audit log.")
    @admin_options
    def command(
        name: str, run_id: str | None, reason: str, for_seconds: float | None = None,
        anyway: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        resume_after_ms = None if for_seconds is None else round(for_seconds * 1000)
        with client_of(options) as client:
            aim = DirectiveTarget(client, where(), action, name, run_id)
            if not anyway and (mistake := aim.mistake()):
                raise click.ClickException(safe(mistake))
            message = client.directive(
                action, name, run_id=run_id, reason=reason, resume_after_ms=resume_after_ms
            )
            if options["as_json"]:
                note("", {**message, **aim.facts})
                return
            click.echo(safe(aim.answer()))
            for line in aim.elsewhere():
                click.echo(safe(line), err=True)

    for option in _own_options(action):
        option(command)
    return command


def _own_options(action: str) -> Sequence[Callable[[click.Command], Any]]:
    """Return the options that not all of them have."""
    for_seconds = click.option(
        "--for-seconds", type=Finite(min=0.001), help="Ends by itself after that time."
    )
    anyway = click.option(
        "--anyway", is_flag=True, help="Also if guard knows no such name yet: for later runs."
    )
    return {"kill": [anyway], "pause": [for_seconds, anyway]}.get(action, [])


kill, pause, resume, revive = directives("guard")
