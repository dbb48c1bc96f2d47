"""One LLM call under observation. No error in here reaches the user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Protocol

from guard.core.events import InstrumentedCall
from guard.core.input_ratios import InputRatios
from guard.core.request_bound import RequestBound
from guard.core.usage import (
    PENDING,
    Call,
    Endpoint,
    Recording,
    Usage,
    read_body,
    read_recorded,
)
from guard.core.usage.reading import is_stream
from guard.core.usage.tool_scan import ToolScanner
from guard.instrumentation.include_usage import UsageChunkFilter
from guard.instrumentation.request_gate import RequestCover, RequestGate
from guard.instrumentation.stream_watch import StreamWatch, watch_of
from guard.instrumentation.tool_watch import ToolGate, ToolWatch
from guard.scope.scope import Scope

_SMALL_BYTES: Final = 64 * 1024
_NOT_SENT: Final = ("Connect", "Pool", "Write", "Proxy")
"""Substrings of the names of timeouts that end a request before it is sent."""
_CACHE_HEADERS: Final = ("x-cache", "cf-cache-status", "helicone-cache", "x-portkey-cache-status")


class CallReports(Protocol):
    """What an observed call reports to."""

    reading: threading.RLock
    """Held while an answer is read, so that two threads do not read it at once."""

    ratios: InputRatios
    """How many tokens the prompts of each model have had for their size."""

    tools: ToolGate | None
    """Decides about the tools that answers ask for."""

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
        unsent: whether nothing of it has left this process yet; None where that is not known.
        bound: what it can cost at most; None where requests are not gated.
        hold: the money set aside for it; None until a lease or the gateway has given it.
        uncovered: whether the gateway must be asked first, by :meth:`ask` or :meth:`ask_async`.
        watch: counts a stream that may outgrow its cover.
        tool_watch: checks the tools that the answer asks for; None where no rule applies.
    """

    __slots__ = (
        "_body", "_complete", "_content", "_done", "_gate", "_header", "_path", "_reports", "bound",
        "endpoint", "filter", "hold", "host", "recording", "scope", "sent", "started_s",
        "tool_watch", "uncovered", "unsent", "watch",
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
        self.unsent: bool | None = None
        self._gate: RequestGate | None = None
        self.bound: RequestBound | None = None
        self.hold: RequestCover | None = None
        self.uncovered = False
        self.watch: StreamWatch | None = None
        self.tool_watch: ToolWatch | None = None
        self._path = path
        self._body = body
        # Reads the response's headers; set with the response.
        self._header: Callable[[str], str | None] = _no_header
        # The response, or the recorded part of its stream, once it is over.
        self._content: bytes | Recording | None = None
        # Whether the response reached its end.
        self._complete = False
        self.recording: Recording | None = None
        # Whether one of its ends came: a response, an error, a dropped stream. The first counts.
        self._done = False

    # -- the request --------------------------------------------------------------------------

    def cover(self, gate: RequestGate, bound: RequestBound) -> None:
        """Set money aside from a lease; ``uncovered`` says when the gateway must be asked."""
        self._gate, self.bound = gate, bound
        self.hold = gate.hold(self.scope, bound)
        self.uncovered = self.hold is None

    def ask(self) -> None:
        """Ask the gateway about an uncovered request; blocks the calling thread.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: the request is refused.
        """
        try:
            if self._gate is not None and self.bound is not None:
                self.hold = self._gate.ask(self.scope, self.bound)
        except BaseException:
            self.dropped()
            raise

    async def ask_async(self) -> None:
        """Like :meth:`ask`; the caller's loop goes on meanwhile."""
        try:
            if self._gate is not None and self.bound is not None:
                self.hold = await self._gate.ask_async(self.scope, self.bound)
        except BaseException:
            self.dropped()
            raise

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
        if self.sent and not self.unsent and _ends_a_wait(exc):
            self._reports.ended(self)
        else:
            self._forget()

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
        self.tool_watch = self._tool_watch("")
        self._reports.ended(self)

    @property
    def reservation_id(self) -> str | None:
        """What the call's event names; None without cover."""
        return None if self.hold is None else self.hold.reservation_id

    @property
    def body(self) -> bytes | None:
        """The whole response, if it was read whole."""
        content = self._content
        return content if isinstance(content, bytes) else None

    def _tool_watch(self, encoding: str | Callable[[], str]) -> ToolWatch | None:
        gate = self._reports.tools
        if gate is None or not gate.applies(self.scope) or not self.endpoint.names_tools:
            return None
        if not isinstance(encoding, str):
            encoding = encoding()
        reader = self.endpoint.format.tool_calls
        return ToolWatch(gate, self.scope, ToolScanner(reader, self._content_type, encoding))

    def _content_type(self) -> str:
        return self._header("content-type") or ""

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
        chosen = self._encoding if encoding is None else encoding
        self.recording = Recording(chosen, self.endpoint.condense)
        if self.hold is not None:
            encoded = chosen if isinstance(chosen, str) else chosen()
            self.watch = watch_of(self.hold, self.bound, self.scope, encoded)
        self.tool_watch = self._tool_watch(chosen)
        return True

    def feed(self, chunk: bytes) -> None:
        """Record a chunk.

        Raises:
            Refusal: the stream has outgrown its cover, and may not go on.
        """
        if self.recording is not None:
            self.recording.feed(chunk)
        if self.watch is not None:
            try:
                self.watch.feed(chunk)
            except BaseException:
                self.finish()
                raise

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
            self._forget()

    def _forget(self) -> None:
        self._reports.forget(self)
        if self.hold is not None:
            self.hold.give_back()

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
                unknown = usage is None
                if unknown and not self._complete:
                    usage = self._of_request()
                call.polled = call.polled or self._is_cached()
                call.usage = self._reports.reported(self, usage, again=call.polled)
                if self.hold is not None:
                    self._pay(self.hold, call, usage, unknown)
            except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
                self._reports.failed(exc)
                if self.hold is not None:
                    self.hold.keep()
            call.answer = None

    def _pay(
        self, hold: RequestCover, call: InstrumentedCall, usage: Usage | None, unknown: bool
    ) -> None:
        """End the hold by what was used; without that knowledge, record what was set aside."""
        if usage is PENDING:
            hold.keep()  # a poll reports what it cost, until then the hold is spent
        elif usage is not None and not unknown:
            if call.usage is None:  # an earlier answer over again
                hold.give_back()
            else:
                self._learn(usage)
                hold.settle(usage)
        elif self._complete and not self.endpoint.certain:
            hold.give_back()  # not an LLM, as far as can be seen
        else:
            known = call.usage.input_tokens if call.usage else self._call().prompt_tokens()
            hold.keep()
            if hold.reservation_id is not None:
                call.usage = Usage(
                    model=None if self.bound is None else self.bound.model,
                    input_tokens=known,
                    output_tokens=hold.output_tokens or 0,
                    estimated=True,
                )

    def _learn(self, usage: Usage) -> None:
        """Remember how many tokens the prompt had, if those were more than was thought."""
        bound = self.bound
        if bound is None or not bound.measured_bytes or usage.estimated:
            return
        tokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        if tokens > (bound.input_tokens or 0):
            self._reports.ratios.learn(bound.model, bound.measured_bytes, tokens)

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


def is_signed(headers: Mapping[str, Any]) -> bool:
    """Tell whether a request's signature covers its body, as AWS's does."""
    found = headers.get("Authorization") or headers.get("authorization") or b""
    return str(found).lstrip("b'").startswith("AWS4-")


def _no_header(name: str) -> str | None:
    return None
