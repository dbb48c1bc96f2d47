"""Images, audio and files inside a prompt: their tokens by the vendors' published rules.

Their base64 is not text. What is not recognised here is counted as text, which is more; what is
only named (an uploaded file, a document's URL, a video) cannot be bounded.

Sources: https://platform.openai.com/docs/guides/images-vision,
https://platform.claude.com/docs/en/build-with-claude/vision and ``pdf-support``,
https://ai.google.dev/gemini-api/docs/tokens and ``media-resolution``.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

from msgspec import Struct

from guard.core.bounds import files, sound
from guard.core.bounds.image_rules import tokens_by_pixels
from guard.core.usage.message import items

Kind = Literal["", "image", "audio", "document", "video"]

_BASE64_BYTES_MIN: Final = 64

_IMAGE_TOKENS: Final[tuple[tuple[tuple[str, ...], int], ...]] = (
    (("gpt-4o-mini",), 48_200),  # 2,833 and 8 tiles of 5,667
    # At most 8 tiles of 170, or 1,536 patches times 2.46 (nano).
    (("gpt-4o", "gpt-4.1", "gpt-4-", "gpt-4v", "o1", "o3", "o4-mini", "gpt-5-", "gpt-5.1"), 3_800),
    (("gpt-5", "gpt-", "chatgpt", "computer-use"), 12_300),  # 10,000 patches times 1.2
    (("claude-3", "claude-sonnet-4-", "claude-haiku-4-", "claude-opus-4-1"), 1_640),
    (("claude",), 4_800),  # 2,576 pixels on the long edge
    (("gemini-3", "gemini-4"), 2_240),  # media resolution "ultra high"
    (("gemini",), 2_600),  # 258 for each of 10 tiles
    (("pixtral", "mistral", "magistral"), 4_100),
)
_ANY_IMAGE_TOKENS: Final = 12_300

_AUDIO_BYTES_PER_TOKEN: Final = 25
"""Gemini counts 32 tokens per second, OpenAI 10; where its frames are not read, speech is taken to
have 800 bytes per second."""

_AUDIO_TOKENS_PER_S: Final = 32
"""Gemini's count, for sound whose length is known."""

_PDF_PAGE_BYTES: Final = 2_000
_PDF_PAGE_TOKENS: Final = 4_600
"""Both the text and the picture of a page are read (1,500 to 3,000 tokens, and an image's)."""

_KINDS: Final[dict[str, Kind]] = {
    "image": "image", "image_url": "image", "input_image": "image", "computer_screenshot": "image",
    "audio": "audio", "input_audio": "audio", "audio_url": "video",
    "document": "document", "file": "document", "input_file": "document",
    "document_url": "document", "inlineData": "document", "inline_data": "document",
    "fileData": "document", "file_data": "document", "container_upload": "document",
    "video": "video", "video_url": "video", "input_video": "video",
}  # fmt: skip
"""By a block's ``type``, or by the name under which a block stands."""

_URLS: Final = frozenset({"url", "image_url", "file_url", "file_data", "data", "uri"})
_DATA: Final = frozenset({"data", "bytes", "file_data"})
_REFERENCES: Final = frozenset({
    "url", "uri", "file_id", "fileUri", "file_uri", "file_url", "document_url", "s3Location",
    "image_url", "fileId",
})  # fmt: skip
_MIME: Final = ("mimeType", "mime_type", "media_type", "format")
_ARGUMENTS: Final = frozenset({
    "args", "arguments", "parameters", "input_schema", "inputSchema", "json", "response",
    "functionResponse", "function_response", "schema", "response_format", "metadata",
})  # fmt: skip
"""Names under which callers put JSON of their own: that is text, whatever it looks like."""

_IMAGE_FORMATS: Final = frozenset({"png", "jpeg", "jpg", "gif", "webp", "heic", "heif", "bmp"})
_AUDIO_FORMATS: Final = frozenset({
    "wav", "mp3", "flac", "ogg", "opus", "aac", "m4a", "aiff", "webm", "pcm16",
})  # fmt: skip
_TEXT_FORMATS: Final = frozenset({"txt", "md", "csv", "html", "json", "xml"})


class Media(Struct):
    """What a prompt holds beside text.

    Attributes:
        tokens: the tokens of all images, audio and files.
        encoded: their base64, which is no text.
        bounded: False when the size of one is not known.
    """

    tokens: int = 0
    encoded: list[str] = []
    bounded: bool = True


def measure(body: Any, model: str | None) -> Media:
    """Find the images, audio and files in a decoded request, and bound their tokens.

    Args:
        body: the JSON value.
        model: decides how many tokens an image has at most.
    """
    # A list instead of recursion: a body may be nested deeper than Python's stack.
    found = Media()
    waiting: list[_Waiting] = [(body, "", "")]
    while waiting:
        node, kind, mime = waiting.pop()
        if type(node) is list:
            for item in node:
                if type(item) is not str:
                    waiting.append((item, kind, mime))
                elif kind == "image" and len(item) > _BASE64_BYTES_MIN:
                    _add(found, "image", "", item, model)
        elif type(node) is dict:
            _visit(node, _KINDS.get(_text(node.get("type")), kind), mime, found, model, waiting)
    return found


_SOUNDS: Final = frozenset({"audio", "input_audio", "speechConfig", "speech_config"})
_MODALITIES: Final = frozenset({"modalities", "responseModalities", "response_modalities"})


def has_sound(body: Any) -> bool:
    """Return whether a decoded request holds sound, or asks for it.

    >>> has_sound({"modalities": ["text", "audio"]}), has_sound({"content": 'say "audio"'})
    (True, False)
    """
    waiting = [body]
    while waiting:
        node = waiting.pop()
        if type(node) is list:
            waiting += node
        elif type(node) is dict:
            for key, value in node.items():
                if key in _MODALITIES:
                    if any(_text(each).lower() == "audio" for each in items(value)):
                        return True
                elif type(value) is str:
                    if value.startswith(("audio/", "data:audio/")):
                        return True
                elif key in _SOUNDS and value:
                    return True
                elif key not in _ARGUMENTS:
                    waiting.append(value)
    return False


_Waiting = tuple[Any, Kind, str]
"""A value, the kind of the block around it and the MIME type that the block names."""


def _visit(
    node: dict[str, Any],
    kind: Kind,
    mime: str,
    found: Media,
    model: str | None,
    waiting: list[_Waiting],
) -> None:
    mime = next((_text(node[name]) for name in _MIME if name in node), mime)
    called = node.get("type") in ("tool_use", "server_tool_use") or "toolUseId" in node
    if kind == "audio" and "id" in node:  # what the model has said earlier
        found.bounded = False
    for key, value in node.items():
        if type(value) is str:
            if key in _URLS and value.startswith("data:"):
                encoded = value[5:133].partition(";")[0]
                _add(found, _kind_of(encoded, kind), encoded, value, model)
            elif key in _DATA and len(value) > _BASE64_BYTES_MIN:
                _add(found, _kind_of(mime, kind), mime, value, model)
            elif key in _REFERENCES and (kind or key not in ("url", "uri")):
                _refer(found, _kind_of(mime, kind), model)
        elif key in _ARGUMENTS or (key == "input" and called):
            continue
        elif key == "s3Location":
            _refer(found, kind, model)
        else:
            inner: Kind = "image" if key == "images" else _KINDS.get(key, kind)
            waiting.append((value, inner, mime if key == "source" else ""))


def _kind_of(mime: str, kind: Kind) -> Kind:
    """Return the kind of encoded data: by its MIME type or format, else by the block around it."""
    if mime.startswith("image/") or mime in _IMAGE_FORMATS:
        return "image"
    if mime.startswith("audio/") or mime in _AUDIO_FORMATS:
        return "audio"
    if mime.startswith("video/"):
        return "video"
    if mime.startswith("text/") or mime in _TEXT_FORMATS:
        return ""
    return "document" if mime and kind != "image" else kind


def _add(found: Media, kind: Kind, mime: str, encoded: str, model: str | None) -> None:
    if kind == "":
        return  # a text: it is counted as one
    size_bytes = len(encoded) * 3 // 4
    found.encoded.append(encoded)
    if kind == "image":
        found.tokens += _image(encoded, model)
    elif kind == "audio":
        found.tokens += _sound(encoded, size_bytes)
    elif kind == "document" and mime in ("application/pdf", "pdf"):
        pages = files.pdf_pages(files.decoded(encoded, whole=True))
        if pages is None:
            pages = math.ceil(size_bytes / _PDF_PAGE_BYTES)
        found.tokens += pages * _PDF_PAGE_TOKENS
    else:
        found.bounded = False


def _image(encoded: str, model: str | None) -> int:
    """Bound one image by its pixels, where the vendor's rule is known; never above the largest."""
    most = image_tokens(model)
    pixels = files.image_pixels(files.decoded(encoded, whole=False))
    if pixels is None or model is None:
        return most
    tokens = tokens_by_pixels(model, *pixels)
    return most if tokens is None else min(most, tokens)


def _sound(encoded: str, size_bytes: int) -> int:
    seconds = sound.seconds(files.decoded(encoded, whole=True))
    if seconds is None:
        return math.ceil(size_bytes / _AUDIO_BYTES_PER_TOKEN)
    return math.ceil(seconds * _AUDIO_TOKENS_PER_S)


def _refer(found: Media, kind: Kind, model: str | None) -> None:
    if kind == "image":
        found.tokens += image_tokens(model)
    else:
        found.bounded = False


def image_tokens(model: str | None) -> int:
    """Return the most tokens that one image of any size has for a model.

    >>> image_tokens("claude-opus-5"), image_tokens("eu.anthropic.claude-3-haiku-v1:0")
    (4800, 1640)
    """
    name = (model or "").lower()
    for marks, tokens in _IMAGE_TOKENS:
        if any(mark in name for mark in marks):
            return tokens
    return _ANY_IMAGE_TOKENS


def _text(value: Any) -> str:
    return value if type(value) is str else ""
