"""One LLM call under observation. No error in here reaches the user."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec import structs

from guard.core.events import InstrumentedCall
from guard.core.model_names import named_in
from guard.core.request_bound import RequestBound
from guard.core.usage import (
    Call,
    Endpoint,
    Recording,
    Usage,
)
from guard.core.usage.ends import Ending, may_be_billed
from guard.core.usage.tool_scan import ToolScanner
from guard.instrumentation import open_streams
from guard.instrumentation.answer import Lessons, settle
from guard.instrumentation.include_usage import StreamUsage, UsageChunkFilter
from guard.instrumentation.output_limits import LimitedBody, OutputLimits
from guard.instrumentation.request_gate import RequestCover, RequestGate
from guard.instrumentation.request_spans import RequestSpan
from guard.instrumentation.sending import (
    Sending,
    content_of,
    held_answer,
    nested_call,
    never_left,
    status_of,
)
from guard.instrumentation.stream_watch import StreamWatch, watch_of
from guard.instrumentation.tool_watch import ToolGate, ToolWatch
from guard.scope.scope import Scope

_SMALL_BYTES: Final = 64 * 1024
_HEAD_BYTES: Final = 1024
_REFUSALS: Final = (400, 422)


class CallReports(Lessons, Protocol):
    """What an observed call reports to; an ``AnswerReports`` of such calls as well."""

    reading: threading.RLock
    """Held while an answer is read, so that two threads do not read it at once."""

    limits: OutputLimits
    """Puts limits on the output into requests."""

    stream_usage: StreamUsage
    """Asks streams for their usage."""

    tools: ToolGate | None
    """Decides about the tools that answers ask for."""

    def ended(self, call: ObservedCall) -> None:
        """Record a call that has ended; never raises."""

    def forget(self, call: ObservedCall) -> bool:
        """Forget a call that ends without anything to record; False if it is another process's."""

    def tried(self, lost: ObservedCall) -> None:
        """Note an earlier try of a call, which ends at once."""

    def reported(self, call: ObservedCall, usage: Usage | None, *, again: bool) -> Usage | None:
        """Return the usage to record; None if there is none or it was recorded before."""

    def goes_on(self, call: ObservedCall, event: InstrumentedCall, at_most: Usage) -> None:
        """Hold what a call has begun until a poll names its response."""

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
        span: of the request, in the program's own tracing; None without one.

    Attributes:
        started_s: when it was made, by the monotonic clock.
        thread: that made it.
        sent_s: when it was handed to the client; None before.
        ended_s: when its answer, or the wait for it, was over.
        ending: how it ended.
        status: of its answer; None while there is none.
        recording: the recorded part of the stream that is being read.
        filter: removes the usage chunk from a stream whose caller did not ask for it.
        limited_body: the limit on the output that guard has put into it; None without one.
        unsent: whether nothing of it has left this process yet; None where that is not known.
        tried: the status by which a try below the client was answered; 0 while it is not, None
            before the first.
        bound: what it can cost at most; None where requests are not gated.
        hold: the money set aside for it; None until a lease or the gateway has given it.
        limited: whether its output was limited to what its money pays for.
        uncovered: whether the gateway must be asked first, by :meth:`ask` or :meth:`ask_async`.
        watch: counts a stream that may outgrow its cover.
        tool_watch: checks the tools that the answer asks for; None where no rule applies.
    """

    __slots__ = (
        "_body", "_content", "_done", "_gate", "_header", "_if_taken", "_is_read", "_path",
        "_plain", "_replace", "_reports", "_span", "bound", "ended_s", "ending", "endpoint",
        "filter", "hold", "host", "limited", "limited_body", "recording", "scope", "sent_s",
        "started_s", "status", "thread", "tool_watch", "tried", "uncovered", "unsent", "watch",
    )  # fmt: skip

    def __init__(
        self,
        reports: CallReports,
        endpoint: Endpoint,
        scope: Scope,
        host: str,
        path: str,
        body: Callable[[], bytes],
        span: RequestSpan | None = None,
    ) -> None:
        self._reports = reports
        self._span = span
        self.endpoint = endpoint
        self.scope = scope
        self.host = host
        self.started_s = self.ended_s = time.monotonic()
        self.sent_s: float | None = None
        self.thread = threading.get_ident()
        self.ending = Ending.LOST
        self.status: int | None = None
        self.filter: UsageChunkFilter | None = None
        self.unsent: bool | None = None
        self.tried: int | None = None
        self._gate: RequestGate | None = None
        # Gives the request another body; None where that cannot be.
        self._replace: Callable[[bytes], bool] | None = None
        # Its body before usage was asked for.
        self._plain: bytes | None = None
        # Called when the vendor has taken what was changed back: it refused what was there before.
        self._if_taken: tuple[Callable[[], None], ...] = ()
        self.limited_body: LimitedBody | None = None
        self.bound: RequestBound | None = None
        self.hold: RequestCover | None = None
        self.uncovered = False
        self.limited = False
        self.watch: StreamWatch | None = None
        self.tool_watch: ToolWatch | None = None
        self._path = path
        self._body = body
        # Reads the response's headers; set with the response.
        self._header: Callable[[str], str | None] = _no_header
        # The response, or the recorded part of its stream, once it is over.
        self._content: bytes | Recording | None = None
        self.recording: Recording | None = None
        # Whether somebody has begun to read its stream.
        self._is_read = False
        # Whether one of its ends came: a response, an error, a dropped stream. The first counts.
        self._done = False

    # -- the request --------------------------------------------------------------------------

    def cover(
        self,
        gate: RequestGate,
        bound: RequestBound,
        replace: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Set money aside from a lease; ``uncovered`` says when the gateway must be asked.

        Args:
            gate: sets it aside.
            bound: what the request can cost at most.
            replace: gives the request another body; tells whether that was possible.
        """
        self._gate, self.bound, self._replace = gate, bound, replace
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
                self.hold = self._gate.ask(self.scope, self._bound_to_ask(), self._limit)
        except BaseException:
            self.dropped()
            raise

    async def ask_async(self) -> None:
        """Like :meth:`ask`; the caller's loop goes on meanwhile."""
        try:
            if self._gate is not None and self.bound is not None:
                bound = self._bound_to_ask()
                self.hold = await self._gate.ask_async(self.scope, bound, self._limit)
        except BaseException:
            self.dropped()
            raise

    def asking_for_usage(self) -> bytes | None:
        """Return the body that asks a stream for its usage; None when it is not to be changed."""
        bound = self.bound
        if bound is not None and not bound.streams and bound.input_tokens is not None:
            return None  # its body was read, and asks for no stream
        usage = self._reports.stream_usage
        if not self.endpoint.injectable or not usage.is_on:
            return None
        plain = self._body()
        found = usage.asked(self.host, plain)
        if found is None:
            return None
        self._plain = plain
        self.filter = found[1]
        return found[0]

    def is_doubted(self, status: int | None) -> bool:
        """Tell whether a refusal may be about what guard has changed in the request."""
        changed = self.filter is not None or self.limited_body is not None
        return changed and status in _REFUSALS

    def changed_back(self, answer: bytes) -> bytes | None:
        """Return the body to send once more after such a refusal; None to let it be.

        Args:
            answer: what the vendor said; empty when nobody has read that.
        """
        limited, usage = self.limited_body, self.filter
        self.filter = None
        self.unsent = None  # what has left was refused
        # Where nobody has read why, the option is taken back first: more endpoints refuse that.
        if limited is not None and (answer or usage is None):
            changed = limited.again(answer)
            if changed is not None:
                self.limited_body = changed
                self._if_taken = (*(self._if_taken if answer else ()), changed.is_taken)
                self._note_limit(changed.tokens)
                return changed.body
        if usage is None:
            return None
        self._if_taken += (usage.is_refused,)
        return self._plain

    def _bound_to_ask(self) -> RequestBound:
        """Return the bound; where the body cannot be replaced, no limit can be put in."""
        bound, replace = self.bound, self._replace
        assert bound is not None
        if bound.least_output is not None and (replace is None or not replace(self._body())):
            self.bound = bound = structs.replace(bound, least_output=None)
        return bound

    def _limit(self, output_tokens: int) -> bool:
        """Limit the answers to what their money pays for; tells whether that was possible."""
        bound, replace = self.bound, self._replace
        assert bound is not None
        each = (output_tokens - bound.beside_output) // bound.answers
        put = self._reports.limits.put(
            self.endpoint.format, self.host, self._path, bound.model, self._body(), each
        )
        if put is None or replace is None or not replace(put.body):
            return False
        self.limited_body = put
        self.bound = structs.replace(bound, output_tokens=output_tokens)
        self._note_limit(put.tokens)
        self.limited = True
        return True

    def _note_limit(self, each: int) -> None:
        """Note that each answer has no more than so many tokens."""
        bound = self.bound
        if bound is not None and bound.output_tokens is not None:
            most = min(bound.output_tokens, each * bound.answers + bound.beside_output)
            self.bound = structs.replace(bound, output_tokens=most)

    def sending(self) -> Sending[ObservedCall]:
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
        """The client raised instead of answering. The vendor may have worked, and bills that."""
        if self._done:
            return
        self.status = status_of(exc)
        answer = held_answer(exc)
        if answer is not None:  # a hook of the user's has raised, and may have read it before
            self.unsent = False
            content = content_of(answer)
            if content is not None and self.status is not None:
                self.whole(self.status, answer.headers.get, content)
                return
        # Where nothing has watched the body leave, the exception's name may say so.
        unsent = never_left(exc) if self.unsent is None else self.unsent
        refused = self.status is not None and not may_be_billed(self.status)
        if self.sent_s is None or unsent or refused:
            self.dropped()
        else:
            self._end(Ending.LOST)

    @property
    def has_lost_a_try(self) -> bool:
        """Whether its last try has left, and the vendor may bill it although nobody reads it."""
        tried = self.tried
        return tried is not None and not self.unsent and (not tried or may_be_billed(tried))

    def again(self) -> None:
        """The client tries again by itself: the last try is lost, this one is held by itself.

        Raises:
            Refusal: it may not go out.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        self._lose()
        if self.uncovered:
            self.ask()

    async def again_async(self) -> None:
        """Like :meth:`again`; the caller's loop goes on meanwhile."""
        self._lose()
        if self.uncovered:
            await self.ask_async()

    def _lose(self) -> None:
        lost = copy.copy(self)
        lost._span = None  # one span for all tries
        self._reports.tried(lost)
        lost._end(Ending.LOST)
        self.unsent = None
        if self._gate is not None and self.bound is not None:
            self.cover(self._gate, self.bound, self._replace)

    # -- the response -------------------------------------------------------------------------

    def whole(self, status: int, header: Callable[[str], str | None], body: bytes) -> None:
        """The whole response was read.

        Args:
            status: HTTP status.
            header: returns a response header by its lower-case name.
            body: decoded.
        """
        if self._done or not self._answered(status):
            return
        self._header = header
        self._content = body
        self.tool_watch = self._tool_watch("")
        self._end(Ending.COMPLETE)

    def _answered(self, status: int) -> bool:
        """Note the answer's status; False when there is no answer of a model behind it."""
        self.status = status
        if status < 400:
            for is_taken in self._if_taken:
                is_taken()
            return True
        if may_be_billed(status):  # a proxy has lost the vendor
            self._end(Ending.LOST)
        else:
            self.dropped()
        return False

    def _end(self, ending: Ending) -> None:
        self._done = True
        self.ending = ending
        self.ended_s = time.monotonic()
        self._reports.ended(self)

    @property
    def reservation_id(self) -> str | None:
        """What the call's event names; None without cover."""
        return None if self.hold is None else self.hold.reservation_id

    def header(self, name: str) -> str | None:
        """Return a header of the answer by its lower-case name."""
        return self._header(name)

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
        if self._done or not self._answered(status):
            return False
        self._header = header
        chosen = self._encoding if encoding is None else encoding
        self.recording = Recording(chosen, self.endpoint.condense)
        if self.filter is not None and encoding is None and self._encoding():
            self.filter = None  # compressed although it was asked not to be
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
            if not self._is_read:
                self._is_read = True
                open_streams.note(self)
            self.recording.feed(chunk)
        if self.watch is not None:
            try:
                self.watch.feed(chunk)
            except BaseException:
                self.finish(Ending.CLOSED)
                raise

    def finish(self, ending: Ending) -> None:
        """The stream is over: it reached its end, we have closed it, or it was lost."""
        if self._done:
            return
        self._content, self.recording = self.recording, None
        self._end(ending)

    def dropped(self) -> None:
        """There is nothing to record."""
        if not self._done:
            self._done = True
            self._forget()

    def _forget(self) -> None:
        if self._span is not None:
            self._span.dropped(self)
        is_ours = self._reports.forget(self)
        if self.hold is not None and is_ours:
            self.hold.give_back()

    def abandon(self) -> None:
        """The process is ending: record what is known so far."""
        if self.sent_s is None or self.unsent:
            self.dropped()
        else:
            self.finish(Ending.CLOSED)

    # -- reading ------------------------------------------------------------------------------

    @property
    def is_small(self) -> bool:
        """Whether the unread response takes little memory."""
        content = self._content
        return not isinstance(content, bytes) or len(content) <= _SMALL_BYTES

    @property
    def names_another(self) -> bool:
        """Whether the unread answer names a model whose price is not what its hold counts by."""
        bound, hold, content = self.bound, self.hold, self._content
        if bound is None or hold is None or bound.model is None:
            return False
        if isinstance(content, Recording):
            content = content.pending[0] if content.pending else None
        name = "" if content is None else named_in(content[:_HEAD_BYTES])
        return name != bound.model and not hold.prices(name)

    @property
    def is_complete(self) -> bool:
        """Whether the response reached its end."""
        return self.ending is Ending.COMPLETE

    def read(self, call: InstrumentedCall) -> None:
        """Set what the call used, unless that was done already; never raises."""
        reports = self._reports
        with reports.reading:
            if call.answer is None:
                return
            try:
                settle(self, call, reports)
            except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
                reports.failed(exc)
                if self.hold is not None:
                    self.hold.keep()
            call.answer = None
            if self._span is not None:
                self._span.answered(self, call)

    @property
    def content(self) -> bytes | Recording | None:
        """The response, or the recorded part of its stream, once it is over."""
        return self._content

    @property
    def request(self) -> Call:
        """The request, for what is read or estimated from it."""
        return Call(self._path, self._body, self._header)

    def _encoding(self) -> str:
        return self._header("content-encoding") or ""


def call_being_sent() -> ObservedCall | None:
    """Return the observed call that is being sent in this context."""
    sending: Sending[ObservedCall] | None = nested_call.get()
    return None if sending is None else sending.call


def is_signed(headers: Mapping[str, Any]) -> bool:
    """Tell whether a request's signature covers its body, as AWS's does."""
    found = headers.get("Authorization") or headers.get("authorization") or b""
    return str(found).lstrip("b'").startswith("AWS4-")


def _no_header(name: str) -> str | None:
    return None
