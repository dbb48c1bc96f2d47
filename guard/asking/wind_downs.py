"""Reports once per run that it winds down: the rest of its budget is kept for the end."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from guard.hooks import WindDown, wind_down_in_background
from guard.scope.scope import Scope

_LOGGER: Final = logging.getLogger("guard.requests")
_KEPT: Final = 1000


class WindDowns:
    """The runs of this process that wind down."""

    def __init__(self) -> None:
        # By workflow, run and caller; a set that forgets the oldest. Used by any thread without a
        # lock: at worst two threads report the same run once each.
        self._known: OrderedDict[tuple[str | None, str | None, int], None] = OrderedDict()

    def begun(self, scope: Scope, *, is_last: bool) -> None:
        """Log that a run winds down and call the hooks; the first time only.

        Args:
            scope: where it was noticed.
            is_last: whether a request of it was let through as its last one.
        """
        run = scope.workflow_id, scope.run_id, id(scope.caller)
        if run in self._known:
            return
        self._known[run] = None
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        what = "this is its last request" if is_last else "only winding_down() may use what is left"
        _LOGGER.warning("workflow %s winds down: %s", scope.workflow_id or "(none)", what)
        wind_down_in_background(WindDown(scope.workflow_id, scope.run_id, is_last))
