"""Covers each LLM request before it is sent: from a lease, else by asking the gateway."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from guard.breaker.exceptions import (
    GuardBlockedException,
    GuardBudgetError,
    GuardError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledInterrupt,
)
from guard.control.enforcement import refusal_in
from guard.core import wire
from guard.core.leases import LaneKey, LeaseBook, cost_of, request_subject, worst_case
from guard.core.request_bound import RequestBound
from guard.core.tags import tags_of
from guard.runtime import decision_log
from guard.runtime.event_pipeline import EventPipeline
from guard.runtime.gate import Gate
from guard.runtime.questions import Asking, Grant
from guard.scope.scope import Scope
from guard.settings import Settings

if TYPE_CHECKING:  # pulls in every vendor's format
    from guard.core.usage import Usage

logger = logging.getLogger("guard.requests")

_GROWTH: Final = 1024
"""How many more output tokens a stream asks for at least."""


class Report(Protocol):
    """Notes an error for the status and the hooks; see ``GuardRuntime.report_error``."""

    def __call__(
        self, exc: BaseException, stage: str, scope: Scope | None = None, tool: str | None = None
    ) -> None:
        """Note an error."""


class ReportAsync(Protocol):
    """Like :class:`Report`, without blocking the caller's loop."""

    async def __call__(
        self, exc: BaseException, stage: str, scope: Scope | None = None, tool: str | None = None
    ) -> None:
        """Note an error."""


class Observed(Protocol):
    """Takes a refusal that is not enforced; see ``GuardRuntime.observed``."""

    def __call__(
        self,
        exc: GuardError | WorkflowKilledInterrupt,
        scope: Scope,
        tool: str | None = None,
    ) -> None:
        """Report it."""


class LlmRequests:
    """The gate of LLM requests; implements ``guard.instrumentation.request_gate.RequestGate``.

    Args:
        settings: what to do without the gateway.
        events: ids, and the session whose gateway says what it can do.
        gate: asks the gateway.
        leases: what this process may spend without asking.
        report, report_async: take errors for the hooks.
        observed: takes what a request would have been refused with, and it goes out; None refuses.
    """

    def __init__(
        self,
        settings: Settings,
        events: EventPipeline,
        gate: Gate,
        leases: LeaseBook,
        *,
        report: Report,
        report_async: ReportAsync,
        observed: Observed | None = None,
    ) -> None:
        self._observed = observed
        self._settings = settings
        self._events = events
        self._gate = gate
        self._leases = leases
        self._report = report
        self._report_async = report_async

    @property
    def is_on(self) -> bool:
        """Whether requests are gated: by the settings, and not by a gateway that cannot."""
        if not self._settings.gate_requests:
            return False
        session = self._events.session
        features = None if session is None else session.features
        return features is None or wire.FEATURE_REQUEST_GATE in features

    def hold(self, scope: Scope, bound: RequestBound) -> RequestHold | None:
        """Cover a request from a lease, without a round trip; None when the gateway must be asked.

        Outside of a ``workflow`` or ``@protect`` scope nothing is covered, and nothing refused.
        """
        call = scope.call
        if (scope.workflow_id is None and call is None) or not self.is_on:
            return NOT_GATED
        found = self._leases.take_request(
            lane_of(scope, bound),
            request_subject(bound.provider),
            bound,
            time.monotonic(),
            1 if call is None else 0,
        )
        if found is None:
            return None
        if call is not None and call.hold is not None:
            call.hold.give_back()  # the call's guess: what it costs are its requests
        if decision_log.is_on():
            decision_log.covered(_named(bound), scope.workflow_id, found[0].lease.lease_id)
        return RequestHold(self, scope, bound, Grant(None, *found))

    def ask(self, scope: Scope, bound: RequestBound) -> RequestHold:
        """Ask the gateway; blocks the calling thread.

        Raises:
            Refusal: refused, or the gateway cannot be asked and there is no fallback.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        try:
            grant = self._gate.ask(self._asking(scope, bound))
        except (GuardError, WorkflowKilledInterrupt) as exc:
            error = self._explained(scope, bound, exc)
            self._report(error, "gate", scope)
            return self._without_cover(scope, bound, error)
        return RequestHold(self, scope, bound, grant)

    async def ask_async(self, scope: Scope, bound: RequestBound) -> RequestHold:
        """Like :meth:`ask`; the caller's loop goes on meanwhile."""
        try:
            grant = await self._gate.ask_async(self._asking(scope, bound))
        except (GuardError, WorkflowKilledInterrupt) as exc:
            error = self._explained(scope, bound, exc)
            await self._report_async(error, "gate", scope)
            return self._without_cover(scope, bound, error)
        return RequestHold(self, scope, bound, grant)

    def _asking(self, scope: Scope, bound: RequestBound) -> Asking:
        call = scope.call
        chain = None
        if scope.chain_id is not None:
            chain = wire.Chain(scope.chain_id, "start" if scope.chain_op == "start" else "continue")
        held = None
        if call is not None:
            if call.hold is not None:
                call.hold.give_back()
            else:
                held = call.reservation_id
        request = wire.GateRequest(
            call_id=self._events.ids.uuid7(time.time_ns() // 1_000_000),
            kind="llm",
            function=bound.provider,
            model=bound.model or wire.UNKNOWN_MODEL,
            workflow_id=scope.workflow_id,
            run_id=scope.run_id,
            chain=chain,
            agent=scope.agent,
            user=scope.user,
            tags=tags_of(scope.tags),
            trace_id=scope.trace_id,
            span_id=scope.span_id,
            parent_span_id=scope.parent_span_id,
            max_input_tokens=bound.input_tokens,
            max_output_tokens=bound.output_tokens,
            streams=bound.streams,
            within=None if call is None else call.call_id,
            held=held,
        )
        calls = 1 if call is None else 0
        return Asking(request, lane_of(scope, bound), request_subject(bound.provider), bound, calls)

    def _explained(
        self, scope: Scope, bound: RequestBound, exc: GuardError | WorkflowKilledInterrupt
    ) -> GuardError | WorkflowKilledInterrupt:
        if not isinstance(exc, GuardBlockedException):
            return exc
        rates = self._leases.rates(lane_of(scope, bound), request_subject(bound.provider))
        return _explained(exc, bound, rates)

    def _without_cover(
        self, scope: Scope, bound: RequestBound, error: GuardError | WorkflowKilledInterrupt
    ) -> RequestHold:
        """Let a request go on without cover in ``open`` mode or when observing; raise otherwise."""
        if self._observed is not None:
            self._observed(error, scope)
            return RequestHold(self, scope, bound, Grant())
        if (
            isinstance(error, GuardTransportError)
            and not isinstance(error, RateLimitError)  # a cap is a decision of the gateway
            and error.error_code != "GD-B006"  # shut down
            and self._settings.fallback_mode == "open"
        ):
            decision_log.fell_back(_named(bound), scope.workflow_id)
            return RequestHold(self, scope, bound, Grant())
        raise refusal_in(scope, error)

    # -- what a hold needs ------------------------------------------------------------------------

    def release(self, grant: Grant) -> None:
        """Give back what a grant has set aside."""
        self._gate.release(grant)

    def lets_grow(self, scope: Scope, error: GuardError) -> bool:
        """Tell whether a stream goes on although it was refused more."""
        if self._observed is not None:
            self._observed(error, scope)
        return self._observed is not None

    def ask_more(
        self, scope: Scope, bound: RequestBound, answered: Callable[[Grant | BaseException], None]
    ) -> None:
        """Ask for more for a request that is under way, without waiting."""
        self._gate.ask_soon(self._asking(scope, bound), answered)


class RequestHold:
    """Money set aside for one request. Thread-safe; only the first end counts.

    Attributes:
        reservation_id: what the request's event names; None without cover.
        output_tokens: the largest output that it pays for; None if that is unknown.
        refusal: why a stream that has outgrown it may not go on; None while it may.
    """

    __slots__ = (
        "_bound", "_ends", "_grant", "_growing", "_more", "_requests", "_scope", "output_tokens",
        "refusal", "reservation_id",
    )  # fmt: skip

    def __init__(
        self, requests: LlmRequests, scope: Scope, bound: RequestBound, grant: Grant
    ) -> None:
        self._requests = requests
        self._scope = scope
        self._bound = bound
        self._grant = grant
        self._ends = [True]  # popped by the first end; `list.pop` is atomic
        self._growing = False
        self._more: list[Grant] = []
        self.refusal: GuardError | None = None
        self.output_tokens = grant.output_tokens
        self.reservation_id: str | None = None
        if grant.hold is not None:
            self.reservation_id = grant.hold.lease.lease_id
        elif grant.reply is not None:
            self.reservation_id = grant.reply.reservation_id

    def settle(self, usage: Usage) -> None:
        """The answer was read: pay for what it used, return the rest."""
        if not self._end():
            return
        hold, rates = self._grant.hold, self._grant.rates
        if hold is not None:
            if rates is None:
                hold.keep()  # its price is the gateway's to know
            else:
                hold.settle(cost_of(rates, usage))
        self._release_more()

    def give_back(self) -> None:
        """The request cost nothing: it was not sent, or refused by the vendor."""
        if self._end():
            self._requests.release(self._grant)
            self._release_more()

    def keep(self) -> None:
        """What the answer cost stays unknown: the whole amount counts as spent."""
        if not self._end():
            return
        if self._grant.hold is not None:
            self._grant.hold.keep()
        self._release_more()

    def grow(self, output_tokens: int) -> None:
        """A stream has come near its end at ``output_tokens``: ask for more in the background.

        ``output_tokens`` rises, or ``refusal`` is set.
        """
        paid = self.output_tokens
        if paid is None or self._growing or not self._ends:
            return
        hold, rates = self._grant.hold, self._grant.rates
        bound = self._bound
        more = max(_GROWTH, paid, 2 * (output_tokens - paid))
        wanted = RequestBound(bound.provider, bound.model, 0, more, streams=True)
        if hold is not None and rates is not None:
            worst = worst_case(rates, wanted)
            if worst is not None and hold.grow(worst[0]):
                self.output_tokens = paid + more
                return
        if self.reservation_id is None:  # without cover from the start
            self.output_tokens = paid + more
            return
        self._growing = True
        # Without a limit, so that it gets what is left where that is less than what is assumed.
        wanted = RequestBound(bound.provider, bound.model, 0, None, streams=True)
        self._requests.ask_more(self._scope, wanted, functools.partial(self._grown, more))

    def _grown(self, more: int, outcome: Grant | BaseException) -> None:
        if isinstance(outcome, GuardError):
            if self._requests.lets_grow(self._scope, outcome):
                self.output_tokens = (self.output_tokens or 0) + more
            else:
                self.refusal = outcome
        elif isinstance(outcome, Grant):
            first, second = self._grant.hold, outcome.hold
            if first is None or second is None or not first.absorb(second):
                self._more.append(outcome)
            paid = more if outcome.output_tokens is None else outcome.output_tokens
            self.output_tokens = (self.output_tokens or 0) + paid
            if not self._ends:  # it ended meanwhile
                self._release_more()
        self._growing = False

    def _release_more(self) -> None:
        """Give back what a stream was granted beside its first hold; the event names that one."""
        while self._more:
            try:
                self._requests.release(self._more.pop())
            except IndexError:  # another thread was faster
                return

    def _end(self) -> bool:
        try:
            return self._ends.pop()
        except IndexError:
            return False


class _NotGated(RequestHold):
    """The request needs no cover."""

    __slots__ = ()

    def __init__(self) -> None:
        self.reservation_id = None
        self.output_tokens = None
        self.refusal = None

    def settle(self, usage: Usage) -> None:
        """Nothing was set aside."""

    def give_back(self) -> None:
        """Nothing was set aside."""

    def keep(self) -> None:
        """Nothing was set aside."""

    def grow(self, output_tokens: int) -> None:
        """Nothing limits it."""


NOT_GATED: Final = _NotGated()


def lane_of(scope: Scope, bound: RequestBound) -> LaneKey:
    """Return the lane of a request."""
    model = bound.model or wire.UNKNOWN_MODEL
    return scope.workflow_id, scope.agent, scope.chain_id, scope.user, model


def _named(bound: RequestBound) -> str:
    return f"a request to {bound.provider} for {bound.model or 'an unnamed model'}"


def _explained(
    error: GuardBlockedException, bound: RequestBound, rates: wire.ModelRates | None
) -> GuardBlockedException:
    """Return a refusal that says which request it was, its worst case, and what was left."""
    text = _named(bound)
    worst = None if rates is None else worst_case(rates, bound)
    details = error.details
    amount = details.get("requested_nanousd", None if worst is None else worst[0])
    if isinstance(error, GuardBudgetError):
        if isinstance(amount, int):
            text += f" could cost {_dollars(amount)}"
        budget = details.get("budget")
        if isinstance(budget, wire.Budget):
            text += f", and {_dollars(max(0, budget.remaining_nanousd))} were left"
    reason = f"{text}: {error.reason}" if error.reason else text
    return type(error)(
        workflow_id=error.workflow_id,
        reason=reason,
        action=error.action,
        tool_name=error.tool_name,
        details=details,
        status_code=error.status_code,
    )


def _dollars(nanousd: int) -> str:
    return f"${nanousd / wire.NANOUSD_PER_DOLLAR:.9f}".rstrip("0").rstrip(".")
