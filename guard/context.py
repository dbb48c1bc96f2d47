"""``workflow``, ``chain``, ``span``, ``agent``, ``user``, ``tags``, ``options``, ``ask``
(spec 2, 3).

Each works with ``with``, with ``async with`` and as a decorator of functions, coroutine functions,
generators and asynchronous generators, and is safe with interleaved tasks. ``carry`` binds the
context for plain threads.
"""

from __future__ import annotations

import functools
import numbers
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar

from guard.breaker.refusals import error_at_edge
from guard.control.pools import carry_kills_out
from guard.control.threads import ThreadBody, this_thread
from guard.core.call_options import CallOptions, Ceiling
from guard.core.ids import IdFactory
from guard.core.notes import note_of
from guard.core.tags import check_tags, merged
from guard.core.wire import (
    NAME_LENGTH_MAX,
    NANOUSD_MAX,
    NANOUSD_PER_CENT,
    SpanData,
    cents,
)
from guard.facade import enforcing_runtime, enforcing_runtime_async, name_of
from guard.runtime.active import active_runtime
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import Entry, Scope, current_scope
from guard.scope.span_ids import child_span
from guard.scope.wrapping import Edge, run_inside, wrap_function

carry_kills_out()

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

ChainOp = Literal["auto", "start", "continue", "end"]
_OPS: Final = ("auto", "start", "continue", "end")

_OPEN_CHAINS_MAX: Final = 10_000
_ids = IdFactory()
_open_chains: OrderedDict[str, None] = OrderedDict()
"""The newest chains that this process opened; bounded, since some are never closed."""
_chains_lock = threading.Lock()


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """Bind a function to the current workflow, span and call, for plain threads and executors.

    A kill of the workflow stops the function in its thread, like a protected body.
    ``asyncio.to_thread`` copies the context by itself; ``threading.Thread`` and executors do not.

    Raises (from the bound function):
        WorkflowKilledInterrupt: the workflow is killed, before or in mid-call.
        GuardError: a refusal from inside, as its public exception.

    Example:
        >>> threading.Thread(target=carry(len), args=("abc",)).start()
    """
    carried: Callable[P, R] = wrap_function(
        function, functools.partial(_CarriedCall, current_scope.get())
    )
    return carried


class _CarriedCall(Edge):
    """The edge of one call of a function that :func:`carry` has bound to a scope."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self._runtime: GuardRuntime | None = None
        self._body: ThreadBody | None = None

    def enter(self, *, in_task: bool) -> None:
        self.resume()
        scope, runtime = self.scope, active_runtime()
        assert scope is not None, "it is bound to one"
        if runtime is None or (scope.workflow_id is None and scope.call is None):
            return
        body = self._body = ThreadBody(scope, sys._getframe(1), this_thread())
        self._runtime = runtime
        runtime.enforcement.bodies.enter(body)
        runtime.enforcement.check_killed(scope)

    def leave(self, exc: BaseException | None = None) -> BaseException | None:
        body, runtime = self._body, self._runtime
        if body is not None and runtime is not None:
            exc = body.end(exc)
            runtime.enforcement.bodies.leave(body)
            self._body = None
        self.suspend()
        if exc is None:
            return None
        entry = None if self.scope is None else self.scope.entry
        return error_at_edge(exc, None if entry is None else entry.refused)


class _Boundary:
    """Base of the context managers. An instance is one entry; a decorator makes one per call."""

    kind: Literal["workflow", "chain", "span", "agent", "user", "tags", "options", "ask"]
    enforces = False
    """Whether it needs a runtime, because budgets and directives apply to it."""

    def __init__(self, name: str | None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{self.kind} takes a name, not {type(name).__name__}")
        if name is not None and not 1 <= len(name) <= NAME_LENGTH_MAX:
            raise ValueError(f"a {self.kind}'s name has 1 to {NAME_LENGTH_MAX} characters")
        self.name = name
        self._token: Token[Scope] | None = None
        self._entry: Entry | None = None
        self._started_s = 0.0

    def _again(self) -> Self:
        return type(self)(self.name)

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
        self._entry = entry = Entry(outer)
        self._scope = scope = outer.evolve(entry=entry, **self._changes(outer))
        self._entered(scope)
        return scope

    def _end(self, error: BaseException | None) -> None:
        self._entry = None
        self._left(self._scope, error)

    def _report(self, error: BaseException | None) -> None:
        runtime = active_runtime()
        if error is not None and runtime is not None:
            runtime.report_error(error, "call", self._scope)

    async def _report_async(self, error: BaseException | None) -> None:
        runtime = active_runtime()
        if error is not None and runtime is not None:
            await runtime.report_error_async(error, "call", self._scope)

    def __enter__(self) -> Self:
        if self.enforces:
            enforcing_runtime()
        self._token = current_scope.set(self._begin())
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
        if exc is None:
            entry.pass_on_refusal()
        _restore(entry, token, exc)
        error = None if exc is None else error_at_edge(exc, entry.refused)
        self._end(error)
        return error

    async def __aenter__(self) -> Self:
        if self.enforces:
            await enforcing_runtime_async()
        return self.__enter__()

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
        """Decorate a function: every call of it is an entry of its own."""
        return run_inside(function, lambda: _DecoratedCall(self._again()))

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


class _DecoratedCall(Edge):
    """The edge of one call of a function that a context manager decorates."""

    def __init__(self, boundary: _Boundary) -> None:
        super().__init__()
        self._boundary = boundary
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

    def leave(self, exc: BaseException | None = None) -> BaseException | None:
        self.suspend()
        if exc is None or self._entry is None:
            return exc
        return error_at_edge(exc, self._entry.refused)

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


def _restore(entry: Entry, token: Token[Scope], exc: BaseException | None) -> None:
    """Leave an entry: set the scope outside of it, if the current context has the one inside.

    An abandoned generator is closed wherever it is dropped: in another context, or in a scope that
    its consumer has opened or left since. What is not inside this entry stays as it is.
    """
    current = current_scope.get()
    try:
        current_scope.reset(token)
        same_context = True
    except ValueError:
        same_context = False
    inner: Entry | None = None
    innermost = current.entry
    while innermost is not None and innermost is not entry:
        inner, innermost = innermost, innermost.outer.entry
    if innermost is None:
        current_scope.set(current)
    elif inner is None or (same_context and not isinstance(exc, GeneratorExit)):
        current_scope.set(entry.outer)
    else:
        current_scope.set(current)
        inner.outer = entry.outer  # so that leaving the inner one does not bring this one back


def _new_id() -> str:
    return _ids.uuid7(time.time_ns() // 1_000_000)


class workflow(_Boundary):  # noqa: N801  # used like a function: `with guard.workflow("x"):`
    """Set the workflow that protected calls and events belong to.

    A workflow's state (killed, paused) belongs to its name and applies in every process; each entry
    is a run of its own. Before ``guard.init()`` the runtime is made from the environment; use
    ``async with`` in an event loop, which it does not block.

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
    enforces = True

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.workflow_id: str | None = name
        self.run_id: str | None = None

    def _changes(self, outer: Scope) -> dict[str, Any]:
        self.workflow_id = self.name or _new_id()
        self.run_id = _new_id()
        ids = {"workflow_id": self.workflow_id, "run_id": self.run_id}
        return {**ids, "call": None, **child_span(outer, _ids)}

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
    enforces = True

    def __init__(self, name: str | None = None, *, op: ChainOp = "auto") -> None:
        super().__init__(name)
        if op not in _OPS:
            raise ValueError(f"op is one of {', '.join(_OPS)}, not {op!r}")
        self.op: ChainOp = op
        self.chain_id: str | None = name
        self._closes = False

    def _again(self) -> Self:
        return type(self)(self.name, op=self.op)

    def _changes(self, outer: Scope) -> dict[str, Any]:
        self.chain_id = chain_id = self.name or _new_id()
        with _chains_lock:
            known = chain_id in _open_chains or outer.chain_id == chain_id
            _open_chains[chain_id] = None
            _open_chains.move_to_end(chain_id)
            if len(_open_chains) > _OPEN_CHAINS_MAX:
                _open_chains.popitem(last=False)
        starts = self.op == "start" or (self.op == "auto" and not known)
        self._closes = self.op == "end" or (self.op == "auto" and not known)
        return {"chain_id": chain_id, "chain_op": "start" if starts else "continue"}

    def _entered(self, scope: Scope) -> None:
        self._emit(scope, scope.chain_op or "")

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        if self._closes:
            with _chains_lock:
                _open_chains.pop(scope.chain_id or "", None)
            self._emit(scope, "end")

    def _emit(self, scope: Scope, op: str) -> None:
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

    def _changes(self, outer: Scope) -> dict[str, Any]:
        ids = child_span(outer, _ids)
        self.span_id, self.trace_id = ids["span_id"], ids["trace_id"]
        return ids

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

    def _changes(self, outer: Scope) -> dict[str, Any]:
        self.agent_id = self.name or _new_id()
        return {"agent": self.agent_id}


class user(_Boundary):  # noqa: N801  # used like a function: `with guard.context.user("x"):`
    """Say for which user of the application the work is.

    Budgets of users count what is done for each of them, in every workflow and process; usage is
    summed by user. The id is the application's own choice: an account's number or a random id will
    do, and nothing personal is needed. It goes to the gateway with each call and event.

    Args:
        user_id: 1 to 256 characters.

    Attributes:
        user_id: the id.

    Raises:
        TypeError, ValueError: not a string, empty or too long.

    Example:
        >>> with user("account-17") as who:
        ...     who.user_id
        'account-17'
    """

    kind = "user"

    def __init__(self, user_id: str) -> None:
        if not isinstance(user_id, str):
            raise TypeError(f"a user's id is a string, not {type(user_id).__name__}")
        super().__init__(user_id)
        self.user_id = user_id

    def _again(self) -> Self:
        return type(self)(self.user_id)

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return {"user": self.user_id}


class tags(_Boundary):  # noqa: N801  # used like a function: `with guard.context.tags(team="x"):`
    """Tag the work: names and values that are stored with its events.

    Inner tags add to outer ones; the same name takes the inner value. At most 16 hold at once.

    Args:
        tags: names (1 to 64 characters) and values (strings, at most 256 characters).
        more: the same, for names that are Python names.

    Raises:
        TypeError, ValueError: a name or value is not a string or too long, or they are too many.

    Example:
        >>> with tags(team="billing", feature="summary"):
        ...     pass
    """

    kind = "tags"

    def __init__(self, tags: Mapping[str, str] | None = None, /, **more: str) -> None:
        if tags is not None and not isinstance(tags, Mapping):
            raise TypeError(f"tags takes names and values, not {type(tags).__name__}")
        super().__init__(None)
        self.tags = {**(tags or {}), **more}
        check_tags(self.tags)

    def _again(self) -> Self:
        return type(self)(self.tags)

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return {"tags": merged(outer.tags, self.tags)}


class ask(_Boundary):  # noqa: N801  # used like a function: `with guard.context.ask("Pay?"):`
    """Show something to the person who is asked to approve a call that is made inside.

    It goes to the gateway with the calls that are asked about, is stored with an approval if one is
    asked for, and is shown where the operator answers; nothing else is, tool arguments included. An
    inner one takes the place of an outer one; without arguments nothing is shown.

    Args:
        message: a sentence or two; at most 1000 characters.
        details: names and JSON values, copied; with the message at most 8192 bytes as JSON.

    Raises:
        TypeError, ValueError: of another type, too long, or nothing that JSON can represent.

    Example:
        >>> with ask(message="Pay this invoice?", details={"to": "ACME", "amount": "12.50 EUR"}):
        ...     pass
    """

    kind = "ask"

    def __init__(
        self, message: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(None)
        self._note = note_of(message, details)

    def _again(self) -> Self:
        again = type(self)()
        again._note = self._note
        return again

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return {"note": self._note}


class options(_Boundary):  # noqa: N801  # used like a function: `with options(limit_cents=5):`
    """Set options of the calls inside: of one protected call, or of a block.

    Args:
        model: the model that the gate is told, as by ``set_call_context``.
        tool_name: the name under which policies see the protected calls that begin in the block
            itself, in the place of their functions' names.
        limit_cents: the most that the LLM requests inside may cost, in cents. Each must leave room
            for its worst case before it is sent, and one that does not is refused. It holds beside
            the gateway's budgets and is never relaxed without the gateway.
        max_output_tokens: put into LLM requests that have no limit, where the vendor and the HTTP
            client take it; in the place of ``GUARD_MAX_OUTPUT_TOKENS``.

    Inner options take the place of outer ones, but for ``limit_cents``: there both hold.

    Attributes:
        spent_cents: what requests inside have cost so far, as far as their answers have been read;
            None without ``limit_cents``.
        left_cents: what requests still to come may cost; None without ``limit_cents``.

    Raises:
        GuardBudgetError: from inside, a request could cost more than is left.
        GuardConfigError: on entry with ``limit_cents``, this process does not gate LLM requests.
        TypeError, ValueError: an argument is not what it should be.

    Example:
        >>> with options(limit_cents=5, max_output_tokens=200) as limits:
        ...     limits.left_cents
        5.0
    """

    kind = "options"
    enforces = True

    def __init__(
        self,
        *,
        model: str | None = None,
        tool_name: str | None = None,
        limit_cents: float | None = None,
        max_output_tokens: int | None = None,
    ) -> None:
        super().__init__(None)
        self._given: dict[str, Any] = {
            "model": None if model is None else name_of("model", model),
            "tool_name": None if tool_name is None else name_of("tool_name", tool_name),
            "limit_cents": None if limit_cents is None else _limit(limit_cents),
            "max_output_tokens": None if max_output_tokens is None else _most(max_output_tokens),
        }
        self._ceiling: Ceiling | None = None

    def _again(self) -> Self:
        return type(self)(**self._given)

    @property
    def spent_cents(self) -> float | None:
        """What requests inside have cost so far, as far as their answers have been read."""
        return None if self._ceiling is None else cents(self._ceiling.spent_nanousd)

    @property
    def left_cents(self) -> float | None:
        """What requests still to come may cost."""
        return None if self._ceiling is None else cents(max(0, self._ceiling.left_nanousd))

    def _changes(self, outer: Scope) -> dict[str, Any]:
        given, known = self._given, outer.options or CallOptions()
        ceiling = known.ceiling
        if given["limit_cents"] is not None:
            runtime = active_runtime()
            if runtime is not None:
                runtime.settings.require_gated_requests("limit_cents")
            limit_nanousd = round(given["limit_cents"] * NANOUSD_PER_CENT)
            ceiling = self._ceiling = Ceiling(limit_nanousd, ceiling)
        inner = CallOptions(
            given["tool_name"] or known.tool_name,
            given["max_output_tokens"] or known.max_output_tokens,
            ceiling,
        )
        return {"options": inner, "model": given["model"] or outer.model}


def _limit(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"limit_cents is a number, not {type(value).__name__}")
    number = float(value)
    if not 0 <= number <= NANOUSD_MAX / NANOUSD_PER_CENT:
        raise ValueError("limit_cents is a number from 0 on")
    return number


def _most(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"max_output_tokens is a whole number, not {type(value).__name__}")
    if not 1 <= int(value) < 2**31:
        raise ValueError(f"max_output_tokens is a number from 1 to {2**31 - 1}")
    return int(value)


def _after_fork() -> None:
    # Ids must not repeat the parent's, and the lock may be held by a thread that is gone.
    global _ids, _chains_lock
    _ids = IdFactory()
    _chains_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
