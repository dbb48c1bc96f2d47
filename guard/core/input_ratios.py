"""How many tokens a model's prompts have at most: bounded by their text, then learned upward."""

from __future__ import annotations

import math
from typing import Final

from guard.core.wire import TOKENS_MAX

OVERHEAD: Final = 32
"""Tokens that a vendor adds to each prompt, before anything is known."""

_OVERHEAD_MAX: Final = 20_000
_MARGIN: Final = 1.1
_LONG: Final = 2048
"""From so many tokens on, the text outweighs what the vendor adds to it."""

_MODELS_MAX: Final = 1024


class InputRatios:
    """Bounds the tokens of prompts by those that their text can have, for each model.

    The bound only rises: an answer whose prompt had more tokens than its bound raises the ratio if
    the prompt was long, and what is added to every prompt if it was short. Thread-safe.

    Example:
        >>> ratios = InputRatios()
        >>> ratios.tokens("m", 3000)
        3032
        >>> ratios.learn("m", 3000, 4500)
        >>> ratios.tokens("m", 3000) > 4500
        True
    """

    def __init__(self) -> None:
        # By model: ratio and overhead, a tuple that is replaced whole, so readers need no lock.
        self._known: dict[str | None, tuple[float, int]] = {}

    def tokens(self, model: str | None, text_tokens: int) -> int:
        """Return the most tokens that a prompt can have whose text has so many at most."""
        known = self._known.get(model)
        if known is None:
            tokens = text_tokens + OVERHEAD
            return min(TOKENS_MAX, tokens)
        ratio, overhead = known
        return min(math.ceil(text_tokens * ratio) + overhead, TOKENS_MAX)

    def learn(self, model: str | None, text_tokens: int, tokens: int) -> None:
        """Take note of how many tokens a prompt had.

        Args:
            model: as the request named it.
            text_tokens: what its text was bounded by.
            tokens: the tokens of the prompt, as the vendor reported them; cached ones included.
        """
        if tokens <= self.tokens(model, text_tokens):
            return
        ratio, overhead = self._known.get(model, (1.0, OVERHEAD))
        found = raised(ratio, overhead, text_tokens, tokens)
        if model not in self._known and len(self._known) >= _MODELS_MAX:
            self._known.pop(next(iter(self._known), None), None)
        self._known[model] = found


def raised(ratio: float, overhead: int, text_tokens: int, tokens: int) -> tuple[float, int]:
    """Return a ratio and an overhead by which a prompt has as many tokens as it had.

    Args:
        ratio, overhead: that were known.
        text_tokens: what the prompt's text was bounded by.
        tokens: the tokens of the prompt.

    >>> raised(1.0, 32, 10_000, 9_000), raised(1.0, 32, 10_000, 20_032)
    ((1.0, 32), (2.2, 32))
    """
    if tokens <= math.ceil(text_tokens * ratio) + overhead:
        return ratio, overhead
    # A long prompt says something about its text, a short one about what is added to it.
    if text_tokens >= _LONG:
        return (tokens - overhead) / text_tokens * _MARGIN, overhead
    more = (tokens - text_tokens * ratio) * _MARGIN
    return ratio, min(_OVERHEAD_MAX, math.ceil(more))
