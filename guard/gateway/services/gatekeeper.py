"""Decides calls: policy and price first, on the loop; then one ledger transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs
import msgspec
from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import policy, render, repeats
from guard.gateway.domain.commands import (
    ApprovalNeed,
    CallRefusal,
    EncodedAnswer,
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
    RequestOrigin,
)
from guard.gateway.domain.preview import RecentCall, RecentCalls
from guard.gateway.ledger import charge, expiry, gate, leases
from guard.gateway.ledger.state import LedgerCommand, scopes_of
from guard.gateway.ledger.unit_of_work import UnitOfWork
from guard.gateway.services import intake
from guard.gateway.services.catalogue import CatalogueCache, OrgView
from guard.gateway.services.rate_shares import RateShares, RateStore
from guard.gateway.services.recalls import Recalls
from guard.gateway.services.waiting_line import WaitingLine
from guard.gateway.storage.port import Writer

CommandT = TypeVar("CommandT", bound=LedgerCommand)


class _Ruling(Struct, frozen=True):
    """What the policies and the rate caps make of a call."""

    refusal: CallRefusal | None = None
    approval: ApprovalNeed | None = None
    grants_lease: bool = False
    lease_calls: int | None = None
    judges_model: Callable[[str], CallRefusal | None] | None = None
    turn_in_ms: int | None = None


class _CallPrice(Struct, frozen=True):
    """What is known of a call's price before it is made."""

    refusal: CallRefusal | None = None
    rates: wire.ModelRates | None = None
    declared_nanousd: int | None = None
    is_worst_case: bool = False


@attrs.frozen(eq=False)
class Gatekeeper:
    """The hot path's use cases."""

    _ledger: Writer
    _catalogue: CatalogueCache
    _rates: RateStore
    _shares: RateShares
    _recalls: Recalls
    _line: WaitingLine
    _max_event_bytes: int
    _clock_ms: Callable[[], int]
    # For previews of a change of policy; in memory only.
    recent: RecentCalls = attrs.field(factory=RecentCalls, init=False)

    async def gate(
        self, request: RequestOrigin, call: wire.GateRequest, *, leases: bool = False
    ) -> EncodedAnswer:
        """Ingest the piggybacked events and decide one call.

        Args:
            request: who asks.
            call: the question.
            leases: whether the holder of a lease can be reached, so that one may be granted.
        """
        view = await self._catalogue.view(request.organisation_id)
        if call.workflow_id is None:
            call.workflow_id = request.key_workflow_id
        events, rejected = self._prepare(request, view, call.events) if call.events else ([], [])
        call.events = []
        note, call.note = call.note, None  # only a person who approves sees it
        lease = call.lease
        is_ahead = lease is not None and lease.ahead
        uses = repeats.of_call(view.rules, call, request.key_id) if call.digest else ()
        if not uses:
            call.named = False
        if not (is_ahead or call.grows or call.named):
            recent = RecentCall(self._clock_ms(), request.key_id, call)
            self.recent.note(request.organisation_id, recent)
        ruling = _Ruling(
            refusal=_confined(request, call),
            grants_lease=leases and lease is not None and not (call.sensitive or call.digest),
        )
        if view.rules and ruling.refusal is None:
            ruling = await self._ruled(request, call, view, ruling.grants_lease)
        price = _price(request, call, view) if ruling.refusal is None else _CallPrice()
        command = GateCommand(
            request=request,
            call=call,
            events=events,
            rejected=rejected,
            refusal=ruling.refusal or price.refusal,
            approval=ruling.approval,
            declared_nanousd=price.declared_nanousd,
            worst_case=price.is_worst_case,
            rates=price.rates,
            input_max=view.prices.largest_prompt(call.function, call.model),
            output_max=None if price.rates is None else price.rates.context_tokens,
            # Asked last, after all that may wait: a recall may have come meanwhile.
            grants_lease=ruling.grants_lease
            and not (is_ahead and self._is_kept_small(request, call)),
            small_lease=self._recalls.is_ignored_by(request.key_id),
            lease_calls=ruling.lease_calls,
            policy_version=view.version,
            recalls=not is_ahead,
            judges_model=ruling.judges_model,
            rates_of=_rates_of(call, view),
            note=note,
            turn_in_ms=ruling.turn_in_ms,
            place=None if is_ahead else self._line.place(request, call),
            waiters=self._line.waiters(request.organisation_id),
            awaited=self._line.awaited(request.organisation_id),
            repeats=uses,
        )
        answer = await self._write(gate.gate, command)
        # A question gives back first, so it answers a recall of the caller's own lease as well.
        if not is_ahead:
            if answer.own_lease is not None:
                self._recalls.answered(answer.own_lease)
            if answer.recall:  # decided once more, after the holders have given back
                returns_ms = 0 if command.place is None else gate.RETURNS_MS
                await self._recalls.recall(request.organisation_id, answer.recall, returns_ms)
                again = msgspec.structs.replace(command, is_again=True, recalls=False)
                answer = await self._write(gate.gate, again)
        if command.small_lease and answer.lease_id is not None:
            self._recalls.ask_again(request.organisation_id, request.key_id, answer.lease_id)
        if command.place is not None:
            self._line.decided(request, call, command.place, answer)
        # Calls were lent before the decision, since the caps may live elsewhere than the money. If
        # the gateway dies in between, the loan ends by itself after a lease's time.
        if command.lease_calls is not None:
            await self._shares.decided(command, answer, view.settings.lease_ttl_ms)
        return answer

    async def _ruled(
        self, request: RequestOrigin, call: wire.GateRequest, view: OrgView, grants_lease: bool
    ) -> _Ruling:
        """Apply the policies, and count the call against its rate caps."""
        organisation_id, key_id = request.organisation_id, request.key_id
        verdict = policy.evaluate(view.rules, call, key_id)
        if call.named:  # it was counted, and a person asked, where a model named its tool
            return _Ruling(verdict.refusal)

        def judges_model(model: str) -> CallRefusal | None:
            return policy.refuse_model(view.rules, call, key_id, model)

        if call.lease is not None and call.lease.ahead:
            # What is counted, or waits for a person, is granted to a call that asks.
            if verdict.caps or verdict.sensitive or verdict.approval is not None:
                grants_lease = False
            return _Ruling(verdict.refusal, None, grants_lease, None, judges_model)
        refusal = verdict.refusal
        # What waits in line was counted when it was asked first.
        if verdict.caps and refusal is None and not self._line.has(request, call):
            # Those that wait come first: what is refused by another has then been counted once too
            # often; the other way round a call would be counted each time that it asks.
            paces = call.paces or call.wait_ms > 0  # older SDKs say the one by the other
            pacing = [use for use in verdict.caps if use.waits and paces]
            turn_in_ms = await self._rates.take(organisation_id, pacing) if pacing else None
            if turn_in_ms is not None:
                return _Ruling(turn_in_ms=turn_in_ms)
            capping = [use for use in verdict.caps if not (use.waits and paces)]
            wait_ms = await self._rates.take(organisation_id, capping) if capping else None
            if wait_ms is not None:
                refusal = policy.rate_refusal(call, wait_ms)
        if verdict.sensitive or verdict.approval is not None or verdict.is_capped_by_tool:
            grants_lease = False
        lease_calls = None
        if grants_lease and refusal is None and verdict.lane_caps:
            lease_calls = await self._shares.lend(
                request, call, verdict.lane_caps, view.settings.lease_ttl_ms
            )
        return _Ruling(refusal, verdict.approval, grants_lease, lease_calls, judges_model)

    def _is_kept_small(self, request: RequestOrigin, call: wire.GateRequest) -> bool:
        """Tell whether a lease for which no call waits must not grow.

        Others wait for it, or its key does not give back what it is asked for.
        """
        lease_id = None if call.lease is None else call.lease.lease_id
        if lease_id is None or self._recalls.is_recalled(lease_id):
            return True
        return self._recalls.is_ignored_by(request.key_id)

    async def lease(self, request: RequestOrigin, update: wire.LeaseUpdate) -> EncodedAnswer:
        """Renew a lease, give back a part of it, or close it."""
        answer = await self._write(leases.update, LeaseCommand(request=request, update=update))
        if answer.own_lease is None:  # it changed no lease: none of its own, or a repeat
            return answer
        self._recalls.answered(answer.own_lease)
        view = await self._catalogue.view(request.organisation_id)
        if view.rules:
            await self._shares.update(request, update, view.settings.lease_ttl_ms)
        return answer

    async def ingest(self, request: RequestOrigin, batch: wire.EventBatch) -> EncodedAnswer:
        """Record and charge a batch of events."""
        view = await self._catalogue.view(request.organisation_id)
        priced, rejected = self._prepare(request, view, batch.events)
        command = IngestCommand(request=request, events=priced, rejected=rejected)
        return await self._write(charge.ingest, command)

    async def release(self, request: RequestOrigin, body: wire.ReleaseRequest) -> EncodedAnswer:
        """Release a reservation, or a call's place in line."""
        if self._line.left(request, body.reservation_id):
            return render.withdrawn(body.reservation_id)
        command = ReleaseCommand(
            request=request, reservation_id=body.reservation_id, stays=body.stays
        )
        answer = await self._write(expiry.release, command)
        if answer.own_lease is not None:
            self._recalls.answered(answer.own_lease)
        return answer

    def _write(
        self, use_case: Callable[[UnitOfWork, CommandT], EncodedAnswer], command: CommandT
    ) -> Awaitable[EncodedAnswer]:
        return self._ledger.write(scopes_of(command), use_case, command)

    def _prepare(
        self, request: RequestOrigin, view: OrgView, events: Sequence[wire.Event]
    ) -> tuple[list[PricedEvent], list[wire.RejectedEvent]]:
        return intake.prepare(
            events,
            view.prices,
            key_workflow_id=request.key_workflow_id,
            max_event_bytes=self._max_event_bytes,
            blocks=lambda event, tool: policy.blocks_reported(
                view.rules, event, tool, request.key_id
            ),
            repeats=lambda event: repeats.of_event(view.rules, event, request.key_id),
        )


def _price(request: RequestOrigin, call: wire.GateRequest, view: OrgView) -> _CallPrice:
    strict = view.settings.strict
    if call.kind == "llm":
        strict = strict or policy.wants_prices(view.rules, call, request.key_id)
        is_unknown = strict and view.prices.tariff(call.function, call.model) is None
        return _CallPrice(
            refusal=_unknown_price(call) if is_unknown else None,
            rates=view.prices.model_rates(call.function, call.model, call.local),
        )
    if call.model == wire.UNKNOWN_MODEL and not strict:
        return _CallPrice()
    if view.prices.tariff(None, call.model) is None:
        is_named = call.model != wire.UNKNOWN_MODEL
        return _CallPrice(refusal=_unknown_price(call) if is_named else _unpriced(call))
    has_rates = call.lease is not None and call.model != wire.UNKNOWN_MODEL
    return _CallPrice(
        rates=view.prices.model_rates(None, call.model) if has_rates else None,
        is_worst_case=strict,
        declared_nanousd=view.prices.declared(
            call.model, call.max_input_tokens, call.max_output_tokens, strict=strict
        ),
    )


def _rates_of(call: wire.GateRequest, view: OrgView) -> Callable[[str], wire.ModelRates | None]:
    """Return what finds the rates of a model that answers a call's requests."""
    provider = call.function if call.kind == "llm" else None

    def rates_of(model: str) -> wire.ModelRates | None:
        if view.prices.tariff(provider, model) is None:
            return None
        return view.prices.model_rates(provider, model)

    return rates_of


def _unknown_price(call: wire.GateRequest) -> CallRefusal:
    reason = "the price of the model is not known; the operator can set one"
    return policy.blocked(call, reason, "price", {"model": call.model})


def _unpriced(call: wire.GateRequest) -> CallRefusal | None:
    """Refuse a call without a model in strict mode; tools that call no model have no price."""
    if call.kind == "tool":
        return None
    reason = "strict mode: the call names no model to price; use set_call_context(model=...), "
    return policy.blocked(call, f"{reason}or have the operator price '*'", "price")


def _confined(request: RequestOrigin, call: wire.GateRequest) -> CallRefusal | None:
    own = request.key_workflow_id
    if own is None or call.workflow_id == own:
        return None
    return CallRefusal(
        status=403,
        error_code="GD-W004",
        title="Other tenant",
        reason="the key is for another workflow",
        action="tenant",
        workflow_id=call.workflow_id,
    )
