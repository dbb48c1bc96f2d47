"""A model's price list as the gateway keeps it, and what requests and answers cost by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from guard.core import rates
from guard.core.wire import NANOUSD_MAX, LlmData, ModelRates, RateRow
from guard.gateway.domain.records import Rates

_MILLION = 1_000_000

_LONG_WRITES = (8, 5)
"""The price of writing to the cache for an hour, as a fraction of that for a few minutes.

The former is twice the input's price, the latter 1.25 times
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching, 2026-11).
"""


class Tariff(Struct, frozen=True):
    """A price list: a row for each service tier and size of prompt, the standard tier first.

    Attributes:
        rows: the price list.
        source: where the prices come from.
        context_window: of the model, as the list of published prices knows it.
        at: returns the price list of a moment, in Unix milliseconds, where prices change with the
            hour or on a date; ``rows`` are then the dearest.
    """

    rows: list[RateRow]
    source: str
    context_window: int | None = None
    at: Callable[[int], list[RateRow]] | None = None

    def cost(self, usage: LlmData, at_ms: int | None = None) -> int:
        """Return the price of a finished call. Buckets are disjoint.

        Args:
            usage: of the call.
            at_ms: when it ended, in Unix milliseconds; ``None``: at the dearest time.
        """
        present = self.rows if at_ms is None or self.at is None else self.at(at_ms)
        return rates.usage_cost(present or self.rows, usage)

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """Return the most that a call with these maxima can cost."""
        terms = rates.Terms(text_only=True)
        worst = rates.worst_rates(self.dearest(), input_tokens, terms)
        total = input_tokens * worst[0] + output_tokens * worst[1]
        return min(max(1, -(-total // _MILLION)), NANOUSD_MAX)

    def dearest(self, now_ms: int = 0) -> ModelRates:
        """Return the price list, and the highest price of each kind of token.

        Any kind that has a price of its own can be in a prompt or an answer.

        Args:
            now_ms: the time, by which answers are charged.
        """
        present = [] if self.at is None else self.at(now_ms)
        standard = [row for row in self.rows if row.tier == rates.STANDARD]
        base_in, base_out, cache_read, cache_write, long_write, reasoning, audio, heard = (
            max(figures) for figures in zip(*(_figures(row) for row in standard), strict=True)
        )
        return ModelRates(
            input_per_mtok=base_in,
            output_per_mtok=base_out,
            cache_read_per_mtok=cache_read,
            cache_write_per_mtok=cache_write,
            reasoning_per_mtok=reasoning,
            audio_per_mtok=audio or max(base_in, base_out),
            worst_input_per_mtok=max(base_in, cache_read, cache_write, long_write, heard),
            worst_output_per_mtok=max(base_out, reasoning, audio),
            rows=self.rows,
            present_rows=[] if present == self.rows else present,
        )


def tariff(base: Rates, source: str) -> Tariff:
    """Return the tariff of one set of rates, whatever the tier and the size of the prompt."""
    return Tariff([row(rates.STANDARD, -1, base)], source)


def row(
    tier: str,
    above: int,
    figures: Rates,
    cache_write_1h: int | None = None,
    audio_input: int | None = None,
) -> RateRow:
    """Return a row of a price list; missing prices follow from those of input and output.

    Args:
        tier, above: the requests that it prices.
        figures: nano-dollars per million tokens.
        cache_write_1h: for an hour in the cache, where that is known.
        audio_input: of audio in a prompt, where that is known.
    """
    base_in, base_out = figures.input_per_mtok, figures.output_per_mtok
    write = figures.cache_write_per_mtok
    if cache_write_1h is None:
        times, by = _LONG_WRITES
        cache_write_1h = base_in if write is None else max(base_in, -(-write * times // by))
    return RateRow(
        tier,
        above,
        base_in,
        base_out,
        _or(figures.cache_read_per_mtok, base_in),
        _or(write, base_in),
        cache_write_1h,
        _or(figures.reasoning_per_mtok, base_out),
        figures.audio_per_mtok or 0,
        audio_input or 0,
    )


def ordered(rows: Iterable[RateRow]) -> list[RateRow]:
    """Return the rows by tier and size, the standard tier first."""
    return sorted(rows, key=lambda each: (each.tier != rates.STANDARD, each.tier, each.above))


def _figures(row: RateRow) -> tuple[int, ...]:
    return (row.input, row.output, row.cache_read, row.cache_write, row.cache_write_1h,
            row.reasoning, row.audio, row.audio_input or row.audio)  # fmt: skip


def _or(rate: int | None, default: int) -> int:
    return default if rate is None else rate
