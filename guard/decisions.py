"""The newest decision known for a workflow, without asking: what ``track_llm`` returns."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from guard.core.control import ControlState
from guard.core.wire import Budget
from guard.scope import Scope

_BUDGETS_KEPT: Final = 1024
_NAMES: Final = {"kill": "kill", "pause": "pause", "budget": "block"}


class Decisions:
    """Remembers the newest budget of each workflow, as gate replies tell it."""

    def __init__(self) -> None:
        self._budgets: OrderedDict[str | None, Budget] = OrderedDict()
        self.known: tuple[Scope | None, ControlState | None, dict[str, Any] | None] = (
            None,
            None,
            None,
        )
        """A scope that nothing halts under this control state, and its budget: both stand still
        most of the time, so that the next event of the same scope need not look again."""

    def learned(self, workflow_id: str | None, budget: Budget) -> None:
        """Take note of a budget; called on one thread, the loop's."""
        self._budgets[workflow_id] = budget
        self._budgets.move_to_end(workflow_id)
        if len(self._budgets) > _BUDGETS_KEPT:
            self._budgets.popitem(last=False)
        self.known = (None, None, None)

    def newest(self, scope: Scope, control: ControlState) -> dict[str, Any]:
        """Return ``{decision, workflow_id, budget}`` for a scope."""
        known_scope, known_control, shown = self.known
        if known_scope is not scope or known_control is not control:
            now_ms = time.time_ns() // 1_000_000
            halt = control.halt(scope.workflow_id, scope.run_id, now_ms, budgets=True)
            budget = self._budgets.get(scope.workflow_id)
            if halt is not None and halt.budget is not None:
                budget = halt.budget
            shown = None if budget is None else msgspec.to_builtins(budget)
            if halt is not None:
                return {
                    "decision": _NAMES[halt.kind],
                    "workflow_id": scope.workflow_id,
                    "budget": shown,
                }
            self.known = (scope, control, shown)
        return {
            "decision": "allow",
            "workflow_id": scope.workflow_id,
            "budget": None if shown is None else shown.copy(),
        }
