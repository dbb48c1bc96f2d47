"""The newest decision known for a workflow, without asking: what ``track_llm`` returns."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from guard.core.control import ControlState
from guard.core.wire import Budget
from guard.scope.scope import Scope

_BUDGETS_KEPT: Final = 1024
_NOT_CACHED: Final[tuple[Scope | None, dict[str, Any]]] = (None, {})
_NAMES: Final = {"kill": "kill", "pause": "pause", "budget": "block"}


class Decisions:
    """Remembers the newest budget of each workflow, as gate replies tell it."""

    def __init__(self) -> None:
        self._budgets: OrderedDict[str | None, Budget] = OrderedDict()
        self.cached: tuple[Scope | None, dict[str, Any]] = _NOT_CACHED
        """A scope that nothing halts and no budget is known of, and what is told of it: the next
        event of the same scope need not look, only copy. Set back by :meth:`changed`."""

    def changed(self) -> None:
        """What decisions rest on has changed: look again."""
        self.cached = _NOT_CACHED

    def learned(self, workflow_id: str | None, budget: Budget) -> None:
        """Take note of a budget; called on one thread, the loop's."""
        self._budgets[workflow_id] = budget
        self._budgets.move_to_end(workflow_id)
        if len(self._budgets) > _BUDGETS_KEPT:
            self._budgets.popitem(last=False)
        self.changed()

    def newest(self, scope: Scope, control: ControlState) -> dict[str, Any]:
        """Return ``{decision, workflow_id, budget, event_id, buffered}``; the id is for the caller.

        It is a dict of the caller's own.
        """
        now_ms = time.time_ns() // 1_000_000
        halt = control.halt(scope.workflow_id, scope.run_id, now_ms, budgets=True)
        budget = self._budgets.get(scope.workflow_id)
        if halt is not None and halt.budget is not None:
            budget = halt.budget
        decision = {
            "decision": "allow" if halt is None else _NAMES[halt.kind],
            "workflow_id": scope.workflow_id,
            "budget": None if budget is None else msgspec.to_builtins(budget),
            "event_id": "",
            "buffered": True,
        }
        if halt is None and budget is None:
            self.cached = (scope, decision.copy())
        return decision
