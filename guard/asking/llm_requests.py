"""Covers each LLM request before it is sent: from a lease, else by asking the gateway."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from msgspec import structs

from guard.asking import decision_log, lease_clock
from guard.asking.gate import Gate
from guard.asking.own_reservations import attach_own_reservations
from guard.asking.reports import Reports
from guard.asking.request_hold import RequestHold, granted_nanousd, over_ceiling
from guard.asking.wind_downs import WindDowns
from guard.breaker.exceptions import (
    SHUT_DOWN,
    GuardBlockedException,
    GuardBudgetError,
    GuardConfigError,
    GuardError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledInterrupt,
)
from guard.control.enforcement import Enforcement, refusal_in
from guard.core import wire
from guard.core.arguments import key_of, keyed
from guard.core.call_options import Ceiling
from guard.core.leases import (
    Grant,
    LaneKey,
    LeaseBook,
    Question,
    request_subject,
    worst_case,
)
from guard.core.prompts import prompt_of
from guard.core.rates import lacks_sound, rows_of
from guard.core.request_bound import (
    LAST_ANSWER_TOKENS,
    RequestBound,
    said_unknown,
    with_last_answer,
)
from guard.instrumentation.request_gate import PutLimit, takes_no_limit
from guard.scope.scope import Scope
from guard.session.event_pipeline import EventPipeline
from guard.session.link import Link
from guard.settings import Settings

logger = logging.getLogger("guard.requests")

_LEAST_TOLD: Final = 256
"""An answer that would have fewer tokens than this is not told that it is the last."""
_UNPRICED_MAX: Final = 100


class LlmRequests:
    """The gate of LLM requests; implements ``guard.instrumentation.request_gate.RequestGate``.

    Args:
        settings: what to do without the gateway.
        link: to the gateway, and the features that it supports.
        events: makes ids.
        gate: asks the gateway.
        leases: what this process may spend without asking.
        reports: takes errors; where it does not enforce, refused requests are sent all the same.
        enforcement: holds the rules by which repeats are counted.
    """

    def __init__(
        self,
        settings: Settings,
        link: Link,
        events: EventPipeline,
        gate: Gate,
        leases: LeaseBook,
        reports: Reports,
        enforcement: Enforcement,
    ) -> None:
        self._settings = settings
        self._link = link
        self._events = events
        self._gate = gate
        self._leases = leases
        self._reports = reports
        self._enforcement = enforcement
        self.begin, self.has_lapsed = events.begin, gate.has_lapsed  # for a hold
        # Models whose price the gateway does not know; a dict for its order. Added to by any
        # thread; two threads may log the same model once each.
        self._unpriced: dict[str, None] = {}
        self._wind_downs = WindDowns()

    @property
    def unpriced_models(self) -> tuple[str, ...]:
        """The models that were held, and are charged, at the gateway's fallback prices."""
        return tuple(self._unpriced)

    @property
    def is_on(self) -> bool:
        """Whether requests are gated: the settings ask for it and the gateway supports it."""
        if not self._settings.gate_requests:
            return False
        # Before the gateway has answered for the first time, assume that it can.
        features = self._link.features
        return features is None or wire.FEATURE_REQUEST_GATE in features

    def hold(self, scope: Scope, bound: RequestBound) -> RequestHold | None:
        """Cover a request from a lease, without a round trip; None when the gateway must be asked.

        Outside of all scopes a request belongs to the process's default workflow. The cases:

        1. Requests are not gated: no cover, unless a ceiling needs :meth:`ask` to refuse it.
        2. The gateway counts repeats of its prompt, it is above its ceiling, what is not known
           in it is refused, or several models may answer: ask.
        3. The lane's lease covers it, and the ceiling has room.
        """
        # 1.
        call, options = scope.call, scope.options
        ceiling = None if options is None else options.ceiling
        if not self.is_on:
            return RequestHold(self, scope, bound, Grant()) if ceiling is None else None
        lane, subject = lane_of(scope, bound), request_subject(bound.provider, bound.local)
        # 2.
        if bound.is_counted or bound.models:
            return None
        if ceiling is not None and self._too_dear(ceiling, scope, bound) is not None:
            return None
        if self._settings.refuse_unknown and (bound.unknown or bound.unjudged):
            return None
        # 3. Inside a protected call, the call has been counted for rate caps already.
        calls = 1 if call is None else 0
        found = self._leases.take_request(lane, subject, bound, lease_clock.now_s(), calls)
        if found is None:
            return None
        # After the lease, which says the amount.
        if ceiling is not None and not ceiling.take(found[0].amount):  # another was faster
            found[0].give_back()
            return None
        # What the call around it was expected to cost are its requests, which are held themselves.
        if call is not None and call.hold is not None:
            call.hold.give_back()
        if decision_log.was_on:
            decision_log.covered(_named(bound), scope.workflow_id, found[0].lease.lease_id)
        return RequestHold(self, scope, bound, Grant(None, *found), ceiling)

    def rates_changed(self, scope: Scope) -> None:
        """Void the leases' rates: another model answers, so costs are computed by wrong ones."""
        self._leases.void(scope.workflow_id)

    def counted(self, scope: Scope, bound: RequestBound, path: str, body: bytes) -> RequestBound:
        """Return a request's bound with the digest of its prompt, where repeats are counted."""
        tools = self._enforcement.control.tools if self._enforcement.counts else None
        if tools is None or scope.run_id is None or bound.model is None:
            return bound
        rules = tools.for_scope(scope.workflow_id, scope.agent)
        counting = "" if rules is None else rules.counts_model(bound.model)
        prompt = prompt_of(path, body) if counting else None
        if prompt is None:
            return bound
        said = b"\0".join((bound.model.encode("utf-8", "replace"), prompt))
        digest = keyed(said, key_of(self._settings.api_key))
        return structs.replace(bound, digest=digest, is_counted=counting == "ask")

    def ask(
        self, scope: Scope, bound: RequestBound, limit: PutLimit = takes_no_limit
    ) -> RequestHold:
        """Ask the gateway; blocks the calling thread.

        Args:
            scope: the scope of the request.
            bound: what it can cost at most.
            limit: puts a limit on the output into the request; returns whether it could.

        Raises:
            Refusal: refused, or the gateway cannot be asked and there is no fallback.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        try:
            self._check_ceiling(scope, bound)
            self._check_unknown(scope, bound)
            grant = self._gate.ask(self._question(scope, bound))
            return self._under_ceiling(scope, bound, self._limited(scope, bound, grant, limit))
        except (GuardError, WorkflowKilledInterrupt) as exc:
            error = self._explained(scope, bound, exc)
            self._reports.error(error, "gate", scope)
            return self._without_cover(scope, bound, error)

    async def ask_async(
        self, scope: Scope, bound: RequestBound, limit: PutLimit = takes_no_limit
    ) -> RequestHold:
        """Like :meth:`ask`, for async code; the caller's loop keeps running."""
        try:
            self._check_ceiling(scope, bound)
            self._check_unknown(scope, bound)
            grant = await self._gate.ask_async(self._question(scope, bound))
            return self._under_ceiling(scope, bound, self._limited(scope, bound, grant, limit))
        except (GuardError, WorkflowKilledInterrupt) as exc:
            error = self._explained(scope, bound, exc)
            await self._reports.error_async(error, "gate", scope)
            return self._without_cover(scope, bound, error)

    def _limited(self, scope: Scope, bound: RequestBound, grant: Grant, limit: PutLimit) -> Grant:
        """Limit a request's output to what its money pays for, and make its last request say so.

        Raises:
            GuardBudgetError: no limit can be put into the request; the grant is given back.
        """
        most = None if grant.reply is None else grant.reply.max_output_tokens
        is_last = grant.reply is not None and grant.reply.winding_down
        if is_last:
            self._wind_downs.begun(scope, is_last=True)
            told = _told(bound, grant, most)
            if told is not None and limit(told, True):
                return grant
        if most is None or limit(most, False):
            return grant
        self._gate.release(grant)
        raise GuardBudgetError(
            workflow_id=scope.workflow_id,
            reason="the money that is left pays for a shorter answer only, and guard cannot put a "
            "limit into this request: set one",
            action="budget",
        )

    def _rates(self, scope: Scope, bound: RequestBound) -> wire.ModelRates | None:
        """Return the rates of a request's model, if a lease of its lane knows them."""
        subject = request_subject(bound.provider, bound.local)
        return self._leases.rates(lane_of(scope, bound), subject)

    # -- the option limit_cents -------------------------------------------------------------------

    def _too_dear(self, ceiling: Ceiling, scope: Scope, bound: RequestBound) -> int | None:
        """Return the worst case of a request if it is known to be above the ceiling."""
        rates = self._rates(scope, bound)
        worst = None if rates is None else worst_case(rates, bound)
        if worst is None or ceiling.short_of(worst[0]) is None:
            return None
        return worst[0]

    def _check_ceiling(self, scope: Scope, bound: RequestBound) -> None:
        """Refuse a request that cannot stay below its ceiling, before the gateway is asked.

        Raises:
            GuardBudgetError: it could cost more than is left.
            GuardConfigError: the gateway does not gate requests, so their cost is unknown.
        """
        ceiling = None if scope.options is None else scope.options.ceiling
        if ceiling is None:
            return
        if not self.is_on:
            raise GuardConfigError(
                "limit_cents cannot be kept: the gateway does not gate LLM requests",
                error_code="GD-C003",
            )
        if bound.unnumbered:
            raise GuardBudgetError(
                workflow_id=scope.workflow_id,
                reason=f"limit_cents cannot be kept: the request allows {bound.unnumbered}",
                action="fees",
            )
        amount = self._too_dear(ceiling, scope, bound)
        if amount is not None:
            raise over_ceiling(scope, ceiling, amount)

    def _check_unknown(self, scope: Scope, bound: RequestBound) -> None:
        """Refuse a request with something that is not known here, if the settings say so.

        Raises:
            GuardBlockedException: there is something that is not known, and not trusted.
        """
        names = (*bound.unknown, *bound.unjudged)
        if self._settings.refuse_unknown and names:
            raise GuardBlockedException(
                workflow_id=scope.workflow_id, reason=said_unknown(names), action="unknown"
            )

    def _under_ceiling(self, scope: Scope, bound: RequestBound, grant: Grant) -> RequestHold:
        """Take the granted amount from the ceiling, or give the grant back.

        Checked again although :meth:`_check_ceiling` has: only the answer says the exact amount,
        and other requests under the ceiling may have been faster.

        Raises:
            GuardBudgetError: it is more than is left.
        """
        ceiling = None if scope.options is None else scope.options.ceiling
        amount = granted_nanousd(grant)
        # Noted here only, not in `hold`: a lease covers a model after such an answer.
        rates = grant.rates
        if rates is not None and rates.fallback:
            self._note_unpriced(bound.model or wire.UNKNOWN_MODEL)
        elif rates is not None and bound.terms.sound and lacks_sound(rows_of(rates)[0]):
            self._note_unpriced(f"{bound.model} (sound)")
        if ceiling is not None and not ceiling.take(amount):
            self._gate.release(grant)
            raise over_ceiling(scope, ceiling, amount)
        return RequestHold(self, scope, bound, grant, ceiling)

    def _note_unpriced(self, model: str) -> None:
        if model not in self._unpriced and len(self._unpriced) < _UNPRICED_MAX:
            self._unpriced[model] = None
            logger.warning("the price of %s is not known: fallback prices are charged", model)

    # -- asking -----------------------------------------------------------------------------------

    def _question(self, scope: Scope, bound: RequestBound, *, grows: bool = False) -> Question:
        call = scope.call
        held = None
        # What the call around it has set aside was for this request: it goes back to the lease, or
        # the gateway draws on it.
        if call is not None:
            if call.hold is not None:
                call.hold.give_back()
            else:
                held = call.reservation_id
        request = scope.question(
            self._events.ids.uuid7(time.time_ns() // 1_000_000),
            "llm",
            bound.provider,
            model=bound.model or wire.UNKNOWN_MODEL,
            models=list(bound.models[: wire.MODELS_MAX]),
            max_input_tokens=bound.input_tokens,
            text_tokens=bound.text_tokens,
            max_output_tokens=bound.output_tokens,
            least_output_tokens=_least(bound),
            streams=bound.streams,
            answers=bound.answers,
            beside_output_tokens=bound.beside_output,
            tier=bound.terms.tier,
            cache_writes=bound.terms.cache_writes,
            text_only=bound.terms.text_only,
            sound=bound.terms.sound,
            surcharge_permille=bound.terms.surcharge_permille,
            local=bound.local,
            fees=bound.fees or {},
            unnumbered=bound.unnumbered,
            within=None if call is None else call.call_id,
            held=held,
            grows=grows,
            takes_last=self._settings.last_request,
            # Not where repeats are only noticed: those are counted from events, and the gateway
            # grants no lease for what it counts itself.
            digest=bound.digest if bound.is_counted and not grows else None,
        )
        if not grows:
            attach_own_reservations(request, scope, gates_requests=True)
        if bound.models or (
            bound.is_counted and not grows
        ):  # for itself: no lease, and no place behind another one
            return Question(request, bound=bound)
        calls = 1 if call is None and not grows else 0
        return Question(
            request,
            lane_of(scope, bound),
            request_subject(bound.provider, bound.local),
            bound,
            calls,
        )

    def _explained(
        self, scope: Scope, bound: RequestBound, exc: GuardError | WorkflowKilledInterrupt
    ) -> GuardError | WorkflowKilledInterrupt:
        if not isinstance(exc, GuardBlockedException):
            return exc
        if exc.details.get("winding_down"):
            self._wind_downs.begun(scope, is_last=False)
        return _explained(exc, bound, self._rates(scope, bound))

    def _without_cover(
        self, scope: Scope, bound: RequestBound, error: GuardError | WorkflowKilledInterrupt
    ) -> RequestHold:
        """Return a hold without cover in ``open`` mode or when observing; raise otherwise.

        A refusal is never overridden by ``open`` mode: only a failure to get a decision is.
        """
        if not self._reports.enforces:
            self._reports.observed(error, scope)
            return RequestHold(self, scope, bound, Grant())
        if (
            isinstance(error, GuardTransportError)
            and not isinstance(error, RateLimitError)  # a cap is a decision of the gateway
            and error.error_code != SHUT_DOWN
            and self._settings.fallback_mode == "open"
            and (scope.options is None or scope.options.ceiling is None)  # it could not be kept
        ):
            decision_log.fell_back(_named(bound), scope.workflow_id)
            return RequestHold(self, scope, bound, Grant())
        raise refusal_in(scope, error)

    # -- what a hold needs ------------------------------------------------------------------------

    def release(self, grant: Grant) -> None:
        """Give back what a grant has set aside."""
        self._gate.release(grant)

    def lets_grow(self, scope: Scope, error: GuardError) -> bool:
        """Return whether a stream may continue although it was refused more: when observing."""
        if self._reports.enforces:
            return False
        self._reports.observed(error, scope)
        return True

    def ask_more(
        self, scope: Scope, bound: RequestBound, answered: Callable[[Grant | BaseException], None]
    ) -> None:
        """Ask for more for a request that is under way, without waiting."""
        self._gate.ask_soon(self._question(scope, bound, grows=True), answered)


def lane_of(scope: Scope, bound: RequestBound) -> LaneKey:
    """Return the lane of a request."""
    model = bound.model or wire.UNKNOWN_MODEL
    return scope.workflow_id, scope.agent, scope.chain_id, scope.user, model


def _told(bound: RequestBound, grant: Grant, most: int | None) -> int | None:
    """Return the output limit of a last answer whose request says so; None where it stays silent.

    What that adds to the prompt is taken from the answer, so that the hold pays for both.

    Args:
        bound: the bound of the request.
        grant: what is set aside for it.
        most: the output tokens that this pays for; None for as many as it asks for.
    """
    reply, output = grant.reply, bound.output_tokens if most is None else most
    if reply is None or reply.rates is None or output is None:
        return None
    told = output - LAST_ANSWER_TOKENS
    worst = worst_case(reply.rates, with_last_answer(structs.replace(bound, output_tokens=told)))
    is_paid = worst is not None and worst[0] <= granted_nanousd(grant)
    return told if is_paid and told >= _LEAST_TOLD else None


def _least(bound: RequestBound) -> int | None:
    """Return the fewest output tokens of all answers that a limit may leave."""
    if bound.least_output is None:
        return None
    return bound.least_output * bound.answers + bound.beside_output


def _named(bound: RequestBound) -> str:
    return f"a request to {bound.provider} for {bound.model or 'an unnamed model'}"


def _explained(
    error: GuardBlockedException, bound: RequestBound, rates: wire.ModelRates | None
) -> GuardBlockedException:
    """Return a refusal with a reason that names the request and its worst case."""
    text = _named(bound)
    worst = None if rates is None else worst_case(rates, bound)
    details = error.details
    amount = details.get("requested_nanousd", None if worst is None else worst[0])
    if isinstance(error, GuardBudgetError) and isinstance(amount, int):
        text += f" could cost {wire.dollars(amount)}"
    reason = f"{text}: {error.reason}" if error.reason else text
    counted = details.get("counted")
    unit = counted.get("unit") if isinstance(counted, dict) else "money"
    if bound.unknown and isinstance(error, GuardBudgetError) and unit != "calls":
        needed = amount if unit == "money" and isinstance(amount, int) else None
        reason = f"{_named(bound)}: {said_unknown(bound.unknown, needed)}"
        details = {**details, "unknown": list(bound.unknown), "needed_nanousd": needed}
    return type(error)(
        workflow_id=error.workflow_id,
        reason=reason,
        action=error.action,
        tool_name=error.tool_name,
        details=details,
        status_code=error.status_code,
    )
