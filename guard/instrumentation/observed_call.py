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
from guard.core.request_bound import RequestBound, with_last_answer
from guard.core.usage import (
    Call,
    Endpoint,
    Recording,
    Usage,
    find_endpoint,
)
from guard.core.usage.ends import Ending, may_be_billed
from guard.core.usage.tool_scan import ToolScanner
from guard.instrumentation import open_streams
from guard.instrumentation.account import Account
from guard.instrumentation.answer import Learned, record_answer
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
from guard.instrumentation.tool_watch import ToolWatch
from guard.instrumentation.vendors_word import CostQuestion, question_about
from guard.scope.scope import Scope

WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "CONNECT", "OPTIONS", "TRACE"})
"""Methods whose requests ask no model, also within one that does."""

_SMALL_BYTES: Final = 64 * 1024
"""The largest whole answer that waits unread: a larger one is parsed and freed at once."""

_HEAD_BYTES: Final = 1024
"""How much of an answer is searched for the model's name, which vendors write at the beginning."""

_REFUSALS: Final = (400, 422)
"""Statuses by which vendors refuse a parameter of the request."""


class CallReports(Learned, Protocol):
    """What an observed call reports to. Also an ``AnswerReports`` of such calls."""

    reading: threading.RLock
    """Held while an answer is read, so that two threads do not read it at once."""

    limits: OutputLimits
    """Puts limits on the output into requests."""

    stream_usage: StreamUsage
    """Asks streams for their usage."""

    def account(self, scope: Scope) -> Account:
        """Return the account that requests of a scope belong to."""

    def ended(self, call: ObservedCall, ending: Ending) -> None:
        """Record a call that has ended, unless another thread does; never raises."""

    def forget(self, call: ObservedCall) -> bool:
        """Forget a call that ends without anything to record; False if it is another process's."""

    def record_attempt(self, lost: ObservedCall) -> None:
        """Register the copy of a call that stands for an earlier try; the copy ends at once."""

    def reported(self, call: ObservedCall, usage: Usage | None, *, again: bool) -> Usage | None:
        """Return the usage to record; None if there is none or it was recorded before."""

    def hold_until_polled(
        self, call: ObservedCall, event: InstrumentedCall, at_most: Usage, *, goes_on: bool
    ) -> None:
        """Keep the hold of unfinished work until a poll names its response."""

    def failed(self, exc: Exception) -> None:
        """Count an error in the observation."""


class ObservedCall:
    """From the check before a request to the event after its response.

    A transport sends the request inside :meth:`sending`. Then it calls :meth:`whole` for a body
    that it has read, or :meth:`streaming`, ``feed`` for every chunk that passes, and :meth:`finish`
    when the stream ends, breaks or is abandoned. Only the first end counts. The caller does not
    wait for the response to be parsed: :meth:`read` does that later, on another thread.

    The thread or task that makes the request writes all attributes until the call ends. Then
    whichever thread reads the answer uses them, under ``reports.reading``. Three things may come
    from another thread before the end: :meth:`abandon` at shutdown, what the hold grants to a
    stream (``hold.output_tokens``), and the end of a stream that the garbage collector drops.

    Args:
        reports: takes what is found.
        endpoint: the endpoint that the URL belongs to.
        scope: the scope in which the request was made.
        host, path: those of the URL.
        body: returns the request's body.
        span: the span of the request, in the program's own tracing; None without one.

    Attributes:
        started_s: when it was made, by the monotonic clock.
        thread: identity of the thread that made it.
        sent_s: when it was last handed to the client; None before. A call without it has cost
            nothing, whatever ends it.
        ended_s: when its answer, or the wait for it, was over.
        ending: how it ended.
        status: the status of its answer; None while there is none.
        recording: the recorded part of the stream that is being read.
        filter: removes the usage chunk from a stream whose caller did not ask for it.
        limited_body: the limit on the output that guard has put into it; None without one.
        watched: whether its transport sends by a layer that is hooked, so that each of its bodies
            is seen as it leaves.
        in_memory: whether an answer for which no body has left costs nothing: its transport sends
            by a hooked layer, or not at all.
        tried: what became of its newest body: None before the first one leaves, 0 while there is no
            answer, else the status.
        bound: what it can cost at most; None where requests are not gated.
        hold: the money set aside for it; None until a lease or the gateway has given it.
        limited: whether its output was limited to what its money pays for.
        headers: returns the request's headers.
        uncovered: whether the gateway must be asked first, by :meth:`ask` or :meth:`ask_async`.
        watch: counts the tokens of a stream that may outgrow its cover.
        tool_watch: checks the tools that the answer asks for; None where no rule applies.
    """

    # Slots: a program may hold thousands of open calls. `_charge_lost` copies them (`copy.copy`).
    __slots__ = (
        "_body", "_content", "_done", "_gate", "_header", "_if_taken", "_is_read", "_path",
        "_plain", "_replace", "_reports", "_span", "bound", "ended_s", "ending", "endpoint",
        "filter", "headers", "hold", "host", "in_memory", "limited", "limited_body", "recording",
        "scope", "sent_s", "started_s", "status", "thread", "tool_watch", "tried", "uncovered",
        "watch", "watched",
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
        # Meaningless until `_done`; the value that costs most, in case an error comes before.
        self.ending = Ending.LOST
        self.status: int | None = None
        self.filter: UsageChunkFilter | None = None
        self.watched = self.in_memory = False
        self.tried: int | None = None
        self._gate: RequestGate | None = None
        # Gives the request another body, and returns whether it could; None where nothing can.
        self._replace: Callable[[bytes], bool] | None = None
        # The body as it was before `include_usage` was put into it, but with its output limit;
        # None unless usage is asked for.
        self._plain: bytes | None = None
        # Called when a request that was changed back succeeds. Only then is it certain that the
        # vendor's refusal was about the change, and the change is not tried again.
        self._if_taken: tuple[Callable[[], None], ...] = ()
        self.limited_body: LimitedBody | None = None
        self.bound: RequestBound | None = None
        self.hold: RequestCover | None = None
        self.headers: Callable[[], Mapping[str, Any]] = dict
        self.uncovered = False
        self.limited = False
        self.watch: StreamWatch | None = None
        self.tool_watch: ToolWatch | None = None
        self._path = path
        self._body = body
        # Reads the response's headers; set when the response arrives.
        self._header: Callable[[str], str | None] = _no_header
        # The response, or the recorded part of its stream; None until it is over. A stream's
        # recording moves here from `recording` at its end, so only one of the two is set.
        self._content: bytes | Recording | None = None
        self.recording: Recording | None = None
        # Whether the reader of its stream is noted.
        self._is_read = False
        # Whether an end has come: a response, an error, a dropped stream. The first one counts,
        # the others return without effect. Tested and set without a lock: if `abandon` comes from
        # another thread just then, `CallReports.ended` decides which of the two was first.
        self._done = False

    # -- the request --------------------------------------------------------------------------

    def cover(
        self,
        gate: RequestGate,
        bound: RequestBound,
        replace: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Set money aside from a lease; sets ``uncovered`` if the gateway must be asked instead.

        Args:
            gate: sets the money aside.
            bound: what the request can cost at most.
            replace: gives the request another body; returns whether that was possible.
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
        except BaseException:  # also Ctrl-C or a kill while it waits: the request is not sent
            self.dropped()
            raise

    async def ask_async(self) -> None:
        """Like :meth:`ask`, without blocking the caller's loop."""
        try:
            if self._gate is not None and self.bound is not None:
                bound = self._bound_to_ask()
                self.hold = await self._gate.ask_async(self.scope, bound, self._limit)
        except BaseException:
            self.dropped()
            raise

    def takes(self) -> None:
        """Take the hold, as the first byte of a body is about to be written.

        A further body, of a redirect or another try, is another request to the vendor: it takes
        another hold. So does one of a process that stood still until its hold was over.

        Raises:
            Refusal: it may not go out.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        if self._needs_another():
            self.ask()
        self.tried = 0

    async def takes_async(self) -> None:
        """Like :meth:`takes`, without blocking the caller's loop."""
        if self._needs_another():
            await self.ask_async()
        self.tried = 0

    def is_tried(self, status: int) -> None:
        """Note the status of the answer to the newest body."""
        if self.tried == 0:
            self.tried = status

    @property
    def owes(self) -> bool:
        """Whether its newest body has left, and may be billed."""
        tried = self.tried
        return tried is not None and (not tried or may_be_billed(tried))

    def _needs_another(self) -> bool:
        """End the hold of the body before; return whether to ask the gateway for another one."""
        if self._done:
            return False
        if self.tried is None:
            return self._has_lapsed() or (self.uncovered and self.hold is None)
        try:
            self._reports.account(self.scope).check_request(self.scope)
        except BaseException:
            self._end(Ending.LOST) if self.owes else self.dropped()
            raise
        if self.owes:
            self._charge_lost()
        elif self.hold is not None:
            self.hold.give_back()
        # The body stays as it is: its length may be known to the vendor already.
        self.tried = self.hold = self._replace = None
        if self._gate is None or self.bound is None:
            return False
        try:
            self.cover(self._gate, self.bound)
        except BaseException:  # refused: this body is not sent, and the last one is charged
            self.dropped()
            raise
        return self.uncovered

    def _has_lapsed(self) -> bool:
        """Give back a hold that was not renewed in time; return whether there was one."""
        hold = self.hold
        if hold is None or self._done or not hold.has_lapsed():
            return False
        hold.give_back()
        # The body stays as it is: its length may be known to the vendor already.
        self.hold = self._replace = None
        return True

    def asking_for_usage(self) -> bytes | None:
        """Return the body that asks a stream for its usage; None to leave the body as it is.

        Called after the output limit was put in: ``_plain`` has to keep the limit.
        """
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
        """Return whether a refusal may be about what guard has changed in the request."""
        changed = self.filter is not None or self.limited_body is not None
        return changed and status in _REFUSALS

    def unchanged(self, answer: bytes) -> bytes | None:
        """Return the body to send once more after such a refusal; None to accept the refusal.

        The loop in the transport ends: the filter is taken out once, and ``LimitedBody.retry``
        returns a finite number of bodies.

        Args:
            answer: body of the refusal; empty when it was not read.
        """
        limited, usage = self.limited_body, self.filter
        # In each case below the next body is without `include_usage`, so nothing is to be hidden.
        self.filter = None
        # 1. The output limit: a smaller one, or its other name. If the reason for the refusal was
        #    not read, both changes are suspects, and the option is removed first (case 2): more
        #    endpoints refuse that.
        if limited is not None and (answer or usage is None):
            changed = limited.retry(answer)
            if changed is not None:
                self.limited_body = changed
                self._if_taken = (*(self._if_taken if answer else ()), changed.accepted)
                self._note_limit(changed.tokens)
                return changed.body
        # 2. The option that asks for usage is removed.
        # 3. Neither was changed, or the refusal is about something else.
        if usage is None:
            return None
        self._if_taken += (usage.is_refused,)
        return self._plain

    def _bound_to_ask(self) -> RequestBound:
        """Return the bound for the question to the gateway.

        A bound with ``least_output`` lets the gateway answer with a smaller output limit. That is
        offered only if the body can be replaced, which is tried with the body itself: it is too
        late to find out when the money for the smaller answer is set aside.
        """
        bound, replace = self.bound, self._replace
        assert bound is not None
        if bound.least_output is not None and (replace is None or not replace(self._body())):
            self.bound = bound = structs.replace(bound, least_output=None)
        return bound

    def _limit(self, output_tokens: int, is_last: bool) -> bool:
        """Limit the answers to what their money pays for; return whether that was possible.

        Args:
            output_tokens: those of all answers together, with ``beside_output``.
            is_last: whether the model is told that this is its last answer, without tools.
        """
        bound, replace, body = self.bound, self._replace, self._body()
        assert bound is not None
        if is_last:
            from guard.core.bounds import as_last_answer  # loaded when the request was bounded

            body, bound = as_last_answer(self.endpoint.format, body), with_last_answer(bound)
        each = (output_tokens - bound.beside_output) // bound.answers
        put = self._reports.limits.put(
            self.endpoint.format, self.host, self._path, bound.model, body, each
        )
        if put is None or replace is None or not replace(put.body):
            return False
        self.limited_body = put
        self.bound = structs.replace(bound, output_tokens=output_tokens)
        self._note_limit(put.tokens)
        self.limited = True
        return True

    def _note_limit(self, each: int) -> None:
        """Lower the bound: each answer has at most ``each`` tokens."""
        bound = self.bound
        if bound is not None and bound.output_tokens is not None:
            most = min(bound.output_tokens, each * bound.answers + bound.beside_output)
            self.bound = structs.replace(bound, output_tokens=most)

    def sending(self) -> Sending[ObservedCall]:
        """Return the context manager around the client's own sending."""
        return Sending(self)

    def sends(self, method: str, host: str, path: str, content: object) -> bool:
        """Return whether a lower transport sends a body of this request.

        Not while a client fetches a token for it, say. A redirect may change host and path.

        Args:
            method, host, path: those of the lower transport's request.
            content: its body; None where that is not known.
        """
        if method in WITHOUT_BODY:
            return False
        if path == self._path or content is None or 300 <= (self.tried or 0) < 400:
            return True
        return content == self._body() or find_endpoint(method, host, path) is not None

    def is_sent_by(self, path: str, body: Callable[[], bytes]) -> bool:
        """Return whether another request is this one, seen at a lower transport.

        Such as with httpx over aiohttp. A client may rewrite the host on the way, but not the path
        or the body. An empty body is a stream that cannot be compared; then the path decides.
        """
        if path != self._path:
            return False
        content = body()
        return not content or content == self._body()

    def unanswered(self, exc: BaseException) -> None:
        """End the call because the client raised; the vendor may have worked, and bill that."""
        if self._done:
            return
        self.status = status_of(exc)
        # 1. There was a whole answer, and something raised after it: charge by the answer.
        answer = held_answer(exc)
        if answer is not None:  # a hook of the user's has raised, and may have read it before
            content = content_of(answer)
            if content is not None and self.status is not None:
                self.whole(self.status, answer.headers.get, content)
                return
        # 2. Nothing left, or the vendor refused: it costs nothing. Where no body was seen leaving
        #    by a transport that is not hooked, the exception's class may say so.
        # 3. Anything else is lost: it is charged its bound, because the vendor may bill it.
        has_tried = self.tried is not None or self.watched
        unsent = not self.owes if has_tried else never_left(exc)
        refused = self.status is not None and not may_be_billed(self.status)
        if self.sent_s is None or unsent or refused:
            self.dropped()
        else:
            self._end(Ending.LOST)

    def _charge_lost(self) -> None:
        """Charge the last body by a copy of this call, which takes its hold along."""
        # This object stays: the transports, the response and `nested_call` refer to it.
        lost = copy.copy(self)
        lost._span = None  # one span for all tries
        # Before its end: `ended` records only calls that are open.
        self._reports.record_attempt(lost)
        lost._end(Ending.LOST)

    # -- the response -------------------------------------------------------------------------

    def whole(self, status: int, header: Callable[[str], str | None], body: bytes) -> None:
        """End the call: the whole response was read.

        Args:
            status: HTTP status.
            header: returns a response header by its lower-case name.
            body: decoded.
        """
        if self._done or not self._answered(status):
            return
        self._header = header
        self._content = body
        # The transport checks the tools after this: a refused answer is recorded all the same.
        self.tool_watch = self._tool_watch("")
        self._end(Ending.COMPLETE)

    def _answered(self, status: int) -> bool:
        """Note the answer's status; False, and the call has ended, if no model has answered."""
        self.status = status
        if status < 400:
            for is_taken in self._if_taken:
                is_taken()
            return True
        if may_be_billed(status):  # a proxy has lost its connection to the vendor
            self._end(Ending.LOST)
        else:
            self.dropped()
        return False

    def _end(self, ending: Ending) -> None:
        if self.tried is None and self.in_memory:
            self.dropped()  # nothing has left: a mock has answered, or a cassette
            return
        self._done = True
        self._reports.ended(self, ending)

    @property
    def reservation_id(self) -> str | None:
        """The lease or reservation that pays for it; None without cover."""
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
        gate = self._reports.account(self.scope).tools
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
        """Prepare for the user's reading of the response; False when there is nothing to observe.

        May be called twice: urllib3 shows only with the first chunk whether it decodes the body.

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
            # Compressed although it was asked not to be: the usage chunk cannot be found, and is
            # shown to the reader.
            self.filter = None
        if self.hold is not None:
            encoded = chosen if isinstance(chosen, str) else chosen()
            self.watch = watch_of(self.hold, self.bound, self.scope, encoded)
        self.tool_watch = self._tool_watch(chosen)
        return True

    def leaves(self, header: Callable[[str], str | None]) -> None:
        """Note that the frame which asks for it is about to be sent: its answer may come."""
        self.sent_s = time.monotonic()
        self.streaming(200, header, "")

    def is_read_here(self) -> None:
        """Note that the running task or thread reads the stream; with the first chunk or before.

        ``feed`` calls it; so does a transport that records chunks without ``feed``.
        """
        if not self._is_read:
            self._is_read = True
            open_streams.note(self)

    def feed(self, chunk: bytes) -> None:
        """Record a chunk.

        Raises:
            Refusal: the stream has outgrown its cover, and must stop.
        """
        recording = self.recording  # once: another thread may abandon the call at any moment
        if recording is not None:
            if not self._is_read:
                self.is_read_here()
            recording.feed(chunk)
        if self.watch is not None:
            try:
                self.watch.feed(chunk)
            except BaseException:  # refused: the reader gets no more, and the transport closes it
                self.finish(Ending.CLOSED)
                raise

    def finish(self, ending: Ending) -> None:
        """End the call: its stream reached its end, was closed here, or was lost."""
        if self._done:
            return
        # The content first, and never None: another thread may be here as well, and whichever ends
        # the call first must leave the content to be read.
        recording = self.recording
        if recording is not None:
            self._content = recording
            self.recording = None
        self._end(ending)

    def dropped(self) -> None:
        """End the call without a record: it cost nothing. Its money goes back."""
        if not self._done:
            self._done = True
            self._forget()

    def _forget(self) -> None:
        if self._span is not None:
            self._span.dropped(self)
        # In a forked child the hold is the parent's: giving it back twice would free money that
        # the parent's request is spending.
        is_ours = self._reports.forget(self)
        if self.hold is not None and is_ours:
            self.hold.give_back()

    def abandon(self) -> None:
        """End the call because the process ends: record what is known so far. Any thread."""
        if self.sent_s is None or (self.watched and not self.owes):
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
        """Whether the unread answer names a model that the hold's rates do not price.

        Looks at the first bytes only, without parsing: it runs on the caller's thread.
        """
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
            # Two threads may come here with the same event: the background loop that sends it, and
            # one that needs the money which it holds. The second finds it read.
            if call.answer is None:
                return
            try:
                record_answer(self, call, reports)
            except Exception as exc:  # noqa: BLE001  # counted and logged: it never hurts the user
                reports.failed(exc)
                if self.hold is not None:
                    self.hold.keep()  # the vendor has worked: in doubt all of it is spent
            # Last, and also after an error: `usage_of` takes an event without an answer as read.
            call.answer = None
            if self._span is not None:
                self._span.answered(self, call)

    @property
    def content(self) -> bytes | Recording | None:
        """The response, or the recorded part of its stream, once it is over."""
        return self._content

    @property
    def request(self) -> Call:
        """The request, from which usage is read or estimated."""
        return Call(self._path, self._body, self._header)

    def question(self, response_id: str | None) -> CostQuestion | None:
        """Return what its vendor can be asked about its cost; None where that cannot be asked."""
        if response_id is None or self.is_complete:
            return None
        return question_about(response_id, self.endpoint, self.host, self.request, self.headers)

    def _encoding(self) -> str:
        return self._header("content-encoding") or ""


def call_being_sent() -> ObservedCall | None:
    """Return the observed call that is being sent in this context; None if there is none."""
    sending: Sending[ObservedCall] | None = nested_call.get()
    return None if sending is None else sending.call


def is_signed(headers: Mapping[str, Any]) -> bool:
    """Return whether a request's signature covers its body, as AWS's does."""
    # Some clients keep header values as bytes: `str` makes "b'AWS4-...'" of them.
    found = headers.get("Authorization") or headers.get("authorization") or b""
    return str(found).lstrip("b'").startswith("AWS4-")


def _no_header(name: str) -> str | None:
    return None
