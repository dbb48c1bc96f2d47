"""Names of models: an alias, and the dated releases that answer for it."""

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
def names(*models: str | None) -> tuple[str, ...]:
    """Return every name under which budgets of models apply: the models' own, and their families'.

    Args:
        models: the requested model and the one that answered, if known.

    >>> names("gpt-4o-2024-08-06", "gpt-4o")
    ('gpt-4o-2024-08-06', 'gpt-4o')
    >>> names("anthropic.claude-3-5-sonnet-20240620-v1:0")[-1]
    'anthropic.claude-3-5-sonnet'
    """
    found: dict[str, None] = {}
    for model in models:
        if model:
            found[model] = None
            found[family(model)] = None
    return tuple(found)


def family(model: str) -> str:
    """Return a model's name without its release.

    >>> family("gpt-4-0613"), family("gemini-1.5-pro-latest"), family("o1"), family("gpt-4")
    ('gpt-4', 'gemini-1.5-pro', 'o1', 'gpt-4')
    """
    while (found := _RELEASE.search(model)) is not None and found.start():
        model = model[: found.start()]
    return model


def answers(model: str) -> str:
    """Return the name under which the model is learned that answers requests for another.

    >>> answers("gpt-4o")
    'answers for gpt-4o'
    """
    return f"answers for {model}"
