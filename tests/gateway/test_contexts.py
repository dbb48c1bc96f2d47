"""The table of context windows, and what is held for prompts that nothing bounds."""

from __future__ import annotations

import re

import pytest

from guard.core import globs
from guard.core.leases import worst_case
from guard.core.request_bound import RequestBound
from guard.gateway.domain.contexts import (
    CONTEXTS,
    LARGEST_ANYWHERE,
    LARGEST_CONTEXTS,
    context_of,
    largest_context,
)
from guard.gateway.domain.largest_outputs import largest_output
from guard.gateway.domain.records import Price, Rates
from guard.gateway.services.pricing import PriceBook
from guard.gateway.services.published import published
from tests.gateway.conftest import Tenant

FALLBACK = Rates(input_per_mtok=10**10, output_per_mtok=4 * 10**10)
NOW_MS = 1_795_000_000_000  # in November 2026
ELSEWHERE = {"meta.llama4-scout-17b-instruct-v1:0": 10_000_000}
"""Models with a larger context than any other, which their own line knows."""


def priced() -> list[tuple[str, str, int | None]]:
    """Every model of the price list, with the context that stands beside its price there."""
    from genai_prices import data_snapshot

    return [
        (provider.id, model.id, found.context_window)
        for provider in data_snapshot.get_snapshot().providers
        for model in provider.models
        if (found := published(provider.id, model.id, NOW_MS)) is not None
    ]


def test_each_line_has_a_source_with_a_date_and_can_be_found() -> None:
    sources = [line[3] for line in CONTEXTS] + [line[1] for line in LARGEST_CONTEXTS.values()]
    for source in sources:
        assert source.url.startswith("https://")
        assert re.fullmatch(r"20\d\d-\d\d", source.read)
    for provider, pattern, tokens, _ in CONTEXTS:
        assert pattern == globs.fold(pattern), "names are compared folded"
        assert context_of(provider, pattern.replace("*", "x"), None) is not None
        assert tokens <= largest_context(provider), pattern
    patterns = [line[:2] for line in CONTEXTS]
    assert len(set(patterns)) == len(patterns)


def test_no_model_that_is_priced_has_a_context_below_its_largest_answer() -> None:
    book = PriceBook([], FALLBACK)
    for provider, model, listed in priced():
        rates = book.model_rates(provider, model)
        largest = largest_output(provider, model) or 0
        context = rates.context_tokens
        if context is not None:
            assert context >= max(largest, listed or 0), (provider, model)
            assert all(context > row.above for row in rates.rows), (provider, model)
        assumed = book.largest_prompt(provider, model)
        assert assumed >= max(largest, listed or 0), (provider, model)
        if model not in ELSEWHERE:
            assert assumed <= largest_context(provider), (provider, model)


def test_an_older_context_caps_no_prompt() -> None:
    rates = PriceBook([], FALLBACK).model_rates("deepseek", "deepseek-chat")
    held = worst_case(rates, RequestBound("deepseek", "deepseek-chat", 555_072, 1))
    assert held is not None
    assert held[0] >= 555_072 * rates.rows[0].input // 10**6


@pytest.mark.parametrize(
    "model", ["gemini-2.5-pro", "gemini-3-pro-preview", "gemini-3.1-pro-preview"]
)
def test_a_file_is_held_at_the_whole_context_above_its_size(tenant: Tenant, model: str) -> None:
    fields = {"model": model, "function": "google", "kind": "llm", "max_output_tokens": 1}
    reply = tenant.allowed(**fields)
    above = max(row[2] for row in reply["rates"]["rows"] if row[1] >= 200_000)
    assert reply["reserved_nanousd"] >= 1_048_576 * above // 10**6


def test_an_unknown_context_is_the_largest_of_its_vendor(tenant: Tenant) -> None:
    tenant.admin.set_price(model="own", input_per_mtok=10**9, output_per_mtok=0)
    fields = {"model": "own", "kind": "llm", "max_output_tokens": 1}
    for vendor in ("anthropic", "google", "someone"):
        reply = tenant.allowed(**fields, function=vendor)
        assert reply["reserved_nanousd"] == largest_context(vendor) * 1000, vendor


def test_a_price_of_the_operator_leaves_the_model_its_context() -> None:
    price = Price(price_id="p", organisation_id="o", provider="*", model="gpt-4o", rates=FALLBACK)
    book = PriceBook([price], FALLBACK)
    assert book.model_rates("openai", "gpt-4o").context_tokens == 128_000
    assert book.model_rates("openai", "my-model").context_tokens is None
    assert max(tokens for tokens, _ in LARGEST_CONTEXTS.values()) <= LARGEST_ANYWHERE
