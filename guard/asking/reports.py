"""Errors on their way to the status, the decision log and the hooks."""

from __future__ import annotations

from typing import Any

from guard import hooks
from guard.asking import decision_log
from guard.breaker.exceptions import GuardError, WorkflowKilledInterrupt
from guard.control.observations import OBSERVED_EVENT, ObservationLog
from guard.hooks import ErrorContext
from guard.loop import BackgroundLoop
from guard.scope.scope import Scope
from guard.session.event_pipeline import EventPipeline
from guard.settings import Settings


class Reports:
    """Where errors and refusals are reported.

    Args:
        settings: the mode, and the key's prefix, which the hooks get.
        background: the loop whose thread no hook may hold up.
        events: records observed refusals, and keeps the newest error for the status.

    Attributes:
        enforces: whether refusals are raised; else they are only reported
            (``GUARD_MODE=observe``).
    """

    def __init__(
        self, settings: Settings, background: BackgroundLoop, events: EventPipeline
    ) -> None:
        self.enforces = settings.mode != "observe"
        self._key_prefix = settings.api_key_prefix
        self._background = background
        self._events = events
        self._observations = ObservationLog(self._record_observation)

    def error(
        self, exc: BaseException, stage: str, scope: Scope | None = None, tool: str | None = None
    ) -> None:
        """Note an error for the status and pass it to the hooks; each error reaches them once.

        The hooks run in the calling thread; if that is the background loop's, in the hook thread:
        a hook that blocks must not delay kills and renewals.

        Args:
            exc: the error; one that is not guard's own is ignored.
            stage: where it arose: ``init``, ``gate``, ``call`` or ``flush``.
            scope, tool: those of the call in which it arose.
        """
        if stage == "gate":
            decision_log.refused(exc, scope, tool)
        context = self._context(exc, stage, scope, tool)
        if context is None:
            return
        if self._background.is_own_thread:
            hooks.fire_in_background(exc, context)
        else:
            hooks.fire(exc, context)

    async def error_async(
        self, exc: BaseException, stage: str, scope: Scope | None = None, tool: str | None = None
    ) -> None:
        """Like :meth:`error`; the hooks run in a thread while the caller awaits them."""
        if stage == "gate":
            decision_log.refused(exc, scope, tool)
        context = self._context(exc, stage, scope, tool)
        if context is not None:
            await hooks.fire_async(exc, context)

    def observed(
        self,
        exc: GuardError | WorkflowKilledInterrupt,
        scope: Scope,
        tool: str | None = None,
    ) -> None:
        """Report a refusal that ``GUARD_MODE=observe`` does not enforce.

        Args:
            exc: the refusal.
            scope, tool: those of the call in which it would have been raised.
        """
        decision_log.refused(exc, scope, tool, "would refuse")
        context = self._context(exc, "gate", scope, tool)
        # In the hook thread, whichever thread this is: observing must not slow down the program.
        if context is not None:
            hooks.fire_in_background(exc, context)
        self._observations.add(exc, scope, tool)

    def _context(
        self, exc: BaseException, stage: str, scope: Scope | None, tool: str | None
    ) -> ErrorContext | None:
        if not isinstance(exc, GuardError):
            return None
        self._events.health.last_error_code = exc.error_code
        workflow_id = scope.workflow_id if scope is not None else None
        return ErrorContext(stage, workflow_id, tool, self._key_prefix)

    def _record_observation(self, data: dict[str, Any], scope: Scope) -> None:
        self._events.record(OBSERVED_EVENT, data, scope)
