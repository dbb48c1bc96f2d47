"""Prices with an hour or a date of their own: the dearest is held, that of the time is charged."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest

from guard.core.leases import cost_of, worst_case
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.core.wire import LlmData
from guard.gateway.domain.records import Rates
from guard.gateway.services import pricing
from guard.gateway.services.pricing import PriceBook
from tests.gateway.conftest import Tenant

FALLBACK = Rates(input_per_mtok=10**10, output_per_mtok=4 * 10**10)
DAY = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)
HALF_HOUR = dt.timedelta(minutes=30)
PEAK, CALM = (1.32, 3.96), (0.66, 1.98)
"""Dollars per million tokens of deepseek-v4-pro, by its vendor's page of November 2026: peak from
01:00 to 04:00 and from 06:00 to 10:00 UTC."""


def ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self, moment: dt.datetime) -> None:
        self.moment = moment

    def __call__(self) -> int:
        return ms(self.moment)


def spent(model: str, provider: str = "deepseek") -> LlmData:
    return LlmData(model=model, provider=provider, input_tokens=1000, output_tokens=1000)


def billed(moment: dt.datetime) -> int:
    rates = PEAK if moment.hour in (1, 2, 3, 6, 7, 8, 9) else CALM
    return round(sum(rates) * 1_000_000)


def test_a_book_follows_the_clock_across_an_edge() -> None:
    clock = Clock(DAY + HALF_HOUR)
    book = PriceBook([], FALLBACK, clock)
    bound = RequestBound("deepseek", "deepseek-v4-pro", 1000, 1000)
    used = Usage(input_tokens=1000, output_tokens=1000)
    for step in range(96):
        clock.moment = DAY + step * HALF_HOUR
        assert book.cost(spent("deepseek-v4-pro"))[0] == billed(clock.moment), clock.moment
        rates = book.model_rates("deepseek", "deepseek-v4-pro")
        held = worst_case(rates, bound)
        assert held is not None
        assert held[0] >= round(sum(PEAK) * 1_000_000), "an answer may end in the dearest hour"
        assert cost_of(rates, used) == billed(clock.moment), "the SDK settles what is charged"


def test_a_book_that_is_full_follows_the_clock_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "_CACHE_MAX", 2)
    clock = Clock(DAY + HALF_HOUR)
    book = PriceBook([], FALLBACK, clock)
    used = Usage(input_tokens=1000, output_tokens=1000)

    def settled() -> int | None:
        return cost_of(book.model_rates("deepseek", "deepseek-v4-pro"), used)

    assert settled() == billed(clock.moment)
    for model in ("a", "b"):  # names are the clients' to choose; these leave no room in the book
        book.cost(spent(model))
    clock.moment = DAY + 3 * HALF_HOUR
    assert settled() == billed(clock.moment)


def test_an_event_is_charged_by_its_own_time() -> None:
    book = PriceBook([], FALLBACK, Clock(DAY))
    for step in range(-96, 96):
        moment = DAY + step * HALF_HOUR
        assert book.cost(spent("deepseek-v4-pro"), ms(moment))[0] == billed(moment), moment
    for wrong in (0, 1, 2**53):
        assert book.cost(spent("deepseek-v4-pro"), wrong)[0] == round(sum(PEAK) * 1_000_000)


def test_a_price_that_begins_on_a_date_is_held_the_day_before() -> None:
    clock = Clock(dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC))
    book = PriceBook([], FALLBACK, clock)
    bound = RequestBound("google", "gemini-4-argon", 1000, 1000)
    found = []
    for _ in range(3):  # the new price begins on the first of December
        rates = book.model_rates("google", "gemini-4-argon")
        held = worst_case(rates, bound)
        assert held is not None
        found.append((held[0], book.cost(spent("gemini-4-argon", "google"))[0]))
        clock.moment += dt.timedelta(days=1)
    old, new = 1000 * (2 + 10) * 1000, 1000 * (4 + 20) * 1000
    assert [each[1] for each in found] == [old, old, new]
    assert [each[0] >= new for each in found] == [False, True, True]


def changing() -> list[tuple[str, str]]:
    """Every model of the list whose prices have an hour or a date."""
    from genai_prices import data_snapshot

    return [
        (provider.id, model.id)
        for provider in data_snapshot.get_snapshot().providers
        for model in provider.models
        if isinstance(model.prices, list)
    ]


def test_nothing_that_is_charged_within_a_day_is_above_what_was_held() -> None:
    rng = random.Random(5)
    clock = Clock(DAY)
    book = PriceBook([], FALLBACK, clock)
    for provider, model in changing():
        for _ in range(5):
            clock.moment = DAY + dt.timedelta(minutes=rng.randrange(-400 * 1440, 60 * 1440))
            rates = book.model_rates(provider, model)
            tokens = rng.choice([10, 150_000, 300_000])
            held = worst_case(rates, RequestBound(provider, model, tokens, 1000))
            if held is None:
                continue
            later = ms(clock.moment + dt.timedelta(minutes=rng.randrange(1440)))
            tokens = min(tokens, rates.context_tokens or tokens)
            used = LlmData(model=model, provider=provider, input_tokens=tokens, output_tokens=1000)
            assert held[0] >= book.cost(used, later)[0], (provider, model, clock.moment)


def test_hours_begin_at_quarters() -> None:
    from genai_prices import data_snapshot

    for provider in data_snapshot.get_snapshot().providers:
        for model in provider.models:
            prices: list[Any] = model.prices if isinstance(model.prices, list) else []
            for each in prices:
                for name in ("start_time", "end_time"):
                    edge = getattr(each.constraint, name, None)
                    assert edge is None or (edge.minute % 15, edge.second) == (0, 0), model.id


@pytest.mark.parametrize("hour", [0, 2])
def test_the_gateway_charges_by_the_hour(tenant: Tenant, hour: int) -> None:
    today = dt.datetime.now(dt.UTC).replace(minute=30, hour=hour)
    data = {"model": "deepseek-v4-pro", "provider": "deepseek", "input_tokens": 1000,
            "output_tokens": 1000}  # fmt: skip
    tenant.send(tenant.llm(data=data, at_ms=ms(today)))
    assert tenant.admin.events()[0]["cost_nanousd"] == billed(today)
