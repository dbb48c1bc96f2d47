"""Google's Gemini API and Vertex AI: generateContent, its stream, embeddings, interactions.

``promptTokenCount`` includes cached tokens, but not the prompts of built-in tools;
thoughts are not among the candidates. In a stream every chunk repeats the counts: the last wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from guard.core.usage import vendor_tools
from guard.core.usage.counters import contradicted, strangers
from guard.core.usage.framing import Events
from guard.core.usage.message import (
    Message,
    count,
    items,
    mapping,
    says_any,
    text_bytes,
    text_or_none,
    tokens_of,
)
from guard.core.usage.response_format import (
    Call,
    Dialect,
    MemberPath,
    ResponseFormat,
    ToolCallReader,
    Usage,
    by_the_piece,
    replaced,
)
from guard.core.usage.tool_calls import GEMINI, INTERACTIONS

_MODEL: Final = re.compile(r"(?:models|tunedModels|endpoints)/([^/:]+)")

_COUNTS: Final = (
    "promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount",
)  # fmt: skip


class Gemini(ResponseFormat, frozen=True):
    """``POST .../models/{model}:generateContent``, ``:streamGenerateContent``, ``:embedContent``,
    ``:batchEmbedContents``, ``:predict``, ``:predictLongRunning``.

    Attributes:
        provider: ``google``.
        embeds: whether the URL is one of the methods of embeddings, images and videos, whose
            responses may lack usage.
    """

    provider: str = "google"
    embeds: bool = False
    tool_calls: ClassVar[ToolCallReader] = GEMINI
    dialect: ClassVar[Dialect | None] = Dialect.GEMINI

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit, first in the spelling that the request uses."""
        if not path.endswith("enerateContent"):
            return ()
        # Its other settings stay in one place.
        newer, older = "generationConfig", "generation_config"
        first, second = (older, newer) if older in request else (newer, older)
        return tuple(
            (config, name)
            for config in (first, second)
            for name in ("maxOutputTokens", "max_output_tokens")
        )

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usageMetadata``; for embeddings without it, estimate from the request."""
        usage = _usage(message, call)
        if usage is not None or not self.embeds:
            return usage
        return _embedded(message, call) or by_the_piece(call, _model(call))

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the last chunk with ``usageMetadata``; estimate when it is not final."""
        opening = events.opening()
        for chunk in events.newest(b'"usageMetadata"'):
            usage = _usage({**opening, **chunk}, call)
            if usage is not None:
                if _finished(events):
                    return _with_searches(usage, events, call)
                return _at_least(usage, events)
        late = events.late("usageMetadata")
        if late and (usage := _usage({**opening, "usageMetadata": late}, call)) is not None:
            return replaced(usage, estimated=not _finished(events), fees=None)
        if "candidates" not in opening:
            return None
        return replaced(
            _at_least(Usage(input_tokens=call.prompt_tokens()), events),
            model=text_or_none(opening.get("modelVersion")) or _model(call),
            response_id=text_or_none(opening.get("responseId")),
        )


def _with_searches(usage: Usage, events: Events, call: Call) -> Usage:
    """Return the usage of a stream with what it names of searches, where all of it was kept."""
    if events.scale > 1.0:
        return replaced(usage, fees=None)
    candidates = [
        candidate
        for chunk in events.newest(b'"groundingMetadata"')
        for candidate in items(chunk.get("candidates"))
    ]
    fees = vendor_tools.of_candidates(candidates, usage.model, call.request())
    return replaced(usage, fees=fees)


def _usage(message: Message, call: Call) -> Usage | None:
    said = message.get("usageMetadata")
    if not isinstance(said, dict) or not says_any(said, *_COUNTS):
        return None
    cached = count(said.get("cachedContentTokenCount"))
    # Cached sound is in the details of the prompt as well.
    audio_in = _audio(said.get("promptTokensDetails")) - _audio(said.get("cacheTokensDetails"))
    audio_out = _audio(said.get("candidatesTokensDetails"))
    asked = count(said.get("promptTokenCount")) + count(said.get("toolUsePromptTokenCount"))
    answered = count(said.get("candidatesTokenCount"))
    thought = count(said.get("thoughtsTokenCount"))
    # What only the total holds is charged like thoughts.
    thought += max(0, count(said.get("totalTokenCount")) - asked - answered - thought)
    model = text_or_none(message.get("modelVersion")) or _model(call)
    return Usage(
        model=model,
        input_tokens=max(0, asked - cached - audio_in),
        output_tokens=max(0, answered - audio_out),
        cache_read_tokens=cached,
        reasoning_tokens=thought,
        audio_tokens=max(0, audio_in) + audio_out,
        audio_input_tokens=max(0, audio_in),
        response_id=text_or_none(message.get("responseId")),
        strangers=strangers("gemini", said)
        + contradicted(
            promptTokenCount=min(asked - cached, asked - audio_in, audio_in),
            candidatesTokenCount=answered - audio_out,
        ),
        fees=vendor_tools.of_candidates(message.get("candidates"), model, call.request()),
    )


def _audio(details: Any) -> int:
    return sum(
        count(mapping(part).get("tokenCount", mapping(part).get("tokens")))
        for part in items(details)
        if str(mapping(part).get("modality")).upper() == "AUDIO"
    )


def model_in(path: str) -> str | None:
    """Return the model that a path names."""
    found = _MODEL.search(path)
    return found[1] if found else None


def _model(call: Call) -> str | None:
    return model_in(call.path) or call.model()


def _embedded(message: Message, call: Call) -> Usage | None:
    """Vertex counts each text; the Gemini API may not report embeddings."""
    counted = [
        count(mapping(mapping(mapping(p).get("embeddings")).get("statistics")).get("token_count"))
        for p in items(message.get("predictions"))
    ]
    if any(counted):
        return Usage(model=_model(call), input_tokens=sum(counted))
    if "embedding" in message or "embeddings" in message:
        return Usage(model=_model(call), input_tokens=call.prompt_tokens(), estimated=True)
    return None


def _finished(events: Events) -> bool:
    return (
        any(
            mapping(candidate).get("finishReason")
            for chunk in events.newest(b'"finishReason"')
            for candidate in items(chunk.get("candidates"))
        )
        or next(events.newest(b'"promptFeedback"'), None) is not None
    )


def _at_least(usage: Usage, events: Events) -> Usage:
    spoken = text_bytes(
        mapping(candidate).get("content")
        for chunk in events.every()
        for candidate in items(chunk.get("candidates"))
    )
    visible = max(usage.output_tokens, tokens_of(spoken * events.scale) - usage.reasoning_tokens)
    return replaced(usage, output_tokens=visible, estimated=True, fees=None)


class Interactions(ResponseFormat, frozen=True):
    """``/v1beta/interactions`` of the Gemini API."""

    provider: str = "google"
    tool_calls: ClassVar[ToolCallReader] = INTERACTIONS

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit of an interaction."""
        return (("generation_config", "max_output_tokens"),)

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` of an interaction."""
        said = message.get("usage")
        if not isinstance(said, dict) or not says_any(said, "total_input_tokens"):
            return None
        cached = count(said.get("total_cached_tokens"))
        heard = _audio(said.get("input_tokens_by_modality"))
        audio_in = heard - _audio(said.get("cached_tokens_by_modality"))
        audio_out = _audio(said.get("output_tokens_by_modality"))
        asked = count(said.get("total_input_tokens")) + count(said.get("total_tool_use_tokens"))
        answered = count(said.get("total_output_tokens"))
        thought = count(said.get("total_thought_tokens"))
        thought += max(0, count(said.get("total_tokens")) - asked - answered - thought)
        return Usage(
            model=text_or_none(message.get("model")) or call.model(),
            input_tokens=max(0, asked - cached - audio_in),
            output_tokens=max(0, answered - audio_out),
            cache_read_tokens=cached,
            reasoning_tokens=thought,
            audio_tokens=max(0, audio_in) + audio_out,
            audio_input_tokens=max(0, audio_in),
            strangers=strangers("interactions", said)
            + contradicted(
                total_input_tokens=min(asked - cached, asked - audio_in, audio_in),
                total_output_tokens=answered - audio_out,
            ),
            response_id=text_or_none(message.get("id")),
        )

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the closing event's interaction; estimate when there is none."""
        for event in events.newest(b'"total_input_tokens"'):
            usage = self.from_message(mapping(event.get("interaction", event)), call)
            if usage is not None:
                return usage
        started = mapping(events.opening().get("interaction"))
        if not started:
            return None
        spoken = (event.get("delta") for event in events.every())
        model = text_or_none(started.get("model")) or call.model()
        return call.estimated(
            events, spoken, model=model, response_id=text_or_none(started.get("id"))
        )
