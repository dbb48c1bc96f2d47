"""Command lines of ``env`` that hide variables from the program that it starts.

``env -i python agent.py`` gives its program an empty environment. Variables could be added only on
the command line, which other users can read, and which must not have keys. So the command is
rewritten: ``env`` itself gets the environment that its program would have, and no option that
changes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

_EMPTY: Final = (b"-i", b"-", b"--ignore-environment")
_VALUED: Final = (b"-C", b"--chdir", b"-a", b"--argv0")


@attrs.frozen
class EnvCommand:
    """A command line of ``env``.

    Attributes:
        program: its own name.
        empties: whether it starts from an empty environment.
        removed: the variables that it removes.
        assigned: those that it sets.
        options: its other options.
        rest: the program that it starts, and that one's arguments.
    """

    program: bytes
    empties: bool
    removed: frozenset[bytes]
    assigned: dict[bytes, bytes]
    options: tuple[bytes, ...]
    rest: tuple[bytes, ...]

    def hides(self, names: Iterable[bytes]) -> bool:
        """Return whether one of these variables does not reach its program unchanged."""
        return self.empties or any(name in self.removed | self.assigned.keys() for name in names)

    def environment(self, given: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the environment that its program would have."""
        kept = {} if self.empties else {n: t for n, t in given.items() if n not in self.removed}
        return {**kept, **self.assigned}

    @property
    def words(self) -> list[bytes]:
        """The command that starts the same program in an environment that it inherits."""
        return [self.program, *self.options, *self.rest]


def is_env(words: object) -> bool:
    """Return whether a command is ``env`` with arguments."""
    if not isinstance(words, list | tuple) or len(words) < 2:
        return False
    first = words[0]
    return isinstance(first, str | bytes) and os.path.basename(os.fsencode(first)) == b"env"


def read(words: Sequence[bytes]) -> EnvCommand | None:
    """Read a command line of ``env``; None if it has unknown options or starts no program."""
    empties, removed, options = False, set(), []
    rest = list(words[1:])
    while rest and rest[0].startswith(b"-"):
        word = rest.pop(0)
        if word == b"--":
            break
        if word in _EMPTY:
            empties = True
        elif word in (b"-u", b"--unset") and rest:
            removed.add(rest.pop(0))
        elif word.startswith(b"--unset="):
            removed.add(word.partition(b"=")[2])
        elif word.startswith(b"-u") and not word.startswith(b"--"):
            removed.add(word[2:])
        elif word in _VALUED and rest:
            options += [word, rest.pop(0)]
        elif word.startswith((b"--chdir=", b"--argv0=")):
            options.append(word)
        else:
            return None
    assigned = {}
    while rest and b"=" in rest[0]:
        name, _, text = rest.pop(0).partition(b"=")
        assigned[name] = text
    if not rest:  # it prints the environment
        return None
    return EnvCommand(words[0], empties, frozenset(removed), assigned, tuple(options), tuple(rest))
