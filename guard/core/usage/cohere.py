"""Cohere: chat, generate, embed, rerank, versions 1 and 2.

``billed_units`` is what Cohere bills; ``tokens`` is what the model saw. The billed units count
here, the tokens only where there are none. Reranking is billed by search units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from guard.core.usage.counters import contradicted, strangers
from guard.core.usage.framing import Events
from guard.core.usage.message import Message, count, mapping, says_any, text_or_none
from guard.core.usage.response_format import Call, MemberPath, ResponseFormat, ToolCallReader, Usage
from guard.core.usage.tool_calls import COHERE

_TOKENS: Final = ("input_tokens", "output_tokens")
_UNITS: Final = ("search_units", "classifications", "images", "pages")


class Cohere(ResponseFormat, frozen=True):
    """``POST /v2/chat``, ``/v2/embed``, ``/v2/rerank`` and their version 1."""

    provider: str = "cohere"
    tool_calls: ClassVar[ToolCallReader] = COHERE

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit of what writes text."""
        return (("max_tokens",),) if path.endswith(("/chat", "/generate")) else ()

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` (version 2 chat) or ``meta`` (everything else)."""
        said = mapping(message.get("usage") or message.get("meta"))
        return _usage(message, said, call)

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the closing event: ``message-end`` or ``stream-end``; estimate without it."""
        opening = events.opening()
        for marker in (b'"billed_units"', b'"usage"'):
            for event in events.newest(marker):
                inner = mapping(event.get("delta") or event.get("response") or event)
                usage = _usage(
                    {**opening, **inner}, mapping(inner.get("usage") or inner.get("meta")), call
                )
                if usage is not None:
                    return usage
        late = events.late("usage") or events.late("meta")
        usage = _usage(opening, late, call)
        if usage is not None:
            return usage
        if "type" not in opening and "event_type" not in opening:
            return None
        spoken = (
            part for event in events.every() for part in (event.get("delta"), event.get("text"))
        )
        return call.estimated(events, spoken, model=call.model(), response_id=_identity(opening))


def _usage(message: Message, said: Message, call: Call) -> Usage | None:
    billed, tokens = mapping(said.get("billed_units")), mapping(said.get("tokens"))
    if not any(says_any(said, *_TOKENS, *_UNITS) for said in (billed, tokens)):
        return None
    asked = count(billed.get("input_tokens", tokens.get("input_tokens")))
    cached = count(said.get("cached_tokens"))
    return Usage(
        model=text_or_none(message.get("model")) or call.model(),
        input_tokens=max(0, asked - cached),
        output_tokens=count(billed.get("output_tokens", tokens.get("output_tokens"))),
        cache_read_tokens=cached,
        response_id=_identity(message),
        strangers=strangers("cohere", said) + contradicted(input_tokens=asked - cached),
        units={name: float(count(billed[name])) for name in _UNITS if count(billed.get(name))},
    )


def _identity(message: Message) -> str | None:
    return text_or_none(message.get("id")) or text_or_none(message.get("generation_id"))
