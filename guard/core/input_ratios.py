"""How many tokens a model's prompt has for each byte: assumed first, then learned upward."""

from __future__ import annotations

import math
from typing import Final

from guard.core.wire import TOKENS_MAX

_FIRST: Final = 1 / 3
"""Tokens per byte of JSON before anything is known."""

_LARGEST: Final = 1.0
"""A token is never shorter than a byte."""

_OVERHEAD: Final = 32
"""Tokens that a vendor adds to each prompt, before anything is known."""

_OVERHEAD_MAX: Final = 20_000
_MARGIN: Final = 1.1
_LONG_BYTES: Final = 4096
"""From here on the text outweighs what the vendor adds to it."""

_MODELS_MAX: Final = 1024


class InputRatios:
    """Bounds the tokens of prompts by their size in bytes, for each model.

    The bound only rises: an answer whose prompt had more tokens than its bound raises the ratio if
    the prompt was long, and what is added to every prompt if it was short. Thread-safe.

    Example:
        >>> ratios = InputRatios()
        >>> ratios.tokens("m", 3000)
        1032
        >>> ratios.learn("m", 30_000, 15_000)
        >>> ratios.tokens("m", 30_000) > 15_000
        True
    """

    def __init__(self) -> None:
        # By model: ratio and overhead, a tuple that is replaced whole, so readers need no lock.
        self._known: dict[str | None, tuple[float, int]] = {}

    def tokens(self, model: str | None, size_bytes: int) -> int:
        """Return the most tokens that a prompt of this size can have."""
        ratio, overhead = self._known.get(model, (_FIRST, _OVERHEAD))
        return min(math.ceil(size_bytes * ratio) + overhead, TOKENS_MAX)

    def learn(self, model: str | None, size_bytes: int, tokens: int) -> None:
        """Take note of how many tokens a prompt had.

        Args:
            model: as the request named it.
            size_bytes: what its tokens were bounded by.
            tokens: of the prompt, as the vendor reported them; cached ones included.
        """
        if tokens <= self.tokens(model, size_bytes):
            return
        ratio, overhead = self._known.get(model, (_FIRST, _OVERHEAD))
        # A long prompt says something about its text, a short one about what is added to it.
        if size_bytes >= _LONG_BYTES:
            ratio = min(_LARGEST, (tokens - overhead) / size_bytes * _MARGIN)
        else:
            more = (tokens - size_bytes * ratio) * _MARGIN
            overhead = min(_OVERHEAD_MAX, math.ceil(more))
        if model not in self._known and len(self._known) >= _MODELS_MAX:
            self._known.pop(next(iter(self._known), None), None)
        self._known[model] = (ratio, overhead)
