"""How many tokens an image of some pixels has, by the vendors' published rules.

OpenAI (https://platform.openai.com/docs/guides/images-vision, "Calculating costs", 2026-11):
either a base and so many tokens for each tile of 512 pixels, after the image's short side was
scaled to 768; or patches of 32 pixels, times a factor. Where the page and the price calculator
differ, or both rules have stood there for a model, the larger counts.

Google (https://ai.google.dev/gemini-api/docs/tokens and ``image-understanding``, 2026-11): 258
tokens up to 384 pixels a side; else 258 for each tile of 768 pixels, or of the short side by 1.5.
Since Gemini 3 a picture has a number of tokens of its own, whatever its size.

Anthropic (https://platform.claude.com/docs/en/build-with-claude/vision, 2026-11): a token for 750
pixels, or for each patch of 28 by 28.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct


class _OpenAI(Struct, frozen=True):
    """A base, tokens for each tile, and thousandths of a token for each patch."""

    base: int
    tile: int
    patch_permille: int = 0


_PATCH_PERMILLE: Final = {"nano": 2_460, "mini": 1_620}
_BY_NAME: Final = (
    ("gpt-4o-mini", _OpenAI(2_833, 5_667)),
    ("gpt-4o", _OpenAI(85, 170)),
    ("gpt-4-turbo", _OpenAI(85, 170)),
    ("gpt-4.1", _OpenAI(85, 170, 1_000)),
    ("gpt-4.5", _OpenAI(85, 170)),
    ("gpt-5", _OpenAI(70, 140, 1_200)),
    ("o1", _OpenAI(75, 150)),
    ("o3", _OpenAI(75, 150)),
    ("o4-mini", _OpenAI(85, 170, 1_720)),
    ("computer-use", _OpenAI(65, 129)),
)
"""By the beginning of the model's name; the first that fits."""

_PATCH: Final = 32
_GEMINI_SMALL, _GEMINI_TILE, _GEMINI_TOKENS = 384, 768, 258
_CLAUDE_PIXELS, _CLAUDE_PATCH = 750, 28


def tokens_by_pixels(model: str, width: int, height: int) -> int | None:
    """Return the most tokens of an image; None where no rule is known for its model.

    >>> tokens_by_pixels("gpt-4o", 1024, 1024), tokens_by_pixels("gpt-4o", 2048, 4096)
    (765, 1105)
    >>> tokens_by_pixels("gpt-4.1-mini", 1024, 1024), tokens_by_pixels("gemini-2.5-pro", 384, 384)
    (1659, 258)
    """
    name = model.lower().rpartition("/")[2]
    if "claude" in name:
        patches = math.ceil(width / _CLAUDE_PATCH) * math.ceil(height / _CLAUDE_PATCH)
        return max(patches, math.ceil(width * height / _CLAUDE_PIXELS))
    if name.startswith(("gemini-1", "gemini-2")):
        return _gemini(width, height)
    rule = next((found for begin, found in _BY_NAME if name.startswith(begin)), None)
    return None if rule is None or "image" in name else _openai(rule, name, width, height)


def _openai(rule: _OpenAI, name: str, width: int, height: int) -> int:
    short, long = sorted((max(1, width), max(1, height)))
    # The short side becomes 768 pixels, two tiles; the long one as many as its ratio makes of it.
    tiles = 2 * -(-3 * long // (2 * short))
    permille = rule.patch_permille
    if name.startswith("gpt") and permille:
        permille = next((f for kind, f in _PATCH_PERMILLE.items() if kind in name), permille)
    patches = math.ceil(width / _PATCH) * math.ceil(height / _PATCH)
    return max(rule.base + rule.tile * tiles, -(-patches * permille // 1000))


def _gemini(width: int, height: int) -> int:
    if max(width, height) <= _GEMINI_SMALL:
        return _GEMINI_TOKENS
    unit = max(1, min(width, height) * 2 // 3)
    return _GEMINI_TOKENS * max(
        math.ceil(width / _GEMINI_TILE) * math.ceil(height / _GEMINI_TILE),
        math.ceil(width / unit) * math.ceil(height / unit),
    )
