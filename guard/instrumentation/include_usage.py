"""Asks a stream for its usage on the caller's behalf, transparently to the caller.

Off unless ``GUARD_INJECT_STREAM_USAGE`` is set, since it changes the user's request. The chunk
that OpenAI's API adds at the end of the stream is removed again, so that code which expects
``choices`` in every chunk keeps working.
"""

from __future__ import annotations

from typing import Final

import msgspec

from guard.core.usage.message import mapping, parse

_HELD_BYTES_MAX: Final = 1024 * 1024


def asking_for_usage(body: bytes) -> bytes | None:
    """Return the request's body with ``include_usage``; None when it needs no change."""
    if b'"stream"' not in body:
        return None
    request = mapping(parse(body))
    if request.get("stream") is not True or request.get("stream_options") is not None:
        return None
    return msgspec.json.encode({**request, "stream_options": {"include_usage": True}})


class UsageChunkFilter:
    """Removes the usage chunk from an event stream.

    Complete events pass at once; only the beginning of an event whose end has not arrived is held
    back, which no reader could have used yet.
    """

    __slots__ = ("_held", "_open")

    def __init__(self) -> None:
        # The beginning of an event whose end has not arrived.
        self._held = b""
        # Whether everything passes from now on.
        self._open = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the part of the stream that may pass now."""
        if self._open:
            return chunk
        data = self._held + chunk
        end = max(_after(data, b"\n\n"), _after(data, b"\r\n\r\n"))
        whole, self._held = data[:end], data[end:]
        if len(self._held) > _HELD_BYTES_MAX:  # not an event stream; pass it through
            self._open = True
            whole, self._held = data, b""
        if b'"usage"' not in whole:
            return whole
        separator = b"\r\n\r\n" if b"\r\n\r\n" in whole else b"\n\n"
        return separator.join(
            event for event in whole.split(separator) if not _is_usage_chunk(event)
        )

    def rest(self) -> bytes:
        """Return what is left at the end of the stream."""
        held, self._held = self._held, b""
        return held


def _after(data: bytes, separator: bytes) -> int:
    position = data.rfind(separator)
    return position + len(separator) if position >= 0 else 0


def _is_usage_chunk(event: bytes) -> bool:
    line = event.strip()
    if not line.startswith(b"data:") or b'"usage"' not in line:
        return False
    chunk = mapping(parse(line[5:].strip()))
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)
