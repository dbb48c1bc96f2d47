"""The largest output of each model: the most tokens of an answer to a request without a limit.

Where a platform and a model's maker publish different numbers, the larger one is listed. Where a
maker publishes no limit, an answer can fill the context window, so that is listed. Models with open
weights have another limit at every host, so only hosts that publish one are listed.
"""

from __future__ import annotations

import functools
from typing import Final

from guard.core import globs
from guard.core.fees import Source

_OPENAI: Final = Source("https://platform.openai.com/docs/models", "2026-11")
_ANTHROPIC: Final = Source("https://platform.claude.com/docs/en/about-claude/models", "2026-11")
_GOOGLE: Final = Source("https://ai.google.dev/gemini-api/docs/models", "2026-11")
_MISTRAL: Final = Source("https://docs.mistral.ai/getting-started/models", "2026-11")
_COHERE: Final = Source("https://docs.cohere.com/docs/models", "2026-11")
_DEEPSEEK: Final = Source("https://api-docs.deepseek.com/quick_start/pricing", "2026-11")
_XAI: Final = Source("https://docs.x.ai/docs/models", "2026-11")
_PERPLEXITY: Final = Source("https://docs.perplexity.ai/getting-started/models", "2026-11")
_GROQ: Final = Source("https://console.groq.com/docs/models", "2026-11")
_AWS: Final = Source(
    "https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html", "2026-11"
)
_NOVA: Final = Source(
    "https://docs.aws.amazon.com/nova/latest/userguide/what-is-nova.html", "2026-11"
)
_ZAI: Final = Source("https://docs.z.ai/guides/overview/pricing", "2026-11")
_MOONSHOT: Final = Source("https://platform.moonshot.ai/docs/pricing/chat", "2026-11")

LARGEST_OUTPUTS: Final[tuple[tuple[str, str, int, Source], ...]] = (
    # provider, model, tokens, source: as in prices, the longest pattern that matches counts
    ("*", "*gpt-3.5-turbo*", 4_096, _OPENAI),
    ("*", "*gpt-35-turbo*", 4_096, _OPENAI),
    ("*", "*gpt-4", 8_192, _OPENAI),
    ("*", "*gpt-4-0*", 8_192, _OPENAI),
    ("*", "*gpt-4-32k*", 32_768, _OPENAI),
    ("*", "*gpt-4-1106*", 4_096, _OPENAI),
    ("*", "*gpt-4-0125*", 4_096, _OPENAI),
    ("*", "*gpt-4-vision*", 4_096, _OPENAI),
    ("*", "*gpt-4-turbo*", 4_096, _OPENAI),
    ("*", "*gpt-4o*", 16_384, _OPENAI),
    ("*", "*gpt-4o-2024-05-13*", 4_096, _OPENAI),
    ("*", "*gpt-4o-64k*", 64_000, _OPENAI),
    ("*", "*gpt-4.1*", 32_768, _OPENAI),
    ("*", "*gpt-4.5*", 16_384, _OPENAI),
    ("*", "chatgpt-4o*", 16_384, _OPENAI),
    ("*", "*gpt-audio*", 16_384, _OPENAI),
    ("*", "*gpt-5*", 128_000, _OPENAI),
    ("*", "*gpt-5*chat*", 128_000, _OPENAI),
    ("*", "*gpt-5-pro*", 272_000, _OPENAI),
    ("*", "*gpt-6*", 128_000, _OPENAI),
    ("*", "o1*", 100_000, _OPENAI),
    ("*", "o1-mini*", 65_536, _OPENAI),
    ("*", "o1-preview*", 32_768, _OPENAI),
    ("*", "o3*", 100_000, _OPENAI),
    ("*", "o4-mini*", 100_000, _OPENAI),
    ("*", "openai/o1*", 100_000, _OPENAI),
    ("*", "openai/o3*", 100_000, _OPENAI),
    ("*", "openai/o4-mini*", 100_000, _OPENAI),
    ("*", "ft:o4-mini*", 100_000, _OPENAI),
    ("*", "codex-mini*", 100_000, _OPENAI),
    ("*", "computer-use-preview*", 1_024, _OPENAI),
    ("openai", "davinci-002", 16_384, _OPENAI),
    ("openai", "babbage-002", 16_384, _OPENAI),
    ("*", "*claude-instant*", 8_191, _ANTHROPIC),
    ("*", "*claude-2*", 8_191, _ANTHROPIC),
    ("*", "*claude-v2*", 8_191, _ANTHROPIC),
    ("*", "*claude-3-*", 8_192, _ANTHROPIC),
    ("*", "*claude-3.5-*", 8_192, _ANTHROPIC),
    ("*", "*claude-3-opus*", 4_096, _ANTHROPIC),
    ("*", "*claude-3-sonnet*", 4_096, _ANTHROPIC),
    ("*", "*claude-3-haiku*", 4_096, _ANTHROPIC),
    ("*", "*claude-3-7-*", 128_000, _ANTHROPIC),
    ("*", "*claude-3.7-*", 128_000, _ANTHROPIC),
    ("*", "*claude-opus-4*", 128_000, _ANTHROPIC),
    ("*", "*claude-opus-4-20250514*", 32_000, _ANTHROPIC),
    ("*", "*claude-opus-4-1*", 32_000, _ANTHROPIC),
    ("*", "*claude-opus-4.1*", 32_000, _ANTHROPIC),
    ("*", "*claude-opus-4-5*", 64_000, _ANTHROPIC),
    ("*", "*claude-opus-4.5*", 64_000, _ANTHROPIC),
    ("*", "*claude-sonnet-4*", 64_000, _ANTHROPIC),
    ("*", "*claude-sonnet-4-6*", 128_000, _ANTHROPIC),
    ("*", "*claude-sonnet-4.6*", 128_000, _ANTHROPIC),
    ("*", "*claude-haiku-4*", 64_000, _ANTHROPIC),
    ("*", "*claude-opus-5*", 128_000, _ANTHROPIC),
    ("*", "*claude-sonnet-5*", 128_000, _ANTHROPIC),
    ("*", "*claude-haiku-5*", 128_000, _ANTHROPIC),
    ("*", "*claude-fable-5*", 128_000, _ANTHROPIC),
    ("*", "*claude-mythos*", 128_000, _ANTHROPIC),
    ("*", "*gemini-1.0*", 8_192, _GOOGLE),
    ("*", "*gemini-1.5*", 8_192, _GOOGLE),
    ("*", "*gemini-2.0*", 8_192, _GOOGLE),
    ("*", "*gemini-2.0-flash-thinking*", 65_536, _GOOGLE),
    ("*", "*gemini-2.5*", 65_536, _GOOGLE),
    ("*", "*gemini-3*", 65_536, _GOOGLE),
    ("*", "*gemini-4*", 1_048_576, _GOOGLE),
    ("google", "gemini-flash-latest", 65_536, _GOOGLE),
    ("google", "gemini-flash-lite-latest", 65_536, _GOOGLE),
    ("google", "gemma-3*", 8_192, _GOOGLE),
    ("google", "gemma-4*", 32_768, _GOOGLE),
    ("mistral", "mistral-large*", 262_144, _MISTRAL),
    ("mistral", "mistral-large-4*", 1_048_576, _MISTRAL),
    ("mistral", "mistral-large-2407", 131_072, _MISTRAL),
    ("mistral", "mistral-large-2411", 131_072, _MISTRAL),
    ("mistral", "mistral-medium*", 262_144, _MISTRAL),
    ("mistral", "mistral-small*", 262_144, _MISTRAL),
    ("mistral", "mistral-tiny*", 131_072, _MISTRAL),
    ("mistral", "ministral*", 262_144, _MISTRAL),
    ("mistral", "magistral*", 262_144, _MISTRAL),
    ("mistral", "codestral*", 262_144, _MISTRAL),
    ("mistral", "devstral*", 262_144, _MISTRAL),
    ("mistral", "pixtral*", 131_072, _MISTRAL),
    ("mistral", "open-mistral*", 131_072, _MISTRAL),
    ("mistral", "open-mixtral*", 65_536, _MISTRAL),
    ("mistral", "voxtral*", 32_768, _MISTRAL),
    ("*", "*command-a-plus*", 64_000, _COHERE),
    ("*", "*command-a-0*", 8_192, _COHERE),
    ("*", "*command-a-vision*", 8_192, _COHERE),
    ("*", "*command-a-translate*", 8_192, _COHERE),
    ("*", "*command-a-reasoning*", 32_768, _COHERE),
    ("*", "*command-r*", 4_096, _COHERE),
    ("*", "*cohere.command-text*", 4_096, _COHERE),
    ("*", "*cohere.command-light*", 4_096, _COHERE),
    ("cohere", "command*", 8_192, _COHERE),
    ("cohere", "c4ai-aya*", 16_384, _COHERE),
    ("deepseek", "deepseek-*", 393_216, _DEEPSEEK),
    ("x-ai", "grok-2*", 131_072, _XAI),
    ("x-ai", "grok-3*", 131_072, _XAI),
    ("x-ai", "grok-4", 256_000, _XAI),
    ("x-ai", "grok-4-0709", 256_000, _XAI),
    ("x-ai", "grok-4-latest", 256_000, _XAI),
    ("x-ai", "grok-4-*fast*", 2_000_000, _XAI),
    ("x-ai", "grok-4.20*", 2_000_000, _XAI),
    ("x-ai", "grok-4.3*", 1_000_000, _XAI),
    ("x-ai", "grok-4.5*", 500_000, _XAI),
    ("x-ai", "grok-4.6*", 524_288, _XAI),
    ("x-ai", "grok-4.7*", 524_288, _XAI),
    ("x-ai", "grok-code*", 256_000, _XAI),
    ("perplexity", "sonar*", 128_000, _PERPLEXITY),
    ("perplexity", "sonar-pro", 8_000, _PERPLEXITY),
    ("groq", "llama-3.1-8b-instant", 131_072, _GROQ),
    ("groq", "llama-3.3-70b-versatile", 32_768, _GROQ),
    ("groq", "openai/gpt-oss-*", 65_536, _GROQ),
    ("aws", "*amazon.nova-micro*", 10_000, _NOVA),
    ("aws", "*amazon.nova-lite*", 10_000, _NOVA),
    ("aws", "*amazon.nova-pro*", 10_000, _NOVA),
    ("aws", "*amazon.nova-premier*", 32_000, _NOVA),
    ("aws", "*amazon.nova-2-*", 65_536, _NOVA),
    ("aws", "*amazon.titan-text-express*", 8_192, _AWS),
    ("aws", "*amazon.titan-text-lite*", 4_096, _AWS),
    ("aws", "*amazon.titan-text-premier*", 32_000, _AWS),
    ("aws", "*ai21.jamba*", 4_096, _AWS),
    ("aws", "*deepseek.r1*", 32_768, _AWS),
    ("aws", "*meta.llama*", 8_192, _AWS),
    ("aws", "*mistral.mistral-7b*", 8_192, _AWS),
    ("aws", "*mistral.mixtral*", 8_192, _AWS),
    ("aws", "*mistral.mistral-large-24*", 8_192, _AWS),
    ("aws", "*mistral.mistral-small-24*", 8_192, _AWS),
    ("aws", "*mistral.pixtral-large*", 16_384, _AWS),
    ("zai", "glm-4.5*", 98_304, _ZAI),
    ("zai", "glm-4.6*", 131_072, _ZAI),
    ("zai", "glm-4.7*", 131_072, _ZAI),
    ("zai", "glm-5*", 131_072, _ZAI),
    ("moonshotai", "kimi-k2*", 262_144, _MOONSHOT),
    ("moonshotai", "kimi-k3*", 1_048_576, _MOONSHOT),
    ("moonshotai", "moonshot-v1-8k*", 8_192, _MOONSHOT),
    ("moonshotai", "moonshot-v1-32k*", 32_768, _MOONSHOT),
    ("moonshotai", "moonshot-v1-128k*", 131_072, _MOONSHOT),
)  # fmt: skip

_BY_LENGTH: Final = sorted(LARGEST_OUTPUTS, key=lambda line: (-len(line[1]), -len(line[0])))


@functools.lru_cache(4096)
def largest_output(provider: str | None, model: str) -> int | None:
    """Return the most tokens that one answer of a model can have; ``None`` if it is not listed.

    >>> largest_output("openai", "gpt-4o-mini"), largest_output("openai", "my-model")
    (16384, None)
    >>> largest_output("aws", "eu.anthropic.claude-sonnet-4-5-20250929-v1:0")
    64000
    """
    name = globs.fold(model)
    vendor = None if provider is None else globs.fold(provider)
    for own, pattern, tokens, _ in _BY_LENGTH:
        if globs.matches(pattern, name) and (own == "*" or vendor == own):
            return tokens
    return None
