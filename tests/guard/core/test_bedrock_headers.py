"""What an InvokeModel says in its headers is read before it is sent."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from guard.core.bounds import InputRatios, bound_of
from guard.core.rates import PRIORITY
from guard.core.request_bound import RequestBound
from guard.core.usage.vendors import find_endpoint

HOST: Final = "bedrock-runtime.us-east-1.amazonaws.com"
BODIES: Final[dict[str, dict[str, Any]]] = {
    "anthropic.claude-opus-5": {
        "anthropic_version": "bedrock-2023-05-31", "max_tokens": 100,
        "messages": [{"role": "user", "content": "hello"}],
    },
    "amazon.nova-pro-v1:0": {
        "messages": [{"role": "user", "content": [{"text": "hello"}]}],
        "inferenceConfig": {"maxTokens": 100},
    },
}  # fmt: skip


def bound(model: str, **headers: Any) -> RequestBound:
    path = f"/model/{model}/invoke"
    endpoint = find_endpoint("POST", HOST, path)
    assert endpoint is not None
    given = {f"X-Amzn-Bedrock-{name.replace('_', '-')}": value for name, value in headers.items()}
    return bound_of(
        endpoint.format, path, json.dumps(BODIES[model]).encode(), InputRatios(), (),
        headers=lambda: {"Authorization": "AWS4", **given},
    )  # fmt: skip


@pytest.mark.parametrize("model", BODIES)
class TestAHeader:
    def test_without_any_changes_nothing(self, model: str) -> None:
        plain = bound(model)
        assert (plain.unknown, plain.unjudged, plain.terms.tier) == ((), (), "")
        assert plain.input_tokens is not None
        assert bound(model, Trace="ENABLED", Accept="*/*", Request_Metadata="{}") == plain

    @pytest.mark.parametrize("value", ["priority", b"Priority", "PRIORITY"])
    def test_names_a_tier(self, model: str, value: Any) -> None:
        found = bound(model, Service_Tier=value)
        assert (found.terms.tier, found.unknown) == (PRIORITY, ())
        assert found.output_tokens == 100

    def test_names_the_latency(self, model: str) -> None:
        assert bound(model, PerformanceConfig_Latency="optimized").terms.tier == PRIORITY
        assert bound(model, PerformanceConfig_Latency="standard").terms.tier == ""

    def test_names_a_guardrail_which_is_dear(self, model: str) -> None:
        found = bound(model, GuardrailIdentifier="g", GuardrailVersion="1")
        assert found.unknown == ("member:guardrailConfig",)
        assert found.output_tokens is None

    def test_that_is_unknown_is_dear_by_its_name_or_named(self, model: str) -> None:
        dear = bound(model, Max_Branches="3")
        assert dear.unknown == ("member:x-amzn-bedrock-max-branches",)
        assert dear.output_tokens is None
        named = bound(model, Colour="red")
        assert named.unjudged == ("member:x-amzn-bedrock-colour",)
        assert named.output_tokens == 100
