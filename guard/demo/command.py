"""The ``guard demo`` command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from guard.breaker.exceptions import BreakerError
from guard.demo.inbox import MESSAGES_MAX, InboxError, read_inbox
from guard.version import installs

if TYPE_CHECKING:
    from guard.gateway.settings import DatabaseUrl

T = TypeVar("T")

SCHEMA_PREFIX: Final = "guard_demo"
# What the demo runs, and a package that only that extra brings.
_EXTRAS: Final = {"gateway": "genai_prices", "spam": "numpy"}


def _database(
    _context: click.Context, _option: click.Parameter, given: str | None
) -> DatabaseUrl | None:
    from guard.gateway.settings import DatabaseUrl, database_of

    if given is None:
        return None
    found = database_of(given)
    if not isinstance(found, DatabaseUrl):
        raise click.BadParameter(
            "an address such as postgresql://guard@127.0.0.1/guard is needed; without this option "
            "the demo uses a SQLite file of its own"
        )
    return found


@click.command()
@click.option(
    "--inbox",
    metavar="FILE",
    help="Messages to triage: one per line, .eml or .mbox; - reads standard input.",
)
@click.option(
    "--database",
    metavar="URI",
    callback=_database,
    help="Run the gateway on postgresql://USER@HOST/NAME, in a new schema that is dropped in the "
    "end; nothing else there is touched.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document for machines.")
def demo(inbox: str | None, database: DatabaseUrl | None, as_json: bool) -> None:
    """Watch an inbox agent under guard: budget, tool policy, kill, exact charges.

    Starts a gateway, a spam service and a local stand-in for an LLM on free loopback ports, runs
    the agent and stops everything again. Needs no account and no network; takes a few seconds.
    Exit code 0 only if everything claimed was observed.

    \b
    Examples:
      guard demo
      guard demo --inbox ~/mail/archive.mbox
      printf 'Lunch at noon?\\nWIN a prize now' | guard demo --inbox - --json
      guard demo --database postgresql://guard@127.0.0.1/guard
    """
    missing = [extra for extra, package in _EXTRAS.items() if find_spec(package) is None]
    if missing:
        raise click.ClickException(
            f"`guard demo` needs the extra {' and '.join(map(repr, missing))}, which is not "
            f"installed: {installs(','.join(_EXTRAS))}"
        )
    from guard.demo.narrator import Narrator

    try:
        messages = read_inbox(inbox)
    except InboxError as exc:
        raise click.ClickException(str(exc)) from None
    from guard.demo.story import tell
    from guard.gateway.admin import AdminError
    from guard.gateway.domain.errors import StoreError
    from spamdetect.errors import SpamError

    # The story tells what happens; warnings of the budget that runs out are part of it.
    logging.getLogger("guard").addHandler(logging.NullHandler())
    narrator = Narrator(as_json=as_json)
    narrator.note(inbox=inbox or "built-in", inbox_truncated=len(messages) > MESSAGES_MAX)
    if len(messages) > MESSAGES_MAX:
        narrator.say(
            f"The inbox contains {len(messages)} messages; the first {MESSAGES_MAX} are used."
        )
    left: list[str] = []
    try:
        with EndedBySigterm() as running, _own_database(database, left) as (own, store):
            complete = running.run(tell(messages, narrator, own, store))
    except (BreakerError, SpamError, StoreError, AdminError, OSError) as exc:
        raise click.ClickException(str(exc)) from None
    finally:
        for text in left:
            click.echo(f"warning: {text}", err=True)
    raise SystemExit(0 if complete and not left else 1)


@contextlib.contextmanager
def _own_database(
    database: DatabaseUrl | None, left: list[str]
) -> Iterator[tuple[str | None, str]]:
    """Yield the URI of a schema of the demo's own and what it is; no URI without a database."""
    if database is None:
        yield None, "SQLite"
        return
    from guard.gateway.databases import temporary_schema

    with temporary_schema(database, SCHEMA_PREFIX, left.append) as schema:
        yield schema.url, f"PostgreSQL, schema {schema.name}"


class EndedBySigterm:
    """Has SIGTERM unwind the block, so that the demo leaves nothing behind.

    Its handler raises nothing: an exception from nowhere may take the step of any task with it,
    and the loop then waits for that task forever. It cancels what ``run`` runs, as ``asyncio`` has
    Ctrl-C do; what the block does before and after comes to its end, and the block to its.

    Raises:
        SystemExit: at the end of ``run`` or of the block, when the signal came.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._number: int | None = None
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        self._end_if_asked()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on a loop of its own, as ``asyncio.run`` does."""

        async def main() -> T:
            self._main = asyncio.current_task()
            self._cancel_if_asked()
            return await coroutine

        try:
            self._end_if_asked()
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                return runner.run(main())
        finally:
            self._loop = self._main = None
            coroutine.close()  # it may not have begun
            self._end_if_asked()

    def _on_sigterm(self, number: int, _frame: object) -> None:
        self._number = number
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._cancel_if_asked)

    def _cancel_if_asked(self) -> None:
        if self._number is not None and self._main is not None:
            self._main.cancel()

    def _end_if_asked(self) -> None:
        if self._number is not None:
            raise SystemExit(128 + self._number)
