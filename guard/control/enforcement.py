"""Applies the gateway's control messages, checks scopes against them and stops running bodies.

The control state is an immutable snapshot, replaced as a whole on the background loop. A check, on
any thread, reads that one attribute: it takes no lock and waits for no network.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import FrameType

from guard.breaker.exceptions import GuardError, WorkflowKilledInterrupt
from guard.breaker.refusals import Refusal, exception_for_halt, interrupt_for
from guard.control.bodies import ActiveBodies, Body, GateWait, TaskRequest
from guard.control.task_kill import running_task
from guard.control.threads import ThreadRequest, this_thread
from guard.core import wire
from guard.core.control import ControlState, Halt, Mark
from guard.scope.scope import Scope, current_scope


class Enforcement:
    """Checks scopes against an immutable snapshot, without a lock and without a round trip.

    Args:
        own_thread: returns whether the calling thread is guard's own, whose requests no kill stops.
        changed: called after each new snapshot, before any body is stopped by it.
        observed: called with the exception that would have refused an LLM request; then nothing is
            stopped or refused. None enforces.

    Attributes:
        control: the snapshot; replaced as a whole.
        halts: whether anything at all is killed or paused; if not, no scope need be checked.
        counts: whether any rule counts repeated calls; if not, no call needs a digest.
        bodies: the protected bodies and requests that run now.
    """

    def __init__(
        self,
        own_thread: Callable[[], bool],
        changed: Callable[[], None],
        observed: Callable[[GuardError | WorkflowKilledInterrupt, Scope], None] | None = None,
    ) -> None:
        self._observed = observed
        self._own_thread = own_thread
        self._changed = changed
        # Written on the background loop only; any thread reads them without a lock. `halts` and
        # `counts` follow from `control`, kept apart because every protected call reads them.
        self.control = ControlState()
        self.halts = False
        self.counts = False
        # Each thread and task enters and leaves its own bodies; the loop interrupts them.
        self.bodies = ActiveBodies()

    def forget_bodies(self) -> None:
        """Start without running bodies, in a forked child: they run in the parent."""
        self.bodies = ActiveBodies()

    def apply(self, *messages: wire.ControlMessage) -> None:
        """Apply control messages on the background loop; a kill stops the bodies that it concerns.

        Applying the same messages again changes nothing.
        """
        # The snapshot first, then the bodies. A body that starts in between finds the kill in its
        # own check, and one that started earlier is found by `interrupt`.
        before = self.control.kills
        control = self.control = self.control.apply(*messages)
        self.halts = bool(control.kills or control.pauses or control.timed_pauses)
        self.counts = control.tools is not None and control.tools.counts
        # Before the bodies are stopped: what their callers do next must not see a cached "allow".
        self._changed()
        # Compared by identity: a replay, a pattern or an older revive may change the kills as well.
        if self.control.kills is not before and self.enforces:
            self.bodies.interrupt(self.killed)

    @property
    def enforces(self) -> bool:
        """Whether kills and refusals take effect; in observe mode they are only reported."""
        return self._observed is None

    def check(self, scope: Scope) -> None:
        """Refuse if the scope's workflow is killed or paused; reads a local snapshot only.

        Raises:
            WorkflowKilledInterrupt: killed.
            WorkflowPausedException: paused.
        """
        if not self.halts:
            return
        halt = self.control.halt(scope.workflow_id, scope.run_id, time.time_ns() // 1_000_000)
        if halt is not None:
            raise exception_for_halt(halt, scope.workflow_id)

    def check_killed(self, scope: Scope) -> None:
        """Refuse if the scope's workflow is killed; reads a local snapshot only.

        Raises:
            WorkflowKilledInterrupt: killed.
        """
        kills = self.control.kills
        if kills and self.enforces and (mark := self.killed(scope)):
            raise interrupt_for(mark, scope.workflow_id)

    def killed(self, scope: Scope) -> Mark | None:
        """Return what killed the scope's workflow or run, if something did."""
        now_ms = time.time_ns() // 1_000_000
        return self.control.kills.find(scope.workflow_id, scope.run_id, now_ms)

    def check_request(self, scope: Scope) -> bool:
        """Refuse the next LLM request of a killed, paused or exhausted scope, without a round trip.

        Returns:
            True in observe mode, if the request would have been refused; it was reported instead.

        Raises:
            WorkflowKilledInterrupt: killed.
            Refusal: paused or exhausted; the scope's boundary makes it a public exception.
            GuardError: the same in a process's default workflow, which has no boundary.
        """
        halt = self._halt_of_request(scope) if self.control.stops_requests else None
        if halt is None:
            return False
        error = exception_for_halt(halt, scope.workflow_id)
        if self._observed is None:
            raise refusal_in(scope, error)
        self._observed(error, scope)
        return True

    def _halt_of_request(self, scope: Scope) -> Halt | None:
        """Return what halts the next LLM request of a scope, as far as it is known locally."""
        # Outside of every workflow and call there is nothing that an operator could halt.
        if scope.workflow_id is None and scope.call is None:
            return None
        return self.control.halt(
            scope.workflow_id,
            scope.run_id,
            time.time_ns() // 1_000_000,
            budgets=scope.chain_id is None,  # inside a chain a budget is soft: the gate decides
        )

    def enter_wait(self, wait: Body) -> None:
        """Register a call's wait for an answer, so that a kill ends it.

        A kill that came before, between two questions of one call, found no body to stop.

        Raises:
            WorkflowKilledInterrupt: the workflow has been killed already.
        """
        # Entered before the check: so the check finds a kill, or the kill finds the wait, or both.
        self.bodies.enter(wait)
        try:
            self.check_killed(wait.scope)
        except WorkflowKilledInterrupt:
            wait.stopped = True
            raise

    @contextlib.contextmanager
    def waiting(self, scope: Scope, cancel: Callable[[], object]) -> Iterator[None]:
        """Call ``cancel`` when the workflow of ``scope``, or a body around this wait, is killed.

        Raises:
            WorkflowKilledInterrupt: it was killed.
        """
        wait = GateWait(scope, cancel)
        try:
            # Inside the `try`: Ctrl-C right after it must not leave the wait entered.
            self.enter_wait(wait)
            yield
        except BaseException as exc:
            killed = wait.end(exc)
            if killed is not None and killed is not exc:
                raise killed from None
            raise
        finally:
            self.bodies.leave(wait)

    def enter_request(
        self, frame: FrameType | None, llm: bool
    ) -> TaskRequest | ThreadRequest | None:
        """Register an HTTP request for kills to stop; None if no kill has to stop it by itself.

        The body around it, if there is one of the same run, is what a kill stops. A request in a
        thread or task of its own (``asyncio.to_thread``, a background task) has no such body.

        Args:
            frame: frame that calls a blocking client; None in the task of an asynchronous one.
            llm: whether it is an LLM request. Other requests are stopped only in a protected call,
                and not if they begin after the kill, because the clean-up may need them.

        Raises:
            WorkflowKilledInterrupt: the workflow has been killed already.
        """
        # 1. Nothing to stop: observe mode, or a request outside of every workflow and call.
        scope = current_scope.get()
        if not self.enforces or (scope.call is None and not (llm and scope.workflow_id)):
            return None
        carrier = running_task() if frame is None else this_thread()
        # Read once: the second check below finds out whether the kills have changed meanwhile.
        bodies, kills = self.bodies, self.control.kills
        # 2. A kill cannot reach it (no carrier: not a task of asyncio), stops the body around it,
        #    or must not stop it, because the request is guard's own.
        if carrier is None or bodies.reach(carrier, scope) or self._own_thread():
            return None
        # 3. Killed already: no further LLM request, but others for the clean-up.
        if kills and (killed := self.killed(scope)):
            if llm:
                raise refusal_in(scope, interrupt_for(killed, scope.workflow_id))
            return None
        # 4. Entered before the second check. The loop replaces `control` before it looks through
        #    the bodies: so the check finds a kill, or the kill finds the request, or both.
        request = TaskRequest(scope) if frame is None else ThreadRequest(scope, frame)
        bodies.enter(request)
        if self.control.kills is not kills and (killed := self.killed(scope)):
            bodies.leave(request)  # it was applied before the request was known to `bodies`
            raise refusal_in(scope, interrupt_for(killed, scope.workflow_id))
        return request

    def leave_request(self, request: Body) -> None:
        """Remove a request that :meth:`enter_request` returned: it has ended."""
        self.bodies.leave(request)


def refusal_in(scope: Scope, error: GuardError | WorkflowKilledInterrupt) -> BaseException:
    """Return the exception that takes a refusal through third-party code to its scope's boundary.

    A process's default workflow has no boundary: there it is the error itself.
    """
    # Noted in the scope as well: a framework in between may replace the exception by its own.
    scope.refuse(error)
    if scope.entry is None or isinstance(error, WorkflowKilledInterrupt):
        return error
    return Refusal(error)
