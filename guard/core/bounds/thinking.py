"""Which models reason before they answer, and how small a limit on an answer may be."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

_REASONING: Final = re.compile(
    r"(?:^|[/.:])o[1-9](?:$|[-/.:@])|gpt-(?:[5-9]|oss)|codex|gemini-(?:2\.5|[3-9])"
    r"|deepseek-(?:r\d|reasoner|v3\.[1-9]|v[4-9])|reason|think|magistral|qwq|qwen-?3|grok-(?:3-mini"
    r"|[4-9])|kimi-k2\.[5-9]|glm-(?:4\.[5-9]|[5-9])|minimax-m|nova-2|deep-research|phi-4-r|\br1\b",
    re.IGNORECASE,
)
"""Models that reason unless the request says otherwise."""

_LEAST: Final = 256
_LEAST_STRUCTURED: Final = 4096
"""A JSON value or a call of a tool that is cut short is worth nothing, and thoughts come first."""

_LEAST_NAMED: Final = 1024
"""The fewest tokens that are useful where a request names its own limit."""


@functools.lru_cache(4096)
def reasons(model: str | None) -> bool:
    """Return whether a model is known to reason before it answers.

    >>> reasons("gpt-5-mini"), reasons("gpt-4o"), reasons("us.deepseek.r1-v1:0"), reasons("o1-pro")
    (True, False, True, True)
    """
    return model is not None and _REASONING.search(model) is not None


def least_output(
    named: int | None, *, does_reason: bool, is_structured: bool, thinking: int = 0
) -> int:
    """Return the smallest limit on an answer that may take the place of the request's own.

    Args:
        named: the request's own limit on one answer; None without one.
        does_reason: whether the model reasons.
        is_structured: whether JSON or a call of a tool is asked for.
        thinking: the request's own budget for thinking, which the limit has to exceed.

    >>> least_output(None, does_reason=False, is_structured=False)
    256
    >>> least_output(32_000, does_reason=True, is_structured=True, thinking=10_000)
    11024
    """
    if named is not None:
        least = _LEAST_NAMED
    else:
        least = _LEAST_STRUCTURED if does_reason or is_structured else _LEAST
    if thinking > 0:
        least = max(least, thinking + _LEAST_NAMED)
    return least if named is None or least < named else named


def asks_to_think(thinking: Any) -> bool:
    """Return whether a member asks the model to reason; an empty one says nothing.

    >>> asks_to_think({"type": "disabled"}), asks_to_think({"type": "adaptive"}), asks_to_think({})
    (False, True, False)
    """
    is_off = type(thinking) is dict and thinking.get("type") == "disabled"
    return not is_off and thinking not in (None, {}, [], "")


def thinking_budget(*values: Any) -> int:
    """Return the first budget for thinking that is a number; 0 without one."""
    return next((v for v in values if type(v) is int and v > 0), 0)
