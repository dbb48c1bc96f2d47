"""Names of models: dated releases are of one family."""

from __future__ import annotations

import functools
import re
from typing import Final

_RELEASE: Final = re.compile(
    r"""[-@_:](?:
        20\d\d[-_]?(?:0[1-9]|1[0-2])[-_]?(?:0[1-9]|[12]\d|3[01])  # -2024-08-06, @20241022
      | (?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])                 # -05-20
      | \d{3,4}                                                   # -0613, -2411, -002
      | latest
      | v\d+(?::\d+)?                                             # -v1:0
    )$""",
    re.VERBOSE,
)


@functools.lru_cache(maxsize=4096)
def family(model: str) -> str:
    """Return a model's name without its release.

    >>> family("gpt-4-0613"), family("gemini-1.5-pro-latest"), family("o1"), family("gpt-4")
    ('gpt-4', 'gemini-1.5-pro', 'o1', 'gpt-4')
    """
    while (found := _RELEASE.search(model)) is not None and found.start():
        model = model[: found.start()]
    return model


def is_release_of(model: str, other: str) -> bool:
    """Return whether two names are of one model: releases of a model have its price, as a rule.

    >>> is_release_of("gpt-4o-2024-08-06", "gpt-4o"), is_release_of("gpt-4", "gpt-4o")
    (True, False)
    """
    return model == other or family(model) == family(other)


def named_in(head: bytes) -> str:
    """Return the model that an answer names, from its first bytes; empty where they name none.

    >>> named_in(b'{"id": "1", "model": "gpt-4o", "choices": [')
    'gpt-4o'
    >>> named_in(b"<html>"), named_in(b'{"model": 7}'), named_in(b'{"model": "gpt-')
    ('', '', '')
    """
    _, found, rest = head.partition(b'"model"')
    colon, _, rest = rest.partition(b'"')
    name, end, _ = rest.partition(b'"')
    if not found or not end or colon.strip() != b":":
        return ""
    return name.decode("utf-8", "replace")
