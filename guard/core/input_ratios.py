"""How many tokens a model's prompts have at most: bounded by their text, then learned upward."""

from __future__ import annotations

import math
from typing import Final

from guard.core.wire import TOKENS_MAX

_OVERHEAD: Final = 32
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
            return min(text_tokens + _OVERHEAD, TOKENS_MAX)
        ratio, overhead = known
        return min(math.ceil(text_tokens * ratio) + overhead, TOKENS_MAX)

    def learn(self, model: str | None, text_tokens: int, tokens: int) -> None:
        """Take note of how many tokens a prompt had.

        Args:
            model: as the request named it.
            text_tokens: what its text was bounded by.
            tokens: of the prompt, as the vendor reported them; cached ones included.
        """
        if tokens <= self.tokens(model, text_tokens):
            return
        ratio, overhead = self._known.get(model, (1.0, _OVERHEAD))
        # A long prompt says something about its text, a short one about what is added to it.
        if text_tokens >= _LONG:
            ratio = (tokens - overhead) / text_tokens * _MARGIN
        else:
            more = (tokens - text_tokens * ratio) * _MARGIN
            overhead = min(_OVERHEAD_MAX, math.ceil(more))
        if model not in self._known and len(self._known) >= _MODELS_MAX:
            self._known.pop(next(iter(self._known), None), None)
        self._known[model] = (ratio, overhead)
