"""Decides calls: policy and price first, on the loop; then one ledger transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from guard.core import wire
from guard.gateway.domain import policy
from guard.gateway.domain.commands import (
    Answer,
    GateCommand,
    IngestCommand,
    PricedEvent,
    Refusal,
    ReleaseCommand,
    Request,
)
from guard.gateway.domain.policy import CapUse
from guard.gateway.domain.preview import RecentCall, RecentCalls
from guard.gateway.services import intake
from guard.gateway.services.catalogue import CatalogueCache, OrgView
from guard.gateway.storage.port import Ledger


class RateStore(Protocol):
    """Counts calls against caps, all or none."""

    async def take(self, organisation_id: str, uses: Sequence[CapUse]) -> int | None:
        """Return ``None`` for a call that may proceed, else the wait in milliseconds."""


class Gatekeeper:
    """The hot path's use cases."""

    def __init__(
        self,
        ledger: Ledger,
        catalogue: CatalogueCache,
        rates: RateStore,
        *,
        max_event_bytes: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.recent = RecentCalls()
        self._clock_ms = clock_ms
        self._ledger = ledger
        self._catalogue = catalogue
        self._rates = rates
        self._max_event_bytes = max_event_bytes

    async def gate(self, request: Request, call: wire.GateRequest) -> Answer:
        """Ingest the piggybacked events and decide one call."""
        view = self._catalogue.cached(request.organisation_id)
        if view is None:
            view = await self._catalogue.view(request.organisation_id)
        if call.workflow_id is None:
            call.workflow_id = request.key_workflow_id
        command = GateCommand(request=request, call=call)
        if call.events:
            command.events, command.rejected = self._prepare(request, view, call.events)
            call.events = []
        recent = RecentCall(self._clock_ms(), request.key_id, call)
        self.recent.note(request.organisation_id, recent)
        command.refusal = _confined(request, call)
        if view.rules and command.refusal is None:
            verdict = policy.evaluate(view.rules, call, request.key_id)
            command.refusal, command.approval = verdict.refusal, verdict.approval
            if verdict.caps and verdict.refusal is None:
                wait_ms = await self._rates.take(request.organisation_id, verdict.caps)
                if wait_ms is not None:
                    command.refusal = policy.rate_refusal(call, wait_ms)
        named = call.model != wire.UNKNOWN_MODEL
        if command.refusal is None and (named or view.settings.strict):
            self._price(command, view)
        return await self._ledger.gate(command)

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
        if view.prices.tariff(None, call.model) is None:
            if call.model == wire.UNKNOWN_MODEL:
                command.refusal = _unpriced(call)
                return
            command.refusal = Refusal(
                status=403,
                error_code="GD-X001",
                title="Blocked by policy",
                reason="the price of the model is not known; the operator can set one",
                action="price",
                workflow_id=call.workflow_id,
                tool_name=call.tool_name,
                details={"model": call.model},
            )
            return
        strict = view.settings.strict
        command.worst_case = strict
        command.declared_nanousd = view.prices.declared(
            call.model, call.max_input_tokens, call.max_output_tokens, strict=strict
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
