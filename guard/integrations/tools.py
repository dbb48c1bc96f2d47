"""Shared by the adapters: runs a framework's tool call as a protected call under the tool's name.

Several adapters may see one call (a callback, a hook in the framework, an MCP session). The first
asks; the others find ``running``, or the open calls of ``guard.asking.tool_calls``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import attrs

from guard.asking.tool_calls import Checkpoint, current
from guard.breaker.exceptions import GuardError
from guard.control.enforcement import refusal_in
from guard.core.wire import truncated
from guard.facade import track_tool
from guard.protected_call import ProtectedCall, Target
from guard.runtime.active import active_account
from guard.scope.scope import current_scope
from guard.scope.wrapping import run_inside

T = TypeVar("T")


@attrs.define(eq=False)
class RunningTool:
    """A tool whose call was allowed.

    Tasks and threads that the tool has started share it by their copies of the context. Each of its
    changes is one atomic operation.

    Attributes:
        name: the name of the tool.
        seen_by: the kinds of watchers that have seen the call. Each kind sees a call once: what it
            sees again is another call, which is asked about anew.
        is_over: whether it has ended. Tasks that it has started may still run, but their calls are
            not a part of it.
    """

    name: str
    seen_by: set[str]
    is_over: bool = False

    def is_seen_by(self, name: str, kind: str) -> bool:
        """Return whether this is the call that another watcher sees; it sees each call once."""
        if self.is_over or name != self.name or kind in self.seen_by:
            return False
        self.seen_by.add(kind)
        return True


running: Final[ContextVar[RunningTool | None]] = ContextVar("guard_running_tool", default=None)
"""The tool call around the code, so that other watchers of it do not ask again."""


def call_tool(name: str, run: Callable[[], T], watcher: Checkpoint, given: Any = None) -> T:
    """Run a tool as a protected call under its name, and report it.

    Args:
        name: what tool policies match.
        run: calls the tool.
        watcher: the kind of adapter, and the framework's id of the call.
        given: the tool's arguments, by which repeats are counted; None where they are not known.

    Raises:
        GuardError: the call is refused. Inside a workflow or a protected call, a carrier that
            frameworks do not turn into text; it becomes the exception at the scope's boundary.
            A refusal that the tool itself raises is treated alike.
        WorkflowKilledInterrupt: the workflow is killed, before or in the middle of it.
    """
    if _is_checked(name, watcher):
        return run()
    started_s = time.monotonic()
    edge = _edge(name, watcher, given)

    # Inside the edge, so that nothing is marked as running before the call is allowed.
    def tool() -> T:
        inside = _Inside(name, watcher, edge)
        try:
            return run()
        finally:
            inside.leave()

    # The tool's own edge has made the refusal a public error, which the framework would turn into
    # text for the model. As a carrier it passes through, to the edge of the scope around.
    try:
        result: T = run_inside(tool, lambda: edge)()
    except GuardError as exc:
        raise carried(exc) from None
    report_tool(name, started_s)
    return result


async def call_tool_async(
    name: str, run: Callable[[], Awaitable[T]], watcher: Checkpoint, given: Any = None
) -> T:
    """Like :func:`call_tool`, for tools that are awaited."""
    if _is_checked(name, watcher):
        return await run()
    started_s = time.monotonic()
    edge = _edge(name, watcher, given)

    async def tool() -> T:
        inside = _Inside(name, watcher, edge)
        try:
            return await run()
        finally:
            inside.leave()

    try:
        result: T = await run_inside(tool, lambda: edge)()
    except GuardError as exc:
        raise carried(exc) from None
    report_tool(name, started_s)
    return result


async def stream_tool(
    name: str, run: Callable[[], AsyncIterator[T]], watcher: Checkpoint, given: Any = None
) -> AsyncIterator[T]:
    """Like :func:`call_tool`, for tools whose result is a stream."""
    if _is_checked(name, watcher):
        async for each in run():
            yield each
        return
    started_s = time.monotonic()
    edge = _edge(name, watcher, given)

    async def tool() -> AsyncIterator[T]:
        inside = _Inside(name, watcher, edge)
        try:
            async for each in run():
                yield each
        finally:
            inside.leave()

    try:
        async for each in run_inside(tool, lambda: edge)():
            yield each
    except GuardError as exc:
        raise carried(exc) from None
    report_tool(name, started_s)


def gate_tool(name: str, watcher: Checkpoint, given: Any = None) -> None:
    """Ask whether a tool may run, where the framework runs it itself.

    Args:
        name: what tool policies match.
        watcher: the kind of adapter. If it has the framework's id of the call, :func:`tool_ended`
            has to follow.
        given: as for :func:`call_tool`.
    """
    # A protected call around nothing: admitted, and over at once. The framework runs the tool.
    edge = _edge(name, watcher, given)
    try:
        run_inside(_nothing, lambda: edge)()
    except GuardError as exc:
        raise carried(exc) from None
    current.set(edge.tool_call)


async def gate_tool_async(name: str, watcher: Checkpoint, given: Any = None) -> None:
    """Like :func:`gate_tool`, without blocking the loop.

    Some frameworks run their hooks for one call concurrently. Those wait for their turn, so that
    the second finds the first one's answer.
    """
    account = active_account(current_scope.get())
    if account is None:
        await _gate_async(name, watcher, given)
        return
    async with account.tools.calls.turn(watcher):
        await _gate_async(name, watcher, given)


async def _gate_async(name: str, watcher: Checkpoint, given: Any) -> None:
    edge = _edge(name, watcher, given)
    try:
        await run_inside(_nothing_async, lambda: edge)()
    except GuardError as exc:
        raise carried(exc) from None
    current.set(edge.tool_call)


def tool_ended(call_id: str) -> None:
    """Note that a tool call with a framework's id is over, whether it succeeded or not."""
    account = active_account(current_scope.get())
    if account is not None:
        account.tools.calls.ended(call_id)


def check_llm_request() -> None:
    """Refuse the next LLM request of a workflow that is killed, paused or out of budget."""
    scope = current_scope.get()
    account = active_account(scope)
    if account is not None:
        account.enforcement.check_request(scope)


def report_tool(name: str, started_s: float) -> None:
    """Report a tool call that has ended; ``started_s`` is from the monotonic clock."""
    track_tool(truncated(name) or "tool", (time.monotonic() - started_s) * 1000)


def carried(error: GuardError) -> BaseException:
    """Return the carrier of a refusal to the enclosing scope; without a scope, the error."""
    return refusal_in(current_scope.get(), error)


def _edge(name: str, watcher: Checkpoint, given: Any) -> ProtectedCall:
    name = truncated(name or "tool")
    if (account := active_account(current_scope.get())) is not None:
        account.tools.unchecked.checked((name,))
    edge = ProtectedCall(Target(f"tools.{name}", name, watcher=watcher, pays=False))
    edge.given = given
    return edge


def is_running(name: str) -> bool:
    """Return whether the code runs inside a call of this tool that was checked already."""
    around = running.get()
    return around is not None and not around.is_over and around.name == name


def _is_checked(name: str, watcher: Checkpoint) -> bool:
    around = running.get()
    return around is not None and around.is_seen_by(name, watcher.kind)


class _Inside:
    """The context of a tool's body.

    Set and put back by value and not by tokens: the body of a stream may end in another context
    than the one in which it began.
    """

    def __init__(self, name: str, watcher: Checkpoint, edge: ProtectedCall) -> None:
        self._running = RunningTool(name, {watcher.kind})
        self._around = running.get(), current.get()
        running.set(self._running)
        current.set(edge.tool_call)

    def leave(self) -> None:
        """Put back the values from before the body, and mark the call as over."""
        self._running.is_over = True
        before, call = self._around
        running.set(before)
        current.set(call)


def _nothing() -> None:
    """The body of a gated call: the framework runs the tool itself."""


async def _nothing_async() -> None:
    """Like :func:`_nothing`."""
