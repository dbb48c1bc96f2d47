"""Takes out of answers what the vendor says of its account: ids, and the key; no I/O."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

_IDS: Final = re.compile(rb"\b(org-|proj[-_]|sk-|user-)[A-Za-z0-9_*-]{6,}")
"""Names of the account, and keys that a vendor quotes in part."""

_END: Final = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_HELD_MAX: Final = 64 << 10
"""Bytes of an event that has not ended which are held back; clients act on whole events only."""


def scrubbed(body: bytes, key: bytes) -> bytes:
    """Return an error of a vendor's without its account's names and key."""
    return _IDS.sub(rb"\1...", body.replace(key, b"..."))


class _Response(Struct):
    error: Any = None


class _Said(Struct):
    type: Any = None
    error: Any = None
    response: _Response | None = None


def is_error(data: bytes) -> bool:
    """Return whether JSON is an error, in the form of any vendor.

    >>> is_error(b'{"error": {"message": "no"}}'), is_error(b'{"id": "resp_1", "error": null}')
    (True, False)
    """
    if b"error" not in data:
        return False
    try:
        said = msgspec.json.decode(data, type=_Said)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return True  # whatever it is: what it names of the account goes
    failed = said.response is not None and said.response.error is not None
    return said.error is not None or said.type == "error" or failed


class EventScrubber:
    """Passes the events of a stream on, and takes names of the account out of errors among them.

    Args:
        key: that of the account.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        # The beginning of an event that has not ended.
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what may be sent after a chunk: whole events, unchanged unless they are errors."""
        waiting = self._held + chunk
        parts, at = [], 0
        for end in _END.finditer(waiting):
            parts.append(self._event(waiting[at : end.end()]))
            at = end.end()
        passed, self._held = b"".join(parts), waiting[at:]
        if len(self._held) > _HELD_MAX:
            passed += self.rest()
        return passed

    def rest(self) -> bytes:
        """Return what is held back, at the end of the stream."""
        held, self._held = self._held, b""
        return self._event(held) if b"error" in held else held

    def _event(self, event: bytes) -> bytes:
        if b"error" not in event:
            return event
        data = b"".join(
            line[5:].lstrip() for line in event.splitlines() if line.startswith(b"data:")
        )
        named = re.search(rb"(?m)^event: *error", event) is not None
        return scrubbed(event, self._key) if named or is_error(data or event) else event
