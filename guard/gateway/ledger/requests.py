"""LLM requests that are gated one by one: their worst case, and what is learned from them.

Wherever a figure is not known, the rule is to hold too much rather than too little, except where
the organisation's settings ask for an estimate (``unbounded_output``, ``in_doubt``).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from guard.core import wire
from guard.core.fees import by_the_piece
from guard.core.input_ratios import OVERHEAD, raised
from guard.core.leases.costs import fitting_output
from guard.core.rates import PERMILLE, Terms, most_input, prompt_tokens, rows_of
from guard.core.request_bound import RequestBound
from guard.gateway.domain import estimates, models, request_cost
from guard.gateway.domain.commands import CallRefusal, GateCommand, PricedEvent
from guard.gateway.domain.estimates import Estimate
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.domain.request_cost import RequestCost
from guard.gateway.ledger import estimates as learned
from guard.gateway.ledger import expiry
from guard.gateway.unit.state import IN_DOUBT, OrganisationState
from guard.gateway.unit.unit_of_work import UnitOfWork


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
    return _cost(unit, org, command, rates, call.max_output_tokens)


def unnumbered(
    org: OrganisationState,
    command: GateCommand,
    accounts: list[BudgetBalance],
    rates: wire.ModelRates | None,
) -> CallRefusal | None:
    """Refuse a request with fees that nothing bounds, under a limit that must hold.

    Without such a limit, one unit of each fee is held, and what the answer reports is charged.
    """
    call, rule = command.call, org.settings.unbounded_output
    if not call.unnumbered or rule == "learned" or _is_free(call, rates):
        return None
    if rule != "refuse" and all(account.rule.mode != "hard" for account in accounts):
        return None
    return CallRefusal(
        status=403,
        error_code="GD-X001",
        title="Blocked by policy",
        reason=f"the request allows {call.unnumbered}; the organisation's setting "
        "unbounded_output=learned lets such requests go, and may exceed limits",
        action="fees",
        workflow_id=call.workflow_id,
        details={"model": call.model, "fees": sorted(call.fees)},
    )


def _is_free(call: wire.GateRequest, rates: wire.ModelRates | None) -> bool:
    """Return whether a request goes to a model on the caller's own machine, without a price."""
    if not call.local or rates is None or by_the_piece(call.model):
        return False
    return not rates.worst_input_per_mtok and not rates.worst_output_per_mtok


def limited(
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    rates: wire.ModelRates,
    unspent: int,
    least: int | None,
    most_tokens: int | None = None,
) -> tuple[int, int] | None:
    """Return the cost and the output limit with which an amount pays for a request.

    The limit is on all answers together, and at most ``most_tokens``. ``None`` where the amount
    does not pay for the lowest limit that the caller accepts, or where it accepts none.

    Args:
        unit: the unit of work.
        org: whose request it is.
        command: the question.
        rates: of the model.
        unspent: the amount, in nano-dollars.
        least: the lowest limit that the caller accepts; ``None``: it cannot set one.
        most_tokens: the highest limit; ``None``: none but what the amount pays for.
    """
    call = command.call
    if least is None:
        return None
    tokens_in = call.max_input_tokens
    bound = RequestBound(
        "",
        call.model,
        _assumed_input(unit, org, command, rates) if tokens_in is None else tokens_in,
        call.max_output_tokens,
        least_output=(least - call.beside_output_tokens) // call.answers,
        answers=call.answers,
        beside_output=call.beside_output_tokens,
        terms=_terms(call),
        fees=call.fees,
        text_tokens=call.text_tokens,
    )
    each = fitting_output(rates, bound, unspent, most_tokens)
    if each is None:
        return None
    tokens = each * call.answers + call.beside_output_tokens
    # Priced once more, by the function that prices every request: what is reserved is then the
    # bound of the limited request, however the limit was found.
    cost = _cost(unit, org, command, rates, tokens).amount
    return (cost, tokens) if cost <= unspent else None


def _cost(
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    rates: wire.ModelRates,
    max_output: int | None,
) -> RequestCost:
    call = command.call
    tokens_in = prompt_tokens(rates, call.max_input_tokens, call.text_tokens)
    return request_cost.request_cost(
        rates,
        tokens_in,
        max_output,
        assumed_input=_assumed_input(unit, org, command, rates) if tokens_in is None else tokens_in,
        assumed_output=_largest(command, rates) * call.answers + call.beside_output_tokens,
        is_exact=_is_exact(org, command),
        terms=_terms(call),
        fees=call.fees,
        answers=call.answers,
    )


def tokens_of(
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    rates: wire.ModelRates,
    max_output: int | None,
) -> tuple[int, int]:
    """Return the most tokens of a request's prompt, and of all its answers.

    Args:
        unit: the unit of work.
        org: whose request it is.
        command: the question.
        rates: of the model, with its context and its largest answer.
        max_output: the limit on all answers together, if there is one.
    """
    call = command.call
    tokens_in = prompt_tokens(rates, call.max_input_tokens, call.text_tokens)
    tokens_in = most_input(rates, tokens_in, call.answers)
    if tokens_in is None:
        tokens_in = command.input_max or _assumed_input(unit, org, command, rates)
    if max_output is None:
        max_output = _largest(command, rates) * call.answers + call.beside_output_tokens
    return tokens_in, max_output


def _assumed_input(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand, rates: wire.ModelRates
) -> int:
    """Return how many tokens to assume of a prompt that nothing bounds."""
    # The model's context is a bound. Without it: ``input_max`` where a bound is wanted, else what
    # was learned from earlier prompts.
    if rates.context_tokens is not None:
        return rates.context_tokens
    if _is_exact(org, command):
        return command.input_max
    known = unit.estimates.find(org.organisation_id, _subject("input_tokens", command.call.model))
    return request_cost.ASSUMED_INPUT_TOKENS if known is None else max(1, round(known.mean))


def _terms(call: wire.GateRequest) -> Terms:
    return Terms(call.tier, call.cache_writes, call.text_only, call.surcharge_permille, call.sound)


def with_assumptions(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand, rates: wire.ModelRates
) -> wire.ModelRates:
    """Return the rates with what is held for an answer without a limit, and what was learned.

    They come with the most that the model can answer; that stays where an exact bound is wanted.
    """
    rates = _with_ratio(unit, org, command.call.any_model, rates)
    largest = rates.largest_output_tokens
    if org.settings.unbounded_output == "refuse":
        largest = None
    elif not _is_exact(org, command):  # what such requests have answered
        subject = _subject("output_tokens", command.call.model)
        known = unit.estimates.find(org.organisation_id, subject)
        usual = request_cost.ASSUMED_OUTPUT_TOKENS if known is None else round(known.mean)
        largest = max(1, min(usual, _largest(command, rates)))
    if rates.largest_output_tokens == largest:
        return rates
    return msgspec.structs.replace(rates, largest_output_tokens=largest)


RATIO_MAX: Final = 8_000
"""Highest learned ratio, in thousandths: no tokeniser makes more tokens of a text than bytes."""


def _with_ratio(
    unit: UnitOfWork, org: OrganisationState, names: Sequence[str], rates: wire.ModelRates
) -> wire.ModelRates:
    """Return the rates with what was learned of the models' tokenisers from their answers."""
    ratio, overhead = map(max, zip(*map(functools.partial(_ratio, unit, org), names), strict=True))
    if (ratio, overhead) == (PERMILLE, OVERHEAD):
        return rates
    return msgspec.structs.replace(rates, text_permille=ratio, text_overhead=overhead)


def _ratio(unit: UnitOfWork, org: OrganisationState, model: str) -> tuple[int, int]:
    times = unit.estimates.find(org.organisation_id, _subject("text_permille", model))
    besides = unit.estimates.find(org.organisation_id, _subject("text_overhead", model))
    return (
        PERMILLE if times is None else round(times.mean),
        OVERHEAD if besides is None else round(besides.mean),
    )


def _learn_ratio(unit: UnitOfWork, org: OrganisationState, model: str, priced: PricedEvent) -> None:
    """Raise the learned ratio of a model whose prompt had more tokens than its bound."""
    known = _ratio(unit, org, model)
    ratio, overhead = raised(known[0] / PERMILLE, known[1], priced.text_tokens, priced.input_tokens)
    found = min(math.ceil(ratio * PERMILLE), RATIO_MAX), overhead
    for name, before, after in zip(("text_permille", "text_overhead"), known, found, strict=True):
        # Never lowered: it is part of a bound, and a shorter prompt proves nothing.
        if after > before:
            unit.estimates.save(
                org.organisation_id, _subject(name, model), Estimate(count=1, mean=after)
            )


def _largest(command: GateCommand, rates: wire.ModelRates) -> int:
    """Return the most tokens that one answer can have; its context for a model not listed."""
    largest = rates.largest_output_tokens or command.output_max
    return largest or request_cost.WORST_OUTPUT_TOKENS


def _is_exact(org: OrganisationState, command: GateCommand) -> bool:
    """Return whether the most that the model can take or answer is held for a missing bound.

    A stream without a limit, in which none can be set, is held by a share instead, and is cut when
    that is used up.
    """
    settings = org.settings
    if settings.strict:
        return True
    if settings.unbounded_output != "bounded":
        return False
    is_listed = command.rates is not None and command.rates.largest_output_tokens is not None
    can_limit = command.call.least_output_tokens is not None
    return is_listed or can_limit or not command.call.streams


def likely(
    unit: UnitOfWork, org: OrganisationState, priced: PricedEvent, reservation: Reservation | None
) -> PricedEvent:
    """Return an event in doubt at the usual cost of such requests, if the settings ask for it."""
    if org.settings.in_doubt != "likely" or IN_DOUBT not in priced.flags:
        return priced
    model = priced.model if reservation is None else reservation.model or priced.model
    known = unit.estimates.find(org.organisation_id, _subject("request_cost", model or ""))
    if known is None or not known.count:
        return priced
    usual = min(priced.cost, max(1, round(known.mean)))
    return msgspec.structs.replace(priced, cost=usual, flags=f"{priced.flags} likely")


def learn(
    unit: UnitOfWork, org: OrganisationState, priced: PricedEvent, reservation: Reservation
) -> None:
    """Learn from a request that a gate has covered: its size, and which model answers."""
    # Not from one in doubt: its figures are assumptions, and would confirm themselves.
    organisation_id = org.organisation_id
    model = reservation.model or priced.model
    if model is None or model == wire.UNKNOWN_MODEL or IN_DOUBT in priced.flags:
        return
    if priced.text_tokens:
        _learn_ratio(unit, org, model, priced)
    if org.settings.in_doubt == "likely":  # another row to write, which few need
        learned.learn(unit, organisation_id, _subject("request_cost", model), priced.cost)
    asked = priced.requested_model or reservation.model
    if priced.observed and asked and priced.model:
        function = models.answers(asked, reservation.key_id)
        learned.learn_model(unit, organisation_id, function, priced.model)
    # Peaks and not means: what is held for the next request should be enough for nearly all.
    for name, tokens, start in (
        ("output_tokens", priced.output_tokens, request_cost.ASSUMED_OUTPUT_TOKENS),
        ("input_tokens", priced.input_tokens, request_cost.ASSUMED_INPUT_TOKENS),
    ):
        subject = _subject(name, model)
        known = unit.estimates.find(organisation_id, subject)
        changed = Estimate(mean=start) if known is None else msgspec.structs.replace(known)
        estimates.learn_peak(changed, tokens)
        unit.estimates.save(organisation_id, subject, changed)


@functools.lru_cache(maxsize=4096)
def _subject(name: str, model: str) -> str:
    # The first item is the workflow in other subjects; retention reads it, so it is empty here.
    return json.dumps(["", name, model])


def answered_by(unit: UnitOfWork, command: GateCommand) -> str | None:
    """Return the model that answered such requests last, unless it is the one asked for."""
    function = command.answers_function
    if function is None:
        return None
    found = learned.last_model(unit, command.request.organisation_id, function, None)
    return None if found == command.call.model else found


def answered_rates(
    command: GateCommand, asked: wire.ModelRates, answered_by: str
) -> wire.ModelRates:
    """Return the rates of a request that another model is expected to answer.

    The dearer of the two is held, since either may answer. ``present_rows``, by which answers are
    charged, are those of the one that is expected to answer.
    """
    rates = None if command.rates_of is None else command.rates_of(answered_by)
    if rates is None:  # without a price of its own, it is charged like the one asked for
        return msgspec.structs.replace(asked, answered_by=answered_by)
    dearer = max(asked, rates, key=_dearness)
    present = rates.present_rows or rows_of(rates)
    return msgspec.structs.replace(dearer, present_rows=present, answered_by=answered_by)


def _dearness(rates: wire.ModelRates) -> int:
    return rates.worst_input_per_mtok + rates.worst_output_per_mtok


def release_guess(unit: UnitOfWork, command: GateCommand) -> None:
    """Give back what the call around a request holds by guess, since its requests hold their own.

    The reservation stays open: events that name it, and are of no gated request, belong to it.
    """
    call = command.call
    if call.kind != "llm" or call.held is None:
        return
    # Not where the caller has declared what the call uses: its requests draw on that instead
    # (``line.give_back_drawn``).
    found = expiry.own_reservation(unit, command.request, call.held)
    if found is None or found.state != "open" or found.basis not in ("default", "learned"):
        return
    if found.held and not found.is_request:
        expiry.give_back(unit, found, found.held)
