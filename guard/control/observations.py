"""Reports of what ``GUARD_MODE=observe`` lets through and ``enforce`` would have refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from guard.breaker.exceptions import GuardError, WorkflowKilledInterrupt
from guard.scope.scope import Scope

logger = logging.getLogger("guard")

OBSERVED_EVENT: Final = "sdk.observed"
"""Type of the event about each would-be refusal."""

_KINDS_MAX: Final = 1000
"""Kinds that are remembered; those beyond it are logged as warnings each time."""


class ObservationLog:
    """Records every would-be refusal as an event, and logs the first of each kind as a warning.

    Args:
        record: called with the event's payload and its scope.
    """

    def __init__(self, record: Callable[[dict[str, Any], Scope], None]) -> None:
        self._record = record
        # Kinds that were logged as warnings: code, workflow and tool. Any thread adds to it without
        # a lock: at worst two threads log the same kind.
        self._kinds: set[tuple[str, str | None, str | None]] = set()

    def add(
        self, exc: GuardError | WorkflowKilledInterrupt, scope: Scope, tool: str | None
    ) -> None:
        """Record and log a would-be refusal."""
        code = exc.error_code
        kind = (code, scope.workflow_id, tool)
        known = kind in self._kinds
        if not known and len(self._kinds) < _KINDS_MAX:
            self._kinds.add(kind)
        level = logging.DEBUG if known else logging.WARNING
        logger.log(level, "observed, not refused: %s: %s", code, exc)
        reason = getattr(exc, "reason", None) or str(exc)
        data = {"error_code": code, "reason": str(reason)[:500], "tool_name": tool}
        self._record({name: value for name, value in data.items() if value is not None}, scope)
