"""Images, speech, transcripts and videos: how many pieces a request allows, and their tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from guard.core import fees
from guard.core.bounds import files
from guard.core.bounds.forms import Upload
from guard.core.bounds.paid import NOTHING, OPENAI, Paid
from guard.core.usage.message import Message, items, mapping
from guard.core.wire import UNITS_MAX

IMAGES: Final = re.compile(r"/images/(?:generations|edits|variations)$")
SOUND: Final = re.compile(r"/audio/(?:speech|transcriptions|translations)$")
VIDEOS: Final = re.compile(r"/videos(?:/.+)?$")

_SPEECH_BYTES_PER_S: Final = 800
"""No format of sound has fewer."""

_SORA_SECONDS: Final = 4
_VEO_SECONDS: Final = 8
_IMAGEN_IMAGES: Final = 4
"""Of requests that do not say how many (the vendors' own defaults)."""


def is_piecework(path: str) -> bool:
    """Tell whether a path of OpenAI's is one of images or sound."""
    return IMAGES.search(path) is not None or SOUND.search(path) is not None


def pieces(
    provider: str, path: str, model: str | None, said: Message, uploads: Sequence[Upload]
) -> Paid:
    """Return what a request for images, sound or video is charged besides tokens.

    Args:
        provider: whose prices they are: those of others than OpenAI are not known.
        path: of the URL.
        model: that it asks for.
        said: its body, or the fields of its form.
        uploads: the files of its form.
    """
    if provider not in OPENAI:
        return NOTHING
    if VIDEOS.search(path):
        line = None if model is None else fees.video(model, said.get("size"))
        if line is None or not path.endswith("/videos"):
            return Paid(None, "a video whose length or price is not known here")
        return Paid({line: _number(said.get("seconds"), _SORA_SECONDS)})
    if model is None:
        return NOTHING
    if IMAGES.search(path):
        line = fees.image(model, said.get("size"), said.get("quality"))
        return NOTHING if line is None else Paid({line: _number(said.get("n"), 1)})
    if path.endswith("/audio/speech"):
        line = fees.speech(model)
        if line is None:
            return Paid(None, "speech of a model that is not charged by the character")
        return Paid({line: min(len(str(said.get("input"))), UNITS_MAX)})
    line = fees.transcript(model)
    return NOTHING if line is None else Paid({line: _seconds(uploads)})


def google(path: str, model: str | None, said: Message) -> Paid:
    """Return what a request of Google's for images or videos is charged by the piece."""
    given = mapping(said.get("parameters"))
    number = given.get("sampleCount", given.get("numberOfVideos"))
    prompts = max(1, len(items(said.get("instances"))))
    if path.endswith(":predictLongRunning"):
        line = None if model is None else fees.video(model, given.get("resolution"))
        if line is None:
            return Paid(None, "a video whose price is not known here")
        seconds = _number(given.get("durationSeconds"), _VEO_SECONDS)
        return Paid({line: min(seconds * _number(number, 1) * prompts, UNITS_MAX)})
    line = None if model is None else fees.image(model, None, None)
    if line is None:
        return NOTHING
    return Paid({line: min(_number(number, _IMAGEN_IMAGES) * prompts, UNITS_MAX)})


def _number(value: Any, usual: int) -> int:
    """Return how many are asked for; the usual number where that is not said."""
    if type(value) is str and re.fullmatch(r"\d{1,9}(?:\.0*)?", value):
        value = float(value)
    if isinstance(value, int | float) and 0 < value <= UNITS_MAX:
        return math.ceil(value)
    return usual


def _seconds(uploads: Sequence[Upload]) -> int:
    """Return how long uploaded sound is at most."""
    total = 0
    for upload in uploads:
        size = len(upload.content)
        known = files.wav_seconds(upload.content[:4096], size)
        total += math.ceil(size / _SPEECH_BYTES_PER_S if known is None else known)
    return min(max(1, total), UNITS_MAX)


# -- images that are charged by tokens ------------------------------------------------------------

_IMAGE_TOKENS: Final = {"low": 410, "medium": 1_590, "high": 6_250}
"""The largest of the published sizes, by quality; ``auto`` may be any of them."""

_AXIS: Final = {"low": 16, "medium": 48, "high": 96}
_LARGEST_EDGE, _LARGEST_AREA = 3840, 8_294_400
_PARTIAL_TOKENS: Final = 100
_SIZE: Final = re.compile(r"(\d{2,4})x(\d{2,4})$")

EDITED_IMAGE_TOKENS: Final = 7_300
"""Of an image that is to be edited: 65 and 129 for each of up to 6 tiles, and 6,144 with a high
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
    each += _PARTIAL_TOKENS * _number(said.get("partial_images"), 0)
    return each * _number(said.get("n"), 1)


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
