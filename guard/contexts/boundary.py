"""Shared by the context managers: entering a scope, by ``with`` or for each decorated call."""

from __future__ import annotations

import inspect
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextvars import Token
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from guard.breaker.refusals import error_at_edge
from guard.control.pools import carry_kills_out
from guard.core.ids import IdFactory
from guard.core.wire import SpanData, require_name
from guard.facade import enforcing_runtime, enforcing_runtime_async
from guard.runtime.active import active_account
from guard.scope.callables import require_callable
from guard.scope.scope import Entry, Scope, current_scope
from guard.scope.span_ids import child_span
from guard.scope.wrapping import CallLifecycle, run_inside
from guard.telemetry import conventions as names
from guard.telemetry.spans import are_on, open_span, scope_attributes

# Here, so that it precedes the program's first pool: one that exists already cannot be changed.
carry_kills_out()

F = TypeVar("F", bound=Callable[..., Any])

_OPERATIONS: Final = {"workflow": "invoke_workflow", "agent": "invoke_agent", "span": ""}
"""What OpenTelemetry's conventions call the entries that are spans there."""

# Not the runtime's, because a context may be entered before there is one; replaced after a fork.
_ids = IdFactory()


class ContextScope:
    """Base of the context managers. An instance is entered once at a time, by one thread or task.

    As a decorator it is a template: each call enters an instance of its own, made by ``_again``.
    """

    kind: Literal[
        "workflow", "chain", "span", "agent", "user", "tags", "options", "ask", "caller",
        "winding_down",
    ]  # fmt: skip
    enforces = False
    """Whether it needs a runtime, because budgets and directives apply to it."""

    _is_used = True
    """Whether somebody tried to enter it or to decorate with it; True until it is made."""

    def __init__(self, name: str | None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{self.kind} takes a name, not {type(name).__name__}")
        if name is not None:
            require_name(f"a {self.kind}'s name", name)
        self.name = name
        # Restores the scope outside, if the exit is in the same context as the entry. None while it
        # is not open, and for a decorated call, whose scope the edge sets.
        self._token: Token[Scope] | None = None
        # Set from entry to exit.
        self._entry: Entry | None = None
        # When it was entered, by the monotonic clock.
        self._started_s = 0.0
        # Whether it was ever entered: a further entry gets new ids.
        self._was_entered = False
        self._is_used = False

    def _again(self) -> Self:
        """Return a new instance with the same arguments, for one call of a decorated function."""
        return type(self)(self.name)

    def _renew(self) -> None:
        """Make new ids, for an entry after the first."""

    def _changes(self, outer: Scope) -> dict[str, Any]:
        """Return the fields of the scope inside that differ from the one outside."""
        raise NotImplementedError

    def _entered(self, scope: Scope) -> None:
        """Record the event of an entry, if there is one."""

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        """Record the event of an exit, if there is one."""

    def _begin(self) -> Scope:
        if self._entry is not None:
            raise RuntimeError(f"this {self.kind} is open already; make another one")
        outer = current_scope.get()
        self._started_s = time.monotonic()
        if self._was_entered:
            self._renew()
        self._was_entered = True
        changes = self._changes(outer)  # may raise: before anything is set
        entry = Entry(outer, run_id=changes.get("run_id"))
        self._open_span(outer, changes, entry)
        scope = outer.evolve(entry=entry, **changes)
        try:
            self._entered(scope)  # may raise: then this is not open
        except BaseException as exc:
            if entry.span is not None:
                entry.span.end(exc)
            raise
        self._entry, self._scope = entry, scope
        return scope

    def _open_span(self, outer: Scope, changes: dict[str, Any], entry: Entry) -> None:
        """Open a span in the program's own tracing, where it has one, and take its ids."""
        operation = _OPERATIONS.get(self.kind)
        if operation is None or not are_on():
            return
        workflow = changes.get("workflow_id")
        name = workflow or changes.get("agent") or self.name or self.kind
        attributes = {
            **scope_attributes(outer),
            names.OPERATION: operation or None,
            names.WORKFLOW_NAME: workflow,
            **({names.WORKFLOW: workflow, names.RUN: changes["run_id"]} if workflow else {}),
            **({names.AGENT_NAME: name} if self.kind == "agent" else {}),
        }
        span = entry.span = open_span(f"{operation} {name}".strip(), attributes)
        if span is not None and span.is_recorded and "span_id" in changes:
            changes.update(
                trace_id=span.trace_id, span_id=span.span_id, foreign_span_id=span.span_id
            )

    def _end(self, error: BaseException | None) -> None:
        entry = self._entry
        if entry is not None and entry.span is not None:
            entry.span.end(error)
        self._entry = None
        self._left(self._scope, error)

    def _raises(self, entry: Entry) -> bool:
        """Return whether the end of an entry raises a refusal that was swallowed inside.

        A manager without a runtime leaves it to the edge around it, unless there is none.
        """
        return self.enforces or entry.outer.entry is None

    def _at_edge(self, exc: BaseException | None, entry: Entry) -> BaseException | None:
        """Return what is raised where an entry ends, or None."""
        return error_at_edge(exc, entry, raises=self._raises(entry))

    def _report(self, error: BaseException | None) -> None:
        account = None if error is None else active_account(self._scope)
        if error is not None and account is not None:
            account.reports.error(error, "call", self._scope)

    async def _report_async(self, error: BaseException | None) -> None:
        account = None if error is None else active_account(self._scope)
        if error is not None and account is not None:
            await account.reports.error_async(error, "call", self._scope)

    def __del__(self) -> None:
        if not self._is_used and not sys.is_finalizing():
            warnings.warn(
                f"{self.kind}(...) of guard was never entered, so it has no effect: write "
                f"`with {self.kind}(...):`, or put it above a function as a decorator",
                RuntimeWarning,
                stacklevel=2,
            )

    def __enter__(self) -> Self:
        self._is_used = True
        if self.enforces:
            enforcing_runtime()
        return self._enter(sys._getframe(1))

    def _enter(self, caller: FrameType) -> Self:
        scope = self._begin()
        if scope.entry is not None:
            scope.entry.of_generator = _is_of_generator(caller)
        self._token = current_scope.set(scope)
        if scope.entry is not None and scope.entry.span is not None:
            scope.entry.span.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        error = self._exit(exc)
        self._report(error)
        if error is not None and error is not exc:
            raise error from error.__cause__

    def _exit(self, exc: BaseException | None) -> BaseException | None:
        """Leave the scope; return what is to be raised, or None."""
        token, entry = self._token, self._entry
        if token is None or entry is None:
            raise RuntimeError(f"this {self.kind} is not open")
        self._token = None
        # The scope first: whatever is raised or reported below belongs to the code outside.
        _restore(self._scope, token, exc)
        if entry.span is not None:
            entry.span.leave()
        error = self._at_edge(exc, entry)
        self._end(error)
        return error

    async def __aenter__(self) -> Self:
        self._is_used = True
        if self.enforces:
            await enforcing_runtime_async()
        return self._enter(sys._getframe(1))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        error = self._exit(exc)
        await self._report_async(error)
        if error is not None and error is not exc:
            raise error from error.__cause__

    def __call__(self, function: F) -> F:
        """Decorate a function: every call of it is an entry of its own.

        Raises:
            TypeError: neither a function nor a callable object is decorated.
        """
        require_callable(function, f"@{self.kind}")
        self._is_used = True
        return run_inside(function, lambda: DecoratedCall(self._again()))

    def _emit_span(self, scope: Scope, error: BaseException | None, name: str) -> None:
        account = active_account(scope)
        if account is not None:
            data = SpanData(
                name,
                kind=self.kind,
                duration_ms=(time.monotonic() - self._started_s) * 1000,
                outcome="ok" if error is None else "error",
                error_code=getattr(error, "error_code", None),
            )
            account.events.record("span", data, scope)


class DecoratedCall(CallLifecycle):
    """The edge of one call of a function that a context manager decorates."""

    def __init__(self, boundary: ContextScope) -> None:
        super().__init__()
        self._boundary = boundary
        boundary._is_used = True
        # Set from admission to the end: with it `finish` runs once.
        self._entry: Entry | None = None

    def admit(self) -> None:
        if self._boundary.enforces:
            enforcing_runtime()
        self._begin()

    async def admit_async(self) -> None:
        if self._boundary.enforces:
            await enforcing_runtime_async()
        self._begin()

    def _begin(self) -> None:
        self.scope = self._boundary._begin()
        self._entry = self._boundary._entry

    def resume(self) -> None:
        super().resume()
        if self._entry is not None and self._entry.span is not None:
            self._entry.span.enter()

    def suspend(self) -> None:
        super().suspend()
        if self._entry is not None and self._entry.span is not None:
            self._entry.span.leave()

    def leave(
        self, exc: BaseException | None = None, *, yields: bool = False
    ) -> BaseException | None:
        self.suspend()
        entry = self._entry
        if yields or entry is None:
            return exc
        return self._boundary._at_edge(exc, entry)

    def finish(self, exc: BaseException | None) -> None:
        if self._entry is not None:
            self._entry = None
            self._boundary._end(exc)
            self._boundary._report(exc)

    async def finish_async(self, exc: BaseException | None) -> None:
        if self._entry is not None:
            self._entry = None
            self._boundary._end(exc)
            await self._boundary._report_async(exc)


_SUSPENDABLE: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _is_of_generator(frame: FrameType | None) -> bool:
    """Return whether a generator's body enters a context, itself or by an ``ExitStack``.

    Such a body may be suspended inside for good. The generator of a ``@contextmanager`` does not
    count: it enters the context for the code that uses it, so frames of ``contextlib``, and those
    that it calls, are skipped.
    """
    while frame is not None:
        around = frame.f_back
        if not (_is_contextlibs(frame) or (around is not None and _is_contextlibs(around))):
            return bool(frame.f_code.co_flags & _SUSPENDABLE)
        frame = around
    return False


def _is_contextlibs(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "contextlib"


def _restore(scope: Scope, token: Token[Scope], exc: BaseException | None) -> None:
    """Leave a scope: set the one outside of it, if the current context has it or one inside.

    An abandoned generator is closed wherever it is dropped: in another context, or in a scope that
    its consumer has opened or left since. What is not inside this scope stays as it is. So does a
    workflow inside that is still open: callbacks may leave theirs in any order.
    """
    current, entry = current_scope.get(), scope.entry
    assert entry is not None, "it was entered"
    # Only the token knows whether this is the context that was entered. What it restores may be
    # wrong, so each branch below sets the scope itself.
    try:
        current_scope.reset(token)
        same_context = True
    except ValueError:
        same_context = False
    # Walk outwards from where the code is now, to see whether it is inside this entry at all.
    inner: Entry | None = None
    innermost = current.entry
    while innermost is not None and innermost is not entry:
        inner, innermost = innermost, innermost.outer.entry
    # 1. The code is not inside this entry: everything stays as it is.
    if innermost is None:
        current_scope.set(current)
    # 2. It is in this entry itself. Or it is in one further in that is not worth keeping: one that
    #    a suspended generator has left open, or of this entry's own run, which is over now. Not
    #    while a generator is being closed: then the code inside is that of its consumer.
    elif inner is None or (
        same_context
        and not isinstance(exc, GeneratorExit)
        and (inner.of_generator or current.run_id == scope.run_id)
    ):
        current_scope.set(_in_open_run(entry.outer))
    # 3. What is open inside stays, and this entry is taken out of its chain.
    else:
        current_scope.set(current)
        inner.outer = entry.outer  # so that leaving the inner one does not bring this one back


def _in_open_run(scope: Scope) -> Scope:
    """Return a scope, or the innermost one around it whose run has not been left."""
    while scope.run_id is not None:
        entry = scope.entry
        while entry is not None and entry.run_id != scope.run_id:
            entry = entry.outer.entry
        if entry is not None or scope.entry is None:
            break
        scope = scope.entry.outer
    return scope


def new_id() -> str:
    """Return a new id of a workflow, a run, a chain or an agent."""
    return _ids.uuid7(time.time_ns() // 1_000_000)


def span_below(outer: Scope) -> dict[str, str | None]:
    """Return the changes to a scope that open a new span in it."""
    return child_span(outer, _ids)


def _after_fork() -> None:
    global _ids
    _ids = IdFactory()  # ids must not repeat the parent's


os.register_at_fork(after_in_child=_after_fork)
