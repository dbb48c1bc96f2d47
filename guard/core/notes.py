"""What an agent shows to the person who is asked to approve its call, checked and copied."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final

from guard.core.arguments import shown
from guard.core.wire.codec import WireError, encode
from guard.core.wire.fields import NOTE_BYTES_MAX, NOTE_DEPTH_MAX, NOTE_MESSAGE_MAX
from guard.core.wire.gate import ApprovalNote
from guard.core.wire.text import flaw_in_text

ARGUMENTS: Final = "arguments"
"""Under which the arguments that are shown stand in the details."""

_TOO_LARGE: Final = "too large to show"
_INTEGER_MAX: Final = 2**63
_TAKES: Final = "text, numbers, booleans, None, lists and mappings with text as keys"


class AgentNote(ApprovalNote, omit_defaults=True):
    """A note, and the names of the arguments that are shown with it.

    Args:
        show: names.
    """

    show: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "AgentNote(...)"

    def sent(self, arguments: Mapping[str, Any] | None = None) -> ApprovalNote | None:
        """Return what goes to the gateway; None for nothing.

        Args:
            arguments: the arguments of the call, by name, where they are known.
        """
        details = dict(self.details)
        known = arguments or {}
        values = {name: known[name] for name in self.show if name in known}
        if values:
            details[ARGUMENTS] = {name: shown(value) for name, value in values.items()}
            if len(encode(ApprovalNote(self.message, details))) > NOTE_BYTES_MAX:
                details[ARGUMENTS] = _TOO_LARGE
        if not self.message and not details:
            return None
        return ApprovalNote(self.message, details)


def note_of(
    message: str | None, details: Mapping[str, Any] | None, show: Iterable[str] = ()
) -> AgentNote | None:
    """Return a note, with a copy of the details; None for nothing to show.

    Raises:
        TypeError: it has another type, or JSON does not have something in the details.
        ValueError: too long, nested too deeply, or a number or text that JSON does not have.

    >>> note_of("Pay?", {"to": "ACME", "items": (1, 2)}).details
    {'to': 'ACME', 'items': [1, 2]}
    """
    if message is not None and not isinstance(message, str):
        raise TypeError(f"message is text, not {type(message).__name__}")
    if message is not None and len(message) > NOTE_MESSAGE_MAX:
        raise ValueError(
            f"message has at most {NOTE_MESSAGE_MAX} characters, not {len(message)}; put the rest"
            " into details, or leave it out"
        )
    if message is not None and (flaw := flaw_in_text(message)) is not None:
        raise ValueError(f"message {flaw}")
    if details is not None and not isinstance(details, Mapping):
        raise TypeError(f"details is a mapping, not {type(details).__name__}")
    names = _names(show)
    if names and details is not None and ARGUMENTS in details:
        raise ValueError(f"details have {ARGUMENTS!r}, which show puts there")
    if not message and not details and not names:
        return None
    note = AgentNote(message or "", _plain(details or {}, "details", 2), names)
    try:
        size = len(encode(note))
    except WireError:
        raise ValueError("message and details are text that UTF-8 can represent") from None
    if size > NOTE_BYTES_MAX:
        raise ValueError(
            f"message and details have at most {NOTE_BYTES_MAX} bytes as JSON, not {size}"
        )
    return note


def _names(show: Iterable[str]) -> tuple[str, ...]:
    if isinstance(show, str) or not isinstance(show, Iterable):
        raise TypeError(f"show is a list of names of arguments, not {type(show).__name__}")
    names = tuple(show)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"show has a name that is {type(name).__name__}, not text")
    return names


def _plain(value: Any, place: str, depth: int) -> Any:
    """Return a value as plain JSON data.

    Args:
        value: any.
        place: what it is called in errors, which never repeat a value.
        depth: how deep it is nested.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping | list | tuple):
        if depth > NOTE_DEPTH_MAX:
            raise ValueError(f"details are nested at most {NOTE_DEPTH_MAX - 1} levels deep")
        if not isinstance(value, Mapping):
            return [_plain(each, f"{place}[{at}]", depth + 1) for at, each in enumerate(value)]
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{place} has a key that is {type(key).__name__}, not text")
        return {
            str(key): _plain(each, f"{place}[{str(key)[:64]!r}]", depth + 1)
            for key, each in value.items()
        }
    return _number(value, place)


def _number(value: Any, place: str) -> int | float:
    """Return a number of Python's own kind; numpy's and others' are taken too."""
    if hasattr(type(value), "__index__"):
        whole = operator.index(value)
        if not -_INTEGER_MAX <= whole < _INTEGER_MAX:
            raise ValueError(f"{place} has more than 64 bits; give it as text")
        return whole
    if hasattr(type(value), "__float__"):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{place} is not a finite number")
        return number
    raise TypeError(f"{place} is a {type(value).__name__}; details take {_TAKES}")
