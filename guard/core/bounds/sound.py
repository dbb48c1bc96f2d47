"""How long a sound is, by its frames.

Bytes say little of it: a second of speech has 3,000 bytes in one file and 100, where somebody is
silent, in another. What a reader does not understand, it leaves to the flat figures: ``None``.

Sources: ISO/IEC 11172-3 and 13818-3 (MP3), 13818-7 (ADTS), RFC 6716 and 7845 (Opus), 9639 (FLAC).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final


def seconds(data: bytes) -> float | None:
    """Return how long a WAV, MP3, AAC, FLAC, Opus or MP4 is.

    >>> form = struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    >>> seconds(b"RIFF" + bytes(4) + b"WAVEfmt " + form + b"data" + bytes(31_960))
    2.0
    """
    try:
        if data[:4] == b"RIFF":
            return _wav(data)
        if data[:4] == b"fLaC":
            return _flac(data)
        if data[:4] == b"OggS":
            return _ogg(data)
        if data[4:8] == b"ftyp":
            return _mp4(data)
        return _frames(data)
    except (struct.error, IndexError):  # it is cut short
        return None


_PCM: Final = (1, 3, 6, 7, 0xFFFE)
"""Forms with as many bytes in each second: integers, floats, the two laws, and their extension."""


def _wav(data: bytes) -> float | None:
    at = data.find(b"fmt ", 12, 4096)
    if data[8:12] != b"WAVE" or at < 0:
        return None
    form, channels, rate, bytes_per_s, _, bits = struct.unpack_from("<HHIIHH", data, at + 8)
    if form not in _PCM or bytes_per_s != channels * rate * bits // 8 or bytes_per_s < 4000:
        return None
    return len(data) / float(bytes_per_s)


def _flac(data: bytes) -> float | None:
    packed = int.from_bytes(data[18:26], "big")
    rate, samples = packed >> 44, packed & 0xF_FFFF_FFFF
    return samples / rate if rate and samples else None


_BITRATES: Final = {  # thousands of bits a second of layer III, by whether it is of version 1
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
_RATES: Final = (44_100, 48_000, 32_000, 0)
_DIVISORS: Final = (4, 0, 2, 1)  # of the rates, by the version: 2.5, none, 2, 1
_AAC_RATES: Final = (
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000,
    7_350, 0, 0, 0,
)  # fmt: skip


def _frames(data: bytes) -> float | None:
    """Go from frame to frame of an MP3, or of AAC as it is streamed."""
    at, total = 0, 0.0
    if data[:3] == b"ID3":  # sizes of seven bits a byte
        a, b, c, d = data[6:10]
        at = 10 + (a << 21 | b << 14 | c << 7 | d)
    while 0 <= at <= len(data) - 7:
        size, length_s = _frame(data, at)
        if not size:  # padding, a tag, or a part that was damaged
            at = data.find(b"\xff", at + 1)
            continue
        total += length_s
        at += size
    return total or None


def _frame(data: bytes, at: int) -> tuple[int, float]:
    """Return the size and the seconds of a frame; a size of 0 where none begins."""
    head = int.from_bytes(data[at : at + 4], "big")
    if head >> 21 != 0x7FF:
        return 0, 0.0
    layer = head >> 17 & 3
    if layer == 0 and head >> 20 == 0xFFF:  # ADTS
        rate = _AAC_RATES[head >> 10 & 15]
        size = (data[at + 3] & 3) << 11 | data[at + 4] << 3 | data[at + 5] >> 5
        return (size, ((data[at + 6] & 3) + 1) * 1024 / rate) if rate and size > 7 else (0, 0.0)
    version = head >> 19 & 3
    divisor = _DIVISORS[version]
    if layer != 1 or not divisor:
        return 0, 0.0
    bitrate, rate = _BITRATES[version == 3][head >> 12 & 15], _RATES[head >> 10 & 3] // divisor
    if not bitrate or not rate:
        return 0, 0.0
    samples = 1152 if version == 3 else 576
    return samples // 8 * bitrate * 1000 // rate + (head >> 9 & 1), samples / rate


_SILK_MS: Final = (10.0, 20.0, 40.0, 60.0)
_CELT_MS: Final = (2.5, 5.0, 10.0, 20.0)


def _ogg(data: bytes) -> float | None:
    if b"OpusHead" not in data[:128]:
        return None
    return sum(map(_opus_ms, _packets(data))) / 1000


def _packets(data: bytes) -> Iterator[bytes]:
    """Yield the first two bytes of each packet."""
    at, is_begun = 0, False
    while (at := data.find(b"OggS", at)) >= 0:
        sizes = data[at + 27 : at + 27 + data[at + 26]]
        at += 27 + len(sizes)
        for size in sizes:
            if not is_begun:
                yield data[at : at + 2]
            is_begun = size == 255
            at += size


def _opus_ms(packet: bytes) -> float:
    if not packet or packet == b"Op":  # the two headers
        return 0.0
    config, code = packet[0] >> 3, packet[0] & 3
    if config < 12:
        each = _SILK_MS[config & 3]
    else:
        each = _SILK_MS[config & 1] if config < 16 else _CELT_MS[config & 3]
    return each * (packet[1] & 63 if code == 3 else min(code + 1, 2))


def _mp4(data: bytes) -> float | None:
    at = data.find(b"mvhd")
    if at < 0:
        return None
    is_long = data[at + 4] == 1
    scale, length = struct.unpack_from(
        ">IQ" if is_long else ">II", data, at + (24 if is_long else 16)
    )
    return length / scale if scale and length else None
