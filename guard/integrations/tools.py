"""What the adapters share: a framework's tool call as a protected call under the tool's name."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from guard.breaker.exceptions import GuardError
from guard.breaker.refusals import Refusal
from guard.decorators import protect
from guard.facade import track_tool
from guard.runtime.active import active_runtime
from guard.scope.scope import current_scope

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_NAME_LENGTH_MAX = 256


def call_tool(name: str, run: Callable[[], T]) -> T:
    """Run a tool as a protected call under its name, and report it.

    Args:
        name: what tool policies match.
        run: calls the tool.

    Raises:
        GuardError: the call is refused. Inside a workflow or a protected call, a carrier that
            frameworks do not turn into text; it becomes the exception at the scope's boundary.
        WorkflowKilledInterrupt: the workflow is killed, before or in the middle of it.
    """
    started_s = time.monotonic()
    try:
        result: T = _protected(name)(run)
    except GuardError as exc:
        raise carried(exc) from None
    report_tool(name, started_s)
    return result


async def call_tool_async(name: str, run: Callable[[], Awaitable[T]]) -> T:
    """Like :func:`call_tool`, for tools that are awaited."""
    started_s = time.monotonic()
    try:
        result: T = await _protected_async(name)(run)
    except GuardError as exc:
        raise carried(exc) from None
    report_tool(name, started_s)
    return result


def gate_tool(name: str) -> None:
    """Ask whether a tool may run, where the framework runs it itself."""
    try:
        _protected(name)(_nothing)
    except GuardError as exc:
        raise carried(exc) from None


async def gate_tool_async(name: str) -> None:
    """Like :func:`gate_tool`, without blocking the loop."""
    try:
        await _protected_async(name)(_nothing_async)
    except GuardError as exc:
        raise carried(exc) from None


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
    scope = current_scope.get()
    if scope.workflow_id is None and scope.call is None:
        return error
    scope.refuse(error)
    return Refusal(error)


@functools.lru_cache(maxsize=1024)
def _protected(name: str) -> Callable[[Callable[[], Any]], Any]:
    def tool(run: Callable[[], Any]) -> Any:
        return run()

    return protect(_named(tool, name))


@functools.lru_cache(maxsize=1024)
def _protected_async(name: str) -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    async def tool(run: Callable[[], Awaitable[Any]]) -> Any:
        return await run()

    return protect(_named(tool, name))


def _named(function: F, name: str) -> F:
    function.__name__ = function.__qualname__ = name or "tool"
    function.__module__ = "tools"
    return function


def _nothing() -> None:
    """The tool is run by its framework."""


async def _nothing_async() -> None:
    """The tool is run by its framework."""
