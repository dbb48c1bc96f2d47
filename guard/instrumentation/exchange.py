"""One LLM call under observation. Nothing that goes wrong here reaches the user."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from guard.core.usage import Call, Endpoint, Recording, read_body, read_recorded
from guard.core.usage.reading import is_stream
from guard.instrumentation.include_usage import UsageChunkFilter
from guard.scope import Scope

if TYPE_CHECKING:
    from guard.instrumentation.observer import Instrumentation

logger = logging.getLogger("guard.instrumentation")


class Exchange:
    """From the check before a request to the event after its response.

    A transport calls :meth:`whole` for a body that it has read, or :meth:`streaming`, then
    ``feed`` for every chunk that passes and :meth:`finish` when the stream ends, breaks or is
    abandoned. Every path may be taken twice; the first one counts.

    Attributes:
        endpoint: what is known of the URL.
        scope: where the request was made.
        host: of the URL.
        started_s: when it was made, by the monotonic clock.
        recording: what is kept of the stream that is being read.
        feed: takes a look at a chunk; never raises.
        filter: takes the usage chunk out of the stream when it was not the caller who asked for it.
    """

    __slots__ = (
        "_body",
        "_done",
        "_header",
        "_owner",
        "_path",
        "endpoint",
        "feed",
        "filter",
        "host",
        "recording",
        "scope",
        "started_s",
    )

    def __init__(
        self,
        owner: Instrumentation,
        endpoint: Endpoint,
        scope: Scope,
        host: str,
        path: str,
        body: Callable[[], bytes],
    ) -> None:
        self._owner = owner
        self.endpoint = endpoint
        self.scope = scope
        self.host = host
        self.started_s = time.monotonic()
        self.filter: UsageChunkFilter | None = None
        self.feed: Callable[[bytes], None] = _ignore
        self._path = path
        self._body = body
        self._header: Callable[[str], str | None] = _no_header
        self.recording: Recording | None = None
        self._done = False

    def whole(self, status: int, header: Callable[[str], str | None], body: bytes) -> None:
        """The response was read as a whole.

        Args:
            status: HTTP status.
            header: returns a response header by its lower-case name.
            body: decoded.
        """
        if self._done:
            return
        self._done = True
        if status >= 400:
            return
        try:
            self._header = header
            usage = read_body(self.endpoint.format, body, self._call())
            streamed = body[:1] != b"{" and "event-stream" in (header("content-type") or "")
            self._owner.report(self, usage, streamed=streamed)
        except Exception:  # noqa: BLE001  # counted and logged; a parser never hurts the user
            self._owner.failed(logger)

    def streaming(self, status: int, header: Callable[[str], str | None], encoding: str) -> bool:
        """The response is about to be read by the user; False when there is nothing to observe.

        Args:
            status: HTTP status.
            header: returns a response header by its lower-case name.
            encoding: the content encoding of the chunks that ``feed`` will get.
        """
        if self._done or status >= 400:
            self._done = True
            return False
        self._header = header
        self.recording = recording = Recording(encoding)
        self.feed = recording.feed
        return True

    def finish(self) -> None:
        """The stream ended, was abandoned, or broke: settle what it used."""
        if self._done:
            return
        self._done = True
        recording, self.recording = self.recording, None
        if recording is None:
            return
        try:
            recorded = recording.recorded()
            content_type = self._header("content-type") or ""
            usage = read_recorded(self.endpoint.format, recorded, content_type, self._call())
            self._owner.report(self, usage, streamed=is_stream(content_type, recorded))
        except Exception:  # noqa: BLE001  # as above
            self._owner.failed(logger)

    def dropped(self) -> None:
        """There will be no response."""
        self._done = True

    def _call(self) -> Call:
        return Call(self._path, self._body, self._header)


def _ignore(chunk: bytes) -> None:
    """Nothing is observed."""


def _no_header(name: str) -> str | None:
    return None
