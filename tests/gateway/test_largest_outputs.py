"""The table of largest outputs: each line has a source, and the right line counts."""

from __future__ import annotations

import re

import pytest

from guard.core import globs
from guard.gateway.domain.largest_outputs import LARGEST_OUTPUTS, largest_output


def test_each_line_has_a_source_with_a_date_and_can_be_found() -> None:
    for provider, pattern, tokens, source in LARGEST_OUTPUTS:
        assert 512 <= tokens <= 2_000_000, pattern
        assert source.url.startswith("https://")
        assert re.fullmatch(r"20\d\d-\d\d", source.read)
        assert pattern == globs.fold(pattern), "names are compared folded"
        example = pattern.replace("*", "x").replace("o3x", "o3").replace("o1x", "o1")
        found = largest_output(None if provider == "*" else provider, example)
        assert found is not None, pattern
    patterns = [(line[0], line[1]) for line in LARGEST_OUTPUTS]
    assert len(set(patterns)) == len(patterns)


@pytest.mark.parametrize(
    ("provider", "model", "tokens"),
    [
        ("openai", "gpt-4o-2024-08-06", 16_384), ("openai", "GPT-4o-2024-05-13", 4_096),
        ("openai", "gpt-4", 8_192), ("openai", "gpt-4-turbo", 4_096), ("openai", "o1", 100_000),
        ("openai", "o1-pro", 100_000), ("openai", "o1-mini", 65_536), ("openai", "o3", 100_000),
        ("openai", "gpt-4.1-nano", 32_768), ("openai", "gpt-5-pro", 272_000),
        ("openai", "gpt-5.5", 128_000), ("openrouter", "openai/gpt-4o", 16_384),
        ("openai", "ft:gpt-4o-mini-2024-07-18:acme::abc", 16_384), ("azure", "gpt-4o", 16_384),
        ("anthropic", "claude-3-5-sonnet-latest", 8_192), ("anthropic", "claude-opus-4-1", 32_000),
        ("anthropic", "claude-opus-4-5-20251101", 64_000),
        ("anthropic", "claude-opus-4-8", 128_000), ("anthropic", "claude-sonnet-4-5", 64_000),
        ("anthropic", "claude-sonnet-4-6", 128_000), ("anthropic", "claude-fable-5-1", 128_000),
        ("aws", "us.anthropic.claude-haiku-4-5-20251001-v1:0", 64_000),
        ("google", "claude-sonnet-4-5@20250929", 64_000), ("google", "gemini-2.0-flash", 8_192),
        ("google", "gemini-2.5-pro", 65_536), ("google", "gemini-3.1-pro-preview", 65_536),
        ("mistral", "mistral-large-latest", 262_144), ("cohere", "command-a-03-2025", 8_192),
        ("cohere", "command-r-plus-08-2024", 4_096), ("deepseek", "deepseek-chat", 393_216),
        ("x-ai", "grok-3-mini", 131_072), ("x-ai", "grok-4", 256_000),
        ("x-ai", "grok-4-fast-reasoning", 2_000_000), ("aws", "eu.amazon.nova-lite-v1:0", 10_000),
        ("aws", "us.meta.llama3-3-70b-instruct-v1:0", 8_192),
        ("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo", None), ("openai", "test", None),
        ("ollama", "llama3.2", None), ("openai", "unknown", None), (None, "phi-3", None),
    ],
)  # fmt: skip
def test_the_most_that_a_model_can_answer(
    provider: str | None, model: str, tokens: int | None
) -> None:
    assert largest_output(provider, model) == tokens
