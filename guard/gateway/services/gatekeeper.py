"""Decides calls: policies and prices first, on the loop; then one ledger transaction.

Only the transaction decides about money and rate caps. What comes before it reads caches. What
comes after it updates this process's own recalls and line by the committed answer; if the process
dies in between, they are gone with it, and callers ask again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs
import msgspec
from msgspec import Struct

from guard.core import wire
from guard.core.rates import dearest_of
from guard.gateway.domain import policy, render, repeats
from guard.gateway.domain.commands import (
    ApprovalNeed,
    CallRefusal,
    EncodedAnswer,
    GateCommand,
    IngestCommand,
    Ingested,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
    RequestOrigin,
)
from guard.gateway.domain.preview import RecentCall, RecentCalls
from guard.gateway.domain.rate_window import CapUse
from guard.gateway.ledger import charge, expiry, gate, leases
from guard.gateway.services import intake
from guard.gateway.services.catalogue import CatalogueCache, OrgView
from guard.gateway.services.recalls import Recalls
from guard.gateway.services.waiting_line import WaitingLine
from guard.gateway.storage.port import Writer
from guard.gateway.unit.state import LedgerCommand, touches_of
from guard.gateway.unit.unit_of_work import UnitOfWork

PART_EVENTS: Final = 100
"""Events that one unit of work records of a request; others have their turn between two parts."""

CommandT = TypeVar("CommandT", bound=LedgerCommand)


class _Ruling(Struct, frozen=True):
    """What policies have decided about a call, for the transaction to apply.

    Attributes:
        refusal: why the call is refused, if it is.
        approval: set if a person has to approve it.
        grants_lease: whether a lease may cover such calls.
        judges_model: refuses a model by its name, for the one that is expected to answer.
        caps, lane_caps: the rate caps that count it, and those that count its whole lane.
    """

    refusal: CallRefusal | None = None
    approval: ApprovalNeed | None = None
    grants_lease: bool = False
    judges_model: Callable[[str], CallRefusal | None] | None = None
    caps: Sequence[CapUse] = ()
    lane_caps: Sequence[CapUse] = ()


class _CallPrice(Struct, frozen=True):
    """The price of a call, as far as it is known before the call is made.

    Attributes:
        refusal: why the call is refused for want of a price, if it is.
        rates: of the model of an LLM request, or of a lease's lane.
        declared_nanousd: the cost of the declared tokens; ``None``: to be estimated.
        is_worst_case: whether that is a bound, as in strict mode.
    """

    refusal: CallRefusal | None = None
    rates: wire.ModelRates | None = None
    declared_nanousd: int | None = None
    is_worst_case: bool = False


@attrs.frozen(eq=False)
class Gatekeeper:
    """The hot path's use cases. Runs on the loop only; the objects below are shared by all tasks.

    Every ``await`` may let other calls in between. So what another call can change, such as recalls
    and the line, is read right before the transaction, and updated right after it.
    """

    _ledger: Writer
    _catalogue: CatalogueCache
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
            request: the caller and its key.
            call: the question.
            leases: whether the holder of a lease can be reached, so that one may be granted.
        """
        view = await self._catalogue.view(request.organisation_id)
        if call.workflow_id is None:
            call.workflow_id = request.key_workflow_id
        before = None
        if len(call.events) > PART_EVENTS:
            # Without the key, under which the answer to the question is going to be stored.
            keyless = msgspec.structs.replace(request, idempotency_key=None)
            some, call.events = call.events[:-PART_EVENTS], call.events[-PART_EVENTS:]
            before = (await self._record(keyless, view, some, is_all=False)).ingested
        events, rejected = self._prepare(request, view, call.events) if call.events else ([], [])
        # Out of the call, which previews keep in memory, and which the store may run twice.
        call.events = []
        note, call.note = call.note, None  # only a person who approves sees it
        lease = call.lease
        is_top_up = lease is not None and lease.ahead
        uses = repeats.of_call(view.rules, call, request.key_id) if call.digest else ()
        if not uses:
            call.named = False
        if not (is_top_up or call.grows or call.named):
            recent = RecentCall(self._clock_ms(), request.key_id, call)
            self.recent.note(request.organisation_id, recent)
        ruling = _Ruling(
            refusal=_confined(request, call),
            grants_lease=leases and lease is not None and not (call.sensitive or call.digest),
        )
        if view.rules and ruling.refusal is None:
            ruling = self._ruled(request, call, view, ruling.grants_lease)
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
            input_max=max(map(partial(view.prices.largest_prompt, call.function), call.any_model)),
            output_max=None if price.rates is None else price.rates.context_tokens,
            # From here to the write there is no await: recalls and the line are read as they are
            # when the command is queued.
            grants_lease=ruling.grants_lease
            and not (is_top_up and self._is_kept_small(request, call)),
            small_lease=self._recalls.is_ignored_by(request.key_id),
            policy_version=view.version,
            recalls=not is_top_up,
            judges_model=ruling.judges_model,
            rates_of=_rates_of(call, view),
            note=note,
            caps=ruling.caps,
            lane_caps=ruling.lane_caps,
            place=None if is_top_up else self._line.place(request, call),
            waiters=self._line.waiters(request.organisation_id),
            awaited=self._line.awaited(request.organisation_id),
            repeats=uses,
            before=None if before is None else before.outcome,
        )
        answer = await self._write(gate.gate, command)
        # A question gives back first, so it answers a recall of the caller's own lease as well. A
        # top-up does not: it says nothing of what the lease does not use.
        if not is_top_up:
            if answer.own_lease is not None:
                self._recalls.answered(answer.own_lease)
            # Nothing was decided, but the give-back and the events are committed. If the process
            # dies while it waits here, a repeat of the request is decided from there.
            if answer.recall:
                returns_ms = 0 if command.place is None else gate.RETURNS_MS
                await self._recalls.recall(request.organisation_id, answer.recall, returns_ms)
                again = msgspec.structs.replace(command, is_rerun=True, recalls=False)
                answer = await self._write(gate.gate, again)
        if command.small_lease and answer.lease_id is not None:
            self._recalls.ask_again(request.organisation_id, request.key_id, answer.lease_id)
        if command.place is not None:
            self._line.decided(request, call, command.place, answer)
        return answer

    def _ruled(
        self, request: RequestOrigin, call: wire.GateRequest, view: OrgView, grants_lease: bool
    ) -> _Ruling:
        """Apply the policies."""
        key_id = request.key_id
        verdict = policy.evaluate(view.rules, call, key_id)
        # 1. It was counted, and approved if need be, where a model named its tool.
        if call.named:
            return _Ruling(verdict.refusal)

        for model in call.models:  # any of them may answer, so each has to be allowed
            other = policy.refuse_model(view.rules, call, key_id, model)
            if other is not None and verdict.refusal is None:
                return _Ruling(other)

        def judges_model(model: str) -> CallRefusal | None:
            return policy.refuse_model(view.rules, call, key_id, model)

        # 2. A lease covers the next calls of its lane unseen, so not those that a person approves
        # or that a cap counts by their tool.
        if verdict.sensitive or verdict.approval is not None or verdict.is_capped_by_tool:
            grants_lease = False
        # 3. A top-up: no call is made, so none is counted and no person is asked. It gets no lease
        # where calls have to be.
        if call.lease is not None and call.lease.ahead:
            return _Ruling(
                verdict.refusal, None, grants_lease and not verdict.caps, judges_model=judges_model
            )
        # 4. A call. One that has a place in line was counted when it was asked first.
        caps: list[CapUse] = []
        if not self._line.has(request, call):
            caps = verdict.caps
            if not (call.paces or call.wait_ms > 0):  # older SDKs say the one by the other
                caps = [msgspec.structs.replace(each, waits=False) for each in caps]
        return _Ruling(
            verdict.refusal, verdict.approval, grants_lease, judges_model, caps, verdict.lane_caps
        )

    def _is_kept_small(self, request: RequestOrigin, call: wire.GateRequest) -> bool:
        """Return whether a lease for which no call waits must not grow.

        That is so while a refusal waits for it, and while its key ignores recalls.
        """
        lease_id = None if call.lease is None else call.lease.lease_id
        if lease_id is None or self._recalls.is_recalled(lease_id):
            return True
        return self._recalls.is_ignored_by(request.key_id)

    async def lease(self, request: RequestOrigin, update: wire.LeaseUpdate) -> EncodedAnswer:
        """Renew a lease, give back a part of it, or close it."""
        answer = await self._write(leases.update, LeaseCommand(request=request, update=update))
        if answer.own_lease is not None:
            self._recalls.answered(answer.own_lease)
        return answer

    async def ingest(self, request: RequestOrigin, batch: wire.EventBatch) -> EncodedAnswer:
        """Record and charge a batch of events."""
        view = await self._catalogue.view(request.organisation_id)
        return await self._record(request, view, batch.events, is_all=True)

    async def _record(
        self, request: RequestOrigin, view: OrgView, events: list[wire.Event], *, is_all: bool
    ) -> EncodedAnswer:
        """Record events in parts; ``is_all`` has the last of them answered.

        If it fails between two parts, the earlier ones stay recorded: the events that a repeat
        reports again are found by their ids.
        """
        before: Ingested | None = None
        while True:
            some, events = events[:PART_EVENTS], events[PART_EVENTS:]
            priced, rejected = self._prepare(request, view, some)
            command = IngestCommand(
                request=request,
                events=priced,
                rejected=rejected,
                before=before,
                is_last=is_all and not events,
            )
            answer = await self._write(charge.ingest, command)
            # Besides the last answer, one that was stored before, and a conflict, end it.
            if not events or answer.ingested is None:
                return answer
            before = answer.ingested

    async def release(self, request: RequestOrigin, body: wire.ReleaseRequest) -> EncodedAnswer:
        """Release a reservation, or a call's place in line."""
        # A place has the id of its call, not of a reservation, and is known to this process only.
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
        return self._ledger.write(touches_of(command), use_case, command)

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
        models = call.any_model
        is_unknown = strict and None in map(partial(view.prices.tariff, call.function), models)
        rates_of = partial(view.prices.model_rates, call.function, local=call.local)
        return _CallPrice(
            refusal=_unknown_price(call) if is_unknown else None,
            rates=dearest_of([*map(rates_of, models)]),
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
    """Return a function that finds the rates of a model that answers a call's requests."""
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
