"""What requests and answers cost by the rates of a lease, in whole nano-dollars.

Pure functions. Rates are nano-dollars per million tokens. Every bound is rounded up and every
affordable number of tokens down, so rounding never favours a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from guard.core import fees
from guard.core.rates import most_input, prompt_tokens, rows_of, usage_cost, worst_rates
from guard.core.request_bound import RequestBound
from guard.core.wire import NANOUSD_MAX, TOKENS_MAX, ModelRates

if TYPE_CHECKING:  # pulls in every vendor's format
    from guard.core.usage import Usage

_MILLION: Final = 1_000_000


def worst_case(rates: ModelRates, bound: RequestBound) -> tuple[int, int] | None:
    """Return the most that a request can cost, and the output tokens that this pays for.

    None when neither the request nor the rates bound it.
    """
    if bound.unnumbered:  # it allows something whose number, and so whose fee, is not limited
        return None
    # Before the comparison with the context window: a raised bound may exceed it.
    if rates.text_permille:
        bound = _raised(rates, bound)
    tokens_in, tokens_out, context = bound.input_tokens, bound.output_tokens, rates.context_tokens
    if tokens_in is None or (context is not None and tokens_in > context):
        tokens_in = most_input(rates, tokens_in, bound.answers)
    if tokens_out is None:
        tokens_out = _largest_output(rates, bound)
    if tokens_in is None or tokens_out is None:
        return None
    in_rate, out_rate = worst_rates(rates, bound.input_tokens, bound.terms)
    cost = -(-(tokens_in * in_rate + tokens_out * out_rate) // _MILLION)  # rounded up
    if bound.fees:
        cost += fees.cost(bound.fees)
    return min(NANOUSD_MAX, cost), tokens_out


def _raised(rates: ModelRates, bound: RequestBound) -> RequestBound:
    """Return a bound with the input tokens that its model's tokeniser is known to need."""
    tokens = prompt_tokens(rates, bound.input_tokens, bound.text_tokens)
    return bound if tokens == bound.input_tokens else replace(bound, input_tokens=tokens)


def _largest_output(rates: ModelRates, bound: RequestBound) -> int | None:
    """Return the most output tokens of a request without a limit, if the rates say so."""
    largest = rates.largest_output_tokens
    return None if largest is None else largest * bound.answers + bound.beside_output


def paid_output(rates: ModelRates | None, bound: RequestBound, amount: int) -> int | None:
    """Return the largest output that a hold pays for; None if that is unknown.

    Where a bound is only assumed, the gateway may set aside less than the worst case.

    >>> rates = ModelRates(1, 2, 1, 1, 2, 2, 1_000_000, 2_000_000, largest_output_tokens=4096)
    >>> paid_output(rates, RequestBound("openai", "m", 10, None), 50)
    20
    """
    if bound.output_tokens is not None or rates is None:
        return bound.output_tokens
    largest = _largest_output(rates, bound)
    paid = None if largest is None else _affordable_output(rates, bound, amount)
    if largest is None or paid is None:
        return largest
    return min(largest, max(1, paid))


def fitting_output(
    rates: ModelRates, bound: RequestBound, amount: int, most_tokens: int | None = None
) -> int | None:
    """Return the limit on each answer with which a request costs an amount at most.

    It is a power of two, so that a retry has the same; or the request's own limit, or the largest
    answer of the model, or the least that is of use. None when no such limit can be put in, or the
    amount does not pay for the least.

    Args:
        rates: the rates of the model.
        bound: the bound of the request.
        amount: nano-dollars.
        most_tokens: the most output tokens of all answers, whatever they cost; None for any number.

    >>> rates = ModelRates(1, 2, 1, 1, 2, 2, 1_000_000, 2_000_000, largest_output_tokens=4096)
    >>> bound = RequestBound("openai", "m", 10, least_output=256)
    >>> [fitting_output(rates, bound, amount) for amount in (500, 522, 1033, 9_000)]
    [None, 256, 256, 4096]
    """
    bound = _raised(rates, bound)
    least = bound.least_output
    tokens_in = most_input(rates, bound.input_tokens, bound.answers)
    if least is None or tokens_in is None:
        return None
    most = rates.largest_output_tokens
    if bound.output_tokens is not None:
        most = (bound.output_tokens - bound.beside_output) // bound.answers
    paid = _affordable_output(rates, bound, amount)
    if paid is None:
        paid = NANOUSD_MAX
    if most_tokens is not None:
        paid = min(paid, most_tokens)
    each = (paid - bound.beside_output) // bound.answers
    if most is not None and each >= most:
        return most
    if rates.context_tokens is not None and bound.input_tokens is not None:
        each = min(each, max(least, rates.context_tokens - bound.input_tokens))
    if each < least:
        return None
    return max(least, 1 << (min(each, TOKENS_MAX).bit_length() - 1))


def _affordable_output(rates: ModelRates, bound: RequestBound, amount: int) -> int | None:
    """Return how many output tokens an amount pays for beside the prompt; None if they are free."""
    bound = _raised(rates, bound)
    in_rate, out_rate = worst_rates(rates, bound.input_tokens, bound.terms)
    tokens_in = most_input(rates, bound.input_tokens, bound.answers)
    if bound.fees:
        amount -= fees.cost(bound.fees)
    left = amount * _MILLION - (tokens_in or 0) * in_rate
    if not out_rate:
        return None if left >= 0 else -1
    return left // out_rate


def cost_of(rates: ModelRates, usage: Usage) -> int:
    """Return what an answer cost: as the vendor states it, else by the rates, rounded up."""
    cost = usage.cost_nanousd
    if cost is None:
        cost = usage_cost(rates.present_rows or rows_of(rates), usage)
    for other in usage.others:
        # Other models of one answer, priced here at this model's rates. The gateway knows each
        # one's price and charges that.
        cost += cost_of(rates, other)
    return cost
