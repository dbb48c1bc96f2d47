"""What requests and answers cost by the rates of a lease, in whole nano-dollars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from guard.core.request_bound import RequestBound
from guard.core.wire import NANOUSD_MAX, ModelRates

if TYPE_CHECKING:  # pulls in every vendor's format
    from guard.core.usage import Usage

_MILLION: Final = 1_000_000


def worst_case(rates: ModelRates, bound: RequestBound) -> tuple[int, int] | None:
    """Return the most that a request can cost, and the output tokens that this pays for.

    None when neither the request nor the rates bound it.
    """
    tokens_in, tokens_out = bound.input_tokens, bound.output_tokens
    if tokens_in is None:
        tokens_in = rates.context_tokens
    if tokens_out is None:
        tokens_out = rates.assumed_output_tokens
    if tokens_in is None or tokens_out is None:
        return None
    total = tokens_in * rates.worst_input_per_mtok + tokens_out * rates.worst_output_per_mtok
    return min(-(-total // _MILLION), NANOUSD_MAX), tokens_out


def paid_output(rates: ModelRates | None, bound: RequestBound, amount: int) -> int | None:
    """Return the largest output that a hold pays for; None if that is unknown.

    Where a bound is only assumed, the gateway may set aside less than the worst case.

    >>> rates = ModelRates(1, 2, 1, 1, 2, 2, 1_000_000, 2_000_000, assumed_output_tokens=4096)
    >>> paid_output(rates, RequestBound("openai", "m", 10, None), 50)
    20
    """
    if bound.output_tokens is not None or rates is None:
        return bound.output_tokens
    assumed, price = rates.assumed_output_tokens, rates.worst_output_per_mtok
    if assumed is None or not price:
        return assumed
    tokens_in = bound.input_tokens if bound.input_tokens is not None else 0
    left = amount * _MILLION - tokens_in * rates.worst_input_per_mtok
    return min(assumed, max(1, left // price))


def cost_of(rates: ModelRates, usage: Usage) -> int:
    """Return what an answer cost: as the vendor says, else by the rates, rounded up."""
    cost = usage.cost_nanousd
    if cost is None:
        total = (
            usage.input_tokens * rates.input_per_mtok
            + usage.output_tokens * rates.output_per_mtok
            + usage.cache_read_tokens * rates.cache_read_per_mtok
            + usage.cache_write_tokens * rates.cache_write_per_mtok
            + usage.reasoning_tokens * rates.reasoning_per_mtok
            + usage.audio_tokens * rates.audio_per_mtok
        )
        cost = min(-(-total // _MILLION), NANOUSD_MAX)
    for other in usage.others:
        cost += cost_of(rates, other)  # models of one answer; the gateway knows each one's price
    return cost
