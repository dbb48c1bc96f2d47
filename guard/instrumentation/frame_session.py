"""An LLM's WebSocket whose answers are held like requests: each before its frame is sent.

Each answer is an ``ObservedCall`` of its own: what is held, metered, charged and charged in doubt
is what would be of a streamed answer over HTTP.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol
from weakref import ref

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.core.events import InstrumentedCall
from guard.core.usage import Endpoint
from guard.core.usage.conversation import FrameStep
from guard.core.usage.ends import Ending
from guard.core.usage.frames import Asked
from guard.core.usage.realtime import ModelSocket, transcript
from guard.instrumentation import open_streams
from guard.instrumentation.observed_call import ObservedCall
from guard.instrumentation.tool_watch import ToolWatch
from guard.scope.scope import Scope, current_scope


class FrameObserver(Protocol):
    """What a session reports to; see ``Instrumentation``."""

    def check_session(self) -> None:
        """Raise if the current scope's next LLM request must not go out."""

    def begin_frame(
        self,
        endpoint: Endpoint,
        scope: Scope,
        host: str,
        path: str,
        body: Callable[[], bytes],
        replace: Callable[[bytes], bool] | None = None,
        *,
        is_gated: bool = True,
    ) -> ObservedCall:
        """Check an answer that a frame asks for, and start observing it."""

    def is_trusted_frame(self, name: str, scope: Scope) -> bool:
        """Name a type of frames that is not known here; return whether it costs nothing."""

    def has_transcripts(self, host: str, path: str, scope: Scope) -> None:
        """Name a session whose user's words are written down: nothing is held for that."""

    def session_used(self, call: InstrumentedCall, scope: Any) -> None:
        """Record what was used beside the answers; never raises."""


class Frame:
    """A frame that is about to be sent, or an answer that the vendor has begun by itself.

    A transport calls :meth:`take` or :meth:`take_async`, and then sends :attr:`message`.

    Args:
        session: the session.
        message: as the caller sends it.
        data: the same in bytes.
        asked: the answers that it may bring about.
    """

    __slots__ = ("_asked", "_data", "_session", "message")

    def __init__(
        self, session: FrameSession, message: Any, data: bytes, asked: list[Asked]
    ) -> None:
        self.message = message
        self._session = session
        self._data = data
        self._asked = asked

    def replace(self, asked: Asked, body: bytes) -> bool:
        """Let the frame say something else, such as a limit on the answer."""
        asked.body = self._data = body
        self.message = body.decode() if isinstance(self.message, str) else body
        return True

    def take(self) -> None:
        """Hold the money of its answers; blocks the calling thread.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: the frame must not be sent.
        """
        try:
            for each in self._asked:
                each.call.takes()
        except BaseException:
            self.drop()
            raise
        self._session.went(self._data, self._asked)

    async def take_async(self) -> None:
        """Like :meth:`take`, without blocking the caller's loop."""
        try:
            for each in self._asked:
                await each.call.takes_async()
        except BaseException:
            self.drop()
            raise
        self._session.went(self._data, self._asked)

    def drop(self) -> None:
        """Give the money back: the frame is not sent."""
        for each in self._asked:
            self._session.forget(each)
            if each.call is not None:
                each.call.dropped()


SESSION_ATTRIBUTE: Final = "_guard_session"
"""Where a client's connection keeps its :class:`FrameSession`."""

_STREAM: Final = {"content-type": "text/event-stream"}


class FrameSession:
    """One connection, from its handshake to its end.

    Messages are sent and received by several tasks or threads. The lock guards the conversation;
    nothing waits for a decision while it is held, since the answers that bring money back are
    received by others.

    Args:
        observer: checks frames and takes what is found.
        socket: how its frames are read.
        host, path: those of the URL.

    Attributes:
        reading: how many tasks or threads wait for a message.
        closing: whether it is being closed here.
    """

    def __init__(self, observer: FrameObserver, socket: ModelSocket, host: str, path: str) -> None:
        self._observer = observer
        self._endpoint, self._conversation = socket
        self._host, self._path = host, path
        self._lock = threading.Lock()
        # The scope of the newest frame: what the vendor begins by itself is charged there.
        self._scope = current_scope.get()
        self._ended = False
        # Who has received its newest message.
        self._reader: ref[open_streams.Reader] | None = None
        self._has_told = False  # that it has transcripts, for which nothing is held
        # What checks the tools of the newest answer.
        self._watch: ToolWatch | None = None
        self.reading = 0
        self.closing = False

    # -- sending ------------------------------------------------------------------------------

    def frame(self, message: Any) -> Frame:
        """Check a message that is about to be sent.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: it is paused or its budget is exhausted.
        """
        self._observer.check_session()
        self._scope = scope = current_scope.get()
        data = message.encode("utf-8", "replace") if isinstance(message, str) else bytes(message)
        with self._lock:
            planned = self._conversation.plan(data)
        asked = [
            each
            for each in planned
            if each.unknown is None
            or (  # a server at another host has frames of its own
                self._endpoint.is_vendors
                and not self._observer.is_trusted_frame(each.unknown, scope)
            )
        ]
        return self._frame(message, data, asked)

    def _frame(self, message: Any, data: bytes, asked: list[Asked]) -> Frame:
        frame = Frame(self, message, data, asked)
        reader = None if self._reader is None else self._reader()
        if asked and open_streams.is_left(reader):
            # Nobody else reads what brings its money back: this task must not wait for that.
            for call in self._calls():
                open_streams.note(call)
        try:
            for each in asked:
                replace = None
                if each.body is data:
                    replace = lambda body, each=each: frame.replace(each, body)  # noqa: E731
                each.call = self._begin(each, replace)
        except BaseException:
            frame.drop()
            raise
        return frame

    def _begin(
        self, asked: Asked, replace: Callable[[bytes], bool] | None, *, is_gated: bool = True
    ) -> ObservedCall:
        return self._observer.begin_frame(
            self._endpoint,
            self._scope,
            self._host,
            self._path,
            lambda: asked.body,
            replace,
            is_gated=is_gated,
        )

    def went(self, data: bytes, asked: list[Asked]) -> None:
        """Note that a frame leaves, and that its answers may begin."""
        for each in asked:
            each.call.leaves(_STREAM.get)
        with self._lock:
            outdated = self._conversation.went(data, asked)
        self._do(outdated, data, Ending.CLOSED)

    def forget(self, asked: Asked) -> None:
        """Note that a frame has not left."""
        with self._lock:
            self._conversation.forget(asked)

    def _calls(self) -> list[ObservedCall]:
        conversation = self._conversation
        with self._lock:
            return [each.call for each in (*conversation.running.values(), *conversation.waiting)]

    # -- receiving ----------------------------------------------------------------------------

    @contextmanager
    def reads(self, drop: Callable[[], None]) -> Iterator[None]:
        """Note that the running task or thread waits for a message.

        Args:
            drop: ends the connection at once, if it is a kill that ends the wait.
        """
        self.reading += 1
        self._reader = ref(open_streams.reader())
        try:
            with self.drops(drop):
                yield
        finally:
            self.reading -= 1

    @contextmanager
    def drops(self, drop: Callable[[], None], *, always: bool = False) -> Iterator[None]:
        """Drop the connection when a kill is raised, or ``always`` when something is."""
        try:
            yield
        except BaseException:
            if always or self.is_killed():
                drop()
            raise

    def hear(self, message: Any, drop: Callable[[], None]) -> None:
        """Inspect a received message before its reader gets it.

        It holds the money of an answer that nothing has asked for, and checks the tools that the
        message asks for.

        Args:
            message: as the client hands it out.
            drop: ends the connection at once, if this raises.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            Refusal: there is no money for an answer that runs, or it asks for a tool that is
                refused.
        """
        with self.drops(drop, always=True):
            frame = self._unasked(message)
            if frame is not None:
                try:
                    frame.take()
                except BaseException:
                    self._unpaid(frame)
                    raise
            # After it is recorded: the vendor bills an answer that is refused here all the same.
            for watch, event in self.received(message):
                watch.check(event)

    async def hear_async(self, message: Any, drop: Callable[[], None]) -> None:
        """Like :meth:`hear`, without blocking the caller's loop."""
        with self.drops(drop, always=True):
            frame = self._unasked(message)
            if frame is not None:
                try:
                    await frame.take_async()
                except BaseException:
                    self._unpaid(frame)
                    raise
            for watch, event in self.received(message):
                await watch.check_async(event)

    def _unasked(self, message: Any) -> Frame | None:
        """Return the answer that a message begins although nothing has asked for it."""
        data = _bytes_of(message)
        if data is None or self._ended:
            return None
        with self._lock:
            asked = self._conversation.unheld(data)
        if asked is None:
            return None
        try:
            return self._frame(message, data, [asked])
        except BaseException:
            self._unpaid(Frame(self, message, data, [asked]))
            raise

    def _unpaid(self, frame: Frame) -> None:
        """Charge an answer that runs already, and for which nothing could be held."""
        for asked in frame._asked:
            asked.call = self._begin(asked, None, is_gated=False)
        self.went(b"{}", frame._asked)
        self.received(frame.message)

    def received(self, message: Any) -> list[tuple[ToolWatch, bytes]]:
        """Record a received message; return what checks the tools that it asks for.

        Raises:
            Refusal: an answer has outgrown what is held for it: the connection is to be closed.
        """
        data = _bytes_of(message)
        if data is None:
            return []
        if self._ended:  # what has arrived before is charged already; its tools may be refused
            return [] if self._watch is None else [(self._watch, _as_chunk(data))]
        with self._lock:
            steps = self._conversation.received(data)
        watches = [each.call.tool_watch for each, is_part, _ in steps if is_part]
        watches = [watch for watch in watches if watch is not None]
        self._watch = watches[-1] if watches else self._watch
        self._do(steps, data, Ending.COMPLETE)
        heard = transcript(self._endpoint.format.provider, data, self._conversation)
        if heard is not None:
            if not self._has_told:
                self._has_told = True
                self._observer.has_transcripts(self._host, self._path, self._scope)
            event = InstrumentedCall(self._endpoint.format.provider, 0.0, None, heard, True)
            self._observer.session_used(event, self._scope)
        return [(watch, _as_chunk(data)) for watch in watches]

    def _do(self, steps: Iterable[FrameStep], data: bytes, ending: Ending) -> None:
        for asked, is_part, end in steps:
            call: ObservedCall = asked.call
            if is_part:
                call.feed(_as_chunk(data))
            if end == "free":
                call.dropped()
            elif end is not None:
                call.finish(Ending.COMPLETE if end == "done" else ending)

    # -- its end ------------------------------------------------------------------------------

    def is_killed(self) -> bool:
        """Return whether the workflow is killed, whose connection is to be closed then."""
        try:
            self.check_kill()
        except WorkflowKilledInterrupt:
            return True
        return False

    def check_kill(self) -> None:
        """Raise a kill instead of the client's error about a connection that is closed.

        A kill shuts down the socket that is read. If a message has arrived at that moment, the read
        returns it, and the next use of the connection is the first to notice.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
        """
        try:
            self._observer.check_session()
        except WorkflowKilledInterrupt:
            raise
        except BaseException:  # noqa: BLE001  # such as a pause: what runs may end
            return

    def closed(self) -> None:
        """Note that it was closed here; who still reads sees all that has arrived before."""
        if not self.reading:
            self.ended()

    def ended(self, ending: Ending = Ending.CLOSED, *, seen: bool = False) -> None:
        """Charge what is left when the connection is over, as a cut stream is. Idempotent.

        Args:
            ending: whether it was closed here or lost.
            seen: whether all that the server has said was read.
        """
        if self._ended:
            return
        self._ended = True
        with self._lock:
            steps = self._conversation.rest(seen=seen)
        self._do(steps, b"", Ending.CLOSED if self.closing else ending)


def _as_chunk(data: bytes) -> bytes:
    """Return an event as a stream over HTTP has it: JSON has line breaks between members only."""
    return b"data: %b\n\n" % data.replace(b"\n", b" ").replace(b"\r", b" ")


def _bytes_of(message: Any) -> bytes | None:
    if isinstance(message, str):
        return message.encode("utf-8", "replace")
    return bytes(message) if isinstance(message, bytes | bytearray | memoryview) else None


def wrap_close(original: Any) -> Any:
    """Return what wraps the blocking ``close`` of a connection."""

    @functools.wraps(original)
    def close(self: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return original(self, *args, **options)
        session.closing = True
        try:
            return original(self, *args, **options)
        finally:
            session.closed()

    return close
