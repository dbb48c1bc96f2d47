"""The context window of each model: the most tokens of a prompt that nothing else bounds.

This table adds to the published price list, for models that the list lacks or knows only in an
older version; the larger of the two counts.
"""

from __future__ import annotations

import functools
from typing import Final

from guard.core import globs
from guard.core.fees import Source

_OPENAI: Final = Source("https://platform.openai.com/docs/models", "2026-11")
_ANTHROPIC: Final = Source("https://platform.claude.com/docs/en/about-claude/models", "2026-11")
_GOOGLE: Final = Source("https://ai.google.dev/gemini-api/docs/models", "2026-11")
_GEMMA: Final = Source("https://ai.google.dev/gemma/docs/core", "2026-11")
_MISTRAL: Final = Source("https://docs.mistral.ai/getting-started/models", "2026-11")
_COHERE: Final = Source("https://docs.cohere.com/docs/models", "2026-11")
_DEEPSEEK: Final = Source("https://api-docs.deepseek.com/quick_start/pricing", "2026-11")
_XAI: Final = Source("https://docs.x.ai/docs/models", "2026-11")
_ZAI: Final = Source("https://docs.z.ai/guides/overview/pricing", "2026-11")
_MOONSHOT: Final = Source("https://platform.moonshot.ai/docs/pricing/chat", "2026-11")
_GROQ: Final = Source("https://console.groq.com/docs/models", "2026-11")
_VOYAGE: Final = Source("https://docs.voyageai.com/docs/embeddings", "2026-11")

CONTEXTS: Final[tuple[tuple[str, str, int, Source], ...]] = (
    # provider, model, tokens, source: the longest pattern that matches counts
    ("openai", "ft:gpt-3.5-turbo*", 16_385, _OPENAI),
    ("openai", "ft:gpt-4o*", 128_000, _OPENAI),
    ("openai", "ft:gpt-4.1*", 1_047_576, _OPENAI),
    ("openai", "gpt-4.1*", 1_047_576, _OPENAI),
    ("azure", "gpt-4.1*", 1_047_576, _OPENAI),
    ("openai", "ft:o4-mini*", 200_000, _OPENAI),
    ("openai", "gpt-4-32k*", 32_768, _OPENAI),
    ("openai", "gpt-4.5*", 128_000, _OPENAI),
    ("google", "gemini-1.5-pro*", 2_097_152, _GOOGLE),
    ("google", "gemini-1.5-flash*", 1_048_576, _GOOGLE),
    ("google", "gemini-2.0*", 1_048_576, _GOOGLE),
    ("google", "gemini-2.5*", 1_048_576, _GOOGLE),
    ("google", "gemini-3*", 1_048_576, _GOOGLE),
    ("google", "gemini-4*", 1_048_576, _GOOGLE),
    ("google", "gemini-embedding-001", 2_048, _GOOGLE),
    ("google", "gemma-2*", 8_192, _GEMMA),
    ("google", "gemma-3-*", 131_072, _GEMMA),
    ("google", "gemma-3n*", 32_768, _GEMMA),
    # Names of the API lead to the newest model, whatever the list knows of an older one.
    ("deepseek", "deepseek-chat", 1_048_576, _DEEPSEEK),
    ("deepseek", "deepseek-reasoner", 1_048_576, _DEEPSEEK),
    ("cohere", "command-a*", 256_000, _COHERE),
    ("cohere", "command-r*", 128_000, _COHERE),
    ("groq", "llama-3.1-8b-instant", 131_072, _GROQ),
    ("groq", "llama-3.3-70b-versatile", 131_072, _GROQ),
    ("groq", "meta-llama/llama-4-*", 131_072, _GROQ),
    ("mistral", "codestral*", 262_144, _MISTRAL),
    ("mistral", "magistral*", 262_144, _MISTRAL),
    ("mistral", "ministral*", 262_144, _MISTRAL),
    ("mistral", "mistral-large*", 262_144, _MISTRAL),
    ("mistral", "mistral-large-4*", 1_048_576, _MISTRAL),
    ("mistral", "mistral-medium*", 262_144, _MISTRAL),
    ("mistral", "mistral-small*", 262_144, _MISTRAL),
    ("x-ai", "grok-4.20*", 2_000_000, _XAI),
    ("x-ai", "grok-4.6*", 524_288, _XAI),
    ("x-ai", "grok-4.7*", 524_288, _XAI),
    ("zai", "glm-4.5*", 131_072, _ZAI),
    ("zai", "glm-4.6*", 204_800, _ZAI),
    ("zai", "glm-4.7*", 204_800, _ZAI),
    ("moonshotai", "kimi-k2*", 262_144, _MOONSHOT),
)

LARGEST_CONTEXTS: Final[dict[str, tuple[int, Source]]] = {
    # Of any model of a vendor: what is assumed of one whose context is not known.
    "openai": (1_050_000, _OPENAI),
    "azure": (1_050_000, _OPENAI),
    "anthropic": (1_000_000, _ANTHROPIC),
    "google": (2_097_152, _GOOGLE),
    "mistral": (1_048_576, _MISTRAL),
    "deepseek": (1_048_576, _DEEPSEEK),
    "cohere": (256_000, _COHERE),
    "x-ai": (2_000_000, _XAI),
    "zai": (1_048_576, _ZAI),
    "moonshotai": (1_048_576, _MOONSHOT),
    "voyageai": (32_000, _VOYAGE),
}

LARGEST_ANYWHERE: Final = 2_097_152
"""Assumed of a vendor that is not listed: that of Gemini 1.5 Pro.

It is the largest that any API serves, except for Llama 4 Scout's at AWS.
"""

_BY_LENGTH: Final = sorted(CONTEXTS, key=lambda line: (-len(line[1]), -len(line[0])))


def context_of(
    provider: str | None, model: str, listed: int | None, at_least: int = 0
) -> int | None:
    """Return a model's context window; ``None`` if it is not known.

    Args:
        provider, model: whose.
        listed: by the price list.
        at_least: tokens that are known to fit, such as the largest answer. A smaller context must
            be that of an older version, and is ignored.

    >>> context_of("google", "gemini-2.5-pro", None), context_of("openai", "gpt-4o", 128_000)
    (1048576, 128000)
    >>> context_of("deepseek", "deepseek-v3.2", 128_000, at_least=393_216)
    """
    found = max(_of_table(provider, model), listed or 0)
    return found if found and found >= at_least else None


def largest_context(provider: str | None) -> int:
    """Return the largest context window of any model of a vendor.

    >>> largest_context("anthropic"), largest_context("someone")
    (1000000, 2097152)
    """
    found = LARGEST_CONTEXTS.get(provider or "")
    return LARGEST_ANYWHERE if found is None else found[0]


@functools.lru_cache(4096)
def _of_table(provider: str | None, model: str) -> int:
    name = globs.fold(model)
    vendor = None if provider is None else globs.fold(provider)
    for own, pattern, tokens, _ in _BY_LENGTH:
        if globs.matches(pattern, name) and (vendor is None or vendor == own):
            return tokens
    return 0
