"""Each number of an answer is charged by a rule, is contained in one that is, or is named."""

from __future__ import annotations

import copy
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any, Final, get_args

import pydantic
import pytest
from anthropic.types.beta import BetaUsage
from cohere.types import ApiMeta
from cohere.types import Usage as CohereUsage
from google.genai import types as genai
from google.genai.interactions import Usage as InteractionUsage
from groq.types import CompletionUsage as GroqUsage
from mistralai.client.models.usageinfo import UsageInfo
from openai.types import CompletionUsage, images_response
from openai.types.audio import transcription
from openai.types.realtime import realtime_response_usage
from openai.types.responses import ResponseUsage

from guard.core.usage import Usage, read_body
from guard.core.usage.counters import can_cost, places, strangers
from guard.core.usage.response_format import Call
from guard.core.usage.vendors import find_endpoint

SDK: Final[tuple[tuple[str, Any], ...]] = (
    ("chat", CompletionUsage), ("chat", GroqUsage), ("chat", UsageInfo),
    ("responses", ResponseUsage), ("responses", images_response.Usage),
    ("responses", transcription.UsageTokens), ("responses", transcription.UsageDuration),
    ("responses", realtime_response_usage.RealtimeResponseUsage),
    ("messages", BetaUsage),
    ("gemini", genai.GenerateContentResponseUsageMetadata), ("gemini", genai.UsageMetadata),
    ("interactions", InteractionUsage), ("cohere", CohereUsage), ("cohere", ApiMeta),
)  # fmt: skip
CHARGED: Final = {"prompt_audio_seconds", "grounding_tool_count.count"}
"""What is charged, and read by no rule yet: such answers cost their bound."""


def numbers_of(model: Any, place: str = "", seen: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the numbers that an SDK's type of usage can hold, by their place."""
    for name, field in model.model_fields.items():
        inner = ".".join(filter(None, (place, field.alias or name)))
        waiting = [field.annotation]
        while waiting:
            each = waiting.pop()
            if each in (int, float):
                yield inner
            elif isinstance(each, type) and issubclass(each, pydantic.BaseModel):
                if each not in seen:
                    yield from numbers_of(each, inner, (*seen, each))
            else:
                waiting += get_args(each)


@pytest.mark.parametrize(("kind", "model"), SDK)
def test_all_that_a_vendors_client_can_read_is_judged(kind: str, model: Any) -> None:
    """A newer client may bring further counters: judge them, in ``vendors/answers``."""
    numbers = set(numbers_of(model))
    assert numbers
    unjudged = set()
    for number in numbers:
        usage: Any = 7
        for name in reversed(number.split(".")):
            usage = {name: usage}
        unjudged |= {label.partition(":")[2] for label in strangers(kind, usage)}
    assert unjudged <= CHARGED


def test_each_judgement_of_a_counter_says_where_it_is_from() -> None:
    file = resources.files("guard.core.vendors").joinpath("answers", "counters.toml")
    groups = [group for kind in tomllib.loads(file.read_text()).values() for group in kind]
    assert len(groups) > 30
    for group in groups:
        assert group["source"], group
        assert group["date"].year >= 2026, group


ANSWERS: Final[dict[str, tuple[str, str, str, dict[str, Any]]]] = {
    "chat": ("api.openai.com", "/v1/chat/completions", "usage", {
        "prompt_tokens": 90, "completion_tokens": 30, "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 20, "audio_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 7, "audio_tokens": 3},
    }),
    "responses": ("api.openai.com", "/v1/responses", "usage", {
        "input_tokens": 90, "output_tokens": 30, "total_tokens": 120,
        "input_tokens_details": {"cached_tokens": 20}, "output_tokens_details": {},
    }),
    "messages": ("api.anthropic.com", "/v1/messages", "usage", {
        "input_tokens": 90, "output_tokens": 30, "cache_read_input_tokens": 4,
        "cache_creation": {"ephemeral_1h_input_tokens": 0}, "server_tool_use": {},
        "iterations": [{"type": "message", "input_tokens": 90, "output_tokens": 30}],
    }),
    "gemini": ("generativelanguage.googleapis.com", "/v1beta/models/g:generateContent",
               "usageMetadata", {
        "promptTokenCount": 90, "candidatesTokenCount": 30, "totalTokenCount": 120,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 90}],
    }),
    "interactions": ("generativelanguage.googleapis.com", "/v1beta/interactions", "usage", {
        "total_input_tokens": 90, "total_output_tokens": 30, "total_tokens": 120,
        "input_tokens_by_modality": [{"modality": "text", "tokens": 90}],
    }),
    "converse": ("bedrock-runtime.us-east-1.amazonaws.com", "/model/m/converse", "usage", {
        "inputTokens": 90, "outputTokens": 30, "totalTokens": 120, "cacheDetails": [{"ttl": "5m"}],
    }),
    "cohere": ("api.cohere.com", "/v2/chat", "usage", {
        "billed_units": {"input_tokens": 90, "output_tokens": 30}, "tokens": {"input_tokens": 95},
    }),
}  # fmt: skip


def read(kind: str, said: dict[str, Any]) -> Usage:
    host, path, name, _ = ANSWERS[kind]
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    found = read_body(endpoint.format, json.dumps({"id": "r", name: said}).encode(), Call(path))
    assert found is not None
    return found


WORDS: Final = ("orbit", "video", "spark", "relay", "halo")
UNITS: Final = ("tokens", "count", "seconds", "requests", "images", "units", "calls", "TokenCount")
HARMLESS: Final = ("latency_ms", "mood", "region_code", "ttft")


def objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for each in node.values() if isinstance(node, dict) else node:
        if isinstance(each, dict | list):
            yield from objects(each)


@pytest.mark.generator("unknown numbers in answers of seven formats")
def test_an_unknown_number_is_dear_or_named(
    record_property: Callable[[str, int], None],
) -> None:
    """Wherever a vendor adds a number to its usage, no answer is charged below it in silence."""
    seeded = random.Random(51)
    for kind, (*_, plain) in ANSWERS.items():
        assert read(kind, plain).strangers == ()
    for _ in range(3_000):
        kind = seeded.choice(list(ANSWERS))
        said = copy.deepcopy(ANSWERS[kind][3])
        place = seeded.choice(list(objects(said)))
        is_costly = seeded.random() < 0.7
        name = seeded.choice(HARMLESS)
        if is_costly:
            name = f"{seeded.choice(WORDS)}_{seeded.choice(UNITS)}"
        number = seeded.choice((1, 17, 250_000, 0.5, "12"))
        depth = seeded.choice((0, 0, 1, 2))
        value: Any = number
        for _level in range(depth):
            value = seeded.choice(({"inner": value}, [{"inner": value}]))
        # A number costs also by the name of what holds it, such as the details of tokens.
        place[name] = value
        (label,) = read(kind, said).strangers
        assert name in label
        if is_costly or place is said:
            assert can_cost(label) is is_costly
        place[name] = seeded.choice((0, None, "", [], False))
        assert read(kind, said).strangers == ()
    record_property("cases", 3_000)


def inner(said: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        said = said.setdefault(name, {})
    return said


PARTS: Final[tuple[tuple[str, str, tuple[str, ...], Any], ...]] = (
    ("chat", "prompt_tokens", ("prompt_tokens_details", "cached_tokens"), 91),
    ("chat", "prompt_tokens", ("prompt_tokens_details", "audio_tokens"), 91),
    ("chat", "prompt_tokens", ("prompt_tokens_details", "cache_write_tokens"), 71),
    ("chat", "completion_tokens", ("completion_tokens_details", "reasoning_tokens"), 31),
    ("chat", "completion_tokens", ("completion_tokens_details", "audio_tokens"), 24),
    ("responses", "input_tokens", ("input_tokens_details", "cached_tokens"), 91),
    ("responses", "input_tokens", ("input_tokens_details", "audio_tokens"), 91),
    ("responses", "input_tokens",
     ("input_tokens_details", "cached_tokens_details", "audio_tokens"), 21),
    ("responses", "output_tokens", ("output_tokens_details", "reasoning_tokens"), 31),
    ("messages", "output_tokens", ("output_tokens_details", "thinking_tokens"), 31),
    ("messages", "cache_creation_input_tokens",
     ("cache_creation", "ephemeral_1h_input_tokens"), 1),
    ("gemini", "promptTokenCount", ("cachedContentTokenCount",), 91),
    ("gemini", "promptTokenCount",
     ("cacheTokensDetails",), [{"modality": "AUDIO", "tokenCount": 1}]),
    ("gemini", "candidatesTokenCount",
     ("candidatesTokensDetails",), [{"modality": "AUDIO", "tokenCount": 31}]),
    ("interactions", "total_input_tokens", ("total_cached_tokens",), 91),
    ("interactions", "total_output_tokens",
     ("output_tokens_by_modality",), [{"modality": "audio", "tokens": 31}]),
    ("cohere", "input_tokens", ("cached_tokens",), 91),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "whole", "part", "number"), PARTS)
def test_a_part_that_is_more_than_the_whole_is_named_and_dear(
    kind: str, whole: str, part: tuple[str, ...], number: Any
) -> None:
    """Cut off at nought, the rest would be charged by nobody knows which of the two."""
    said = copy.deepcopy(ANSWERS[kind][3])
    inner(said, *part[:-1])[part[-1]] = number
    label = f"counter:{whole}.parts"
    assert read(kind, said).strangers == (label,)
    assert can_cost(label)


@pytest.mark.generator("usage whose buckets are added up")
def test_the_buckets_add_up_to_the_total(count_cases: Callable[[int], None]) -> None:
    seeded, cases = random.Random(52), 2_000
    for _ in range(cases):
        asked, answered = seeded.randrange(1, 500), seeded.randrange(1, 500)
        cached = seeded.randrange(asked)
        heard = seeded.randrange(asked - cached)
        thought = seeded.randrange(answered)
        spoken = seeded.randrange(answered - thought)
        audio = {"audio_tokens": heard, "cached_tokens": cached}
        more = {"audio_tokens": spoken, "reasoning_tokens": thought}
        chat = read("chat", {
            "prompt_tokens": asked, "completion_tokens": answered,
            "total_tokens": asked + answered,
            "prompt_tokens_details": audio, "completion_tokens_details": more,
        })  # fmt: skip
        heard_again = seeded.randrange(cached + 1)
        responses = read("responses", {
            "input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered,
            "input_token_details": {
                "audio_tokens": heard + heard_again, "cached_tokens": cached,
                "cached_tokens_details": {"audio_tokens": heard_again},
            },
            "output_token_details": more,
        })  # fmt: skip
        gemini = read("gemini", {
            "promptTokenCount": asked, "candidatesTokenCount": answered - thought,
            "thoughtsTokenCount": thought, "totalTokenCount": asked + answered,
            "cachedContentTokenCount": cached,
            "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": heard}],
            "candidatesTokensDetails": [{"modality": "AUDIO", "tokenCount": spoken}],
        })  # fmt: skip
        for found in (chat, responses, gemini):
            assert found.strangers == ()
            buckets = (
                found.input_tokens, found.output_tokens, found.cache_read_tokens,
                found.cache_write_tokens, found.reasoning_tokens, found.audio_tokens,
            )  # fmt: skip
            assert sum(buckets) == asked + answered
    count_cases(cases)


def test_sound_is_charged_by_its_direction() -> None:
    said = {
        "total_input_tokens": 100, "total_output_tokens": 50, "total_cached_tokens": 40,
        "input_tokens_by_modality": [{"modality": "audio", "tokens": 70}],
        "cached_tokens_by_modality": [{"modality": "audio", "tokens": 30}],
        "output_tokens_by_modality": [{"modality": "audio", "tokens": 45}],
    }  # fmt: skip
    found = read("interactions", said)
    assert (found.input_tokens, found.cache_read_tokens, found.audio_input_tokens) == (20, 40, 40)
    assert (found.output_tokens, found.audio_tokens) == (5, 85)
    said = {
        "promptTokenCount": 100, "candidatesTokenCount": 50, "cachedContentTokenCount": 40,
        "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 70}],
        "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 30}],
        "candidatesTokensDetails": [{"modality": "AUDIO", "tokenCount": 45}],
    }  # fmt: skip
    found = read("gemini", said)
    assert (found.input_tokens, found.cache_read_tokens, found.audio_input_tokens) == (20, 40, 40)
    assert (found.output_tokens, found.audio_tokens) == (5, 85)


@pytest.mark.parametrize(
    ("kind", "total"),
    [("chat", "total_tokens"), ("responses", "total_tokens"), ("gemini", "totalTokenCount"),
     ("interactions", "total_tokens")],
)  # fmt: skip
def test_what_only_the_total_holds_is_charged_as_thoughts(kind: str, total: str) -> None:
    said = copy.deepcopy(ANSWERS[kind][3])
    plain = read(kind, said)
    said[total] += 500
    found = read(kind, said)
    assert found.reasoning_tokens == plain.reasoning_tokens + 500
    assert found.output_tokens == plain.output_tokens
    buckets = (
        found.input_tokens + found.output_tokens + found.cache_read_tokens
        + found.cache_write_tokens + found.reasoning_tokens + found.audio_tokens
    )  # fmt: skip
    assert buckets == said[total]


def test_each_place_is_known_in_the_object_around_it() -> None:
    for kind in ANSWERS:
        for place in filter(None, places(kind)):
            outer, _, name = place.rpartition(".")
            assert name in places(kind)[outer]
