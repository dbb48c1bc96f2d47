"""OpenAI's chat completions, also spoken by many other vendors, and embeddings.

OpenAI counts cached and reasoning tokens as subsets of the prompt and the completion; the buckets
here are disjoint. A stream reports its usage, in the last chunk, only if
``stream_options.include_usage`` asked for it; otherwise the tokens are estimated and flagged.

Variants of other vendors: DeepSeek names its cache hits ``prompt_cache_hit_tokens``; Groq ends a
stream with ``x_groq.usage``; xAI and Perplexity count the reasoning tokens in addition to the
completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from guard.core.fees import PERPLEXITY_SEARCH
from guard.core.usage.counters import contradicted, strangers
from guard.core.usage.framing import Events
from guard.core.usage.message import (
    Message,
    count,
    items,
    mapping,
    says_any,
    stated_cost,
    text_or_none,
)
from guard.core.usage.response_format import (
    Call,
    MemberPath,
    ResponseFormat,
    ToolCallReader,
    Usage,
    replaced,
)
from guard.core.usage.tool_calls import CHAT
from guard.core.wire import UNITS_MAX

_NEWER_MODELS: Final = ("gpt-", "o1", "o3", "o4", "chatgpt")
"""What models are called that refuse the older ``max_tokens``."""

_OLDER, _NEWER = ("max_tokens",), ("max_completion_tokens",)

_REASONING_ON_TOP: Final = frozenset({"x-ai", "perplexity"})


class ChatCompletions(ResponseFormat, frozen=True):
    """``POST .../chat/completions``, ``.../completions``, ``.../embeddings``.

    Attributes:
        provider: the vendor behind the host.
    """

    provider: str
    tool_calls: ClassVar[ToolCallReader] = CHAT

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit of a chat, under the name that the model takes."""
        if not path.endswith("/completions"):
            return ()
        if "messages" not in request:
            return (_OLDER,)
        newer = self.provider == "azure" or str(request.get("model")).startswith(_NEWER_MODELS)
        return (_NEWER, _OLDER) if newer else (_OLDER, _NEWER)

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` of a completion or of embeddings."""
        usage = self._usage(message)
        if usage is not None and usage.model is None:
            usage = replaced(usage, model=call.model())
        return usage

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the last chunk that holds ``usage``; estimate when none does."""
        for chunk in events.newest(b'"usage"'):
            usage = self._usage(chunk)
            if usage is not None:
                return replaced(
                    usage,
                    model=usage.model or call.model(),
                    # Some hosts report a running count in every chunk; such a count is not final.
                    estimated=usage.estimated or _unfinished(chunk),
                )
        opening = events.opening()
        late = self._usage({**opening, "usage": events.late("usage") or None})
        if late is not None:
            return replaced(late, model=late.model or call.model())
        if "choices" not in opening:
            return None
        spoken = (
            mapping(choice).get("delta", mapping(choice).get("text"))
            for chunk in events.every()
            for choice in items(chunk.get("choices"))
        )
        model = text_or_none(opening.get("model")) or call.model()
        return call.estimated(
            events, spoken, model=model, response_id=text_or_none(opening.get("id"))
        )

    def _usage(self, response: Message) -> Usage | None:
        usage = response.get("usage")
        if not isinstance(usage, dict):
            usage = mapping(response.get("x_groq")).get("usage")
        if not isinstance(usage, dict):
            return None
        if usage.keys() == {"total_tokens"}:  # embeddings of some servers
            usage = {"prompt_tokens": usage["total_tokens"]}
        if not says_any(usage, "prompt_tokens", "completion_tokens"):
            return None
        asked, said = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
        cache_read = cache_write = audio_in = audio_out = reasoning = 0
        prompt = usage.get("prompt_tokens_details")
        if isinstance(prompt, dict):
            cache_read = count(prompt.get("cached_tokens"))
            cache_write = count(
                prompt.get("cache_write_tokens", prompt.get("cache_creation_input_tokens"))
            )
            audio_in = count(prompt.get("audio_tokens"))
        completion = usage.get("completion_tokens_details")
        if isinstance(completion, dict):
            audio_out = count(completion.get("audio_tokens"))
            reasoning = count(completion.get("reasoning_tokens"))
        cache_read = (
            cache_read
            or count(usage.get("prompt_cache_hit_tokens"))
            or count(usage.get("cached_tokens"))
        )
        reasoning = reasoning or count(usage.get("reasoning_tokens"))
        on_top = self._on_top(asked, said, reasoning, usage)
        visible = said + count(usage.get("citation_tokens")) if on_top else said - reasoning
        # What only the total holds was thought: Gemini leaves it out of the completion
        # (https://ai.google.dev/gemini-api/docs/openai, 2026-11).
        told = asked + visible + reasoning
        reasoning += max(0, count(usage.get("total_tokens")) - told)
        more_than_all = contradicted(
            # Cached sound is in both.
            prompt_tokens=min(asked - cache_read - cache_write, asked - audio_in),
            completion_tokens=visible - audio_out,
        )
        return Usage(
            model=text_or_none(response.get("model")),
            input_tokens=max(0, asked - cache_read - cache_write - audio_in),
            output_tokens=max(0, visible - audio_out),
            cache_read_tokens=cache_read,
            cache_write_tokens=cache_write,
            reasoning_tokens=reasoning,
            audio_tokens=audio_in + audio_out,
            audio_input_tokens=audio_in,
            cost_nanousd=stated_cost(self.provider, usage),
            service_tier=_tier(response),
            response_id=text_or_none(response.get("id")),
            strangers=strangers("chat", usage) + more_than_all,
            fees=_searches(usage) if self.provider == "perplexity" else None,
        )

    def _on_top(self, asked: int, said: int, reasoning: int, usage: Message) -> bool:
        """Tell from the total whether reasoning is counted in addition to the completion."""
        if reasoning:
            total = count(usage.get("total_tokens"))
            if total and total == asked + said + reasoning:
                return True
            if total and total == asked + said:
                return False
        return self.provider in _REASONING_ON_TOP


def _searches(usage: Message) -> dict[str, int] | None:
    """Return the searches of Perplexity's deep research; of others the answer says only a cost."""
    number = count(usage.get("num_search_queries"))
    return {PERPLEXITY_SEARCH: min(number, UNITS_MAX)} if number else None


def _tier(response: Message) -> str | None:
    tier = text_or_none(response.get("service_tier"))
    return None if tier in (None, "default", "on_demand") else tier


def _unfinished(chunk: Message) -> bool:
    choices = items(chunk.get("choices"))
    return bool(choices) and not any(mapping(c).get("finish_reason") for c in choices)
