"""Prices: the operator's own, then the published snapshot, then the operator's default."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from guard.core import fees, globs
from guard.core.rates import lacks_sound
from guard.core.wire import UNKNOWN_MODEL, LlmData, ModelRates
from guard.gateway.domain.contexts import LARGEST_ANYWHERE, context_of, largest_context
from guard.gateway.domain.largest_outputs import largest_output
from guard.gateway.domain.records import Price, Rates
from guard.gateway.domain.request_cost import ASSUMED_INPUT_TOKENS, WORST_OUTPUT_TOKENS
from guard.gateway.domain.tariffs import Tariff, tariff
from guard.gateway.domain.usage_export import BilledRow
from guard.gateway.services.published import names, published

_CACHE_MAX: Final = 10_000

_BY_THE_PIECE: Final = (None, "openai", "azure", "google")
"""Vendors whose images, speech and videos have fees, and so no price by tokens."""


_HAVE_PROJECTS: Final = ("openai", "azure")
"""Vendors whose projects have a service tier of their own."""

_SLOT_MS: Final = 15 * 60_000
"""Hours begin and end at quarters of an hour."""

_SHORT: Final = 10_000
"""Tokens of a prompt that meets no price of long ones."""

_MONTH_MS: Final = 31 * 86_400_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class PriceBook:
    """The prices of one organisation. Used on the loop only.

    Args:
        prices: the operator's prices; one for model ``"*"`` is the default for unknown models.
        fallback: charged, and flagged, for models without another price.
        clock_ms: Unix milliseconds, for prices with a date or an hour of their own.
        default_tier: the service tier of requests to OpenAI that name none.
    """

    def __init__(
        self,
        prices: Sequence[Price],
        fallback: Rates,
        clock_ms: Callable[[], int] = _now_ms,
        default_tier: str = "standard",
    ) -> None:
        self._clock_ms = clock_ms
        self._default_tier = default_tier
        # The quarter of an hour that the caches are of, and the keys in ``_known`` whose tariff has
        # hours or dates: these are looked up again in the next quarter.
        self._slot = 0
        self._timed: list[tuple[str | None, str]] = []
        # Longer patterns are more specific, so they are tried first.
        self._own = sorted(prices, key=lambda p: (-len(p.model), -len(p.provider)))
        self._fallback = tariff(fallback, "fallback")
        self._local = tariff(Rates(input_per_mtok=0, output_per_mtok=0), "local")
        # Three caches, each emptied when it is full, as clients choose the names of models. Of
        # tariffs by vendor and model (``None``: no known price); of the rates made from them, by
        # whether the model is local, too; and of reservations for declared maxima.
        self._known: dict[tuple[str | None, str], Tariff | None] = {}
        self._rates: dict[tuple[str | None, str, bool], ModelRates] = {}
        self._declared: dict[tuple[str, int | None, int | None, bool], int | None] = {}

    def models_of(self, provider: str) -> list[str]:
        """Return the models of a vendor that have a price of the operator's."""
        return [
            each.model
            for each in self._own
            if each.provider == provider and not globs.is_pattern(each.model)
        ]

    def tariff(self, provider: str | None, model: str) -> Tariff | None:
        """Return the tariff of a model, or ``None`` when its price is not known."""
        self._forget_timed()
        key = (provider, model)
        if key not in self._known:
            if len(self._known) >= _CACHE_MAX:
                # All three: without its key in `_timed`, what was made from a tariff would keep
                # the price of this quarter of an hour.
                self._known.clear()
                self._timed.clear()
                self._rates.clear()
                self._declared.clear()
            found = self._known[key] = self._find(provider, model)
            if found is not None and found.at is not None:
                self._timed.append(key)
        return self._known[key]

    def _forget_timed(self) -> None:
        """Drop the cached tariffs that may have another price by now."""
        slot = self._clock_ms() // _SLOT_MS
        if slot == self._slot:
            return
        self._slot = slot
        timed, self._timed = self._timed, []
        for key in timed:
            self._known.pop(key, None)
            self._rates.pop((*key, False), None)
            self._rates.pop((*key, True), None)
        if timed:
            self._declared.clear()

    def cost(self, usage: LlmData, at_ms: int | None = None) -> tuple[int, str]:
        """Return the cost of a reported call and the source of its price.

        A call of a model without a known price is charged the price of the model that it asked for,
        else the fallback: it is never free, unless the model is on the caller's own machine.

        Args:
            usage: of the call.
            at_ms: when it ended, in Unix milliseconds, by its caller's clock; now, if not given. A
                clock that is more than a month off is ignored: then the dearest hour counts.
        """
        if usage.cost_nanousd is not None and not self._is_free(usage):
            return usage.cost_nanousd, "vendor"
        found = self.tariff(usage.provider, usage.model)
        if found is None and usage.requested_model is not None:
            found = self.tariff(usage.provider, usage.requested_model)
        found = found or self._unknown(usage.local)
        now_ms = self._clock_ms()
        when_ms = now_ms if at_ms is None else at_ms
        is_believed = abs(now_ms - when_ms) <= _MONTH_MS
        return found.cost(usage, when_ms if is_believed else None), found.source

    def lacks_sound(self, usage: LlmData) -> bool:
        """Return whether a reported call has sound, and the price list of its model text alone."""
        if not usage.audio_tokens or usage.cost_nanousd is not None:
            return False
        found = self.tariff(usage.provider, usage.model) or self._unknown(usage.local)
        return lacks_sound(found.rows[0])

    def cost_of_many(self, billed: BilledRow, provider: str | None) -> int:
        """Return what the tokens of many requests cost, each of them with a short prompt."""
        kept_1h = billed.cache_write_1h_tokens
        parts = (
            (billed.input_tokens, LlmData(input_tokens=_SHORT)),
            (billed.output_tokens, LlmData(output_tokens=_SHORT)),
            (billed.cache_read_tokens, LlmData(cache_read_tokens=_SHORT)),
            (billed.cache_write_tokens - kept_1h, LlmData(cache_write_tokens=_SHORT)),
            (kept_1h, LlmData(cache_write_tokens=_SHORT, cache_write_1h_tokens=_SHORT)),
        )
        total = 0
        for count, usage in parts:
            usage.model, usage.provider = billed.model, provider
            total += self.cost(usage, billed.start_ms)[0] * max(count, 0) // _SHORT
        return total

    def _is_free(self, usage: LlmData) -> bool:
        """Return whether an event reports an estimated cost of a model that costs nothing."""
        return usage.local and usage.estimated and self.tariff(usage.provider, usage.model) is None

    def _unknown(self, local: bool) -> Tariff:
        return self._local if local else self._fallback

    def model_rates(self, provider: str | None, model: str, local: bool = False) -> ModelRates:
        """Return a model's rates as the protocol shows them; unknown ones are the fallback's.

        Args:
            provider, model: whose.
            local: whether it is on the caller's own machine: unknown ones are free there.
        """
        self._forget_timed()
        key = (provider, model, local)
        if key not in self._rates:
            if len(self._rates) >= _CACHE_MAX:
                self._rates.clear()
            known = self.tariff(provider, model)
            rates = (known or self._unknown(local)).dearest(self._clock_ms())
            rates.fallback = known is None and not local
            if provider in _HAVE_PROJECTS and self._default_tier != "standard":
                rates.default_tier = self._default_tier
            listed = (largest_output(*each) for each in names(provider, model))
            rates.largest_output_tokens = next((each for each in listed if each is not None), None)
            rates.context_tokens = self._context(provider, model, rates)
            if known is None and local:  # requests of a free model need no limit on their output
                rates.largest_output_tokens = WORST_OUTPUT_TOKENS
            self._rates[key] = rates
        return self._rates[key]

    def largest_prompt(self, provider: str | None, model: str) -> int:
        """Return the most tokens of a prompt that nothing bounds."""
        context = self.model_rates(provider, model).context_tokens
        if context is not None:
            return context
        vendors = [vendor for vendor, _ in names(provider, model) if vendor is not None]
        return max(map(largest_context, vendors), default=LARGEST_ANYWHERE)

    def _context(self, provider: str | None, model: str, rates: ModelRates) -> int | None:
        """Return a model's context window; ``None`` if it is not known."""
        # Also of the published list where the operator has set the price.
        listed = None
        if model != UNKNOWN_MODEL:
            listed = published(provider, model, self._clock_ms())
        window = None if listed is None else listed.context_window
        least = max(rates.largest_output_tokens or 0, 1 + max(row.above for row in rates.rows))
        found = (context_of(*each, window, least) for each in names(provider, model))
        return max((each for each in found if each is not None), default=None)

    def declared(
        self, model: str, max_input: int | None, max_output: int | None, *, strict: bool
    ) -> int | None:
        """Return what to reserve for a model and declared maxima, or ``None`` to estimate it."""
        self._forget_timed()
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

    def own_price(self, provider: str | None, model: str) -> Price | None:
        """Return the operator's price of a model, the most specific one; not the default."""
        name = globs.fold(model)
        for price in self._own:
            if price.model == "*" or not globs.matches(globs.fold(price.model), name):
                continue
            if provider is None or globs.matches(globs.fold(price.provider), globs.fold(provider)):
                return price
        return None

    def _find(self, provider: str | None, model: str) -> Tariff | None:
        own = self.own_price(provider, model)
        if own is not None:
            return tariff(own.rates, "operator")
        unknown = next((price for price in self._own if price.model == "*"), None)
        default = None if unknown is None else tariff(unknown.rates, "default")
        if model == UNKNOWN_MODEL:
            return default
        if fees.by_the_piece(model) and (provider in _BY_THE_PIECE or "whisper" in model.lower()):
            return tariff(Rates(input_per_mtok=0, output_per_mtok=0), "published")
        return published(provider, model, self._clock_ms()) or default
