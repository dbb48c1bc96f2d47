"""Finds the numbers of an answer that no rule charges: ``vendors/answers/counters.toml``."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources
from typing import Any, Final

from guard.core.member_names import JudgedNames, words_of
from guard.core.usage.message import Message

COUNTER: Final = "counter:"

Places = dict[str, frozenset[str]]
"""The members that are known, by the place of their object."""

_NAMES_MAX: Final = 16
_LABEL_LENGTH_MAX: Final = 100
_DEPTH_MAX: Final = 8


@functools.cache
def places(kind: str) -> Places:
    """Return what is known of the usage in one format.

    Args:
        kind: ``chat``, ``responses``, ``messages``, ``gemini``, ``interactions``, ``converse`` or
            ``cohere``.
    """
    file = resources.files("guard.core.vendors").joinpath("answers", "counters.toml")
    found: dict[str, set[str]] = {}
    for group in tomllib.loads(file.read_text("utf-8"))[kind]:
        names = found.setdefault(group["at"], set())
        for each in ("consumed", "informative"):
            names.update(group.get(each, "").split())
        if group["at"]:  # an object is known by its table
            outer, _, name = group["at"].rpartition(".")
            found.setdefault(outer, set()).add(name)
    return {place: frozenset(names) for place, names in found.items()}


def strangers(kind: str, usage: Message) -> tuple[str, ...]:
    """Return the numbers in a usage that are on no list, such as ``counter:NAME``.

    >>> strangers("chat", {"prompt_tokens": 3, "orbit_tokens": 9, "mood": 4, "video_tokens": 0})
    ('counter:orbit_tokens', 'counter:mood')
    >>> strangers("chat", {"prompt_tokens_details": {"orbit": {"count": 2}}})
    ('counter:prompt_tokens_details.orbit.count',)
    """
    known = places(kind)
    if usage.keys() <= known[""] and not any(type(each) in _NESTED for each in usage.values()):
        return ()
    found: list[str] = []
    _look(known, "", usage, found, 0)
    return tuple(dict.fromkeys(found))[:_NAMES_MAX]


_NESTED: Final = (dict, list)


def _look(known: Places, place: str, node: Any, found: list[str], depth: int) -> None:
    if type(node) is list:
        for each in node:
            if type(each) in _NESTED:
                _look(known, place, each, found, depth)
        return
    here = known.get(place, frozenset())
    for name, value in node.items():
        inner = f"{place}.{name}" if place else name
        if type(value) in _NESTED:
            if (name not in here or inner in known) and depth < _DEPTH_MAX:
                _look(known, inner, value, found, depth + 1)
        elif name not in here and _is_number(value):
            found.append(f"{COUNTER}{inner}"[:_LABEL_LENGTH_MAX])


def contradicted(**rests: int) -> tuple[str, ...]:
    """Return which numbers of an answer are less than what is said to be in them.

    Args:
        rests: what is left of each without its parts.

    >>> contradicted(input_tokens=3, output_tokens=-2)
    ('counter:output_tokens.parts',)
    """
    return tuple(f"{COUNTER}{name}.parts" for name, rest in rests.items() if rest < 0)


def _is_number(value: Any) -> bool:
    if type(value) is str:
        return _WRITTEN.fullmatch(value) is not None and float(value) > 0
    return type(value) in (int, float) and value > 0


_WRITTEN: Final = re.compile(r"\s*[0-9]{1,12}(?:\.[0-9]{1,6})?\s*")

_WORDS: Final = (
    "audio", "bill", "call", "character", "charge", "cost", "count", "credit", "fee", "frame",
    "image", "input", "minute", "output", "page", "pixel", "price", "prompt", "quer", "read",
    "request", "search", "second", "sound", "source", "speech", "surcharge", "tick", "token",
    "tool", "unit", "use", "usd", "video", "word", "write",
)  # fmt: skip


def can_cost(name: str) -> bool:
    """Return whether a number that is on no list may be charged, by the words of its name.

    >>> can_cost("counter:details.video_tokens"), can_cost("counter:latency_ms")
    (True, False)
    """
    return _COUNTS[name]


def _counts(name: str) -> bool:
    return any(word.startswith(_WORDS) for word in words_of(name.removeprefix(COUNTER)))


_COUNTS: Final = JudgedNames(_counts)
