"""All models that a request names may answer it; a choice of its vendor has no bound."""

from __future__ import annotations

import json
from typing import Any

import pytest

from guard.core.bounds import InputRatios, bound_of
from guard.core.leases import worst_case
from guard.core.rates import dearest_of
from guard.core.request_bound import RequestBound
from guard.core.usage.vendors import find_endpoint
from guard.core.wire import ModelRates, RateRow

CHAT = ("openrouter.ai", "/api/v1/chat/completions")
MESSAGES = ("api.anthropic.com", "/v1/messages")
ASKED: dict[str, Any] = {
    "model": "claude-haiku-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hello"}],
}


def bound(place: tuple[str, str], *trusted: str, **members: Any) -> RequestBound:
    host, path = place
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    names = frozenset(trusted) if endpoint.is_vendors else None
    body = {name: each for name, each in (ASKED | members).items() if each is not None}
    return bound_of(endpoint.format, path, json.dumps(body).encode(), InputRatios(), names)


@pytest.mark.parametrize(
    ("place", "members", "models"),
    [
        (CHAT, {"models": ["gpt-5-pro", "claude-haiku-5"]}, ("gpt-5-pro",)),
        (CHAT, {"models": ["gpt-5-pro"], "route": "fallback"}, ("gpt-5-pro",)),
        (CHAT, {"fallbacks": [{"model": "gpt-5-pro"}, "o9-pro"]}, ("gpt-5-pro", "o9-pro")),
        (("llm.example", "/v1/chat/completions"), {"fallbacks": ["gpt-5-pro"]}, ("gpt-5-pro",)),
        (("openrouter.ai", "/api/v1/messages"), {"models": ["gpt-5-pro"]}, ("gpt-5-pro",)),
        (MESSAGES, {"tools": [{"type": "advisor_20260301", "model": "claude-opus-5"}]},
         ("claude-opus-5",)),
        (MESSAGES, {"critic": {"name": "claude-opus-5"}}, ("claude-opus-5",)),
        (MESSAGES, {"critic_model": "orbit"}, ("orbit",)),
        (CHAT, {}, ()), (MESSAGES, {}, ()),
    ],
)  # fmt: skip
def test_each_model_that_is_named_may_answer(
    place: tuple[str, str], members: dict[str, Any], models: tuple[str, ...]
) -> None:
    found = bound(place, **members)
    assert (found.model, found.models) == ("claude-haiku-5", models)
    assert found.unnumbered == ""


def test_the_first_of_a_list_is_asked_where_no_model_is_named() -> None:
    found = bound(CHAT, model=None, models=["gpt-5", "gpt-5-pro"])
    assert (found.model, found.models, found.unnumbered) == ("gpt-5", ("gpt-5-pro",), "")


def test_a_prompt_counts_in_the_tokens_of_the_model_that_needs_most() -> None:
    text = [{"role": "user", "content": "hello there " * 100}]
    alone = [
        bound(CHAT, model=model, messages=text).input_tokens
        for model in ("gpt-4o", "claude-opus-5")
    ]
    both = bound(CHAT, model="gpt-4o", models=["claude-opus-5"], messages=text).input_tokens
    assert None not in alone
    assert both is not None
    assert both >= max(filter(None, alone))


def test_attempts_are_charged_one_after_the_other() -> None:
    plain = bound(MESSAGES)
    twice = bound(MESSAGES, fallbacks=[{"model": "claude-opus-5"}])
    assert (plain.output_tokens, twice.output_tokens, twice.models) == (
        100, 200, ("claude-opus-5",)
    )  # fmt: skip
    assert plain.input_tokens is not None
    assert twice.input_tokens is not None
    assert twice.input_tokens >= 2 * plain.input_tokens
    longer = bound(MESSAGES, fallbacks=[{"model": "claude-opus-5", "max_tokens": 900}])
    assert (longer.output_tokens, longer.least_output) == (1800, None)
    fast = bound(MESSAGES, fallbacks=[{"model": "claude-opus-5", "speed": "fast"}])
    assert fast.terms.tier == "fast"
    # What stands behind a name of the vendor's is not known: the whole context.
    assert bound(MESSAGES, fallbacks="default").output_tokens is None


@pytest.mark.parametrize(
    ("place", "members", "label"),
    [
        (CHAT, {"model": "openrouter/auto"}, "model:openrouter/auto"),
        (CHAT, {"model": "openrouter/auto:online"}, "model:openrouter/auto:online"),
        (CHAT, {"model": "@preset/mine"}, "model:@preset/mine"),
        (CHAT, {"model": "gpt-4o@preset/mine"}, "model:gpt-4o@preset/mine"),
        (CHAT, {"models": ["gpt-4o", "openrouter/auto"]}, "model:openrouter/auto"),
        (CHAT, {"preset": "mine"}, "member:preset"),
        (CHAT, {"model": None}, "model:default"),
        (CHAT, {"model": "openrouter/auto",
                "plugins": [{"id": "auto-router", "allowed_models": ["openai/*"]}]},
         "model:openrouter/auto"),
        (("x.openai.azure.com", "/openai/deployments/model-router/chat/completions"),
         {"model": None}, "model:model-router"),
        (("bedrock-runtime.us-east-1.amazonaws.com",
          "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Adefault-prompt-router%2Fx/converse"),
         {"model": None}, "model:arn:aws:bedrock:us-east-1:1:default-prompt-router/x"),
    ],
)  # fmt: skip
def test_where_the_vendor_chooses_nothing_bounds_the_price(
    place: tuple[str, str], members: dict[str, Any], label: str
) -> None:
    found = bound(place, **members)
    assert f"--trust {label}" in found.unnumbered
    assert bound(place, label, **members).unnumbered == ""


def test_a_router_that_may_choose_among_named_models_is_held_at_the_dearest() -> None:
    plugin = {"id": "auto-router", "allowed_models": ["openai/gpt-5", "openai/gpt-5-pro"]}
    found = bound(CHAT, model="openrouter/auto", plugins=[plugin])
    assert found.models == ("openai/gpt-5", "openai/gpt-5-pro")
    assert found.unnumbered == ""


def test_elsewhere_a_name_is_the_server_s_own() -> None:
    assert bound(("llm.example", "/v1/chat/completions"), model="openrouter/auto").unnumbered == ""


def test_a_choice_between_very_many_models_is_none() -> None:
    assert "more than 64" in bound(CHAT, models=[f"m{i}" for i in range(70)]).unnumbered


def rates(price_in: int, price_out: int, largest: int | None, context: int | None) -> ModelRates:
    row = RateRow("", -1, price_in, price_out, price_in, price_in, price_in, price_out, 0)
    return ModelRates(
        price_in, price_out, price_in, price_in, price_out, price_out, price_in, price_out,
        largest, context, [row],
    )  # fmt: skip


def test_the_dearest_of_several_is_nowhere_below_any() -> None:
    each = [
        rates(1_000_000, 9_000_000, 8_000, 1_000_000),
        rates(3_000_000, 4_000_000, 128_000, 128_000),
        rates(2_000_000, 99_000_000, 1_000, 200_000),
    ]
    dearest = dearest_of(each)
    for asked in (
        RequestBound("v", "m", 10, 20), RequestBound("v", "m", 500_000, 20),
        RequestBound("v", "m", None, 20), RequestBound("v", "m", 100, None),
        RequestBound("v", "m", None, None),
    ):  # fmt: skip
        held = worst_case(dearest, asked)
        alone = [worst_case(one, asked) for one in each]
        assert held is not None
        assert all(one is not None and held[0] >= one[0] for one in alone)
    assert dearest_of(each[:1]) is each[0]
    unknown = dearest_of([*each, rates(1, 1, None, None)])
    assert unknown.largest_output_tokens is None
    assert unknown.context_tokens is None
