"""The demo's output: lines as things happen and a table at the end, or one JSON document."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

WIDTH: Final = 80
_MARK_WIDTH: Final = 7


class Narrator:
    """Prints for people, or collects for machines.

    Args:
        as_json: print nothing until :meth:`conclude` prints one JSON document.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        width = min(WIDTH, Console().width) if sys.stdout.isatty() else WIDTH
        self._console = Console(highlight=False, width=width, quiet=as_json)
        self._facts: dict[str, Any] = {}

    def note(self, **facts: Any) -> None:
        """Keep facts for the JSON document."""
        self._facts.update(facts)

    def act(self, title: str) -> None:
        """Open a part of the story."""
        self._console.print()
        self._console.rule(f"[bold]{escape(title)}[/]", align="left", style="dim")

    def say(self, text: str = "") -> None:
        """Print a line; ``text`` may contain markup, so user text must be escaped."""
        self._console.print(text, soft_wrap=False)

    def step(self, mark: str, style: str, what: str, detail: str) -> None:
        """Print one decision: the request and its outcome."""
        room = WIDTH - len("  ") - _MARK_WIDTH - 2 * len(" ") - len(detail)
        what = "".join(sign if sign.isprintable() else " " for sign in what)
        if cell_len(what) > room:
            what = set_cell_size(what, room - 1).rstrip() + "…"
        self._console.print(
            f"  [{style}]{mark:<{_MARK_WIDTH}}[/] {escape(set_cell_size(what, room))} "
            f"[dim]{escape(detail)}[/]",
            no_wrap=True,
            overflow="crop",
        )

    def user_reads(self, message: str) -> None:
        """Print the message that an end user sees."""
        shown = f"The user reads: “{escape(message)}”"
        self._console.print(Padding(shown, (0, 0, 0, 2 + _MARK_WIDTH + 1)))

    def command(self, text: str) -> None:
        """Print a command that a person could type."""
        self._console.print(f"    [cyan]$ {escape(text)}[/]", soft_wrap=True)

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        """Print a table; every column but the first is aligned to the right."""
        table = Table(title=title, title_justify="left", title_style="bold", width=WIDTH)
        for number, column in enumerate(columns):
            table.add_column(
                column, justify="right" if number else "left", no_wrap=bool(number), ratio=None
            )
        for row in rows:
            table.add_row(*map(escape, row))
        self._console.print()
        self._console.print(table)

    def conclude(self, checks: dict[str, bool]) -> None:
        """Print what was observed."""
        if self._as_json:
            document = {**self._facts, "checks": checks, "ok": all(checks.values())}
            sys.stdout.write(json.dumps(document, indent=2) + "\n")
            return
        self._console.print()
        for text, seen in checks.items():
            mark = "[green]seen[/]" if seen else "[red]MISSING[/]"
            self._console.print(f"  {mark}  {escape(text.replace('_', ' '))}")
        self._console.print()
