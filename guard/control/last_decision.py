"""The newest decision known for a workflow, without a round trip: ``track_llm`` returns it."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from guard.core.control import ControlState
from guard.core.wire import Budget
from guard.scope.scope import Scope

_WORKFLOWS_KEPT: Final = 1024
"""Workflows whose budgets are remembered; the least recently answered is forgotten first."""

_NOT_CACHED: Final[tuple[Scope | None, dict[str, Any]]] = (None, {})
_NAMES: Final = {"kill": "kill", "pause": "pause", "budget": "block"}


class Decisions:
    """Remembers the newest budget and warnings of each workflow, from gate replies."""

    def __init__(self) -> None:
        # Budget and warnings by workflow, the most recently answered last. Written on the loop
        # only; callers' threads read single entries, so there is no lock.
        self._replies: OrderedDict[str | None, tuple[Budget | None, list[str]]] = OrderedDict()
        # Whether the runtime was shut down. Set once, by the thread that shuts it down.
        self._closed = False
        self.cached: tuple[Scope | None, dict[str, Any]] = _NOT_CACHED
        """A scope without halt, budget or warnings, and its decision: the next event of the same
        scope only copies it. One tuple, so that a thread never reads a scope with another one's
        decision. Cleared by :meth:`changed`."""

    def changed(self) -> None:
        """Clear the cached decision, because the control state has changed."""
        self.cached = _NOT_CACHED

    def close(self) -> None:
        """Report from here on that calls are refused and events are not buffered."""
        self._closed = True
        self.changed()

    def learned(self, workflow_id: str | None, budget: Budget | None, warnings: list[str]) -> None:
        """Remember a gate reply; called on the loop only."""
        before, _ = self._replies.get(workflow_id, (None, None))
        budget = budget or before
        if budget is None and not warnings and workflow_id not in self._replies:
            return
        self._replies[workflow_id] = (budget, warnings)
        self._replies.move_to_end(workflow_id)
        if len(self._replies) > _WORKFLOWS_KEPT:
            self._replies.popitem(last=False)
        self.cached = _NOT_CACHED

    def newest(self, scope: Scope, control: ControlState) -> dict[str, Any]:
        """Return the newest decision as a new dict; its ``event_id`` is empty."""
        now_ms = time.time_ns() // 1_000_000
        in_chain = scope.chain_id is not None  # there a budget is soft, and the gate decides
        halt = control.halt(scope.workflow_id, scope.run_id, now_ms, budgets=not in_chain)
        budget, warnings = self._replies.get(scope.workflow_id, (None, []))
        if halt is not None and halt.budget is not None:
            budget = halt.budget
        kind = "allow" if halt is None else _NAMES[halt.kind]
        decision = {
            "decision": "block" if self._closed and kind == "allow" else kind,
            "workflow_id": scope.workflow_id,
            "budget": None if budget is None else msgspec.to_builtins(budget),
            "warnings": tuple(warnings),
            "event_id": "",
            "buffered": not self._closed,
        }
        if halt is None and budget is None and not warnings and not self._closed:
            self.cached = (scope, decision.copy())
        return decision
