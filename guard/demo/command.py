"""The ``guard demo`` command."""

from __future__ import annotations

import asyncio
import logging

import click

from guard.breaker.exceptions import BreakerError
from guard.demo.inbox import MESSAGES_MAX, InboxError, read_inbox


@click.command()
@click.option(
    "--inbox",
    metavar="FILE",
    help="Messages to triage: one per line, .eml or .mbox; - reads standard input.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document for machines.")
def demo(inbox: str | None, as_json: bool) -> None:
    """Watch an inbox agent under guard: budget, tool policy, kill, exact charges.

    Starts a gateway, a spam service and a local stand-in for an LLM on free loopback ports, runs
    the agent and stops everything again. Needs no account and no network; takes a few seconds.
    Exit code 0 only if everything claimed was observed.

    \b
    Examples:
      guard demo
      guard demo --inbox ~/mail/archive.mbox
      printf 'Lunch at noon?\\nWIN a prize now' | guard demo --inbox - --json
    """
    from guard.demo.narrator import Narrator

    try:
        messages = read_inbox(inbox)
    except InboxError as exc:
        raise click.ClickException(str(exc)) from None
    from guard.demo.story import tell
    from spamdetect.errors import SpamError

    # The story tells what happens; warnings of the budget that runs out are part of it.
    logging.getLogger("guard").addHandler(logging.NullHandler())
    narrator = Narrator(as_json=as_json)
    narrator.note(inbox=inbox or "built-in", inbox_truncated=len(messages) > MESSAGES_MAX)
    if len(messages) > MESSAGES_MAX:
        narrator.say(
            f"The inbox contains {len(messages)} messages; the first {MESSAGES_MAX} are used."
        )
    try:
        complete = asyncio.run(tell(messages, narrator))
    except (BreakerError, SpamError, OSError) as exc:
        raise click.ClickException(str(exc)) from None
    raise SystemExit(0 if complete else 1)
