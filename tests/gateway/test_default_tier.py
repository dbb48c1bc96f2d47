"""The organisation's setting ``default_tier``: what requests cost that name no service tier."""

from __future__ import annotations

from typing import Any

import pytest

from guard.core.leases import worst_case
from guard.core.rates import Terms
from guard.core.request_bound import RequestBound
from guard.gateway.domain.records import Rates
from guard.gateway.services.pricing import PriceBook
from tests.gateway.conftest import Tenant

FALLBACK = Rates(input_per_mtok=10**10, output_per_mtok=4 * 10**10)
STANDARD = 100 * 1_250 + 50 * 10_000
"""Of gpt-5; with priority processing twice as much."""


def held(tenant: Tenant, **fields: Any) -> int:
    asked = {"model": "gpt-5", "function": "openai", "kind": "llm", "max_input_tokens": 100,
             "max_output_tokens": 50, **fields}  # fmt: skip
    reserved: int = tenant.allowed(**asked)["reserved_nanousd"]
    return reserved


def test_it_is_held_where_a_request_names_none(tenant: Tenant) -> None:
    assert held(tenant) == STANDARD
    tenant.admin.update_settings(default_tier="priority")
    assert held(tenant) == held(tenant, tier="auto") == 2 * STANDARD
    assert held(tenant, tier="default") == held(tenant, tier="flex") == STANDARD
    claude = {"model": "claude-haiku-4-5", "function": "anthropic", "cache_writes": 0}
    assert held(tenant, **claude) == 100 * 1_000 + 50 * 5_000, "it is OpenAI's"
    tenant.admin.update_settings(default_tier="standard")
    assert held(tenant) == STANDARD


@pytest.mark.parametrize("tier", ["priority", "fast", "ultrafast"])
@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "gpt-5.4", "o1-pro", "nobody-knows"])
def test_leases_cover_what_the_same_request_costs_that_names_it(tier: str, model: str) -> None:
    rates = PriceBook([], FALLBACK, default_tier=tier).model_rates("openai", model)
    plain = PriceBook([], FALLBACK).model_rates("openai", model)
    for tokens in (100, 300_000):
        unnamed = worst_case(rates, RequestBound("openai", model, tokens, 50))
        named = RequestBound("openai", model, tokens, 50, terms=Terms(tier))
        assert unnamed == worst_case(plain, named) == worst_case(rates, named)
