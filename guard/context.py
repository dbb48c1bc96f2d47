"""``workflow``, ``chain``, ``span``, ``agent``: context managers and decorators (spec 2, 3).

Each works with ``with``, with ``async with`` and as a decorator of functions, coroutine functions,
generators and asynchronous generators, and is safe with interleaved tasks. ``carry`` takes the
context into plain threads.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Token, copy_context
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.breaker.refusals import interrupt_for, unwrap
from guard.control.threads import ThreadBody
from guard.core.ids import IdFactory
from guard.core.wire import NAME_LENGTH_MAX, SpanData
from guard.runtime.active import active_runtime
from guard.scope.scope import Scope, current_scope
from guard.scope.span_ids import child_span
from guard.scope.wrapping import surrounded

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

ChainOp = Literal["auto", "start", "continue", "end"]
_OPS: Final = ("auto", "start", "continue", "end")

_OPEN_CHAINS_MAX: Final = 10_000
_ids = IdFactory()
_open_chains: OrderedDict[str, None] = OrderedDict()
"""The newest chains that were opened here; one that is never closed must not stay for ever."""
_chains_lock = threading.Lock()


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """Bind a function to the current workflow, span and call, for plain threads and executors.

    A kill of the workflow stops the function in its thread, as it stops a protected body.
    ``asyncio.to_thread`` takes the context along by itself; ``threading.Thread`` and executors do
    not.

    Raises (from the bound function):
        WorkflowKilledInterrupt: the workflow is killed, before or in mid-call.
        GuardError: a refusal from inside, as its public exception.

    Example:
        >>> threading.Thread(target=carry(len), args=("abc",)).start()
    """
    scope = current_scope.get()

    @functools.wraps(function)
    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        def inside() -> R:
            current_scope.set(scope)
            runtime = active_runtime()
            if runtime is None or (scope.workflow_id is None and scope.call is None):
                return function(*args, **kwargs)
            error: BaseException | None
            body = ThreadBody(scope, sys._getframe())
            runtime.enforcement.bodies.enter(body)
            try:
                killed = runtime.enforcement.killed(scope)
                if killed is not None:
                    raise interrupt_for(killed, scope.workflow_id)
                result = function(*args, **kwargs)
                error = body.end(None)
            except BaseException as exc:
                try:
                    error = body.end(exc)
                except WorkflowKilledInterrupt as late:  # meant for the body, raised only here
                    error = body.end(late)
                error = None if error is None else unwrap(error)
                if error is exc or error is None:
                    raise
                raise error from None
            finally:
                runtime.enforcement.bodies.leave(body)
            if error is not None:
                raise error
            return result

        return copy_context().run(inside)

    return carried


class _Boundary:
    """What the context managers share. One instance is one entry; a decorator makes its own."""

    kind: Literal["workflow", "chain", "span", "agent"]

    def __init__(self, name: str | None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{self.kind} takes a name, not {type(name).__name__}")
        if name is not None and not 1 <= len(name) <= NAME_LENGTH_MAX:
            raise ValueError(f"a {self.kind}'s name has 1 to {NAME_LENGTH_MAX} characters")
        self.name = name
        self._token: Token[Scope] | None = None
        self._outer: Scope | None = None
        self._started_s = 0.0

    def _again(self) -> Self:
        return type(self)(self.name)

    def _inner(self, outer: Scope) -> Scope:
        raise NotImplementedError

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        """The scope was left; emit what there is to emit."""

    def _begin(self) -> None:
        if self._outer is not None:
            raise RuntimeError(f"this {self.kind} is open already; make another one")
        self._outer = outer = current_scope.get()
        self._started_s = time.monotonic()
        self._scope = self._inner(outer)

    def _end(self, exc: BaseException | None) -> None:
        self._outer = None
        error = None if exc is None else unwrap(exc)
        self._left(self._scope, error)
        runtime = active_runtime()
        if error is not None and runtime is not None:
            runtime.report_error(error, "call", self._scope)
        if error is not None and error is not exc:
            raise error from None

    def __enter__(self) -> Self:
        self._begin()
        self._token = current_scope.set(self._scope)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        token, outer = self._token, self._outer
        if token is None or outer is None:
            raise RuntimeError(f"this {self.kind} is not open")
        self._token = None
        try:
            current_scope.reset(token)
        except ValueError:
            # Left in another context than it was entered in, as an abandoned generator is. A copy
            # of the context of the entry still has our scope; any other has one of its own.
            if current_scope.get().place == self._scope.place:
                current_scope.set(outer)
        self._end(exc)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, exc, traceback)

    def __call__(self, function: F) -> F:
        """Decorate a function: every call of it is an entry of its own."""
        return surrounded(function, self._again, lambda: _Iteration(self._again()))

    def _emit_span(self, scope: Scope, error: BaseException | None, name: str) -> None:
        runtime = active_runtime()
        if runtime is not None:
            data = SpanData(
                name,
                kind=self.kind,
                duration_ms=(time.monotonic() - self._started_s) * 1000,
                outcome="ok" if error is None else "error",
                error_code=getattr(error, "error_code", None),
            )
            runtime.events.record("span", data, scope)


class _Iteration:
    """One iteration of a decorated generator: its steps run inside, its consumer stays outside."""

    def __init__(self, boundary: _Boundary) -> None:
        self._boundary = boundary
        boundary._begin()

    @contextmanager
    def step(self) -> Iterator[None]:
        boundary = self._boundary
        consumer = current_scope.get()
        current_scope.set(boundary._scope)
        try:
            yield
        finally:
            boundary._scope = current_scope.get()  # such as a call context that the body has set
            current_scope.set(consumer)

    def ended(self, exc: BaseException | None) -> None:
        self._boundary._end(exc)


def _new_id() -> str:
    return _ids.uuid7(time.time_ns() // 1_000_000)


class workflow(_Boundary):  # noqa: N801  # used like a function: `with guard.workflow("x"):`
    """Set the workflow that protected calls and events belong to.

    A workflow's state (killed, paused) belongs to its name and holds in every process; each entry
    is a run of its own.

    Args:
        name: the workflow's id; a new one when None.

    Attributes:
        workflow_id, run_id: set on entry.

    Raises:
        GuardError, WorkflowKilledInterrupt: a refusal from inside, as its public exception.

    Example:
        >>> with workflow("inbox-triage") as flow:
        ...     flow.workflow_id
        'inbox-triage'
    """

    kind = "workflow"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.workflow_id: str | None = name
        self.run_id: str | None = None

    def _inner(self, outer: Scope) -> Scope:
        self.workflow_id = self.name or _new_id()
        self.run_id = _new_id()
        return outer.having(
            workflow_id=self.workflow_id, run_id=self.run_id, call=None, **child_span(outer, _ids)
        )

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        self._emit_span(scope, error, scope.workflow_id or "")


class chain(_Boundary):  # noqa: N801  # used like a function: `with guard.chain("x"):`
    """Give a series of calls one soft budget.

    Args:
        name: the chain's id; a new one when None.
        op: ``start`` registers the chain and leaves it open on exit; ``continue`` extends its
            time-to-live and leaves it open; ``end`` closes it on exit; ``auto`` starts and ends it
            where it is not open yet, and continues it otherwise.

    Attributes:
        chain_id: set on entry.

    Raises:
        ValueError: an unknown op.
    """

    kind = "chain"

    def __init__(self, name: str | None = None, *, op: ChainOp = "auto") -> None:
        super().__init__(name)
        if op not in _OPS:
            raise ValueError(f"op is one of {', '.join(_OPS)}, not {op!r}")
        self.op: ChainOp = op
        self.chain_id: str | None = name
        self._closes = False

    def _again(self) -> Self:
        return type(self)(self.name, op=self.op)

    def _inner(self, outer: Scope) -> Scope:
        self.chain_id = chain_id = self.name or _new_id()
        with _chains_lock:
            known = chain_id in _open_chains or outer.chain_id == chain_id
            _open_chains[chain_id] = None
            _open_chains.move_to_end(chain_id)
            if len(_open_chains) > _OPEN_CHAINS_MAX:
                _open_chains.popitem(last=False)
        starts = self.op == "start" or (self.op == "auto" and not known)
        self._closes = self.op == "end" or (self.op == "auto" and not known)
        scope = outer.having(chain_id=chain_id, chain_op="start" if starts else "continue")
        self._say(scope, "start" if starts else "continue")
        return scope

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        if self._closes:
            with _chains_lock:
                _open_chains.pop(scope.chain_id or "", None)
            self._say(scope, "end")

    def _say(self, scope: Scope, op: str) -> None:
        runtime = active_runtime()
        if runtime is not None:
            runtime.events.record("chain", {"op": op, "id": scope.chain_id}, scope)


class span(_Boundary):  # noqa: N801  # used like a function: `with guard.span("x"):`
    """Open a nested trace span; a running OpenTelemetry span becomes its parent.

    Args:
        name: what the span is about; ``"span"`` when None.

    Attributes:
        span_id, trace_id: W3C Trace Context ids, set on entry.
    """

    kind = "span"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.span_id: str | None = None
        self.trace_id: str | None = None

    def _inner(self, outer: Scope) -> Scope:
        scope = outer.having(**child_span(outer, _ids))
        self.span_id, self.trace_id = scope.span_id, scope.trace_id
        return scope

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        self._emit_span(scope, error, self.name or "span")


class agent(_Boundary):  # noqa: N801  # used like a function: `with guard.agent("x"):`
    """Set the identity of the agent that acts.

    Args:
        name: the agent's id; a new one when None.

    Attributes:
        agent_id: set on entry.
    """

    kind = "agent"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.agent_id: str | None = name

    def _inner(self, outer: Scope) -> Scope:
        self.agent_id = self.name or _new_id()
        return outer.having(agent=self.agent_id)


def _after_fork() -> None:
    # Ids must not repeat the parent's, and the lock may be held by a thread that is gone.
    global _ids, _chains_lock
    _ids = IdFactory()
    _chains_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
