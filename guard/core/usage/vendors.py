"""Which vendor's format a URL speaks."""

from __future__ import annotations

from typing import Final

from guard.core.usage.base import ResponseFormat
from guard.core.usage.openai import ChatCompletions

_PROVIDERS: Final[dict[str, str]] = {
    "api.openai.com": "openai",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.together.xyz": "together",
    "api.fireworks.ai": "fireworks",
    "api.x.ai": "x-ai",
    "openrouter.ai": "openrouter",
}
_COMPATIBLE: Final = "openai"
"""Provider of a host that is not known and speaks OpenAI's format."""

_formats: dict[str, ChatCompletions] = {}


def find_format(host: str, path: str) -> ResponseFormat | None:
    """Return the format of an LLM call, or None when the URL is not one.

    Args:
        host: the host name, in lower case, without the port.
        path: the path of the URL, without the query.
    """
    if not path.endswith("/chat/completions"):
        return None
    provider = "azure" if host.endswith(".azure.com") else _PROVIDERS.get(host, _COMPATIBLE)
    found = _formats.get(provider)
    if found is None:
        found = _formats[provider] = ChatCompletions(provider)
    return found
