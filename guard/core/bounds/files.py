"""How large or how many pages a file in a prompt is, read from the file itself.

What a reader does not understand, or finds contradictory, it leaves to the flat figures: ``None``.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from typing import Final

_HEAD_CHARS: Final = 4096
_PAGES: Final = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_NO_FRAME: Final = (0xC4, 0xC8, 0xCC)
"""Markers of a JPEG between those of frames: tables, and one that is reserved."""

_PACKED: Final = re.compile(rb"/ObjStm\b(?:(?!endobj|stream)[\0-\xff]){0,400}stream\r?\n")
"""Where objects of a PDF begin that are packed together, as most files of today have them."""

_UNPACKED_BYTES_MAX: Final = 32 * 1024 * 1024

_COUNT: Final = re.compile(rb"/Count\s+(\d{1,6})(?!\d)(?!\s+\d+\s+R)")


def decoded(encoded: str, *, whole: bool) -> bytes:
    """Return a file from base64, or from a data URL: the whole of it, or its head."""
    start = encoded.find(",", 0, 256) + 1 if encoded.startswith("data:") else 0
    end = len(encoded) if whole else start + _HEAD_CHARS
    try:
        return base64.b64decode(encoded[start:end].replace("-", "+").replace("_", "/"))
    except (binascii.Error, ValueError):
        return b""


def pdf_pages(data: bytes) -> int | None:
    """Return how many pages a PDF has at most; ``None`` where it is encrypted, or damaged."""
    if data[:5] != b"%PDF-" or b"/Encrypt" in data:
        return None
    texts, room = [data], _UNPACKED_BYTES_MAX
    for found in _PACKED.finditer(data):
        packed = zlib.decompressobj()
        try:
            texts.append(packed.decompress(data[found.end() :], room))
        except zlib.error:
            return None
        room -= len(texts[-1])
        if not packed.eof or room <= 0:
            return None
    if len(texts) == 1 and b"/ObjStm" in data:
        return None
    pages = sum(len(_PAGES.findall(text)) for text in texts)
    counts = [int(found) for text in texts for found in _COUNT.findall(text)]
    return max(pages, *counts) if pages and counts else None


def image_pixels(head: bytes) -> tuple[int, int] | None:
    """Return the width and height of a PNG, JPEG, GIF or WebP.

    >>> image_pixels(b"GIF89a" + struct.pack("<HH", 640, 480))
    (640, 480)
    """
    if head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR" and len(head) >= 24:
        return struct.unpack(">II", head[16:24])
    if head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:
        return struct.unpack("<HH", head[6:10])
    if head[:3] == b"\xff\xd8\xff":
        return _jpeg_pixels(head)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp_pixels(head)
    return None


def _jpeg_pixels(head: bytes) -> tuple[int, int] | None:
    """Go from segment to segment, up to the one that begins the frame."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker, size = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return (width, height) if width and height else None
        else:
            at += 2 + size
    return None


def _webp_pixels(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":  # the canvas, less one, in 24 bits each
        sides = int.from_bytes(head[24:27], "little"), int.from_bytes(head[27:30], "little")
        return sides[0] + 1, sides[1] + 1
    if kind == b"VP8L" and head[20] == 0x2F:  # 14 bits each, less one
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":  # the upper two bits are a scale
        width, height = struct.unpack("<HH", head[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None
