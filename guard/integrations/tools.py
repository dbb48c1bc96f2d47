"""What the adapters share: a framework's tool call as a protected call under the tool's name."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from guard.asking.tool_calls import Watcher, current
from guard.breaker.exceptions import GuardError
from guard.control.enforcement import refusal_in
from guard.facade import track_tool
from guard.protected_call import ProtectedCall, Target
from guard.runtime.active import active_runtime
from guard.scope.scope import current_scope
from guard.scope.wrapping import run_inside

T = TypeVar("T")

_NAME_LENGTH_MAX = 256


def call_tool(name: str, run: Callable[[], T], watcher: Watcher) -> T:
    """Run a tool as a protected call under its name, and report it.

    Args:
        name: what tool policies match.
        run: calls the tool.
        watcher: what the adapter is to the tool call.

    Raises:
        GuardError: the call is refused. Inside a workflow or a protected call, a carrier that
            frameworks do not turn into text; it becomes the exception at the scope's boundary.
        WorkflowKilledInterrupt: the workflow is killed, before or in the middle of it.
    """
    started_s = time.monotonic()
    edge = _edge(name, watcher)

    def tool() -> T:
        token = current.set(edge.tool_call)
        try:
            return run()
        finally:
            current.reset(token)

    try:
        result: T = run_inside(tool, lambda: edge)()
    except GuardError as exc:
        raise carried(exc) from None
    report_tool(name, started_s)
    return result


async def call_tool_async(name: str, run: Callable[[], Awaitable[T]], watcher: Watcher) -> T:
    """Like :func:`call_tool`, for tools that are awaited."""
    started_s = time.monotonic()
    edge = _edge(name, watcher)

    async def tool() -> T:
        token = current.set(edge.tool_call)
        try:
            return await run()
        finally:
            current.reset(token)

    try:
        result: T = await run_inside(tool, lambda: edge)()
    except GuardError as exc:
        raise carried(exc) from None
    report_tool(name, started_s)
    return result


def gate_tool(name: str, watcher: Watcher) -> None:
    """Ask whether a tool may run, where the framework runs it itself.

    Args:
        name: what tool policies match.
        watcher: what the adapter is to the tool call. With the framework's id of the call,
            :func:`tool_ended` has to follow.
    """
    edge = _edge(name, watcher)
    try:
        run_inside(_nothing, lambda: edge)()
    except GuardError as exc:
        raise carried(exc) from None
    current.set(edge.tool_call)


async def gate_tool_async(name: str, watcher: Watcher) -> None:
    """Like :func:`gate_tool`, without blocking the loop; hooks that run at once ask once."""
    runtime = active_runtime()
    if runtime is None:
        await _gate_async(name, watcher)
        return
    async with runtime.tools.calls.turn(watcher):
        await _gate_async(name, watcher)


async def _gate_async(name: str, watcher: Watcher) -> None:
    edge = _edge(name, watcher)
    try:
        await run_inside(_nothing_async, lambda: edge)()
    except GuardError as exc:
        raise carried(exc) from None
    current.set(edge.tool_call)


def tool_ended(call_id: str) -> None:
    """A tool call with a framework's id is over, well or not."""
    runtime = active_runtime()
    if runtime is not None:
        runtime.tools.calls.ended(call_id)


def check_llm_request() -> None:
    """Refuse the next LLM request of a workflow that is killed, paused or out of budget."""
    runtime = active_runtime()
    if runtime is not None:
        runtime.enforcement.check_request(current_scope.get())


def report_tool(name: str, started_s: float) -> None:
    """Report a tool call that has ended; ``started_s`` is from the monotonic clock."""
    track_tool(name[:_NAME_LENGTH_MAX] or "tool", (time.monotonic() - started_s) * 1000)


def carried(error: GuardError) -> BaseException:
    """Return the carrier of a refusal to the enclosing scope; without a scope, the error."""
    return refusal_in(current_scope.get(), error)


def _edge(name: str, watcher: Watcher) -> ProtectedCall:
    name = (name or "tool")[:_NAME_LENGTH_MAX]
    return ProtectedCall(Target(f"tools.{name}", name, watcher=watcher))


def _nothing() -> None:
    """The tool is run by its framework."""


async def _nothing_async() -> None:
    """The tool is run by its framework."""
