"""What one LLM request may cost at most, before it is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from guard.core import fees as besides
from guard.core.rates import ANY_TERMS, Terms, most_input, worst_rates
from guard.core.wire import NANOUSD_MAX, ModelRates

ASSUMED_OUTPUT_TOKENS: Final = 4096
"""Assumed for an answer without a limit, before anything is known of its model."""

ASSUMED_INPUT_TOKENS: Final = 4096
WORST_OUTPUT_TOKENS: Final = 128_000
_MILLION: Final = 1_000_000


class RequestCost(Struct, frozen=True):
    """What to reserve for a request.

    Attributes:
        amount: nano-dollars, 1 or more.
        least: the part of it for the bounds that the request states, which is certain.
        is_assumed: a bound was missing, so that ``amount`` may shrink down to ``least``.
    """

    amount: int
    least: int
    is_assumed: bool


def request_cost(
    rates: ModelRates,
    max_input: int | None,
    max_output: int | None,
    *,
    assumed_input: int,
    assumed_output: int,
    is_exact: bool,
    terms: Terms = ANY_TERMS,
    fees: Mapping[str, int] | None = None,
    answers: int = 1,
) -> RequestCost:
    """Price the bounds of a request at the dearest rates that apply.

    Args:
        rates: of the model.
        max_input, max_output: tokens that the request states; ``None``: nothing bounds them.
        assumed_input, assumed_output: tokens to assume in their place.
        is_exact: the assumed tokens are the most that the model can take and answer.
        terms: what else in the request decides its rates.
        fees: the most units that are charged besides tokens, by line.
        answers: how many answers there are; a batch has a prompt for each.

    >>> rates = ModelRates(1, 2, 1, 1, 2, 2, 1_000_000, 2_000_000)
    >>> request_cost(rates, 10, None, assumed_input=9, assumed_output=5, is_exact=False)
    RequestCost(amount=20, least=12, is_assumed=True)
    """
    is_assumed = not is_exact and (max_input is None or max_output is None)
    worst = worst_rates(rates, max_input, terms)
    if max_input is not None:
        max_input = most_input(rates, max_input, answers)
    amount = _price(
        worst,
        assumed_input if max_input is None else max_input,
        assumed_output if max_output is None else max_output,
    )
    extra = besides.cost(fees) if fees else 0
    amount = min(amount + extra, NANOUSD_MAX)
    if not is_assumed:
        return RequestCost(amount, amount, False)
    # One token in place of each missing bound: every request has at least that.
    least = _price(worst, *(1 if most is None else most for most in (max_input, max_output)))
    return RequestCost(amount, min(least + extra, amount), True)


def _price(worst: tuple[int, int], input_tokens: int, output_tokens: int) -> int:
    # Rounded up, as a bound must not be below the cost; and never 0, so that an exhausted budget
    # refuses even a free request.
    total = input_tokens * worst[0] + output_tokens * worst[1]
    cost = -(-total // _MILLION)
    if cost < 1:
        return 1
    return min(NANOUSD_MAX, cost)
