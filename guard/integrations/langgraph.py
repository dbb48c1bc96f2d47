"""LangChain and LangGraph: every tool passes the tool policy, every model call is checked first.

Once for the process::

    from guard.integrations import langgraph

    langgraph.install()

    with guard.workflow("support"):
        graph.invoke(...)  # a blocked tool does not run, and the refusal leaves the run

or for one run: ``graph.invoke(..., config={"callbacks": [langgraph.GuardCallbackHandler()]})``.
Token usage is read once, at the HTTP client, and not from the callbacks.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from guard.asking.tool_calls import Checkpoint
from guard.context import chain, span
from guard.core.wire import truncated
from guard.integrations import tools

logger = logging.getLogger("guard.integrations")

_THREADS_KEPT: Final = 10_000

_installed: ContextVar[BaseCallbackHandler | None] = ContextVar("guard_langchain", default=None)
# The handler that `install` has made for every run; None while it is not installed.
_everywhere: BaseCallbackHandler | None = None


class GuardCallbackHandler(BaseCallbackHandler):
    """Refuses tools and model calls, and makes spans of graphs and their nodes.

    A graph's ``thread_id`` is the guard chain of its runs; node names become spans. Works in
    ``invoke`` and ``ainvoke``, ``stream`` and ``astream``.
    """

    # Has LangChain raise a callback's exception instead of logging it, and call it in the run's
    # own thread and context.
    raise_error = True
    run_inline = True

    def __init__(self) -> None:
        # One handler serves all runs, in any thread and task. The keys are LangChain's run ids, so
        # that no two callbacks at once use the same entry.
        # The tools that run: name, start by the monotonic clock, id of the call.
        self._tools: dict[UUID, tuple[str, float, str]] = {}
        # The chain and span that a graph or node has entered; closed at its end.
        self._scopes: dict[UUID, contextlib.ExitStack] = {}
        # Graph threads whose chain was started; further runs continue it.
        self._threads: dict[str, None] = {}

    # -- tools: LangChain awaits a coroutine function and calls a plain one ----------------------

    @property
    def on_tool_start(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Ask the gateway for the tool: awaited in asynchronous runs, called in others."""
        return self._tool_start_async if _is_awaited() else self._tool_start

    def _tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **options: Any
    ) -> None:
        name = _tool_name(serialized, options)
        if not tools.is_running(name):  # else a wrapper or the tool's seam has asked
            call_id = _call_id(run_id, options)
            tools.gate_tool(name, Checkpoint("callback", call_id, runs_tool=False), input_str)
            self._tools[run_id] = (name, time.monotonic(), call_id)

    async def _tool_start_async(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **options: Any
    ) -> None:
        name = _tool_name(serialized, options)
        if not tools.is_running(name):  # else a wrapper or the tool's seam has asked
            call_id = _call_id(run_id, options)
            await tools.gate_tool_async(
                name, Checkpoint("callback", call_id, runs_tool=False), input_str
            )
            self._tools[run_id] = (name, time.monotonic(), call_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **options: Any) -> None:
        """Report the tool."""
        self._tool_ended(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **options: Any) -> None:
        """Report the failed tool."""
        self._tool_ended(run_id)

    def _tool_ended(self, run_id: UUID) -> None:
        started = self._tools.pop(run_id, None)
        if started is not None:
            name, started_s, call_id = started
            tools.tool_ended(call_id)
            tools.report_tool(name, started_s)

    # -- models ----------------------------------------------------------------------------------

    def on_chat_model_start(self, *arguments: Any, **options: Any) -> None:
        """Refuse when the workflow is killed, paused or out of budget; reads local state only."""
        tools.check_llm_request()

    def on_llm_start(self, *arguments: Any, **options: Any) -> None:
        """As for chat models."""
        tools.check_llm_request()

    # -- graphs and nodes ------------------------------------------------------------------------

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Open the chain of a graph's thread, and the span of a graph or node."""
        about = metadata or {}
        name = options.get("name")
        node = about.get("langgraph_node")
        thread = about.get("thread_id") if parent_run_id is None else None
        if thread is None and not (isinstance(name, str) and (node == name or not parent_run_id)):
            return
        scopes = contextlib.ExitStack()
        try:
            if thread is not None:
                identity = truncated(str(thread))
                op = "continue" if identity in self._threads else "start"
                scopes.enter_context(chain(identity, op=op))  # type: ignore[arg-type]  # one of both
                if len(self._threads) < _THREADS_KEPT:
                    self._threads[identity] = None
            scopes.enter_context(span(truncated(str(name or node or "graph"))))
        except Exception:  # a missing span must not fail the run
            logger.debug("no span for this run", exc_info=True)
        self._scopes[run_id] = scopes

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **options: Any) -> None:
        """Leave the chain and the span."""
        self._left(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **options: Any) -> None:
        """Leave the chain and the span."""
        self._left(run_id)

    def _left(self, run_id: UUID) -> None:
        scopes = self._scopes.pop(run_id, None)
        if scopes is not None:
            with contextlib.suppress(RuntimeError):  # already left, by a run that was abandoned
                scopes.close()


def install() -> None:
    """Handle every run of this process, without further configuration. Idempotent."""
    global _everywhere, _installed
    if _everywhere is None:
        _everywhere = GuardCallbackHandler()
        # The hook's variable is read in any context, so the handler has to be its default.
        _installed = ContextVar("guard_langchain", default=_everywhere)
        register_configure_hook(_installed, inheritable=True)


def uninstall() -> None:
    """Undo :func:`install` for runs that begin from now on. Idempotent."""
    global _everywhere
    if _everywhere is not None:
        from langchain_core.tracers import context

        hooks = context._configure_hooks
        hooks[:] = [hook for hook in hooks if hook[0] is not _installed]
        _everywhere = None


def wrap_tool_call(request: Any, execute: Callable[[Any], Any]) -> Any:
    """Run a tool inside a protected call: ``ToolNode(tools, wrap_tool_call=wrap_tool_call)``.

    Unlike the callbacks, this lets a kill stop a running tool.
    """
    name = str(request.tool_call["name"])
    return tools.call_tool(name, lambda: execute(request), _wrapper_of(request), _given(request))


async def awrap_tool_call(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
    """Like :func:`wrap_tool_call`: ``ToolNode(tools, awrap_tool_call=awrap_tool_call)``."""
    name = str(request.tool_call["name"])
    return await tools.call_tool_async(
        name, lambda: execute(request), _wrapper_of(request), _given(request)
    )


def _given(request: Any) -> Any:
    return request.tool_call.get("args")


def _wrapper_of(request: Any) -> Checkpoint:
    return Checkpoint("wrapper", request.tool_call.get("id"))


def _call_id(run_id: UUID, options: dict[str, Any]) -> str:
    """Return the model's id of a tool call, which a wrapper knows as well; else the run's."""
    return str(options.get("tool_call_id") or run_id)


def _is_awaited() -> bool:
    """Return whether LangChain's asynchronous dispatcher is the caller.

    A running loop is no proof: ``invoke`` may be called inside one, and the synchronous dispatcher
    only logs an exception of a coroutine: the tool would run although it was refused.
    """
    return sys._getframe(2).f_code.co_name == "_ahandle_event_for_handler"


def _tool_name(serialized: dict[str, Any] | None, options: dict[str, Any]) -> str:
    return str((serialized or {}).get("name") or options.get("name") or "tool")
