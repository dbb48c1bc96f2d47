"""Asks a stream for its usage, transparently to the caller.

``stream_options.include_usage`` is put into each streamed request of OpenAI's chat format. What it
adds to the stream is taken out again, so that code which expects ``choices`` in every chunk keeps
working. If an endpoint refuses the option, the request is sent once more without it, and later
requests for that model are left as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from guard.core.usage.message import mapping, parse, text_or_none
from guard.loop import held_forks

_HELD_BYTES_MAX: Final = 1024 * 1024
"""A body with so many bytes and no end of an event is no event stream, and passes unchanged."""

_KNOWN_MAX: Final = 1024
"""How many refusing endpoints are remembered; the oldest is forgotten, and asked once more."""

_NULLS: Final = (b',"usage":null', b', "usage": null')
"""What the option adds to the other chunks. It can be removed from the raw bytes: inside a JSON
string the quotes would be escaped."""


class StreamUsage:
    """Asks streams for their usage, unless the endpoint has refused that. Any thread.

    Args:
        is_on: whether streams are asked at all.
    """

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        # Hosts and models that refuse the option, the oldest first. Written by the thread whose
        # request was refused, without a lock: each operation is atomic.
        self._refused: OrderedDict[tuple[str, str | None], None] = OrderedDict()

    def asked(self, host: str, body: bytes) -> tuple[bytes, UsageChunkFilter] | None:
        """Return a request's body with ``include_usage``, and the filter that hides its effect.

        None when the request streams nothing, asks by itself, or would be refused.
        """
        if not self.is_on or b'"stream"' not in body:
            return None
        request = mapping(parse(body))
        asks = mapping(request.get("stream_options")).get("include_usage") is True
        key = (host, text_or_none(request.get("model")))
        if request.get("stream") is not True or asks or key in self._refused:
            return None
        with held_forks():  # a child would keep the half of it that is loaded
            from guard.core.bounds import with_member
        # Spliced into the bytes, not encoded anew: all else stays as the caller has written it.
        changed = with_member(body, ("stream_options", "include_usage"), b"true")
        return None if changed is None else (changed, UsageChunkFilter(lambda: self._refuse(key)))

    def _refuse(self, key: tuple[str, str | None]) -> None:
        if len(self._refused) >= _KNOWN_MAX:
            self._refused.popitem(last=False)
        self._refused[key] = None


def _nothing(*_: Any) -> None:
    """Default: neither the removed parts nor a refusal are of interest."""


class UsageChunkFilter:
    """Removes the usage chunk from one event stream. Used by the stream's reader alone.

    Complete events pass at once; only the beginning of an event whose end has not arrived is held
    back, which no reader could have used yet.

    Args:
        refused: called when the endpoint turns out to refuse the option.

    Attributes:
        hidden: called with each event that is removed.
        is_refused: called when the same request was accepted without the option.
    """

    __slots__ = ("_held", "_open", "hidden", "is_refused")

    def __init__(self, refused: Callable[[], None] = _nothing) -> None:
        # The beginning of an event whose end has not arrived.
        self._held = b""
        # Set for good by a body that is no event stream: then everything passes unchanged.
        self._open = False
        self.is_refused = refused
        self.hidden: Callable[[bytes], object] = _nothing

    def feed(self, chunk: bytes) -> bytes:
        """Return the part of the stream that may pass; the rest waits for the end of its event."""
        if self._open:
            return chunk
        data = self._held + chunk
        end = max(_after(data, b"\n\n"), _after(data, b"\r\n\r\n"))
        whole, self._held = data[:end], data[end:]
        if len(self._held) > _HELD_BYTES_MAX:  # not an event stream; pass it through
            self._open = True
            whole, self._held = data, b""
        if b'"usage"' not in whole:  # nearly every chunk: nothing is parsed
            return whole
        separator = b"\r\n\r\n" if b"\r\n\r\n" in whole else b"\n\n"
        events = whole.split(separator)
        shown = separator.join(event for event in events if not self._hides(event, separator))
        for null in _NULLS:
            shown = shown.replace(null, b"")
        return shown

    def rest(self) -> bytes:
        """Return what was held back when the stream ended."""
        held, self._held = self._held, b""
        return held

    def _hides(self, event: bytes, separator: bytes) -> bool:
        if not _is_usage_chunk(event):
            return False
        self.hidden(event + separator)
        return True


def _after(data: bytes, separator: bytes) -> int:
    position = data.rfind(separator)
    return position + len(separator) if position >= 0 else 0


def _is_usage_chunk(event: bytes) -> bool:
    line = event.strip()
    if not line.startswith(b"data:") or b'"usage"' not in line:
        return False
    chunk = mapping(parse(line[5:].strip()))
    if chunk.get("choices") != [] or not isinstance(chunk.get("usage"), dict):
        return False
    return chunk.get("moderation") is None  # the caller's own: it comes without choices as well
