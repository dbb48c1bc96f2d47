"""Anthropic's Messages API, also on Vertex and inside Bedrock's InvokeModel.

``input_tokens`` excludes both kinds of cached tokens; thinking is part of ``output_tokens``.
``iterations`` lists each time that a model was asked for one answer: the totals leave out what an
advisor and a compaction have used, and may show the prompt of the first iteration only
(https://platform.claude.com/docs/en/agents-and-tools/tool-use/advisor-tool, 2026-11).

In a stream ``message_start`` reports the input and ``message_delta`` repeats fields cumulatively:
for each field the last value that is not null counts; a zero is not missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from guard.core.fees import ANTHROPIC_SEARCH
from guard.core.model_names import is_release_of
from guard.core.rates import PERMILLE, US_ONLY_PERMILLE
from guard.core.usage.counters import contradicted, strangers
from guard.core.usage.framing import Events
from guard.core.usage.message import (
    Message,
    count,
    items,
    mapping,
    says_any,
    stated_cost,
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
    replaced,
)
from guard.core.usage.tool_calls import ANTHROPIC

_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class AnthropicMessages(ResponseFormat, frozen=True):
    """``POST /v1/messages`` and ``...:rawPredict``.

    Attributes:
        provider: ``anthropic``, or the platform that serves the model.
    """

    provider: str = "anthropic"
    tool_calls: ClassVar[ToolCallReader] = ANTHROPIC
    dialect: ClassVar[Dialect | None] = Dialect.ANTHROPIC

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit, which older versions of the API call by the second name."""
        return (("max_tokens",), ("max_tokens_to_sample",))

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` of a message."""
        said = message.get("usage")
        if not isinstance(said, dict) or not says_any(said, *_COUNTS):
            return None
        return _usage(self.provider, message, said, call)

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Merge the usage of ``message_start`` and the ``message_delta`` events."""
        opening = mapping(events.opening().get("message"))
        said: Message = {}
        # The opening counts the output so far; `message_delta` has the total.
        is_final = False
        for event in reversed(list(events.newest(b'"usage"'))):
            kind = event.get("type")
            source = mapping(event.get("message")) if kind == "message_start" else event
            found = mapping(source.get("usage"))
            is_final = is_final or (source is event and found.get("output_tokens") is not None)
            said.update((k, v) for k, v in found.items() if v is not None)
        late = events.late("usage")
        is_final = is_final or late.get("output_tokens") is not None
        said.update((k, v) for k, v in late.items() if v is not None)
        if not said and not opening:
            return None
        usage = _usage(self.provider, opening, said, call)
        if is_final and next(events.newest(b'"message_stop"'), None) is not None:
            return usage
        spoken = text_bytes(
            part
            for event in events.every()
            for part in (event.get("delta"), mapping(event.get("content_block")).get("text"))
        )
        return replaced(
            usage,
            input_tokens=usage.input_tokens if said else call.prompt_tokens(),
            output_tokens=max(usage.output_tokens, tokens_of(spoken * events.scale)),
            estimated=True,
            fees=None,
        )


def _usage(provider: str, message: Message, said: Message, call: Call) -> Usage:
    model = text_or_none(message.get("model")) or call.model()
    totals, others = _iterated(model, said)
    cost = stated_cost(provider, said)  # of all models together
    thinking = count(mapping(said.get("output_tokens_details")).get("thinking_tokens"))
    tier, speed = text_or_none(said.get("service_tier")), text_or_none(said.get("speed"))
    tier = None if tier == "standard" else tier
    surcharge = US_ONLY_PERMILLE if said.get("inference_geo") == "us" else PERMILLE
    searches = count(mapping(said.get("server_tool_use")).get("web_search_requests"))
    return Usage(
        model=model,
        input_tokens=totals["input_tokens"],
        output_tokens=max(0, totals["output_tokens"] - thinking),
        cache_read_tokens=totals["cache_read_input_tokens"],
        cache_write_tokens=totals["cache_creation_input_tokens"],
        reasoning_tokens=thinking,
        cache_write_1h_tokens=min(totals[_LONG], totals["cache_creation_input_tokens"]),
        cost_nanousd=cost,
        service_tier=tier if speed in (None, "standard") else speed,
        surcharge_permille=surcharge,
        response_id=text_or_none(message.get("id")),
        units={"web_searches": float(searches)} if searches else {},
        fees={ANTHROPIC_SEARCH: searches} if searches else {},
        strangers=strangers("messages", said)
        + contradicted(
            output_tokens=totals["output_tokens"] - thinking,
            cache_creation_input_tokens=totals["cache_creation_input_tokens"] - totals[_LONG],
        ),
        others=tuple(
            Usage(
                model=other or None,
                input_tokens=used["input_tokens"],
                output_tokens=used["output_tokens"],
                cache_read_tokens=used["cache_read_input_tokens"],
                cache_write_tokens=used["cache_creation_input_tokens"],
                cache_write_1h_tokens=min(used[_LONG], used["cache_creation_input_tokens"]),
                service_tier=tier,
                surcharge_permille=surcharge,
                fees={},
            )
            for other, used in ({} if cost is not None else others).items()
        ),
    )


_LONG: Final = "ephemeral_1h_input_tokens"

Counts = dict[str, int]


def _counts(said: Message) -> Counts:
    found = {name: count(said.get(name)) for name in _COUNTS}
    found[_LONG] = count(mapping(said.get("cache_creation")).get(_LONG))
    return found


def _iterated(model: str | None, said: Message) -> tuple[Counts, dict[str, Counts]]:
    """Return what the model that answers has used, and each other one that an iteration names."""
    totals, others = _counts(said), dict[str, Counts]()
    steps = items(said.get("iterations"))
    if not steps:
        return totals, others
    listed, compacted = dict.fromkeys(totals, 0), list[Counts]()
    for step in map(mapping, steps):
        used, kind = _counts(step), step.get("type")
        other = text_or_none(step.get("model")) or model or ""
        if kind == "compaction":
            compacted.append(used)
        elif kind == "advisor_message" or not is_release_of(other, model or ""):
            _add(others.setdefault(other, dict.fromkeys(used, 0)), used)
        else:
            _add(listed, used)
    # Iterations that are not listed are in the totals all the same.
    totals = {name: max(tokens, listed[name]) for name, tokens in totals.items()}
    for used in compacted:
        _add(totals, used)
    return totals, others


def _add(total: Counts, used: Counts) -> None:
    for name, tokens in used.items():
        total[name] += tokens
