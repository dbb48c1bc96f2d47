"""The published prices of models: the ``genai-prices`` snapshot, with its hours and dates."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from guard.core.rates import STANDARD, dearest_rows
from guard.core.wire import NANOUSD_PER_DOLLAR, RateRow
from guard.gateway.domain.records import Rates
from guard.gateway.domain.tariffs import Tariff, ordered, row

if TYPE_CHECKING:
    from genai_prices.types import (
        ModelInfo,
        ModelPrice,
        PriceContext,
        StartDateConstraint,
        TimeOfDateConstraint,
    )

    Constraint = StartDateConstraint | TimeOfDateConstraint


def load_published() -> None:
    """Load the published tables, which takes about half a second; later calls do nothing."""
    from genai_prices import data_snapshot

    data_snapshot.get_snapshot()


def published(provider: str | None, model: str, now_ms: int) -> Tariff | None:
    """Return the published tariff of a model (the ``genai-prices`` snapshot), if there is one.

    Args:
        provider: the vendor; None where nobody has named it. A model whose name does not show its
            maker then costs what the dearest of all vendors that list it takes.
        model: the model.
        now_ms: the time, in Unix milliseconds. Its rows are the dearest of that day and the next,
            so that a request which is held today cannot meet a higher price.
    """
    for vendor, name in names(provider, model):
        found = _tariff(_at(vendor, name), name, now_ms)
        if found is None and provider is None and vendor is None:
            found = _tariff(_anywhere(name), name, now_ms)
        if found is not None:
            return found
    return None


def _at(vendor: str | None, model: str) -> tuple[ModelInfo, ...]:
    """Return a vendor's model, of which its tuned one is a copy if it is not listed itself."""
    from genai_prices import data_snapshot  # loaded by a gateway before its first request

    for name in dict.fromkeys((model, _base(model))):
        try:
            return (data_snapshot.get_snapshot().find_provider_model(name, None, vendor, None)[1],)
        except LookupError:
            continue
    return ()


@functools.lru_cache(maxsize=4096)
def _anywhere(model: str) -> tuple[ModelInfo, ...]:
    """Return a model as all vendors list it, in the same way."""
    from genai_prices import data_snapshot

    vendors = data_snapshot.get_snapshot().providers
    for name in dict.fromkeys((model, _base(model))):
        found = (vendor.find_model(name) for vendor in vendors)
        if infos := tuple(info for info in found if info is not None):
            return infos
    return ()


_TUNED: Final = "ft:"
_TUNED_TIMES: Final = {"gpt-3.5-turbo": 6, "davinci-002": 6, "babbage-002": 4, "o4-mini": 4}
"""How many times as dear as its base a tuned model is, rounded up, where it is more than twice
(https://platform.openai.com/docs/pricing, 2025-11)."""


def _base(model: str) -> str:
    """Return the model that a tuned one began as, and any other one as it is.

    >>> _base("ft:gpt-4o-mini-2024-07-18:acme::abc"), _base("gpt-4o")
    ('gpt-4o-mini-2024-07-18', 'gpt-4o')
    """
    return model.split(":")[1] if model.startswith(_TUNED) else model


def _times(model: str, info: ModelInfo) -> int:
    """Return what a model's listed prices have to be multiplied by: it may be tuned from them."""
    if not model.startswith(_TUNED) or info.id.startswith(_TUNED):
        return 1
    base = _base(model)
    return next((times for name, times in _TUNED_TIMES.items() if base.startswith(name)), 2)


def listed(text: str, limit: int) -> list[tuple[str, str]]:
    """Return vendors and ids of the models with a text in their id, by the vendors' names."""
    from genai_prices import data_snapshot

    wanted = text.casefold()
    found = [
        (vendor.id, info.id)
        for vendor in data_snapshot.get_snapshot().providers
        for info in vendor.models
        if wanted in info.id.casefold()
    ]
    return sorted(found, key=lambda each: (len(each[1]), each))[:limit]


def models_of(vendor: str) -> list[str]:
    """Return the ids of a vendor's published models."""
    from genai_prices import data_snapshot

    own = _PROXIES_NAMES.get(vendor, vendor)
    providers = data_snapshot.get_snapshot().providers
    return [info.id for each in providers if each.id == own for info in each.models]


_PROXIES_NAMES: Final = {"gemini": "google", "vertex_ai": "google", "xai": "x-ai",
                         "together_ai": "together", "fireworks_ai": "fireworks",
                         "moonshot": "moonshotai", "bedrock": "aws"}  # fmt: skip
"""Vendors by the names that proxies use (https://docs.litellm.ai/docs/providers, 2026-11)."""

_PARTS_MAX: Final = 3


def names(provider: str | None, model: str) -> Iterator[tuple[str | None, str]]:
    """Yield the vendors and names under which a model may be listed, the likeliest first.

    Behind a proxy a model's name begins with its vendor's.

    >>> list(names("openai", "gemini/gemini-2.5-pro"))[2:]
    [('google', 'gemini-2.5-pro'), (None, 'gemini-2.5-pro')]
    """
    if provider:
        yield provider, model
    yield None, model
    for _ in range(_PARTS_MAX):
        vendor, slash, model = model.partition("/")
        if not slash or not vendor or not model:
            return
        yield _PROXIES_NAMES.get(vendor.lower(), vendor.lower()), model
        yield None, model


def _tariff(infos: Iterable[ModelInfo], model: str, now_ms: int) -> Tariff | None:
    """Return the dearest tariff of some listings of a model; None where none has prices."""
    found = [each for info in infos if (each := _of(info, _times(model, info), now_ms)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    windows = [each.context_window for each in found if each.context_window is not None]
    rows = dearest_rows([each.rows for each in found])
    return Tariff(rows, "published", max(windows, default=None))


def _of(info: ModelInfo, times: int, now_ms: int) -> Tariff | None:
    timetable = _Timetable(info, times)
    if not timetable.is_needed:
        rows = timetable.at(now_ms)
        return Tariff(rows, "published", info.context_window) if rows else None
    rows = timetable.dearest(now_ms)
    if not rows:
        return None
    return Tariff(rows, "published", info.context_window, timetable.at)


class _Timetable:
    """A model's price lists by the time of a request, each price so many times as listed."""

    def __init__(self, info: ModelInfo, times: int) -> None:
        prices = info.prices if isinstance(info.prices, list) else []
        all_of_them = (each.constraint for each in (*prices, *(info.price_variants or ())))
        self._info, self._times = info, times
        self._constraints: list[Constraint] = [each for each in all_of_them if each is not None]
        # Price lists by which of the constraints hold at a moment: few, however many moments.
        self._lists: dict[tuple[bool, ...], list[RateRow]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether the model has prices with a date or an hour of their own."""
        return bool(self._constraints)

    def at(self, at_ms: int) -> list[RateRow]:
        """Return the price list of a moment, in Unix milliseconds."""
        return self._list(_time_of(at_ms))

    def dearest(self, now_ms: int) -> list[RateRow]:
        """Return the dearest prices of a day and the next one."""
        # Prices change only at these times of a day, so one moment after each shows all of them.
        now = _time_of(now_ms)
        starts = {dt.time(tzinfo=dt.UTC)}
        for each in self._constraints:
            for name in ("start_time", "end_time"):  # only those by the hour have them
                edge: dt.time | None = getattr(each, name, None)
                if edge is not None:
                    there = dt.datetime.combine(now.date(), edge, edge.tzinfo or dt.UTC)
                    starts.add(there.astimezone(dt.UTC).timetz())
        days = (now.date(), now.date() + dt.timedelta(days=1))
        lists = [self._list(dt.datetime.combine(day, start)) for day in days for start in starts]
        return dearest_rows([each for each in lists if each])

    def _list(self, moment: dt.datetime) -> list[RateRow]:
        active = tuple(each.active(moment) for each in self._constraints)
        if active not in self._lists:
            rows = _price_list(self._info, moment)
            self._lists[active] = rows if self._times == 1 else _dearer(rows, self._times)
        return self._lists[active]


def _dearer(rows: list[RateRow], times: int) -> list[RateRow]:
    figures = ((row.tier, row.above, msgspec.structs.astuple(row)[2:]) for row in rows)
    return [
        RateRow(tier, above, *(times * each for each in found)) for tier, above, found in figures
    ]


_LATEST_MS: Final = 250_000_000_000_000
"""In the year 9892: a clock may be wrong, and a date has an end."""


def _time_of(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(min(at_ms, _LATEST_MS) / 1000, dt.UTC)


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


def _price_list(info: ModelInfo, moment: dt.datetime) -> list[RateRow]:
    """Return the price list of a moment; empty where it has no price for tokens."""
    standard = _values(info, info.get_prices(moment))
    if standard["input_per_mtok"] is None and standard["output_per_mtok"] is None:
        return []
    if info.id in _AUDIO:
        standard["input_audio"], standard["audio_per_mtok"] = _AUDIO[info.id]
    if "gpt-image" in info.id:  # images to edit are dearer than words; usage does not say which
        standard["input_per_mtok"] = standard["input_image"] or standard["input_per_mtok"]
    rows = list(_rows(STANDARD, standard))
    for tier in _tiers(info):
        values = _values(info, info.get_prices(moment, _context(tier)))
        if values != standard:
            rows += _rows(tier, values)
    return ordered(rows)


_AUDIO: Final = {
    **dict.fromkeys(("gpt-audio", "openai/gpt-audio"), (Decimal(32), Decimal(64))),
    **dict.fromkeys(("gpt-audio-mini", "openai/gpt-audio-mini"), (Decimal(10), Decimal(20))),
    "gpt-4o-audio-preview": (Decimal(40), Decimal(80)),
    "gpt-4o-mini-audio-preview": (Decimal(10), Decimal(20)),
}
"""Dollars per million tokens of audio, in the prompt and in the answer, which the list lacks
(https://developers.openai.com/api/docs/models/gpt-4o-audio-preview and its like, 2026-11)."""

_TIERS: Final = (("service_tier", "flex"), ("service_tier", "priority"), ("service_tier", "fast"),
                 ("speed", "fast"), ("service_tier", "ultrafast"))  # fmt: skip


def _tiers(info: ModelInfo) -> list[str]:
    """Return the service tiers with prices of their own."""
    named = [variant.when for variant in info.price_variants or ()]
    return sorted({tier for name, tier in _TIERS if {name: tier} in named})


def _context(tier: str) -> PriceContext:
    return {name: own for name, own in _TIERS if own == tier}


def _values(info: ModelInfo, price: ModelPrice) -> dict[str, Any]:
    values = {name: getattr(price, source, None) for name, source in _FIGURES}
    if "gemini" in info.id and values["input_audio"] is None:
        values["input_audio"] = values["input_per_mtok"]
    if info.id.rpartition("/")[2].startswith("gemini-omni"):
        values["output_image"] = _OMNI_VIDEO
    return values


_OMNI_VIDEO: Final = Decimal("17.5")
"""Dollars per million tokens of video that Gemini Omni answers with, which the list lacks. Where
sound in a prompt costs another price than text, Google's list says so, and ours has it too
(https://ai.google.dev/gemini-api/docs/pricing, 2026-10)."""


def _rows(tier: str, values: dict[str, Any]) -> Iterator[RateRow]:
    """Yield a row for each size of prompt at which a price changes."""
    starts = {t.start for v in values.values() for t in getattr(v, "tiers", ())}
    for start in (-1, *sorted(starts)):
        at_size = {name: _nanousd(value, start + 1) for name, value in values.items()}
        input_audio, image = at_size.pop("input_audio"), at_size.pop("output_image")
        at_size.pop("input_image")
        if at_size["audio_per_mtok"] is None and input_audio is not None:
            at_size["audio_per_mtok"] = max(input_audio, at_size["output_per_mtok"] or 0)
        long_write = at_size.pop("cache_write_1h")
        figures = Rates(
            input_per_mtok=at_size.pop("input_per_mtok") or 0,
            # Usage does not tell images and words of an answer apart.
            output_per_mtok=max(at_size.pop("output_per_mtok") or 0, image or 0),
            **at_size,
        )
        yield row(tier, start, figures, long_write, input_audio)


def _nanousd(value: Any, prompt_tokens: int) -> int | None:
    if value is None:
        return None
    for tier in reversed(getattr(value, "tiers", ())):
        if prompt_tokens > tier.start:
            value = tier.price
            break
    usd = Decimal(getattr(value, "base", value))
    return int((usd * NANOUSD_PER_DOLLAR).to_integral_value(rounding="ROUND_CEILING"))
