"""Sound of a model whose price list knows text alone is dear and named, never at text's rate."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from guard.core import rates
from guard.core.bounds import InputRatios, bound_of
from guard.core.usage.vendors import find_endpoint
from guard.core.wire import LlmData
from guard.gateway.domain.records import Rates
from guard.gateway.services.pricing import PriceBook

FALLBACK: Final = Rates(input_per_mtok=10_000_000_000, output_per_mtok=30_000_000_000)
BOOK: Final = PriceBook([], FALLBACK)
MILLION: Final = 1_000_000
DATA: Final = "a" * 400


def dollars(model: str, provider: str, *, heard: int = 0, spoken: int = 0) -> float:
    data = LlmData(model=model, provider=provider, audio_tokens=heard + spoken,
                   audio_input_tokens=heard)  # fmt: skip
    return BOOK.cost(data)[0] / 1e9


class TestACharge:
    @pytest.mark.parametrize(
        ("provider", "model"),
        [("openai", "gpt-5"), ("openrouter", "mistralai/voxtral-small-24b-2507"),
         ("aws", "mistral.voxtral-mini-3b-2507"), ("mistral", "a-model-that-is-new")],
    )  # fmt: skip
    def test_is_the_dearest_that_is_published(self, provider: str, model: str) -> None:
        assert dollars(model, provider, heard=MILLION) >= 40
        assert dollars(model, provider, spoken=MILLION) >= 80
        said = LlmData(model=model, provider=provider, audio_tokens=3)
        assert BOOK.lacks_sound(said)
        assert not BOOK.lacks_sound(LlmData(model=model, provider=provider, output_tokens=3))

    @pytest.mark.parametrize(
        ("provider", "model", "heard", "spoken"),
        [
            ("openai", "gpt-audio", 32, 64),
            ("openai", "gpt-4o-transcribe", 6, 10),
            ("google", "gemini-2.5-flash", 1, 2.5),
            # Google names a price for sound only where it is not the text's.
            ("google", "gemini-3.5-flash-lite", 0.3, 2.5),
            ("openrouter", "google/gemini-3.1-pro-preview", 2, 12),
        ],
    )
    def test_is_the_listed_one_where_there_is_one(
        self, provider: str, model: str, heard: float, spoken: float
    ) -> None:
        assert dollars(model, provider, heard=100_000) * 10 == pytest.approx(heard)
        assert dollars(model, provider, spoken=100_000) * 10 == pytest.approx(spoken)
        assert not BOOK.lacks_sound(LlmData(model=model, provider=provider, audio_tokens=3))

    def test_is_nothing_where_text_is_free(self) -> None:
        said = LlmData(model="llama3", provider="ollama", audio_tokens=MILLION, local=True)
        assert BOOK.cost(said)[0] == 0
        assert not BOOK.lacks_sound(said)

    def test_of_a_vendors_own_cost_stays(self) -> None:
        said = LlmData(model="gpt-5", provider="openai", audio_tokens=9, cost_nanousd=7)
        assert BOOK.cost(said)[0] == 7
        assert not BOOK.lacks_sound(said)

    def test_of_video_in_an_answer_is_the_videos(self) -> None:
        said = LlmData(model="gemini-omni-1.1-flash", provider="google", output_tokens=MILLION)
        assert BOOK.cost(said)[0] == 17_500_000_000


HEARD: Final[dict[str, tuple[str, str, Any]]] = {
    "chat": ("api.openai.com", "/v1/chat/completions", [
        {"model": "gpt-5", "max_tokens": 9, "messages": [{"role": "user", "content": [
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}]}]},
        {"model": "gpt-5", "max_tokens": 9, "modalities": ["text", "audio"],
         "audio": {"voice": "ash", "format": "wav"}, "messages": []},
    ]),
    "gemini": ("generativelanguage.googleapis.com", "/v1beta/models/gemma-9:generateContent", [
        {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/mp3", "data": DATA}}]}]},
        {"contents": [], "generationConfig": {"responseModalities": ["AUDIO"]}},
        {"contents": [], "generation_config": {"response_modalities": ["Audio"]}},
    ]),
    "converse": ("bedrock-runtime.us-east-1.amazonaws.com", "/model/m/converse", [
        {"messages": [{"role": "user", "content": [
            {"audio": {"format": "mp3", "source": {"bytes": DATA}}}]}]},
    ]),
}  # fmt: skip


class TestAHold:
    @pytest.mark.parametrize(
        ("host", "path", "body"),
        [(host, path, body) for host, path, bodies in HEARD.values() for body in bodies],
    )
    def test_is_at_least_the_charge(self, host: str, path: str, body: dict[str, Any]) -> None:
        endpoint = find_endpoint("POST", host, path)
        assert endpoint is not None
        found = bound_of(endpoint.format, path, json.dumps(body).encode(), InputRatios(), ())
        assert found.terms.sound
        assert not found.terms.text_only
        of_model = BOOK.model_rates("mistral", "voxtral-small-24b-2507")
        in_rate, out_rate = rates.worst_rates(of_model, 1_000, found.terms)
        assert (in_rate, out_rate) >= (40_000_000_000, 80_000_000_000)

    @pytest.mark.parametrize(
        "body",
        [
            {"messages": [{"role": "user", "content": 'set {"audio": {"format": "wav"}}'}]},
            {"messages": [], "tools": [{"type": "function", "function": {
                "name": "f", "parameters": {"properties": {"audio": {"type": "string"}}}}}]},
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "id": "i",
                "function": {"name": "f", "arguments": '{"audio": 3}'}}]}]},
            {"messages": [], "previous_response_id": "r", "modalities": ["text"]},
        ],
    )  # fmt: skip
    def test_without_sound_is_at_the_price_of_text(self, body: dict[str, Any]) -> None:
        endpoint = find_endpoint("POST", "api.openai.com", "/v1/chat/completions")
        assert endpoint is not None
        content = json.dumps({"model": "gpt-5", "max_tokens": 9, **body}).encode()
        found = bound_of(endpoint.format, "/v1/chat/completions", content, InputRatios(), ())
        assert not found.terms.sound
        of_model = BOOK.model_rates("openai", "gpt-5")
        assert rates.worst_rates(of_model, 1_000, found.terms)[1] == 10_000_000_000
