"""Images that are charged by tokens: the most of their size and quality."""

from __future__ import annotations

import re
from typing import Final

from guard.core.bounds.asked import how_many
from guard.core.usage.message import Message

_IMAGE_TOKENS: Final = {"low": 410, "medium": 1_590, "high": 6_250}
"""The largest of the published sizes, by quality; ``auto`` may be any of them."""

_AXIS: Final = {"low": 16, "medium": 48, "high": 96}
_LARGEST_EDGE, _LARGEST_AREA = 3840, 8_294_400
_PARTIAL_TOKENS: Final = 100
_SIZE: Final = re.compile(r"(\d{2,4})x(\d{2,4})$")

_GIF_FRAMES: Final = 9
"""What a moving image has unless it says so (openai 3.52.0, types/image_generate_params.py)."""

EDITED_IMAGE_TOKENS: Final = 7_300
"""An image that is to be edited costs 65, and 129 for each of up to 6 tiles, and 6,144 with a high
input fidelity (https://platform.openai.com/docs/guides/images-vision, 2026-11)."""


def image_tokens(model: str | None, said: Message) -> int:
    """Return the most output tokens of the images that a request asks for.

    Of ``gpt-image-2`` by the calculator of
    https://developers.openai.com/api/docs/guides/image-generation, 2026-11.

    >>> image_tokens("gpt-image-1", {"n": 2, "quality": "low"})
    820
    >>> image_tokens("gpt-image-2", {"quality": "high", "size": "1024x1024"})
    7024
    """
    quality = said.get("quality")
    if not isinstance(quality, str) or quality not in _IMAGE_TOKENS:
        quality = "high"
    newer = _newer_image(quality, said.get("size"))
    if model is not None and "gpt-image-2" in model:
        each = newer
    elif model is not None and re.search(r"gpt-image-1|chatgpt-image", model):
        each = _IMAGE_TOKENS[quality]
    else:
        each = max(newer, _IMAGE_TOKENS[quality])
    each += _PARTIAL_TOKENS * how_many(said.get("partial_images"), 0)
    if said.get("output_format") == "gif":
        each *= how_many(said.get("frame_count"), _GIF_FRAMES)
    return each * how_many(said.get("n"), 1)


def _newer_image(quality: str, size: object) -> int:
    axis = _AXIS[quality]
    found = _SIZE.match(size) if isinstance(size, str) else None
    if found is None:
        short = axis
        area = _LARGEST_AREA
    else:
        width, height = int(found[1]), int(found[2])
        longer, shorter = max(width, height, 1), min(width, height)
        short = (2 * axis * shorter + longer) // (2 * longer)
        area = min(width * height, _LARGEST_EDGE**2)
    return -(-axis * short * (2_000_000 + area) // 4_000_000)
