"""Prices: the operator's own, then the published snapshot, then the operator's default."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from guard.core import fees, globs
from guard.core.rates import STANDARD
from guard.core.wire import NANOUSD_PER_DOLLAR, UNKNOWN_MODEL, LlmData, ModelRates, RateRow
from guard.gateway.domain.contexts import context_of, largest_context
from guard.gateway.domain.largest_outputs import largest_output
from guard.gateway.domain.records import Price, Rates
from guard.gateway.domain.request_cost import ASSUMED_INPUT_TOKENS, WORST_OUTPUT_TOKENS
from guard.gateway.domain.tariffs import Tariff, ordered, row, tariff

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, PriceContext

_CACHE_MAX: Final = 10_000

_BY_THE_PIECE: Final = (None, "openai", "azure", "google")
"""Vendors whose images, speech and videos have fees, and so no price by tokens."""


class PriceBook:
    """The prices of one organisation.

    Args:
        prices: the operator's prices; one for model ``"*"`` is the default for unknown models.
        fallback: charged, and flagged, for models without another price.
    """

    def __init__(self, prices: Sequence[Price], fallback: Rates) -> None:
        # Longer patterns are more specific, so they are tried first.
        self._own = sorted(prices, key=lambda p: (-len(p.model), -len(p.provider)))
        self._fallback = tariff(fallback, "fallback")
        self._local = tariff(Rates(input_per_mtok=0, output_per_mtok=0), "local")
        # Three caches, each emptied when it is full: clients choose the names of models.
        self._known: dict[tuple[str | None, str], Tariff | None] = {}
        self._rates: dict[tuple[str | None, str, bool], ModelRates] = {}
        self._declared: dict[tuple[str, int | None, int | None, bool], int | None] = {}

    def tariff(self, provider: str | None, model: str) -> Tariff | None:
        """Return the tariff of a model, or ``None`` when its price is not known."""
        key = (provider, model)
        if key not in self._known:
            if len(self._known) >= _CACHE_MAX:
                self._known.clear()
            self._known[key] = self._find(provider, model)
        return self._known[key]

    def cost(self, usage: LlmData) -> tuple[int, str]:
        """Return the cost of a reported call and the source of its price.

        A call without a known price is charged the fallback, never free and never lost, but for a
        model on the caller's own machine.
        """
        if usage.cost_nanousd is not None and not self._is_free(usage):
            return usage.cost_nanousd, "vendor"
        found = self.tariff(usage.provider, usage.model) or self._unknown(usage.local)
        return found.cost(usage), found.source

    def _is_free(self, usage: LlmData) -> bool:
        """Tell whether the cost of a lost answer is the SDK's, of a model that costs nothing."""
        return usage.local and usage.estimated and self.tariff(usage.provider, usage.model) is None

    def _unknown(self, local: bool) -> Tariff:
        return self._local if local else self._fallback

    def model_rates(self, provider: str | None, model: str, local: bool = False) -> ModelRates:
        """Return a model's rates as the protocol shows them; unknown ones are the fallback's.

        Args:
            provider, model: whose.
            local: whether it is on the caller's own machine: unknown ones are free there.
        """
        key = (provider, model, local)
        if key not in self._rates:
            if len(self._rates) >= _CACHE_MAX:
                self._rates.clear()
            known = self.tariff(provider, model)
            rates = (known or self._unknown(local)).dearest()
            rates.fallback = known is None and not local
            rates.largest_output_tokens = largest_output(provider, model)
            rates.context_tokens = self._context(provider, model, rates)
            if known is None and local:  # so that it needs no limit
                rates.largest_output_tokens = WORST_OUTPUT_TOKENS
            self._rates[key] = rates
        return self._rates[key]

    def largest_prompt(self, provider: str | None, model: str) -> int:
        """Return the most tokens of a prompt that nothing bounds."""
        return self.model_rates(provider, model).context_tokens or largest_context(provider)

    def _context(self, provider: str | None, model: str, rates: ModelRates) -> int | None:
        """Return a model's context window, whoever prices it; ``None`` if it is not known."""
        listed = None if model == UNKNOWN_MODEL else published(provider, model)
        return context_of(
            provider,
            model,
            None if listed is None else listed.context_window,
            max(rates.largest_output_tokens or 0, 1 + max(row.above for row in rates.rows)),
        )

    def declared(
        self, model: str, max_input: int | None, max_output: int | None, *, strict: bool
    ) -> int | None:
        """Return what to reserve for a model and declared maxima, or ``None`` to estimate it."""
        key = (model, max_input, max_output, strict)
        if key not in self._declared:
            if len(self._declared) >= _CACHE_MAX:
                self._declared.clear()
            self._declared[key] = self._declare(model, max_input, max_output, strict)
        return self._declared[key]

    def _declare(
        self, model: str, max_input: int | None, max_output: int | None, strict: bool
    ) -> int | None:
        found = self.tariff(None, model)
        if found is None or (max_output is None and not strict):
            return None
        if strict:
            max_input = max_input or self.largest_prompt(None, model)
            max_output = max_output or WORST_OUTPUT_TOKENS
        else:
            max_input = ASSUMED_INPUT_TOKENS if max_input is None else max_input
        return found.most(max_input, max_output or 0)

    def _find(self, provider: str | None, model: str) -> Tariff | None:
        default = None
        for price in self._own:
            if price.model == "*":
                default = default or tariff(price.rates, "default")
                continue
            name = globs.fold(model)
            if globs.matches(globs.fold(price.model), name) and (
                provider is None or globs.matches(globs.fold(price.provider), globs.fold(provider))
            ):
                return tariff(price.rates, "operator")
        if model == UNKNOWN_MODEL:
            return default
        if provider in _BY_THE_PIECE and fees.by_the_piece(model):
            return tariff(Rates(input_per_mtok=0, output_per_mtok=0), "published")
        return published(provider, model) or default


def load_published() -> None:
    """Load the published tables, which takes about half a second; later calls do nothing."""
    from genai_prices import data_snapshot

    data_snapshot.get_snapshot()


def published(provider: str | None, model: str) -> Tariff | None:
    """Return the published tariff of a model (the ``genai-prices`` snapshot), if there is one."""
    from genai_prices import data_snapshot  # loaded by a gateway before its first request

    snapshot = data_snapshot.get_snapshot()
    for provider_id in (provider, None) if provider else (None,):
        try:
            _, info = snapshot.find_provider_model(model, None, provider_id, None)
        except LookupError:
            continue
        return _tariff(info)
    return None


_FIGURES: Final = (
    ("input_per_mtok", "input_mtok"),
    ("output_per_mtok", "output_mtok"),
    ("cache_read_per_mtok", "cache_read_mtok"),
    ("cache_write_per_mtok", "cache_write_mtok"),
    ("cache_write_1h", "cache_write_1h_mtok"),
    ("reasoning_per_mtok", "output_reasoning_mtok"),
    ("audio_per_mtok", "output_audio_mtok"),
    ("input_audio", "input_audio_mtok"),
    ("input_image", "input_image_mtok"),
    ("output_image", "output_image_mtok"),
)


def _tariff(info: ModelInfo) -> Tariff | None:
    # Prices with a date or an hour of their own are taken as of now, and kept as long as the book.
    now = dt.datetime.now(dt.UTC)
    standard = _values(info.get_prices(now))
    if standard["input_per_mtok"] is None and standard["output_per_mtok"] is None:
        return None
    if "gpt-image" in info.id:  # images to edit are dearer than words; usage does not say which
        standard["input_per_mtok"] = standard["input_image"] or standard["input_per_mtok"]
    rows = list(_rows(STANDARD, standard))
    for tier in _tiers(info):
        values = _values(info.get_prices(now, _context(tier)))
        if values != standard:
            rows += _rows(tier, values)
    return Tariff(ordered(rows), "published", info.context_window)


_TIERS: Final = (("service_tier", "flex"), ("service_tier", "priority"), ("service_tier", "fast"),
                 ("speed", "fast"), ("service_tier", "ultrafast"))  # fmt: skip


def _tiers(info: ModelInfo) -> list[str]:
    """Return the service tiers with prices of their own."""
    named = [variant.when for variant in info.price_variants or ()]
    return sorted({tier for name, tier in _TIERS if {name: tier} in named})


def _context(tier: str) -> PriceContext:
    return {name: own for name, own in _TIERS if own == tier}


def _values(price: ModelPrice) -> dict[str, Any]:
    return {name: getattr(price, source, None) for name, source in _FIGURES}


def _rows(tier: str, values: dict[str, Any]) -> Iterator[RateRow]:
    """Yield a row for each size of prompt at which a price changes."""
    starts = {t.start for v in values.values() for t in getattr(v, "tiers", ())}
    for start in (-1, *sorted(starts)):
        at_size = {name: _nanousd(value, start + 1) for name, value in values.items()}
        input_audio, image = at_size.pop("input_audio"), at_size.pop("output_image")
        at_size.pop("input_image")
        if at_size["audio_per_mtok"] is None:
            at_size["audio_per_mtok"] = input_audio
        long_write = at_size.pop("cache_write_1h")
        figures = Rates(
            input_per_mtok=at_size.pop("input_per_mtok") or 0,
            # Usage does not tell images and words of an answer apart.
            output_per_mtok=max(at_size.pop("output_per_mtok") or 0, image or 0),
            **at_size,
        )
        yield row(tier, start, figures, long_write)


def _nanousd(value: Any, prompt_tokens: int) -> int | None:
    if value is None:
        return None
    for tier in reversed(getattr(value, "tiers", ())):
        if prompt_tokens > tier.start:
            value = tier.price
            break
    usd = Decimal(getattr(value, "base", value))
    return int((usd * NANOUSD_PER_DOLLAR).to_integral_value(rounding="ROUND_CEILING"))
