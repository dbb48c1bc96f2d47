"""Prices: the operator's own, then the published snapshot, then the operator's default."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from guard.core import globs
from guard.core.wire import NANOUSD_PER_DOLLAR, UNKNOWN_MODEL, LlmData, ModelRates
from guard.gateway.domain.records import Price, Rates
from guard.gateway.domain.request_cost import (
    ASSUMED_INPUT_TOKENS,
    WORST_INPUT_TOKENS,
    WORST_OUTPUT_TOKENS,
)
from guard.gateway.domain.tariffs import Tariff

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

_CACHE_MAX: Final = 10_000


class PriceBook:
    """The prices of one organisation.

    Args:
        prices: the operator's prices; one for model ``"*"`` is the default for unknown models.
        fallback: charged, and flagged, for models without another price.
    """

    def __init__(self, prices: Sequence[Price], fallback: Rates) -> None:
        # Longer patterns are more specific, so they are tried first.
        self._own = sorted(prices, key=lambda p: (-len(p.model), -len(p.provider)))
        self._fallback = Tariff(fallback, "fallback")
        # Three caches, each emptied when it is full: clients choose the names of models.
        self._known: dict[tuple[str | None, str], Tariff | None] = {}
        self._rates: dict[tuple[str | None, str], ModelRates] = {}
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

        A call without a known price is charged the fallback: never free, never lost.
        """
        if usage.cost_nanousd is not None:
            return usage.cost_nanousd, "vendor"
        tariff = self.tariff(usage.provider, usage.model) or self._fallback
        return tariff.cost(usage), tariff.source

    def model_rates(self, provider: str | None, model: str) -> ModelRates:
        """Return a model's rates as the protocol shows them; unknown ones are the fallback's."""
        key = (provider, model)
        if key not in self._rates:
            if len(self._rates) >= _CACHE_MAX:
                self._rates.clear()
            self._rates[key] = (self.tariff(provider, model) or self._fallback).dearest()
        return self._rates[key]

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
        tariff = self.tariff(None, model)
        if tariff is None or (max_output is None and not strict):
            return None
        if strict:
            max_input = max_input or tariff.context_window or WORST_INPUT_TOKENS
            max_output = max_output or WORST_OUTPUT_TOKENS
        else:
            max_input = ASSUMED_INPUT_TOKENS if max_input is None else max_input
        return tariff.most(max_input, max_output or 0)

    def _find(self, provider: str | None, model: str) -> Tariff | None:
        default = None
        for price in self._own:
            if price.model == "*":
                default = default or Tariff(price.rates, "default")
                continue
            name = globs.fold(model)
            if globs.matches(globs.fold(price.model), name) and (
                provider is None or globs.matches(globs.fold(price.provider), globs.fold(provider))
            ):
                return Tariff(price.rates, "operator")
        if model == UNKNOWN_MODEL:
            return default
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


def _tariff(info: ModelInfo) -> Tariff | None:
    # Prices with a date or an hour of their own are taken as of now, and kept as long as the book.
    price = info.get_prices(dt.datetime.now(dt.UTC))
    values: dict[str, Any] = {
        name: getattr(price, f"{source}_mtok")
        for name, source in (
            ("input_per_mtok", "input"),
            ("output_per_mtok", "output"),
            ("cache_read_per_mtok", "cache_read"),
            ("cache_write_per_mtok", "cache_write"),
            ("reasoning_per_mtok", "output_reasoning"),
            ("audio_per_mtok", "output_audio"),
            ("input_audio", "input_audio"),
        )
    }
    input_audio = values.pop("input_audio")
    if values["audio_per_mtok"] is None:
        values["audio_per_mtok"] = input_audio
    if values["input_per_mtok"] is None and values["output_per_mtok"] is None:
        return None
    starts = sorted({t.start for v in values.values() for t in getattr(v, "tiers", ())})
    return Tariff(
        base=_rates(values, 0),
        source="published",
        tiers=tuple((start, _rates(values, start + 1)) for start in starts),
        context_window=info.context_window,
    )


def _rates(values: dict[str, Any], prompt_tokens: int) -> Rates:
    at_size = {name: _nanousd(value, prompt_tokens) for name, value in values.items()}
    return Rates(
        input_per_mtok=at_size.pop("input_per_mtok") or 0,
        output_per_mtok=at_size.pop("output_per_mtok") or 0,
        **at_size,
    )


def _nanousd(value: Any, prompt_tokens: int) -> int | None:
    if value is None:
        return None
    for tier in reversed(getattr(value, "tiers", ())):
        if prompt_tokens > tier.start:
            value = tier.price
            break
    usd = Decimal(getattr(value, "base", value))
    return int((usd * NANOUSD_PER_DOLLAR).to_integral_value(rounding="ROUND_CEILING"))
