"""``kill``, ``pause``, ``resume`` and ``revive``: below ``guard gateway``, and in short."""

from __future__ import annotations

from typing import Any, Final

import click
from click.core import ParameterSource

from guard.gateway.cli.output import admin_options, client_of, examples_of, note

_SUMMARIES: Final = {
    "kill": "Kill a workflow: an id, a glob such as 'billing-*', or '*' for everything.",
    "pause": "Pause a workflow (id, glob or '*').",
    "resume": "Lift a pause. A killed workflow stays killed.",
    "revive": "Lift a kill.",
}
_EXAMPLES: Final = {
    "kill": ("kill research --reason 'wrong prompt'", "kill '*'"),
    "pause": ("pause 'billing-*' --for-seconds 600", "pause research --run 01981f5e-6c3a"),
    "resume": ("resume 'billing-*'",),
    "revive": ("revive research",),
}
_IN_SHORT: Final = (
    "At this user's local gateway, which `guard run` uses, unless --url or GUARD_API_URL names "
    "another one."
)


def directives(program: str, *, in_short: bool = False) -> list[click.Command]:
    """Return the commands.

    Args:
        program: what stands before them, for the examples.
        in_short: whether they go to the local gateway when no other one is named.
    """
    return [_directive(action, program, in_short) for action in _SUMMARIES]


def _directive(action: str, program: str, in_short: bool) -> click.Command:
    about = f"{_SUMMARIES[action]}\n\n{_IN_SHORT}" if in_short else _SUMMARIES[action]

    @click.command(action, help=f"{about}\n\n{examples_of(program, *_EXAMPLES[action])}")
    @click.argument("name")
    @click.option("--run", "run_id", help="Only this run.")
    @click.option("--reason", default="", help="Shown to the program and kept in the audit log.")
    @admin_options
    @click.pass_context
    def command(
        context: click.Context, /, name: str, run_id: str | None, reason: str,
        for_seconds: float | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if in_short and context.get_parameter_source("url") is ParameterSource.DEFAULT:
            options["local"] = True
        resume_after_ms = None if for_seconds is None else round(for_seconds * 1000)
        with client_of(options) as client:
            message = client.directive(
                action, name, run_id=run_id, reason=reason, resume_after_ms=resume_after_ms
            )
            note(f"{action}: {name}", message)

    if action == "pause":
        click.option(
            "--for-seconds",
            type=click.FloatRange(min=0.001),
            help="Ends by itself after that time.",
        )(command)
    return command


kill, pause, resume, revive = directives("guard", in_short=True)
