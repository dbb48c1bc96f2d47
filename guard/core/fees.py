"""What vendors charge besides tokens: one table, a line for each unit, each with its source.

A request's bound and an answer's bill both name lines and how many units of each; ``cost`` prices
them, on both sides. What no line stands for is not known to cost anything besides its tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

Unit = Literal[
    "call", "query", "prompt", "request", "container", "image", "character", "second", "token"
]


class Source(NamedTuple):
    """Where a number was read, and when."""

    url: str
    read: str


class Fee(NamedTuple):
    """One line: nano-dollars for each unit."""

    nanousd: int
    unit: Unit
    source: Source


_OPENAI: Final = Source("https://developers.openai.com/api/docs/pricing", "2026-11")
_ANTHROPIC: Final = Source("https://platform.claude.com/docs/en/about-claude/pricing", "2026-11")
_DALL_E: Final = Source("https://platform.openai.com/docs/models/dall-e-3", "2026-11")
_SPEECH: Final = Source("https://platform.openai.com/docs/models/tts-1", "2026-11")
_GOOGLE: Final = Source("https://ai.google.dev/gemini-api/docs/pricing", "2026-11")
_VERTEX: Final = Source("https://cloud.google.com/vertex-ai/generative-ai/pricing", "2026-06")
_GROQ: Final = Source("https://groq.com/pricing", "2026-11")
_PERPLEXITY: Final = Source("https://docs.perplexity.ai/getting-started/pricing", "2026-09")

OPENAI_SEARCH: Final = "openai web search"
OPENAI_PREVIEW_SEARCH: Final = "openai web search preview"
OPENAI_FILE_SEARCH: Final = "openai file search"
ANTHROPIC_SEARCH: Final = "anthropic web search"
GOOGLE_SEARCHED_PROMPT: Final = "google search prompt"
GOOGLE_SEARCH: Final = "google search query"
GOOGLE_MAPPED_PROMPT: Final = "google maps prompt"
GOOGLE_ENTERPRISE_PROMPT: Final = "google enterprise search prompt"
PERPLEXITY_SEARCH: Final = "perplexity search"

FEES: Final[Mapping[str, Fee]] = {
    OPENAI_SEARCH: Fee(10_000_000, "call", _OPENAI),
    # For models that do not reason; what is found is then free.
    OPENAI_PREVIEW_SEARCH: Fee(25_000_000, "call", _OPENAI),
    OPENAI_FILE_SEARCH: Fee(2_500_000, "call", _OPENAI),
    # Code interpreter and hosted shell, for 20 minutes.
    "openai container 1g": Fee(30_000_000, "container", _OPENAI),
    "openai container 4g": Fee(120_000_000, "container", _OPENAI),
    "openai container 16g": Fee(480_000_000, "container", _OPENAI),
    "openai container 64g": Fee(1_920_000_000, "container", _OPENAI),
    "dall-e-2 256x256": Fee(16_000_000, "image", _DALL_E),
    "dall-e-2 512x512": Fee(18_000_000, "image", _DALL_E),
    "dall-e-2 1024x1024": Fee(20_000_000, "image", _DALL_E),
    "dall-e-3 standard": Fee(40_000_000, "image", _DALL_E),
    "dall-e-3 standard wide": Fee(80_000_000, "image", _DALL_E),
    "dall-e-3 hd": Fee(80_000_000, "image", _DALL_E),
    "dall-e-3 hd wide": Fee(120_000_000, "image", _DALL_E),
    "tts-1": Fee(15_000, "character", _SPEECH),
    "tts-1-hd": Fee(30_000, "character", _SPEECH),
    "whisper-1": Fee(100_000, "second", _OPENAI),
    "gpt-transcribe": Fee(75_000, "second", _OPENAI),
    "groq whisper": Fee(30_834, "second", _GROQ),
    "groq whisper turbo": Fee(11_112, "second", _GROQ),
    "groq whisper distil": Fee(5_556, "second", _GROQ),
    "sora-2": Fee(100_000_000, "second", _OPENAI),
    "sora-2-pro 720p": Fee(300_000_000, "second", _OPENAI),
    "sora-2-pro 1024p": Fee(500_000_000, "second", _OPENAI),
    "sora-2-pro 1080p": Fee(700_000_000, "second", _OPENAI),
    ANTHROPIC_SEARCH: Fee(10_000_000, "call", _ANTHROPIC),
    # Gemini 2 and older; since Gemini 3 by the query.
    GOOGLE_SEARCHED_PROMPT: Fee(35_000_000, "prompt", _GOOGLE),
    GOOGLE_SEARCH: Fee(14_000_000, "query", _GOOGLE),
    GOOGLE_MAPPED_PROMPT: Fee(25_000_000, "prompt", _GOOGLE),
    # "Web Grounding for Enterprise" of Gemini 2.0 and 2.5; since Gemini 3 by the query, too.
    GOOGLE_ENTERPRISE_PROMPT: Fee(45_000_000, "prompt", _VERTEX),
    # Sonar's, by how much context its search takes; deep research by the search instead.
    "perplexity request low": Fee(5_000_000, "request", _PERPLEXITY),
    "perplexity request medium": Fee(8_000_000, "request", _PERPLEXITY),
    "perplexity request high": Fee(12_000_000, "request", _PERPLEXITY),
    "perplexity pro request low": Fee(6_000_000, "request", _PERPLEXITY),
    "perplexity pro request medium": Fee(10_000_000, "request", _PERPLEXITY),
    "perplexity pro request high": Fee(14_000_000, "request", _PERPLEXITY),
    "perplexity pro search low": Fee(14_000_000, "request", _PERPLEXITY),
    "perplexity pro search medium": Fee(18_000_000, "request", _PERPLEXITY),
    "perplexity pro search high": Fee(22_000_000, "request", _PERPLEXITY),
    PERPLEXITY_SEARCH: Fee(5_000_000, "query", _PERPLEXITY),
    # Images that a response makes with its tool: by the tokens of the image model.
    "gpt-image-1 output": Fee(40_000, "token", _OPENAI),
    "gpt-image-1 image": Fee(10_000, "token", _OPENAI),
    "gpt-image-1 text": Fee(5_000, "token", _OPENAI),
    "gpt-image-1-mini output": Fee(8_000, "token", _OPENAI),
    "gpt-image-1-mini image": Fee(2_500, "token", _OPENAI),
    "gpt-image-1-mini text": Fee(2_000, "token", _OPENAI),
    "gpt-image-1.5 output": Fee(32_000, "token", _OPENAI),
    "gpt-image-1.5 image": Fee(8_000, "token", _OPENAI),
    "gpt-image-1.5 text": Fee(5_000, "token", _OPENAI),
    "gpt-image-2 output": Fee(30_000, "token", _OPENAI),
    "gpt-image-2 image": Fee(8_000, "token", _OPENAI),
    "gpt-image-2 text": Fee(5_000, "token", _OPENAI),
    "imagen-3": Fee(30_000_000, "image", _GOOGLE),
    "imagen-4 fast": Fee(20_000_000, "image", _GOOGLE),
    "imagen-4": Fee(40_000_000, "image", _GOOGLE),
    "imagen-4 ultra": Fee(60_000_000, "image", _GOOGLE),
    "veo-2": Fee(350_000_000, "second", _GOOGLE),
    "veo-3": Fee(400_000_000, "second", _GOOGLE),
    "veo-3 fast": Fee(150_000_000, "second", _GOOGLE),
    "veo-3.1": Fee(400_000_000, "second", _GOOGLE),
    "veo-3.1 4k": Fee(600_000_000, "second", _GOOGLE),
    "veo-3.1 fast 720p": Fee(100_000_000, "second", _GOOGLE),
    "veo-3.1 fast 1080p": Fee(120_000_000, "second", _GOOGLE),
    "veo-3.1 fast 4k": Fee(300_000_000, "second", _GOOGLE),
    "veo-3.1 lite 720p": Fee(50_000_000, "second", _GOOGLE),
    "veo-3.1 lite 1080p": Fee(80_000_000, "second", _GOOGLE),
}


def cost(fees: Mapping[str, int]) -> int:
    """Return what so many units of some lines cost, in nano-dollars.

    Lines that are not in the table, such as those of a newer peer, are left out.

    >>> cost({"openai web search": 3, "anthropic web search": 1}), cost({})
    (40000000, 0)
    """
    total = 0
    for line, units in fees.items():
        found = FEES.get(line)
        if found is not None:
            total += found.nanousd * units
    return total


_OLDER_GEMINI: Final = re.compile(r"gemini-(?:1|2)(?:$|[.-])")
_REASONING: Final = re.compile(r"gpt-[5-9]|(?:^|[/:.])o[1-9]")


def openai_search(model: str | None, tool: str) -> str:
    """Return the line of OpenAI's web search.

    Args:
        model: that searches.
        tool: the type of the tool, or the model's name where the model itself is one that searches.

    >>> openai_search("gpt-4o", "web_search"), openai_search("gpt-4o", "web_search_preview")
    ('openai web search', 'openai web search preview')
    >>> openai_search("o3-deep-research", "web_search_preview_2025_03_11")
    'openai web search'
    """
    if "preview" in tool and (model is None or _REASONING.search(model) is None):
        return OPENAI_PREVIEW_SEARCH
    return OPENAI_SEARCH


def openai_container(memory: object) -> str:
    """Return the line of a container by its ``memory_limit``; one without a limit has 1 GB.

    >>> openai_container("4g"), openai_container(None), openai_container("other")
    ('openai container 4g', 'openai container 1g', 'openai container 64g')
    """
    line = "openai container 1g" if memory is None else f"openai container {memory}"
    return line if line in FEES else "openai container 64g"


def openai_container_of(tool: Mapping[str, Any]) -> str | None:
    """Return the line of the container that a tool of OpenAI's responses runs in, if it has one.

    The memory of a container that is only named is not known, so it is taken for the largest.

    >>> openai_container_of({"type": "code_interpreter", "container": {"type": "auto"}})
    'openai container 1g'
    >>> openai_container_of({"type": "code_interpreter", "container": "cntr_1"})
    'openai container 64g'
    """
    kind = tool.get("type")
    if kind == "code_interpreter":
        place = tool.get("container")
    elif kind == "shell":
        place = tool.get("environment")
        if type(place) is not dict or place.get("type") == "local":
            return None
    else:
        return None
    if type(place) is dict and "container_id" not in place:
        return openai_container(place.get("memory_limit"))
    return openai_container("")


def google_search(model: str | None) -> str:
    """Return the line of grounding with Google Search: by the prompt, or by the query.

    >>> google_search("gemini-2.5-flash"), google_search("gemini-3-pro-preview")
    ('google search prompt', 'google search query')
    """
    is_older = model is not None and _OLDER_GEMINI.search(model) is not None
    return GOOGLE_SEARCHED_PROMPT if is_older else GOOGLE_SEARCH


def perplexity_request(model: str, size: object, search: object) -> str | None:
    """Return the line of a request to Perplexity; None for a model without one.

    Args:
        model: that is asked.
        size: the ``search_context_size``; one that is not named is taken for the largest.
        search: the ``search_type``; ``auto`` may become a search of the dearest kind.

    >>> perplexity_request("sonar", "low", None), perplexity_request("sonar-pro", None, "auto")
    ('perplexity request low', 'perplexity pro search high')
    >>> perplexity_request("r1-1776", None, None), perplexity_request("sonar-pro", None, None)
    (None, 'perplexity pro request high')
    """
    if "sonar" not in model or "deep-research" in model:
        return None
    size = size if size in ("low", "medium") else "high"
    if search in ("pro", "auto"):
        return f"perplexity pro search {size}"
    return f"perplexity {'pro ' if '-pro' in model else ''}request {size}"


def image_tool(model: object) -> str:
    """Return what the lines of an image model begin with; one that is not known is the dearest.

    >>> image_tool("gpt-image-2.5-flare"), image_tool("gpt-image-1-mini"), image_tool(None)
    ('gpt-image-2', 'gpt-image-1-mini', 'gpt-image-1')
    """
    known = ("gpt-image-1-mini", "gpt-image-1.5", "gpt-image-2")
    return next((line for line in known if str(model).startswith(line)), "gpt-image-1")


# -- models that are charged by the piece alone ---------------------------------------------------

_BY_THE_PIECE: Final = re.compile(
    r"dall-?e-?[23]|tts-1(?:-hd)?(?:-\d+)?$|whisper|gpt-transcribe|sora-2|imagen-[34]|veo-[23]"
)


def by_the_piece(model: str | None) -> bool:
    """Return whether a model is charged by the piece, and not by tokens.

    >>> [by_the_piece(name) for name in ("dall-e-3", "tts-1-hd", "gpt-image-1", "gpt-4o-mini-tts")]
    [True, True, False, False]
    """
    return model is not None and _BY_THE_PIECE.search(model.lower()) is not None


def image(model: str, size: object, quality: object) -> str | None:
    """Return the line of an image; None for a model that is charged by tokens, or is not known.

    What a request names of its size or quality and is not known is taken for the dearest.

    >>> image("dall-e-3", "1792x1024", "hd"), image("dall-e-2", "512x512", None)
    ('dall-e-3 hd wide', 'dall-e-2 512x512')
    >>> image("imagen-4.0-ultra-generate-001", None, None), image("gpt-image-2", None, None)
    ('imagen-4 ultra', None)
    """
    name = model.lower()
    if re.search(r"dall-?e-?3", name):
        line = "dall-e-3 standard" if quality in (None, "standard") else "dall-e-3 hd"
        return line if size in (None, "1024x1024") else f"{line} wide"
    if re.search(r"dall-?e-?2", name):
        line = f"dall-e-2 {size}"
        return line if line in FEES else "dall-e-2 1024x1024"
    if "imagen-3" in name:
        return "imagen-3"
    if "imagen-4" in name:
        kind = next((kind for kind in ("fast", "ultra") if kind in name), "")
        return f"imagen-4 {kind}".strip()
    return None


def speech(model: str) -> str | None:
    """Return the line of a character that is spoken; None for a model that is not known.

    >>> speech("tts-1-hd"), speech("gpt-4o-mini-tts")
    ('tts-1-hd', None)
    """
    found = re.match(r"tts-1(-hd)?", model.lower())
    return None if found is None else found[0]


def transcript(provider: str, model: str) -> str | None:
    """Return the line of a second that is listened to; None for models charged by tokens.

    Where a vendor's price of Whisper is not known, it is at most OpenAI's.

    >>> transcript("openai", "whisper-1"), transcript("openai", "gpt-4o-transcribe")
    ('whisper-1', None)
    >>> transcript("groq", "whisper-large-v3-turbo")
    'groq whisper turbo'
    """
    name = model.lower()
    if "whisper" not in name:
        return "gpt-transcribe" if by_the_piece(model) and "transcribe" in model else None
    if provider != "groq":
        return "whisper-1"
    return " ".join(["groq whisper", *(kind for kind in ("turbo", "distil") if kind in name)])


_GROQ_SECONDS: Final = 10
"""Groq charges shorter sound as so much (https://console.groq.com/docs/speech-to-text, 2026-11)."""


def listened(line: str, seconds: float) -> dict[str, int]:
    """Return what listening to so much sound is charged.

    >>> listened("whisper-1", 3.2), listened("groq whisper", 3.2)
    ({'whisper-1': 4}, {'groq whisper': 10})
    """
    least = _GROQ_SECONDS if line.startswith("groq") else 0
    return {line: max(least, math.ceil(seconds))}


_PRO_SIZES: Final = {
    "720x1280": "720p", "1280x720": "720p", "1024x1792": "1024p", "1792x1024": "1024p",
}  # fmt: skip


def video(model: str, size: object) -> str | None:
    """Return the line of a second of video; None for a model that is not known.

    Args:
        model: that makes it.
        size: in pixels (OpenAI), or a resolution such as ``1080p`` (Google); None for the usual.

    >>> video("sora-2-pro", "1792x1024"), video("sora-2", None), video("sora-2-pro", "other")
    ('sora-2-pro 1024p', 'sora-2', 'sora-2-pro 1080p')
    >>> video("veo-3.1-fast-generate-preview", "1080p"), video("veo-3.0-generate-001", None)
    ('veo-3.1 fast 1080p', 'veo-3')
    """
    name = model.lower()
    if "sora-2-pro" in name:
        return f"sora-2-pro {_PRO_SIZES.get(str(size or '1280x720'), '1080p')}"
    if "sora-2" in name:
        return "sora-2"
    kind = next((kind for kind in ("fast", "lite") if kind in name), "")
    if "veo-3.1" in name:
        if not kind:
            return "veo-3.1" if size in (None, "720p", "1080p") else "veo-3.1 4k"
        line = f"veo-3.1 {kind} {size or '720p'}"
        return line if line in FEES else f"veo-3.1 {kind} {'4k' if kind == 'fast' else '1080p'}"
    if "veo-3" in name:
        return f"veo-3 {kind}" if kind == "fast" else "veo-3"
    return "veo-2" if "veo-2" in name else None
