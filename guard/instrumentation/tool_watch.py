"""Checks the tools that an answer asks for before the answer reaches its caller.

A refusal does not change how the request is recorded: it was made, and the vendor bills it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from guard.breaker.exceptions import GuardError
from guard.breaker.refusals import Refusal
from guard.core.usage.tool_scan import ToolScanner
from guard.scope.scope import Scope

on_asking: Final[ContextVar[Callable[[bool], None] | None]] = ContextVar(
    "guard_on_asking", default=None
)
"""Called with true when an answer begins to wait for a decision about a tool, perhaps a person's,
and with false when the wait is over. None: no caller is interested. The proxy sets it to keep its
connection alive."""


class ToolGate(Protocol):
    """Decides about the tools that answers ask for."""

    def applies(self, scope: Scope) -> bool:
        """Return whether there are tool rules for answers in this scope; costs next to nothing."""

    def results(self, body: bytes) -> None:
        """Report the unchecked tools whose results a request sends to a model."""

    def check(self, scope: Scope, names: list[str]) -> list[str]:
        """Check tools against the local rules; return those that the gateway decides about.

        Raises:
            Refusal: one of them is blocked. Outside of all scopes it is the public error, because
                there is no edge to turn the carrier into it.
        """

    def unreadable(self, scope: Scope) -> None:
        """Refuse an answer whose tools cannot be read, if any tool might be refused.

        Raises:
            Refusal: one might be.
        """

    def ask(self, scope: Scope, name: str) -> None:
        """Ask the gateway about a tool, and wait for a person if needed; blocks the thread.

        Raises:
            Refusal: refused, or the gateway cannot be asked.
            WorkflowKilledInterrupt: the workflow is killed.
        """

    async def ask_async(self, scope: Scope, name: str) -> None:
        """Like :meth:`ask`, without blocking the caller's loop."""


class ToolWatch:
    """The tools of one answer. Used by the answer's reader alone.

    A chunk is first scanned (:meth:`take`), then settled, and only then shown. The two are apart
    because asking has a blocking and an asynchronous form.

    Args:
        gate: decides about them.
        scope: the scope in which the request was made.
        scanner: finds their names in the answer's bytes.
    """

    __slots__ = ("_gate", "_questions", "_refusal", "_scanner", "_scope", "_told_blind")

    def __init__(self, gate: ToolGate, scope: Scope, scanner: ToolScanner) -> None:
        self._gate = gate
        self._scope = scope
        self._scanner = scanner
        # Tools that the gateway has to decide about, in order. Each is removed once it is allowed:
        # an interrupted wait asks about the rest when the next chunk is read.
        self._questions: list[str] = []
        # The first refusal. It is raised again for each later chunk, so that a caller that swallows
        # it gets no more of the answer.
        self._refusal: BaseException | None = None
        # Whether the gate knows that the rest cannot be read.
        self._told_blind = False

    def take_whole(self, body: bytes) -> None:
        """Like :meth:`take`, for an answer that was read whole."""
        self._check(self._scanner.whole(body))

    def take(self, chunk: bytes, *, last: bool = False) -> None:
        """Scan the next bytes; :meth:`settle` then decides about the tools that they ask for.

        Args:
            chunk: the next bytes of the answer; may be empty.
            last: whether the answer ends with it.

        Raises:
            Refusal: they ask for a blocked tool or cannot be read, or earlier ones did.
        """
        if self._refusal is not None:
            raise self._refusal
        names = self._scanner.feed(chunk)
        if last:
            names += self._scanner.end()
        self._check(names)

    def _check(self, names: list[str]) -> None:
        is_blind = self._scanner.is_blind and not self._told_blind
        if not names and not is_blind:
            return
        try:
            self._questions += self._gate.check(self._scope, names)
            if is_blind:
                self._told_blind = True
                self._gate.unreadable(self._scope)
        except (Refusal, GuardError) as exc:
            self._refusal = exc
            raise

    def settle(self) -> None:
        """Ask about the tools that the gateway decides about; blocks the calling thread.

        Raises:
            Refusal: one of them is refused.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        while self._questions:
            # Not remembered: a kill or Ctrl-C. The question stays, for the next chunk.
            try:
                self._gate.ask(self._scope, self._questions[0])
            except (Refusal, GuardError) as exc:
                self._refusal = exc
                raise
            del self._questions[0]

    async def settle_async(self) -> None:
        """Like :meth:`settle`, without blocking the caller's loop."""
        if not self._questions:
            return
        asking = on_asking.get()
        if asking is not None:
            asking(True)
        try:
            while self._questions:
                await self._gate.ask_async(self._scope, self._questions[0])
                del self._questions[0]
        except (Refusal, GuardError) as exc:
            self._refusal = exc
            raise
        finally:
            if asking is not None:
                asking(False)

    def check(self, chunk: bytes, *, last: bool = False) -> None:
        """Scan the next bytes and settle the tools that they ask for."""
        self.take(chunk, last=last)
        self.settle()

    async def check_async(self, chunk: bytes, *, last: bool = False) -> None:
        """Like :meth:`check`, without blocking the caller's loop."""
        self.take(chunk, last=last)
        await self.settle_async()


class WatchedCall(Protocol):
    """The part of an observed call that is needed here.

    Attributes:
        tool_watch: checks its answer; None where no rule applies.
        body: the whole answer, if it has been read whole.
    """

    tool_watch: ToolWatch | None

    @property
    def body(self) -> bytes | None: ...

    def feed(self, chunk: bytes) -> None:
        """Record a chunk."""


def check_answer(call: WatchedCall) -> None:
    """Check an answer that was read whole; a stream is checked as it passes.

    Raises:
        Refusal: it asks for a tool that is refused.
        WorkflowKilledInterrupt: the workflow is killed.
    """
    watch, body = call.tool_watch, call.body
    if watch is not None and body is not None:
        watch.take_whole(body)
        watch.settle()


async def check_answer_async(call: WatchedCall) -> None:
    """Like :func:`check_answer`, without blocking the caller's loop."""
    watch, body = call.tool_watch, call.body
    if watch is not None and body is not None:
        watch.take_whole(body)
        await watch.settle_async()


def checked(chunks: Iterable[Any], call: WatchedCall) -> Iterable[Any]:
    """Return a stream that ends before the chunk that asks for a refused tool."""
    return chunks if call.tool_watch is None else _Checked(chunks, call, call.tool_watch)


def checked_async(chunks: AsyncIterable[Any], call: WatchedCall) -> AsyncIterable[Any]:
    """Like :func:`checked`, without blocking the caller's loop."""
    return chunks if call.tool_watch is None else _CheckedAsync(chunks, call, call.tool_watch)


class _Checked:
    """The chunks of a blocking stream."""

    __slots__ = ("_call", "_chunks", "_watch")

    def __init__(self, chunks: Iterable[Any], call: WatchedCall, watch: ToolWatch) -> None:
        self._chunks = iter(chunks)
        self._call = call
        self._watch = watch

    def __iter__(self) -> _Checked:
        return self

    def __next__(self) -> Any:
        try:
            chunk = next(self._chunks)
        except StopIteration:
            self._watch.check(b"", last=True)  # a tool call may be complete only now
            raise
        # Checked before the chunk is returned: a refused tool call never reaches its reader.
        try:
            self._watch.check(chunk)
        except BaseException:
            with contextlib.suppress(Refusal):
                # It has arrived, and may say what the request has cost. Its own refusal, of a
                # stream that has outgrown its hold, gives way to the one that is being raised.
                self._call.feed(chunk)
            raise
        return chunk


class _CheckedAsync:
    """The chunks of an asynchronous stream; see :class:`_Checked`."""

    __slots__ = ("_call", "_next", "_watch")

    def __init__(self, chunks: AsyncIterable[Any], call: WatchedCall, watch: ToolWatch) -> None:
        self._next = aiter(chunks).__anext__
        self._call = call
        self._watch = watch

    def __aiter__(self) -> _CheckedAsync:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._checked()

    async def _checked(self) -> Any:
        try:
            chunk = await self._next()
        except StopAsyncIteration:
            await self._watch.check_async(b"", last=True)
            raise
        try:
            await self._watch.check_async(chunk)
        except BaseException:
            with contextlib.suppress(Refusal):
                self._call.feed(chunk)
            raise
        return chunk
