"""The place where a program is started, with its settings files. Pure except for ``read`` and
``names``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

Read = Callable[[Path], str | None]
"""Returns the text of a file; None if there is none."""

Names = Callable[[Path], Sequence[str]]
"""Returns the names in a directory; none if there is none."""

_STRING: Final = r'("(?:[^"\\]|\\.)*")|'
_COMMENT: Final = re.compile(_STRING + r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA: Final = re.compile(_STRING + r",(?=\s*[}\]])", re.DOTALL)
"""The parts of JSON with comments that are not JSON; strings match first, so that they stay."""


@attrs.frozen
class StartPlace:
    """The place where a program is started.

    Attributes:
        environ: its environment, without anything of the run's.
        home, cwd: its directories.
        read: reads a file.
        names: lists a directory.
    """

    environ: Mapping[str, str] = attrs.field(repr=False)
    home: Path
    cwd: Path
    read: Read
    names: Names

    def within(self, folder: Path, end: str) -> list[Path]:
        """Return the files of a directory whose names end so."""
        return [folder / name for name in sorted(self.names(folder)) if name.endswith(end)]

    def json(self, *paths: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the path and the JSON object of each file that has one; comments are ignored."""
        for path in paths:
            if value := object_in(self.read(path)):
                yield path, value

    def path(self, variable: str, default: Path) -> Path:
        """Return the directory that a variable names."""
        return Path(self.environ.get(variable) or default)


def object_in(text: str | None) -> dict[str, Any]:
    """Return the JSON object in a text, ignoring comments; an empty one for other texts."""
    try:
        bare = _LAST_COMMA.sub(r"\1", _COMMENT.sub(r"\1", text or ""))
        return mapping(json.loads(bare))
    except ValueError:
        return {}


def mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}


def merged(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Return one object over another, as deep as both have objects."""
    both = {
        name: merged(lower[name], value)
        for name, value in upper.items()
        if isinstance(value, dict) and isinstance(lower.get(name), dict)
    }
    return {**lower, **upper, **both}


def values_of(words: Sequence[str], *names: str, short: str = "") -> Iterator[str]:
    """Yield the values of an option among the words of a command, however it is spelled.

    >>> list(values_of(["-c", "a", "-cb", "-c=c", "--config", "d", "--config=e"], "--config",
    ...                short="-c"))
    ['a', 'b', 'c', 'd', 'e']
    """
    for at, word in enumerate(words):
        if word in (*names, short):
            yield from words[at + 1 : at + 2]
        elif found := next((name for name in names if word.startswith(f"{name}=")), None):
            yield word[len(found) + 1 :]
        elif short and word.startswith(short) and not word.startswith("--"):
            yield word[len(short) :].removeprefix("=")
