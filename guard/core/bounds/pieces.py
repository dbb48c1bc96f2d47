"""Images, speech, transcripts and videos: how many pieces a request allows, and their tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from guard.core import fees
from guard.core.bounds import sound
from guard.core.bounds.asked import how_many
from guard.core.bounds.forms import Upload
from guard.core.bounds.paid import NOTHING, OPENAI, Paid
from guard.core.usage.message import Message, items, mapping
from guard.core.wire import UNITS_MAX

IMAGES: Final = re.compile(r"/images/(?:generations|edits|variations)$")
SOUND: Final = re.compile(r"/audio/(?:speech|transcriptions|translations)$")
VIDEOS: Final = re.compile(r"/videos(?:/.+)?$")

_SPEECH_BYTES_PER_S: Final = 800
"""Speech whose frames are not read is taken to have so many."""

_SORA_SECONDS: Final = 4
_VEO_SECONDS: Final = 8
_IMAGEN_IMAGES: Final = 4
"""What a request gets that does not say how many (the vendors' own defaults)."""


def is_piecework(path: str) -> bool:
    """Return whether a path of OpenAI's is one of images or sound."""
    return IMAGES.search(path) is not None or SOUND.search(path) is not None


def pieces(
    provider: str, path: str, model: str | None, said: Message, uploads: Sequence[Upload]
) -> Paid:
    """Return what a request for images, sound or video is charged besides tokens.

    Args:
        provider: whose prices they are: of others than OpenAI only those of transcripts are known.
        path: the path of the URL.
        model: that it asks for.
        said: its body, or the fields of its form.
        uploads: the files of its form.
    """
    if model is not None and SOUND.search(path) and not path.endswith("/speech"):
        line = fees.transcript(provider, model)
        if line is None:
            return NOTHING
        # Some vendors take the address of a sound in place of a file.
        is_sent = uploads and not said.get("url")
        unnumbered = "" if is_sent else "sound that is not in the request: send it as a file"
        return Paid(fees.listened(line, _seconds(uploads)), unnumbered)
    if provider not in OPENAI:
        return NOTHING
    if VIDEOS.search(path):
        line = None if model is None else fees.video(model, said.get("size"))
        if line is None or not path.endswith("/videos"):
            return Paid(None, "a video whose length or price is not known here")
        return Paid({line: how_many(said.get("seconds"), _SORA_SECONDS)})
    if model is None:
        return NOTHING
    if IMAGES.search(path):
        line = fees.image(model, said.get("size"), said.get("quality"))
        return NOTHING if line is None else Paid({line: how_many(said.get("n"), 1)})
    line = fees.speech(model)
    if line is None:
        return Paid(None, "speech of a model that is not charged by the character")
    return Paid({line: min(len(str(said.get("input"))), UNITS_MAX)})


def google(path: str, model: str | None, said: Message) -> Paid:
    """Return what a request of Google's for images or videos is charged by the piece."""
    given = mapping(said.get("parameters"))
    number = given.get("sampleCount", given.get("numberOfVideos"))
    prompts = max(1, len(items(said.get("instances"))))
    if path.endswith(":predictLongRunning"):
        line = None if model is None else fees.video(model, given.get("resolution"))
        if line is None:
            return Paid(None, "a video whose price is not known here")
        seconds = how_many(given.get("durationSeconds"), _VEO_SECONDS)
        return Paid({line: min(seconds * how_many(number, 1) * prompts, UNITS_MAX)})
    line = None if model is None else fees.image(model, None, None)
    if line is None:
        return NOTHING
    return Paid({line: min(how_many(number, _IMAGEN_IMAGES) * prompts, UNITS_MAX)})


def _seconds(uploads: Sequence[Upload]) -> int:
    """Return how long uploaded sound is at most."""
    total = 0
    for upload in uploads:
        known = sound.seconds(upload.content)
        total += math.ceil(len(upload.content) / _SPEECH_BYTES_PER_S if known is None else known)
    return min(max(1, total), UNITS_MAX)
