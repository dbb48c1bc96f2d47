"""LLM requests that are gated one by one: their worst case, and what their calls held by guess."""

from __future__ import annotations

import functools
import json

import msgspec

from guard.core import wire
from guard.gateway.domain import estimates, models, request_cost
from guard.gateway.domain.commands import CallRefusal, GateCommand, PricedEvent
from guard.gateway.domain.estimates import Estimate
from guard.gateway.domain.ledger import Reservation
from guard.gateway.domain.request_cost import RequestCost
from guard.gateway.ledger import estimates as learned
from guard.gateway.ledger import expiry
from guard.gateway.ledger.state import OrganisationState
from guard.gateway.ledger.unit_of_work import UnitOfWork


def worst_case(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand, rates: wire.ModelRates
) -> RequestCost | CallRefusal:
    """Return what to reserve for an LLM request, or why it is refused without a limit."""
    call, rule = command.call, org.settings.unbounded_output
    if call.max_output_tokens is None and rule == "refuse":
        return CallRefusal(
            status=403,
            error_code="GD-X001",
            title="Blocked by policy",
            reason="the request sets no limit on its output; set max_tokens",
            action="output",
            workflow_id=call.workflow_id,
            details={"model": call.model},
        )
    is_exact = _is_exact(org)
    assumed_input = rates.context_tokens
    if assumed_input is None:
        known = unit.estimate(org.organisation_id, _subject("input_tokens", call.model))
        usual = request_cost.ASSUMED_INPUT_TOKENS if known is None else round(known.mean)
        assumed_input = request_cost.WORST_INPUT_TOKENS if is_exact else max(1, usual)
    return request_cost.request_cost(
        rates,
        call.max_input_tokens,
        call.max_output_tokens,
        assumed_input=assumed_input,
        assumed_output=rates.assumed_output_tokens or 1,
        is_exact=is_exact,
    )


def with_assumptions(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand, rates: wire.ModelRates
) -> wire.ModelRates:
    """Add to the rates what is assumed of an answer without a limit, unless that is refused."""
    assumed = None
    if org.settings.unbounded_output != "refuse":
        assumed = command.output_max or request_cost.WORST_OUTPUT_TOKENS
        if not _is_exact(org):  # what such requests have answered, never more than the model can
            subject = _subject("output_tokens", command.call.model)
            known = unit.estimate(org.organisation_id, subject)
            usual = request_cost.ASSUMED_OUTPUT_TOKENS if known is None else round(known.mean)
            assumed = max(1, min(usual, assumed))
    if rates.assumed_output_tokens == assumed:
        return rates
    return msgspec.structs.replace(rates, assumed_output_tokens=assumed)


def _is_exact(org: OrganisationState) -> bool:
    """Tell whether a missing bound is taken for the most that the model can take or answer."""
    return org.settings.unbounded_output == "model_max" or org.settings.strict


def learn(
    unit: UnitOfWork, organisation_id: str, priced: PricedEvent, reservation: Reservation
) -> None:
    """Learn from a request that a gate has covered: its size, and which model answers."""
    model = reservation.model or priced.model
    if model is None or model == wire.UNKNOWN_MODEL:
        return
    if priced.observed and reservation.model and priced.model:
        function = models.answers(reservation.model)
        learned.learn_model(unit, organisation_id, function, priced.model)
    for name, tokens, start in (
        ("output_tokens", priced.output_tokens, request_cost.ASSUMED_OUTPUT_TOKENS),
        ("input_tokens", priced.input_tokens, request_cost.ASSUMED_INPUT_TOKENS),
    ):
        subject = _subject(name, model)
        known = unit.estimate(organisation_id, subject)
        changed = Estimate(mean=start) if known is None else msgspec.structs.replace(known)
        estimates.learn_peak(changed, tokens)
        unit.save_estimate(organisation_id, subject, changed)


@functools.lru_cache(maxsize=4096)
def _subject(name: str, model: str) -> str:
    return json.dumps(["", name, model])  # the first is a workflow's place; retention reads it


def answered_by(unit: UnitOfWork, command: GateCommand) -> str | None:
    """Return the model that has answered such requests last, if it is not the one asked for."""
    function = command.answers_function
    if function is None:
        return None
    found = learned.last_model(unit, command.request.organisation_id, function, None)
    return None if found == command.call.model else found


def release_guess(unit: UnitOfWork, command: GateCommand) -> None:
    """Release what the call around a request holds by guess: its requests are covered themselves.

    The reservation stays open, for what no request accounts for.
    """
    call = command.call
    if call.kind != "llm" or call.held is None:
        return
    found = expiry.own_reservation(unit, command.request, call.held)
    if found is None or found.state != "open" or found.basis not in ("default", "learned"):
        return
    if found.held and not found.is_request:
        expiry.give_back(unit, found, found.held)
