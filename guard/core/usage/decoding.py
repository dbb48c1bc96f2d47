"""Content encodings, decoded piece by piece with bounded output.

gzip and deflate come with Python. Brotli and zstd are decoded when a package for it is installed:
a Python client that asks a server for them has one, and the proxy's extra brings both.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

_PIECE_BYTES: Final = 256 * 1024

PLAIN_BYTES_MAX: Final = 32 * 1024 * 1024
"""A request's body that is larger when it is decoded is not read."""

_MAGIC: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""How gzip and zstd begin (RFC 1952, RFC 8878)."""


class DecodingError(Exception):
    """The bytes do not match their content encoding."""


class Decoder(Protocol):
    """Decodes a body that arrives in pieces."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield what ``data`` decodes to, in pieces of bounded size.

        Raises:
            DecodingError: the data is corrupt.
        """


class _Zlib:
    """gzip (including several members) and deflate (with or without the zlib header)."""

    def __init__(self, window_bits: int) -> None:
        self._window_bits = window_bits
        self._inner = zlib.decompressobj(window_bits)
        self._started = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        while data:
            try:
                piece = self._inner.decompress(data, _PIECE_BYTES)
            except zlib.error:
                if self._started or self._window_bits != zlib.MAX_WBITS:
                    raise DecodingError from None
                # Some servers send "deflate" without the zlib header (RFC 9110, 8.4.1.2).
                self._window_bits = -zlib.MAX_WBITS
                self._inner = zlib.decompressobj(self._window_bits)
                continue
            self._started = True
            yield piece
            # What is left over of a piece, and then of the whole member.
            data = self._inner.unconsumed_tail
            if self._inner.eof:
                data = self._inner.unused_data.lstrip(b"\0")
                if self._window_bits > zlib.MAX_WBITS and data[:1] == b"\x1f":
                    self._inner = zlib.decompressobj(self._window_bits)
                else:
                    return


class _Brotli:
    def __init__(self, module: Any) -> None:
        self._inner = module.Decompressor()
        self._error = module.error
        self._limits = hasattr(self._inner, "can_accept_more_data")

    def decode(self, data: bytes) -> Iterator[bytes]:
        try:
            if not self._limits:  # releases before 1.2
                for start in range(0, len(data), 64):
                    yield self._inner.process(data[start : start + 64])
                return
            yield self._inner.process(data, output_buffer_limit=_PIECE_BYTES)
            while not self._inner.can_accept_more_data():
                yield self._inner.process(b"", output_buffer_limit=_PIECE_BYTES)
        except self._error:
            raise DecodingError from None


class _Zstd:
    """Any of the zstd packages; small input pieces keep the output of each call small."""

    def __init__(self, new: Callable[[], Any], error: type[Exception]) -> None:
        self._new = new
        self._inner = new()
        self._error = error

    def decode(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), 256):
            piece = data[start : start + 256]
            while piece:
                try:
                    yield self._inner.decompress(piece)
                except self._error:
                    raise DecodingError from None
                if not self._inner.eof:
                    break
                piece = self._inner.unused_data
                self._inner = self._new()


class _Chain:
    """Encodings applied one after the other."""

    def __init__(self, first: Decoder, then: Decoder) -> None:
        self._first = first
        self._then = then

    def decode(self, data: bytes) -> Iterator[bytes]:
        for piece in self._first.decode(data):
            yield from self._then.decode(piece)


def decoder_for(content_encoding: str) -> Decoder | None:
    """Return a decoder for a ``Content-Encoding``; None for identity.

    Raises:
        DecodingError: no installed package can decode it.
    """
    decoder: Decoder | None = None
    # The header lists them in the order they were applied, so the last is undone first.
    for name in reversed(content_encoding.lower().split(",")):
        one = _one(name.strip())
        if one is not None:
            decoder = one if decoder is None else _Chain(decoder, one)
    return decoder


def readable(accept_encoding: str) -> str:
    """Return what of an ``Accept-Encoding`` can be decoded here; as it is if all of it can.

    >>> readable("gzip, compress, identity;q=0.5, *")
    'gzip, identity;q=0.5'
    """
    asked = [each.strip() for each in accept_encoding.split(",")]
    kept = [each for each in asked if _is_known(each.partition(";")[0].strip().lower())]
    return accept_encoding if kept == asked else ", ".join(kept) or "identity"


def plain_body(body: bytes, content_encoding: str | None) -> bytes:
    """Return a request's body decoded; as it is where that cannot be done."""
    if not content_encoding:
        return body
    pieces, size = [], 0
    try:
        decoder = decoder_for(content_encoding)
        if decoder is None:
            return body
        for piece in decoder.decode(body):
            size += len(piece)
            if size > PLAIN_BYTES_MAX:
                return body
            pieces.append(piece)
    except DecodingError:
        return body
    return b"".join(pieces)


def is_packed(body: bytes) -> bool:
    """Tell whether a body is compressed, so that nothing can be read in it."""
    return body.startswith(_MAGIC)


def _is_known(name: str) -> bool:
    try:
        _one(name)
    except DecodingError:
        return False
    return True


def _one(name: str) -> Decoder | None:
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip"):
        return _Zlib(16 + zlib.MAX_WBITS)
    if name == "deflate":
        return _Zlib(zlib.MAX_WBITS)
    if name == "br":
        return _Brotli(_first_of("brotli", "brotlicffi"))
    if name == "zstd":
        module = _first_of("compression.zstd", "zstandard", "backports.zstd")
        if hasattr(module, "ZstdCompressionObj") or module.__name__ == "zstandard":
            return _Zstd(lambda: module.ZstdDecompressor().decompressobj(), module.ZstdError)
        return _Zstd(module.ZstdDecompressor, module.ZstdError)
    raise DecodingError


def _first_of(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise DecodingError
