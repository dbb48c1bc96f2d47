"""Decides calls: policy and price first, on the loop; then one ledger transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from guard.core import wire
from guard.gateway.domain import policy
from guard.gateway.domain.commands import (
    Answer,
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    Refusal,
    ReleaseCommand,
    Request,
)
from guard.gateway.domain.preview import RecentCall, RecentCalls
from guard.gateway.services import intake
from guard.gateway.services.catalogue import CatalogueCache, OrgView
from guard.gateway.services.rate_shares import RateShares, RateStore
from guard.gateway.services.recalls import Recalls
from guard.gateway.storage.port import Ledger


class Gatekeeper:
    """The hot path's use cases."""

    def __init__(
        self,
        ledger: Ledger,
        catalogue: CatalogueCache,
        rates: RateStore,
        recalls: Recalls,
        *,
        max_event_bytes: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.recent = RecentCalls()
        self._clock_ms = clock_ms
        self._ledger = ledger
        self._catalogue = catalogue
        self._rates = rates
        self._shares = RateShares(rates)
        self._recalls = recalls
        self._max_event_bytes = max_event_bytes

    async def gate(
        self, request: Request, call: wire.GateRequest, *, leases: bool = False
    ) -> Answer:
        """Ingest the piggybacked events and decide one call.

        Args:
            request: who asks.
            call: the question.
            leases: whether the holder of a lease can be reached, so that one may be granted.
        """
        view = self._catalogue.cached(request.organisation_id)
        if view is None:
            view = await self._catalogue.view(request.organisation_id)
        if call.workflow_id is None:
            call.workflow_id = request.key_workflow_id
        command = GateCommand(request=request, call=call)
        if call.events:
            command.events, command.rejected = self._prepare(request, view, call.events)
            call.events = []
        command.note, call.note = call.note, None  # nobody but a person who approves sees it
        if not command.is_ahead:
            recent = RecentCall(self._clock_ms(), request.key_id, call)
            self.recent.note(request.organisation_id, recent)
        command.refusal = _confined(request, call)
        command.grants_lease = leases and call.lease is not None and not call.sensitive
        command.policy_version = view.version
        if view.rules and command.refusal is None:
            await self._apply_rules(command, view)
        if command.refusal is None:
            self._price(command, view)
        answer = await self._decide(command)
        if command.lease_calls is not None:
            await self._shares.decided(command, answer, view.settings.lease_ttl_ms)
        return answer

    async def _apply_rules(self, command: GateCommand, view: OrgView) -> None:
        call, organisation_id = command.call, command.request.organisation_id
        key_id = command.request.key_id
        verdict = policy.evaluate(view.rules, call, key_id)
        if command.answers_function is not None:
            command.judges_model = lambda model: policy.refuse_model(
                view.rules, call, key_id, model
            )
        command.refusal = verdict.refusal
        if command.is_ahead:
            # What is counted, or waits for a person, is granted to a call that asks.
            if verdict.caps or verdict.sensitive or verdict.approval is not None:
                command.grants_lease = False
            return
        command.approval = verdict.approval
        if verdict.caps and verdict.refusal is None:
            wait_ms = await self._rates.take(organisation_id, verdict.caps)
            if wait_ms is not None:
                command.refusal = policy.rate_refusal(call, wait_ms)
        if verdict.sensitive or verdict.approval is not None or verdict.is_capped_by_tool:
            command.grants_lease = False
        if command.grants_lease and command.refusal is None and verdict.lane_caps:
            command.lease_calls = await self._shares.lend(
                command, verdict.lane_caps, view.settings.lease_ttl_ms
            )

    async def _decide(self, command: GateCommand) -> Answer:
        """Decide, and once more when leases held the room: their holders give back first."""
        if command.is_ahead:
            return await self._top_up(command)
        command.recalls = True
        answer = await self._ledger.gate(command)
        lease = command.call.lease
        if lease is not None and lease.lease_id is not None:
            self._recalls.answered(lease.lease_id)
        if answer.recall:
            await self._recalls.recall(command.request.organisation_id, answer.recall)
            command.is_again, command.recalls = True, False
            answer = await self._ledger.gate(command)
        return answer

    async def _top_up(self, command: GateCommand) -> Answer:
        """Top up a lease for which no call waits, unless somebody waits for what it has."""
        lease = command.call.lease
        if lease is None or lease.lease_id is None or self._recalls.is_recalled(lease.lease_id):
            command.grants_lease = False
        return await self._ledger.gate(command)

    async def lease(self, request: Request, update: wire.LeaseUpdate) -> Answer:
        """Renew a lease, give back a part of it, or close it."""
        answer = await self._ledger.lease(LeaseCommand(request=request, update=update))
        self._recalls.answered(update.lease_id)
        view = await self._catalogue.view(request.organisation_id)
        if view.rules and not answer.replay:
            await self._shares.update(request, update, view.settings.lease_ttl_ms)
        return answer

    async def ingest(self, request: Request, batch: wire.EventBatch) -> Answer:
        """Record and charge a batch of events."""
        view = await self._catalogue.view(request.organisation_id)
        priced, rejected = self._prepare(request, view, batch.events)
        return await self._ledger.ingest(
            IngestCommand(request=request, events=priced, rejected=rejected)
        )

    async def release(self, request: Request, body: wire.ReleaseRequest) -> Answer:
        """Release a reservation."""
        return await self._ledger.release(
            ReleaseCommand(request=request, reservation_id=body.reservation_id)
        )

    def _prepare(
        self, request: Request, view: OrgView, events: Sequence[wire.Event]
    ) -> tuple[list[PricedEvent], list[wire.RejectedEvent]]:
        return intake.prepare(
            events,
            view.prices,
            key_workflow_id=request.key_workflow_id,
            max_event_bytes=self._max_event_bytes,
            blocks=lambda event, tool: policy.blocks_reported(
                view.rules, event, tool, request.key_id
            ),
        )

    def _price(self, command: GateCommand, view: OrgView) -> None:
        call = command.call
        strict = view.settings.strict
        if call.kind == "llm":
            if strict and view.prices.tariff(call.function, call.model) is None:
                command.refusal = _unknown_price(call)
            command.rates = view.prices.model_rates(call.function, call.model)
            command.output_max = command.rates.context_tokens
            return
        if call.model == wire.UNKNOWN_MODEL and not strict:
            return
        if view.prices.tariff(None, call.model) is None:
            if call.model == wire.UNKNOWN_MODEL:
                command.refusal = _unpriced(call)
                return
            command.refusal = _unknown_price(call)
            return
        if call.lease is not None and call.model != wire.UNKNOWN_MODEL:
            command.rates = view.prices.model_rates(None, call.model)
            command.output_max = command.rates.context_tokens
        command.worst_case = strict
        command.declared_nanousd = view.prices.declared(
            call.model, call.max_input_tokens, call.max_output_tokens, strict=strict
        )


def _unknown_price(call: wire.GateRequest) -> Refusal:
    return Refusal(
        status=403,
        error_code="GD-X001",
        title="Blocked by policy",
        reason="the price of the model is not known; the operator can set one",
        action="price",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        details={"model": call.model},
    )


def _unpriced(call: wire.GateRequest) -> Refusal | None:
    """Refuse a call without a model in strict mode; tools that call no model have no price."""
    if call.kind == "tool":
        return None
    return Refusal(
        status=403,
        error_code="GD-X001",
        title="Blocked by policy",
        reason="strict mode: the call names no model to price; use set_call_context(model=...),"
        " or have the operator price '*'",
        action="price",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
    )


def _confined(request: Request, call: wire.GateRequest) -> Refusal | None:
    own = request.key_workflow_id
    if own is None or call.workflow_id == own:
        return None
    return Refusal(
        status=403,
        error_code="GD-W004",
        title="Other tenant",
        reason="the key is for another workflow",
        action="tenant",
        workflow_id=call.workflow_id,
    )
