"""``workflow``, ``chain``, ``span``, ``agent`` (spec 2, 3)."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any, Final, Literal, Self

from guard.contexts.boundary import ContextScope, new_id, span_below
from guard.runtime.active import active_account
from guard.scope.scope import Scope

ChainOp = Literal["auto", "start", "continue", "end"]
_OPS: Final = ("auto", "start", "continue", "end")

_OPEN_CHAINS_MAX: Final = 10_000
_open_chains: OrderedDict[tuple[str, str], None] = OrderedDict()
"""The newest chains that this process has opened, by caller and id; guarded by ``_chains_lock``.
Bounded, since some are never closed."""
_chains_lock = threading.Lock()


class workflow(ContextScope):  # noqa: N801  # used like a function: `with guard.workflow("x"):`
    """Set the workflow that protected calls and events belong to.

    A workflow's state (killed, paused) belongs to its name and applies in every process; each entry
    is a run of its own. Before ``guard.init()`` the runtime is made from the environment; use
    ``async with`` in an event loop, which it does not block.

    Args:
        name: the workflow's id; a new one when None.

    Attributes:
        workflow_id, run_id: those of this entry, or of the next one.

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
        self.workflow_id: str = name or new_id()
        self.run_id: str = new_id()

    def _renew(self) -> None:
        self.workflow_id, self.run_id = self.name or new_id(), new_id()

    def _changes(self, outer: Scope) -> dict[str, Any]:
        ids = {"workflow_id": self.workflow_id, "run_id": self.run_id}
        # Without the call: a protected call around this workflow belongs to another workflow.
        return {**ids, "call": None, **span_below(outer)}

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        self._emit_span(scope, error, scope.workflow_id or "")


class chain(ContextScope):  # noqa: N801  # used like a function: `with guard.chain("x"):`
    """Give a series of calls one soft budget.

    Args:
        name: the chain's id; a new one when None.
        op: ``start`` registers the chain and leaves it open on exit; ``continue`` extends its
            time-to-live and leaves it open; ``end`` closes it on exit; ``auto`` starts and ends it
            where it is not open yet, and continues it otherwise.

    Attributes:
        chain_id: the id of this entry, or of the next one.

    Raises:
        ValueError: an unknown op.
    """

    kind = "chain"
    enforces = True

    def __init__(self, name: str | None = None, *, op: ChainOp = "auto") -> None:
        if op not in _OPS:
            raise ValueError(f"op is one of {', '.join(_OPS)}, not {op!r}")
        super().__init__(name)
        self.op: ChainOp = op
        self.chain_id: str = name or new_id()
        # Whether the exit ends the chain; decided on entry.
        self._closes = False

    def _again(self) -> Self:
        return type(self)(self.name, op=self.op)

    def _renew(self) -> None:
        self.chain_id = self.name or new_id()

    def _changes(self, outer: Scope) -> dict[str, Any]:
        chain_id = self.chain_id
        key = _key_of(outer, chain_id)
        with _chains_lock:
            known = key in _open_chains or outer.chain_id == chain_id
            _open_chains[key] = None
            _open_chains.move_to_end(key)
            if len(_open_chains) > _OPEN_CHAINS_MAX:
                _open_chains.popitem(last=False)
        # `known` was read under the lock: of two entries at once, one starts the chain.
        starts = self.op == "start" or (self.op == "auto" and not known)
        self._closes = self.op == "end" or (self.op == "auto" and not known)
        return {"chain_id": chain_id, "chain_op": "start" if starts else "continue"}

    def _entered(self, scope: Scope) -> None:
        self._emit(scope, scope.chain_op or "")

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        if self._closes:
            with _chains_lock:
                _open_chains.pop(_key_of(scope, scope.chain_id or ""), None)
            self._emit(scope, "end")

    def _emit(self, scope: Scope, op: str) -> None:
        account = active_account(scope)
        if account is not None:
            account.events.record("chain", {"op": op, "id": scope.chain_id}, scope)


class span(ContextScope):  # noqa: N801  # used like a function: `with guard.span("x"):`
    """Open a nested trace span; a running OpenTelemetry span becomes its parent.

    Args:
        name: what the span is about; ``"span"`` when None.

    Attributes:
        span_id, trace_id: W3C Trace Context ids, empty before the first entry.
    """

    kind = "span"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.span_id = self.trace_id = ""

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return span_below(outer)

    def _entered(self, scope: Scope) -> None:
        self.span_id, self.trace_id = scope.span_id or "", scope.trace_id or ""

    def _left(self, scope: Scope, error: BaseException | None) -> None:
        self._emit_span(scope, error, self.name or "span")


class agent(ContextScope):  # noqa: N801  # used like a function: `with guard.agent("x"):`
    """Set the identity of the agent that acts.

    Args:
        name: the agent's id; a new one when None.

    Attributes:
        agent_id: the id of this entry, or of the next one.
    """

    kind = "agent"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.agent_id: str = name or new_id()

    def _renew(self) -> None:
        self.agent_id = self.name or new_id()

    def _changes(self, outer: Scope) -> dict[str, Any]:
        return {"agent": self.agent_id}


def _key_of(scope: Scope, chain_id: str) -> tuple[str, str]:
    """Return the key of a chain: two callers may give their chains the same name."""
    return "" if scope.caller is None else scope.caller.identity, chain_id


def _after_fork() -> None:
    global _chains_lock
    _chains_lock = threading.Lock()  # it may be held by a thread that is gone


os.register_at_fork(after_in_child=_after_fork)
