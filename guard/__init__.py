"""A hard stop for AI agents: budget, kill, pause and tool policy before every call.

Two lines put an agent under guard::

    guard.init()

    @guard.protect
    def agent(task): ...

Everything public is importable from here and loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guard import aio as aio
    from guard import context as context
    from guard import hooks as hooks
    from guard import serverless as serverless
    from guard import testing as testing
    from guard.breaker.exceptions import (
        GuardAuthenticationError as GuardAuthenticationError,
    )
    from guard.breaker.exceptions import (
        GuardAuthError as GuardAuthError,
    )
    from guard.breaker.exceptions import (
        GuardBackendError as GuardBackendError,
    )
    from guard.breaker.exceptions import (
        GuardBlockedException as GuardBlockedException,
    )
    from guard.breaker.exceptions import (
        GuardBudgetError as GuardBudgetError,
    )
    from guard.breaker.exceptions import (
        GuardConfigError as GuardConfigError,
    )
    from guard.breaker.exceptions import (
        GuardError as GuardError,
    )
    from guard.breaker.exceptions import (
        GuardToolBlockedError as GuardToolBlockedError,
    )
    from guard.breaker.exceptions import (
        GuardTransportError as GuardTransportError,
    )
    from guard.breaker.exceptions import (
        RateLimitError as RateLimitError,
    )
    from guard.breaker.exceptions import (
        WorkflowKilledException as WorkflowKilledException,
    )
    from guard.breaker.exceptions import (
        WorkflowKilledInterrupt as WorkflowKilledInterrupt,
    )
    from guard.breaker.exceptions import (
        WorkflowPausedException as WorkflowPausedException,
    )
    from guard.context import (
        agent as agent,
    )
    from guard.context import (
        chain as chain,
    )
    from guard.context import (
        span as span,
    )
    from guard.context import (
        workflow as workflow,
    )
    from guard.core.wire import SDK_MIN_VERSION_FOR_V3 as SDK_MIN_VERSION_FOR_V3
    from guard.decorators import protect as protect
    from guard.decorators import sensitive as sensitive
    from guard.facade import (
        init as init,
    )
    from guard.facade import (
        init_or_die as init_or_die,
    )
    from guard.facade import (
        instrument as instrument,
    )
    from guard.facade import (
        set_call_context as set_call_context,
    )
    from guard.facade import (
        shutdown as shutdown,
    )
    from guard.facade import (
        status as status,
    )
    from guard.facade import (
        track_event as track_event,
    )
    from guard.facade import (
        track_llm as track_llm,
    )
    from guard.facade import (
        track_tool as track_tool,
    )
    from guard.facade import (
        uninstrument as uninstrument,
    )
    from guard.handling import guarded as guarded
    from guard.handling import handle as handle
    from guard.hooks import ErrorContext as ErrorContext
    from guard.hooks import on_error as on_error
    from guard.messages import (
        format_user_message as format_user_message,
    )
    from guard.messages import (
        get_user_message as get_user_message,
    )
    from guard.messages import (
        set_user_message as set_user_message,
    )
    from guard.runtime.runtime import GuardRuntime as GuardRuntime
    from guard.spending import Spend as Spend
    from guard.spending import spend as spend
    from guard.state import GuardStatus as GuardStatus
    from guard.version import __version__ as __version__

_HOMES = {
    "GuardAuthError": "guard.breaker.exceptions",
    "GuardBackendError": "guard.breaker.exceptions",
    "GuardBudgetError": "guard.breaker.exceptions",
    "GuardConfigError": "guard.breaker.exceptions",
    "GuardError": "guard.breaker.exceptions",
    "GuardToolBlockedError": "guard.breaker.exceptions",
    "WorkflowKilledInterrupt": "guard.breaker.exceptions",
    "agent": "guard.context",
    "chain": "guard.context",
    "format_user_message": "guard.messages",
    "get_user_message": "guard.messages",
    "guarded": "guard.handling",
    "handle": "guard.handling",
    "init": "guard.facade",
    "init_or_die": "guard.facade",
    "on_error": "guard.hooks",
    "protect": "guard.decorators",
    "sensitive": "guard.decorators",
    "set_call_context": "guard.facade",
    "set_user_message": "guard.messages",
    "shutdown": "guard.facade",
    "span": "guard.context",
    "status": "guard.facade",
    "track_event": "guard.facade",
    "track_llm": "guard.facade",
    "track_tool": "guard.facade",
    "workflow": "guard.context",
    "ErrorContext": "guard.hooks",
    "GuardAuthenticationError": "guard.breaker.exceptions",
    "GuardBlockedException": "guard.breaker.exceptions",
    "GuardRuntime": "guard.runtime.runtime",
    "GuardStatus": "guard.state",
    "GuardTransportError": "guard.breaker.exceptions",
    "RateLimitError": "guard.breaker.exceptions",
    "SDK_MIN_VERSION_FOR_V3": "guard.core.wire",
    "WorkflowKilledException": "guard.breaker.exceptions",
    "WorkflowPausedException": "guard.breaker.exceptions",
    "__version__": "guard.version",
    "Spend": "guard.spending",
    "instrument": "guard.facade",
    "spend": "guard.spending",
    "uninstrument": "guard.facade",
}
_MODULES = frozenset({"aio", "context", "hooks", "serverless", "testing"})
"""What the documentation uses as ``guard.context``, after no more than ``import guard``."""

__all__ = [
    "GuardAuthError",
    "GuardBackendError",
    "GuardBudgetError",
    "GuardConfigError",
    "GuardError",
    "GuardToolBlockedError",
    "WorkflowKilledInterrupt",
    "agent",
    "chain",
    "format_user_message",
    "get_user_message",
    "guarded",
    "handle",
    "init",
    "init_or_die",
    "on_error",
    "protect",
    "sensitive",
    "set_call_context",
    "set_user_message",
    "shutdown",
    "span",
    "status",
    "track_event",
    "track_llm",
    "track_tool",
    "workflow",
]


if not TYPE_CHECKING:  # a type checker takes a module with __getattr__ to have every name

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        home = f"guard.{name}" if name in _MODULES else _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'guard' has no attribute {name!r}")
        try:
            module = import_module(home)
        except ImportError as exc:
            if "subinterpreters" not in str(exc):
                raise
            from guard.breaker.exceptions import GuardConfigError

            text = "guard cannot run in this sub-interpreter: call it in the main interpreter"
            raise GuardConfigError(text) from exc
        if name in _MODULES:
            return module
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return list(__all__)
