"""Novita: what was added for a vendor that speaks OpenAI's format at a host of its own."""

from __future__ import annotations

import json

import pytest

from guard.core.bounds import InputRatios, bound_of
from guard.core.usage.vendors import find_endpoint, provider_of
from guard.gateway.domain.records import Rates
from guard.gateway.services.pricing import PriceBook

HOST = "api.novita.ai"
MODEL = "meta-llama/llama-3.3-70b-instruct"
BODY = {
    "model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100,
    "n": 2, "seed": 1, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1,
    "stop": ["."], "temperature": 1, "top_p": 1, "top_k": 9, "min_p": 0, "logit_bias": {},
    "logprobs": True, "top_logprobs": 1, "separate_reasoning": True, "enable_thinking": False,
    "response_format": {"type": "json_object"},
}  # fmt: skip
"""The documented members of a chat's body (https://novita.ai/docs, 2026-11)."""


@pytest.mark.parametrize("base", ["/openai/v1", "/v3/openai"])
def test_a_chat_is_bounded_by_what_it_names_and_nothing_in_it_is_unknown(base: str) -> None:
    found = find_endpoint("POST", HOST, f"{base}/chat/completions")
    assert found is not None
    assert found.format.provider == provider_of(HOST) == "novita"
    path, body = f"{base}/chat/completions", json.dumps(BODY).encode()
    bound = bound_of(found.format, path, body, InputRatios(), frozenset())
    assert (bound.model, bound.output_tokens) == (MODEL, 200)
    assert (bound.unknown, bound.unjudged) == ((), ())


@pytest.mark.parametrize("path", ["/v3/async/txt2img", "/gpu-instance/openapi/v1/gpu/create"])
def test_pictures_and_machines_are_not_known(path: str) -> None:
    found = find_endpoint("POST", HOST, path)
    assert found is not None
    assert found.is_unknown


def test_its_models_have_its_own_prices() -> None:
    book = PriceBook([], Rates(input_per_mtok=10**10, output_per_mtok=4 * 10**10))
    assert not book.model_rates("novita", MODEL).fallback
    assert book.model_rates("openai", MODEL).fallback, "what its requests were priced as before"
