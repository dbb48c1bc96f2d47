"""The cost of tokens, in whole nano-dollars, rounded up."""

from __future__ import annotations

from msgspec import Struct

from guard.core.wire import NANOUSD_MAX, LlmData, ModelRates
from guard.gateway.domain.records import Rates

_MILLION = 1_000_000


class Tariff(Struct, frozen=True):
    """Rates by the size of the prompt: ``tiers`` are (above this many input tokens, rates)."""

    base: Rates
    source: str
    tiers: tuple[tuple[int, Rates], ...] = ()
    context_window: int | None = None

    def rates(self, prompt_tokens: int) -> Rates:
        """Return the rates for a prompt of this size (the whole prompt is charged at them)."""
        found = self.base
        for above, rates in self.tiers:
            if prompt_tokens > above:
                found = rates
        return found

    def cost(self, usage: LlmData) -> int:
        """Return the price of a finished call. Buckets are disjoint."""
        prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        rates = self.rates(prompt)
        base_in, base_out = rates.input_per_mtok, rates.output_per_mtok
        audio = rates.audio_per_mtok
        total = (
            usage.input_tokens * base_in
            + usage.output_tokens * base_out
            + usage.cache_read_tokens * _or(rates.cache_read_per_mtok, base_in)
            + usage.cache_write_tokens * _or(rates.cache_write_per_mtok, base_in)
            + usage.reasoning_tokens * _or(rates.reasoning_per_mtok, base_out)
            + usage.audio_tokens * _or(audio, max(base_in, base_out))
        )
        return min(-(-total // _MILLION), NANOUSD_MAX)

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """Return the most that a call with these maxima can cost."""
        rates = self.rates(input_tokens)
        dearest_in = max(rates.input_per_mtok, rates.cache_write_per_mtok or 0)
        dearest_out = max(rates.output_per_mtok, rates.reasoning_per_mtok or 0)
        total = input_tokens * dearest_in + output_tokens * dearest_out
        return min(max(1, -(-total // _MILLION)), NANOUSD_MAX)

    def dearest(self) -> ModelRates:
        """Return what tokens of each kind cost at the size of prompt that makes them dearest.

        Any kind that has a price of its own can be in a prompt or an answer.
        """
        all_rates = [self.base, *(rates for _, rates in self.tiers)]
        base_in = max(rates.input_per_mtok for rates in all_rates)
        base_out = max(rates.output_per_mtok for rates in all_rates)

        def highest(name: str, default: int) -> int:
            return max(_or(getattr(rates, name), default) for rates in all_rates)

        audio = max((rates.audio_per_mtok or 0 for rates in all_rates), default=0)
        cache_read = highest("cache_read_per_mtok", base_in)
        cache_write = highest("cache_write_per_mtok", base_in)
        reasoning = highest("reasoning_per_mtok", base_out)
        return ModelRates(
            input_per_mtok=base_in,
            output_per_mtok=base_out,
            cache_read_per_mtok=cache_read,
            cache_write_per_mtok=cache_write,
            reasoning_per_mtok=reasoning,
            audio_per_mtok=highest("audio_per_mtok", max(base_in, base_out)),
            worst_input_per_mtok=max(base_in, cache_read, cache_write, audio),
            worst_output_per_mtok=max(base_out, reasoning, audio),
            context_tokens=self.context_window,
        )


def _or(rate: int | None, default: int) -> int:
    return default if rate is None else rate
