"""One LLM call under observation. No error in here reaches the user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Final, Protocol

from guard.core.events import InstrumentedCall
from guard.core.usage import Call, Endpoint, Recording, Usage, read_body, read_recorded
from guard.core.usage.reading import is_stream
from guard.instrumentation.include_usage import UsageChunkFilter
from guard.scope.scope import Scope

_SMALL_BYTES: Final = 64 * 1024
_NOT_SENT: Final = ("Connect", "Pool", "Write", "Proxy")
"""Substrings of the names of timeouts that end a request before it is sent."""
_CACHE_HEADERS: Final = ("x-cache", "cf-cache-status", "helicone-cache", "x-portkey-cache-status")


class CallReports(Protocol):
    """What an observed call reports to."""

    reading: threading.RLock
    """Held while an answer is read, so that two threads do not read it at once."""

    def ended(self, call: ObservedCall) -> None:
        """Record a call that has ended; never raises."""

    def forget(self, call: ObservedCall) -> None:
        """Forget a call that ends without anything to record."""

    def reported(self, call: ObservedCall, usage: Usage | None, *, again: bool) -> Usage | None:
        """Return the usage to record; None if there is none or it was recorded before.

        Args:
            call: the call whose response was read.
            usage: what it says.
            again: whether it may repeat what another response has reported.
        """

    def failed(self, exc: Exception) -> None:
        """Count an error in the observation."""


class ObservedCall:
    """From the check before a request to the event after its response.

    A transport sends the request inside :meth:`sending`. Then it calls :meth:`whole` for a body
    that it has read, or :meth:`streaming`, ``feed`` for every chunk that passes, and :meth:`finish`
    when the stream ends, breaks or is abandoned. Only the first end counts. The caller does not
    wait for the response to be parsed: :meth:`read` does that later, on another thread.

    Args:
        reports: takes what is found.
        endpoint: the endpoint that the URL belongs to.
        scope: the scope in which the request was made.
        host, path: of the URL.
        body: returns the request's body.

    Attributes:
        started_s: when it was made, by the monotonic clock.
        recording: the recorded part of the stream that is being read.
        filter: removes the usage chunk from a stream whose caller did not ask for it.
        sent: whether the request was handed to the client.
    """

    __slots__ = (
        "_body", "_complete", "_content", "_done", "_header", "_path", "_reports", "endpoint",
        "filter", "host", "recording", "scope", "sent", "started_s",
    )  # fmt: skip

    def __init__(
        self,
        reports: CallReports,
        endpoint: Endpoint,
        scope: Scope,
        host: str,
        path: str,
        body: Callable[[], bytes],
    ) -> None:
        self._reports = reports
        self.endpoint = endpoint
        self.scope = scope
        self.host = host
        self.started_s = time.monotonic()
        self.filter: UsageChunkFilter | None = None
        self.sent = False
        self._path = path
        self._body = body
        self._header: Callable[[str], str | None] = _no_header
        self._content: bytes | Recording | None = None
        self._complete = False
        self.recording: Recording | None = None
        self._done = False

    # -- the request --------------------------------------------------------------------------

    def sending(self) -> Sending:
        """Return the context manager around the client's own sending."""
        return Sending(self)

    def is_sent_by(self, path: str, body: Callable[[], bytes]) -> bool:
        """Tell whether another request is this one, seen at a lower transport (httpx over aiohttp).

        A client may rewrite the host on the way, but not the path or the body.
        """
        if path != self._path:
            return False
        content = body()
        return not content or content == self._body()

    def unanswered(self, exc: BaseException) -> None:
        """The client stopped waiting. The vendor still processes, and bills, a sent request."""
        if self._done:
            return
        self._done = True
        if self.sent and _ends_a_wait(exc):
            self._reports.ended(self)
        else:
            self._reports.forget(self)

    # -- the response -------------------------------------------------------------------------

    def whole(self, status: int, header: Callable[[str], str | None], body: bytes) -> None:
        """The whole response was read.

        Args:
            status: HTTP status.
            header: returns a response header by its lower-case name.
            body: decoded.
        """
        if self._done:
            return
        if status >= 400:
            self.dropped()
            return
        self._done = True
        self._header = header
        self._content = body
        self._complete = True
        self._reports.ended(self)

    def streaming(
        self, status: int, header: Callable[[str], str | None], encoding: str | None = None
    ) -> bool:
        """The response is about to be read by the user; False when there is nothing to observe.

        Args:
            status: HTTP status.
            header: returns a response header by its lower-case name.
            encoding: the content encoding of the chunks that ``feed`` will get; None means the
                header's value.
        """
        if self._done or status >= 400:
            self.dropped()
            return False
        self._header = header
        self.recording = Recording(self._encoding if encoding is None else encoding)
        return True

    def feed(self, chunk: bytes) -> None:
        """Record a chunk; never raises."""
        if self.recording is not None:
            self.recording.feed(chunk)

    def finish(self, *, complete: bool = False) -> None:
        """The stream is over.

        Args:
            complete: whether it reached its end; otherwise it broke or was abandoned.
        """
        if self._done:
            return
        self._done = True
        self._content, self.recording = self.recording, None
        self._complete = complete
        self._reports.ended(self)

    def dropped(self) -> None:
        """There is nothing to record."""
        if not self._done:
            self._done = True
            self._reports.forget(self)

    def abandon(self) -> None:
        """The process is ending: record what is known so far."""
        if self.sent:
            self.finish()
        else:
            self.dropped()

    # -- reading ------------------------------------------------------------------------------

    @property
    def is_small(self) -> bool:
        """Whether the unread response takes little memory."""
        content = self._content
        return not isinstance(content, bytes) or len(content) <= _SMALL_BYTES

    @property
    def is_complete(self) -> bool:
        """Whether the response reached its end."""
        return self._complete

    def read(self, call: InstrumentedCall) -> None:
        """Set what the call used, unless that was done already; never raises."""
        with self._reports.reading:
            if call.answer is None:
                return
            try:
                usage, call.streamed = self._usage()
                if usage is None and not self._complete:
                    usage = self._of_request()
                call.polled = call.polled or self._is_cached()
                call.usage = self._reports.reported(self, usage, again=call.polled)
            except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
                self._reports.failed(exc)
            call.answer = None

    def _usage(self) -> tuple[Usage | None, bool]:
        """Read what the call used, and tell whether it came as a stream of messages."""
        content, header = self._content, self._header
        if content is None:
            return None, False
        if not isinstance(content, Recording):
            usage = read_body(self.endpoint.format, content, self._call())
            return usage, content[:1] != b"{" and "event-stream" in (header("content-type") or "")
        recorded = content.recorded()
        content_type = header("content-type") or ""
        usage = read_recorded(self.endpoint.format, recorded, content_type, self._call())
        return usage, is_stream(content_type, recorded)

    def _of_request(self) -> Usage | None:
        """Estimate the request's tokens, if it certainly went to an LLM."""
        if not (self.endpoint.asks and self.endpoint.certain):
            return None
        call = self._call()
        model, tokens = call.model(), call.prompt_tokens()
        if model is None and not tokens:
            return None
        return Usage(model=model, input_tokens=tokens, estimated=True)

    def _is_cached(self) -> bool:
        """Tell whether the response comes from a cache: no model has worked for it."""
        header = self._header
        return header("age") is not None or any(
            (header(name) or "").lower().startswith("hit") for name in _CACHE_HEADERS
        )

    def _encoding(self) -> str:
        return self._header("content-encoding") or ""

    def _call(self) -> Call:
        return Call(self._path, self._body, self._header)


class Sending:
    """Wraps the sending of an observed call: nested sends are the same request."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: ObservedCall) -> None:
        self._call: ObservedCall | None = call

    def __enter__(self) -> None:
        self._token: Token[Sending | None] = nested_call.set(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        call, self._call = self._call, None
        nested_call.reset(self._token)
        if exc is not None and call is not None:
            call.unanswered(exc)

    @property
    def call(self) -> ObservedCall | None:
        """The call that is being sent; None afterwards, for tasks that the client left behind."""
        return self._call


nested_call: ContextVar[Sending | None] = ContextVar("guard_nested_call", default=None)
"""Set while an observed request is sent, including in tasks that the client starts for it."""


def call_being_sent() -> ObservedCall | None:
    """Return the observed call that is being sent in this context."""
    sending = nested_call.get()
    return None if sending is None else sending.call


def _ends_a_wait(exc: BaseException) -> bool:
    """Tell whether an exception ended the wait for an answer, rather than the sending."""
    if not isinstance(exc, Exception):
        return True  # cancelled, killed or interrupted
    name = type(exc).__name__
    return "Timeout" in name and not any(part in name for part in _NOT_SENT)


def _no_header(name: str) -> str | None:
    return None
