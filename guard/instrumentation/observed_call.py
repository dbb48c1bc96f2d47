"""One LLM call under observation. Nothing that goes wrong here reaches the user."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from guard.core.events import ObservedCall
from guard.core.usage import Call, Endpoint, Recording, Usage, read_body, read_recorded
from guard.core.usage.reading import is_stream
from guard.instrumentation.include_usage import UsageChunkFilter
from guard.scope.scope import Scope

if TYPE_CHECKING:
    from guard.instrumentation.instrumentation import Instrumentation

_BRIEF_BYTES: Final = 64 * 1024


class Exchange:
    """From the check before a request to the event after its response.

    A transport calls :meth:`whole` for a body that it has read, or :meth:`streaming`, then
    ``feed`` for every chunk that passes and :meth:`finish` when the stream ends, breaks or is
    abandoned. Every path may be taken twice; the first one counts. None of them reads what came:
    that is left to :meth:`usage`, later and elsewhere, so that the caller does not wait for it.

    Attributes:
        endpoint: what is known of the URL.
        scope: where the request was made.
        host: of the URL.
        started_s: when it was made, by the monotonic clock.
        recording: what is kept of the stream that is being read.
        filter: takes the usage chunk out of the stream when it was not the caller who asked for it.
    """

    __slots__ = (
        "_body",
        "_content",
        "_done",
        "_header",
        "_owner",
        "_path",
        "endpoint",
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
        self._path = path
        self._body = body
        self._header: Callable[[str], str | None]  # from here on: known once there is a response
        self._content: bytes | Recording
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
        if status < 400:
            self._header = header
            self._content = body
            self._owner.ended(self)

    def streaming(
        self, status: int, header: Callable[[str], str | None], encoding: str | None = None
    ) -> bool:
        """The response is about to be read by the user; False when there is nothing to observe.

        Args:
            status: HTTP status.
            header: returns a response header by its lower-case name.
            encoding: the content encoding of the chunks that ``feed`` will get; what the header
                says when None.
        """
        if self._done or status >= 400:
            self._done = True
            return False
        self._header = header
        self.recording = Recording(self._encoding if encoding is None else encoding)
        return True

    def feed(self, chunk: bytes) -> None:
        """Take a look at a chunk; never raises."""
        if self.recording is not None:
            self.recording.feed(chunk)

    def finish(self) -> None:
        """The stream ended, was abandoned, or broke."""
        if self._done:
            return
        self._done = True
        recording, self.recording = self.recording, None
        if recording is not None:
            self._content = recording
            self._owner.ended(self)

    def dropped(self) -> None:
        """There will be no response."""
        self._done = True

    @property
    def brief(self) -> bool:
        """Whether what came takes little memory until it is read."""
        content = self._content
        return isinstance(content, Recording) or len(content) <= _BRIEF_BYTES

    def read(self, call: ObservedCall) -> None:
        """Set what the call used, unless that was done already; never raises."""
        self._owner.read(self, call)

    def usage(self) -> tuple[Usage | None, bool]:
        """Read what the call used, and tell whether it came as a stream of messages."""
        content, header = self._content, self._header
        if not isinstance(content, Recording):
            usage = read_body(self.endpoint.format, content, self._call())
            return usage, content[:1] != b"{" and "event-stream" in (header("content-type") or "")
        recorded = content.recorded()
        content_type = header("content-type") or ""
        usage = read_recorded(self.endpoint.format, recorded, content_type, self._call())
        return usage, is_stream(content_type, recorded)

    def _encoding(self) -> str:
        return self._header("content-encoding") or ""

    def _call(self) -> Call:
        return Call(self._path, self._body, self._header)
