"""Names such as ``openai/gpt-4.1-nano``, by which proxies tell vendors apart, have their prices."""

from __future__ import annotations

import pytest

from guard.core.fees import by_the_piece
from guard.core.wire import LlmData, ModelRates
from guard.gateway.domain.records import Price, Rates
from guard.gateway.services.pricing import PriceBook
from tests.gateway.conftest import Tenant

FALLBACK = Rates(input_per_mtok=10**10, output_per_mtok=4 * 10**10)
VENDORS = {"anthropic": "anthropic", "azure": "azure", "cohere": "cohere", "deepseek": "deepseek",
           "gemini": "google", "vertex_ai": "google", "google": "google", "groq": "groq",
           "mistral": "mistral", "openai": "openai", "perplexity": "perplexity", "xai": "x-ai",
           "together_ai": "together", "fireworks_ai": "fireworks", "moonshot": "moonshotai",
           "bedrock": "aws", "cerebras": "cerebras", "openrouter": "openrouter"}  # fmt: skip
"""What a proxy calls a vendor, and what the price list calls it."""


@pytest.fixture(scope="module")
def book() -> PriceBook:
    return PriceBook([], FALLBACK)


def models(vendor: str) -> list[str]:
    from genai_prices import data_snapshot

    found = (p for p in data_snapshot.get_snapshot().providers if p.id == vendor)
    return [model.id for provider in found for model in provider.models]


def figures(rates: ModelRates) -> tuple[object, ...]:
    return rates.rows, rates.fallback, rates.largest_output_tokens, rates.context_tokens


@pytest.mark.parametrize("prefix", list(VENDORS))
def test_every_model_costs_what_it_costs_at_its_vendor(book: PriceBook, prefix: str) -> None:
    vendor = VENDORS[prefix]
    assert len(models(vendor)) > 5
    for model in models(vendor)[:120]:
        if by_the_piece(model):
            continue
        behind = book.model_rates("openai", f"{prefix}/{model}")
        there = book.model_rates(vendor, model)
        assert figures(behind)[:2] == figures(there)[:2], model
        if there.largest_output_tokens is not None:
            assert behind.largest_output_tokens is not None, model
        if there.context_tokens is not None:
            assert (behind.context_tokens or 10**9) >= there.context_tokens, model


def test_an_unknown_vendor_is_left_out_and_an_unknown_model_stays_unknown(book: PriceBook) -> None:
    plain = book.model_rates("openai", "gpt-4o")
    assert figures(book.model_rates("openai", "acme/gpt-4o")) == figures(plain)
    for name in ("openai/nobody-knows", "acme/", "/", "a/b/c/d/e", "openai/"):
        assert book.model_rates("openai", name).fallback, name


def test_what_the_operator_says_of_a_name_comes_first() -> None:
    rates = Rates(input_per_mtok=7, output_per_mtok=7)
    price = Price(price_id="p", organisation_id="o", provider="*", model="openai/*", rates=rates)
    book = PriceBook([price], FALLBACK)
    assert book.model_rates("openai", "openai/gpt-4o").input_per_mtok == 7
    assert book.cost(LlmData(model="openai/gpt-4o", input_tokens=10**6))[0] == 7


def test_it_is_held_and_charged_at_that_price(tenant: Tenant) -> None:
    fields = {"model": "openai/gpt-4.1-nano", "function": "openai", "kind": "llm"}
    reply = tenant.allowed(**fields, max_input_tokens=10_000, max_output_tokens=1_000)
    assert reply["reserved_nanousd"] == 10_000 * 100 + 1_000 * 400
    data = {"model": "openai/gpt-4.1-nano", "provider": "openai", "input_tokens": 10_000,
            "output_tokens": 1_000}  # fmt: skip
    tenant.send(tenant.llm(data=data, reservation_id=reply["reservation_id"]))
    (event,) = tenant.admin.events()
    assert event["cost_nanousd"] == 10_000 * 100 + 1_000 * 400
    assert "unpriced" not in event["flags"]
