"""Charges a request whose answer does not say what it cost, by ``guard.core.usage.ends``.

The event carries the same cost as the hold is ended with: the gateway then charges what this
process has counted.
"""

from __future__ import annotations

from typing import Protocol

from guard.core.request_bound import RequestBound
from guard.core.usage import Call, Endpoint, Usage
from guard.core.usage.ends import ChargeBy, Ending, Evidence, UsageKind, charge_of, output_by_time
from guard.core.usage.hidden_output import may_hide_output, top_speed
from guard.core.usage.response_format import replaced
from guard.core.usage.vendors import provider_of
from guard.instrumentation.request_gate import RequestCover


class EndedRequest(Protocol):
    """A request that has ended; see ``ObservedCall``."""

    endpoint: Endpoint
    host: str
    bound: RequestBound | None
    hold: RequestCover | None
    started_s: float
    sent_s: float | None
    ended_s: float
    ending: Ending
    status: int | None

    @property
    def request(self) -> Call:
        """The request's path and body."""

    def question(self, response_id: str | None) -> object | None:
        """Return what its vendor can be asked about its cost; None where that cannot be asked."""


def usage_to_charge(
    ended: EndedRequest, counted: Usage | None, streamed: bool, began: bool
) -> Usage | None:
    """Return the usage to record for a request without exact usage, and end its hold by that.

    For unfinished work it is the most that the work can use, marked ``later``; its hold stays.

    Args:
        ended: the request.
        counted: what its answer shows: an estimate, that its work is not finished, or None.
        streamed: whether the answer was a stream of messages.
        began: whether any of its body arrived.
    """
    hold, bound, asked = ended.hold, ended.bound, ended.request
    is_held = hold is not None and hold.reservation_id is not None
    model = (None if bound is None else bound.model) or asked.model()
    seen = Evidence(
        ended.ending,
        ended.status,
        _known(counted),
        ended.endpoint.asks and (ended.endpoint.certain or is_held),
        streamed,
        began,
        may_hide_output(model, asked.request()),
        top_speed(provider_of(ended.host), model) is not None,
    )
    charge = charge_of(seen)
    if counted is not None and counted.strangers and charge is not ChargeBy.NOTHING:
        charge = ChargeBy.BOUND  # something in it is charged that nothing here knows
    # 1. A poll will say what it cost.
    if charge is ChargeBy.LATER:
        return None if hold is None else _going_on(ended, counted, hold, model)
    # 2. It cost nothing.
    if charge is ChargeBy.NOTHING:
        if hold is not None:
            hold.give_back()
        return counted
    # 3. Nothing was set aside: it was not gated, or went out without cover. Charged by what its
    #    answer shows.
    if hold is None or not is_held:
        if hold is not None:
            hold.keep()
        return _without_hold(ended, counted, model)
    # 4. Charged by the hold, unless the vendor says when it is asked what it did cost.
    usage = _held(ended, hold, charge, counted, model)
    if usage.cost_nanousd is not None and ended.question(usage.response_id) is not None:
        return replaced(usage, later=True)
    if charge is ChargeBy.BOUND and usage.cost_nanousd is None:
        hold.keep()  # no rates are known here: the gateway prices the event
    else:
        hold.settle(usage)  # by the event's cost, which the gateway charges too
    return usage


def _known(counted: Usage | None) -> UsageKind:
    """Return what an answer without exact usage says; work without an id cannot be polled."""
    if counted is None or (counted.later and counted.response_id is None):
        return "none"
    return "pending" if counted.later else "counted"


def _going_on(
    ended: EndedRequest, counted: Usage | None, hold: RequestCover, model: str | None
) -> Usage | None:
    """Return the most that unfinished work can use; None where nothing bounds it."""
    # What it is billed besides tokens has no bound (`unnumbered`): no amount stands for it.
    if ended.bound is not None and ended.bound.unnumbered:
        hold.keep()
        return None
    if hold.reservation_id is not None:
        at_most = _held(ended, hold, ChargeBy.BOUND, counted, model)
    else:
        limit = 0 if ended.bound is None else ended.bound.output_tokens or 0
        at_most = _usage(ended.request, ended.bound, counted, model, limit)
    return replaced(at_most, later=True)


def _held(
    ended: EndedRequest,
    hold: RequestCover,
    charge: ChargeBy,
    counted: Usage | None,
    model: str | None,
) -> Usage:
    """Return the usage of a request by what was set aside for it.

    ``cost_nanousd`` is set where it is known, so that it does not depend on the gateway's prices.
    """
    bound, asked = ended.bound, ended.request
    # The output that the answer has shown, by an estimate that errs upwards.
    shown = 0 if counted is None else counted.output_tokens + counted.reasoning_tokens
    if bound is not None and bound.output_tokens is not None:
        shown = min(shown, bound.output_tokens)  # the vendor keeps the request's own limit
    speed, output = top_speed(provider_of(ended.host), model), shown
    if charge is ChargeBy.BOUND:
        output = max(shown, hold.output_tokens or 0)
    elif charge is ChargeBy.SPEED and speed is not None:
        seconds = ended.ended_s - (ended.sent_s or ended.started_s)
        written = output_by_time(seconds, speed)
        output = max(shown, min(written, hold.output_tokens or written))
    usage = _usage(asked, bound, counted, model, output)
    cost = hold.cost_at_most(usage.input_tokens, shown if charge is ChargeBy.BOUND else output)
    if charge is ChargeBy.BOUND and hold.amount_nanousd is not None:
        cost = max(hold.amount_nanousd, cost or 0)
    return replaced(usage, cost_nanousd=cost, estimate=charge.value)


def _usage(
    asked: Call, bound: RequestBound | None, counted: Usage | None, model: str | None, output: int
) -> Usage:
    bounded = None if bound is None else bound.input_tokens
    known = 0
    if counted is not None:
        model = counted.model or model
        known = counted.input_tokens + counted.cache_read_tokens + counted.cache_write_tokens
    prompt = asked.prompt_tokens() if bounded is None else bounded
    return Usage(
        model=model,
        input_tokens=max(known, prompt),
        output_tokens=output,
        response_id=None if counted is None else counted.response_id,
        estimated=True,
        fees=None if bound is None else bound.fees,
    )


def _without_hold(ended: EndedRequest, counted: Usage | None, model: str | None) -> Usage | None:
    """Return the usage of a request for which nothing was set aside; None if nothing is known."""
    limit = 0 if ended.bound is None else ended.bound.output_tokens or 0
    if counted is not None and counted.estimate is not None:
        return None  # a poll: the work has ended, and its answer names no usage
    if counted is not None:
        complete = ended.ending is Ending.COMPLETE
        return (
            counted
            if complete or limit <= counted.output_tokens
            else replaced(counted, output_tokens=limit)
        )
    # No answer to count in. A complete one is from something else than a model, or is reported by
    # `Instrumentation.usage_unseen`. One that was cut off is charged its prompt and its limit.
    if ended.ending is Ending.COMPLETE or not (ended.endpoint.asks and ended.endpoint.certain):
        return None
    tokens = ended.request.prompt_tokens()
    if model is None and not tokens:
        return None
    return Usage(model=model, input_tokens=tokens, output_tokens=limit, estimated=True)
