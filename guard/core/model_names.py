"""Names of models: a family, and its dated releases."""

from __future__ import annotations

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


def family(model: str) -> str:
    """Return a model's name without its release.

    >>> family("gpt-4-0613"), family("gemini-1.5-pro-latest"), family("o1"), family("gpt-4")
    ('gpt-4', 'gemini-1.5-pro', 'o1', 'gpt-4')
    """
    while (found := _RELEASE.search(model)) is not None and found.start():
        model = model[: found.start()]
    return model
