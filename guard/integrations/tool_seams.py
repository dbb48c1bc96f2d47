"""Hooks the places where agent frameworks call their tools: each call passes the tool policy.

Text protocols (dspy's ``ReAct``, code that a model writes for smolagents) name a tool in plain
text, which no HTTP client can recognise; there these seams are the only check. A tool call that an
adapter or another framework around it has checked already is not checked again
(:func:`guard.integrations.tools.call_tool`).
"""

from __future__ import annotations

import contextvars
import functools
import importlib
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

from guard.asking.tool_calls import Checkpoint
from guard.instrumentation import patching
from guard.instrumentation.tool_table import (
    ASSISTANT,
    CODE_RUNNER,
    HANDLER,
    TOOL_CALLERS,
    ToolCaller,
)
from guard.integrations import tools


def patch(module: ModuleType) -> None:
    """Hook a framework's module.

    Raises:
        AttributeError: this version has other classes or methods.
    """
    if module.__name__ == CODE_RUNNER:
        patching.replace(module.LocalPythonExecutor, "__call__", _run_code)
    if module.__name__ == ASSISTANT:
        patching.replace(module.AssistantAgent, "_execute_tool_call", _end_stream)
    if module.__name__ == HANDLER and hasattr(module, "WorkflowHandler"):
        patching.replace(module.WorkflowHandler, "_handle_result_task_done", _end_events)
    for caller in TOOL_CALLERS:
        if caller.module != module.__name__:
            continue
        owner = getattr(module, caller.owner)  # missing: an AttributeError, as documented
        for names, wrap in ((caller.calls, _call), (caller.awaited, _await),
                            (caller.streamed, _stream)):  # fmt: skip
            for name in names:
                if name not in owner.__dict__:
                    raise AttributeError(f"{caller.owner} has no method {name} of its own")
                patching.replace(owner, name, functools.partial(wrap, caller))


def _call(caller: ToolCaller, original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        name = _name(caller, self, args, options)
        if name is None:
            return original(self, *args, **options)
        return tools.call_tool(
            name,
            lambda: original(self, *args, **options),
            _watcher(caller, options),
            caller.given_of(args, options),
        )

    return call


def _await(caller: ToolCaller, original: Any) -> Any:
    @functools.wraps(original)
    async def call(self: Any, *args: Any, **options: Any) -> Any:
        name = _name(caller, self, args, options)
        if name is None:
            return await original(self, *args, **options)
        return await tools.call_tool_async(
            name,
            lambda: original(self, *args, **options),
            _watcher(caller, options),
            caller.given_of(args, options),
        )

    return call


def _stream(caller: ToolCaller, original: Any) -> Any:
    @functools.wraps(original)
    async def call(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        name = _name(caller, self, args, options)
        if name is None:
            stream = original(self, *args, **options)
        else:
            stream = tools.stream_tool(
                name,
                lambda: original(self, *args, **options),
                _watcher(caller, options),
                caller.given_of(args, options),
            )
        async for each in stream:
            yield each

    return call


def _name(
    caller: ToolCaller, tool: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> str | None:
    return None if patching.active() is None else caller.name_of(tool, args, options)


def _watcher(caller: ToolCaller, options: dict[str, Any]) -> Checkpoint:
    call_id = options.get("tool_call_id") or options.get("call_id")
    return Checkpoint(caller.package, call_id if isinstance(call_id, str) else None)


def _end_stream(original: Any) -> Any:
    """End the stream of a tool that was refused or killed: its reader waits for the end."""

    @functools.wraps(original)
    async def execute(*args: Any, **options: Any) -> Any:
        try:
            return await original(None, *args, **options)  # static: the instance is not used
        except Exception:
            raise
        except BaseException:
            if patching.active() is not None and "stream" in options:
                options["stream"].put_nowait(None)
            raise

    return execute


def _end_events(original: Any) -> Any:
    """End the events of a run that was refused or killed: their reader waits for the last one."""

    @functools.wraps(original)
    def done(self: Any, task: Any) -> None:
        original(self, task)
        error = None if task.cancelled() else task.exception()
        queues = getattr(self._external_adapter, "_queues", None)
        if patching.active() and error is not None and not isinstance(error, Exception) and queues:
            stop: Any = importlib.import_module("workflows.events").StopEvent
            queues.publish_queue.put_nowait(stop())

    return done


def _run_code(original: Any) -> Any:
    """Run the tools and agents that a model's code calls in the scope of its agent.

    smolagents runs that code in a thread of its own, which has an empty context.
    """

    @functools.wraps(original)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        if patching.active() is None:
            return original(self, *args, **options)
        # Not by `carry`: its edge makes a refusal the public exception, which such code catches.
        before, context = self.static_tools, contextvars.copy_context()
        self.static_tools = {
            name: _Carried(tool, context) if _is_called(tool) else tool
            for name, tool in (before or {}).items()
        }
        try:
            return original(self, *args, **options)
        finally:
            self.static_tools = before

    return run


class _Carried:
    """A tool or an agent that is called in a context, whatever the thread's own is."""

    def __init__(self, tool: Any, context: contextvars.Context) -> None:
        self._tool = tool
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        # A copy: two threads, or a tool inside a tool, cannot be in one context at once.
        return self._context.copy().run(self._tool, *args, **options)


def _is_called(tool: Any) -> bool:
    """Return whether a name in a model's code is a tool or an agent, not a plain function."""
    return type(tool).__module__.partition(".")[0] not in ("builtins", "numpy")
