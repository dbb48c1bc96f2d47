"""Ollama's own API: JSON lines, the last one with ``done: true`` and the counts.

The prompt's count is absent when the prompt was in the cache: that is a zero, not an unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from guard.core.usage.framing import Events
from guard.core.usage.message import Message, count, says_any, text_or_none
from guard.core.usage.response_format import (
    Call,
    Dialect,
    MemberPath,
    ResponseFormat,
    ToolCallReader,
    Usage,
)
from guard.core.usage.tool_calls import OLLAMA


class Ollama(ResponseFormat, frozen=True):
    """``POST /api/chat``, ``/api/generate``, ``/api/embed``."""

    provider: str = "ollama"
    tool_calls: ClassVar[ToolCallReader] = OLLAMA
    dialect: ClassVar[Dialect | None] = Dialect.OLLAMA

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit of what writes text."""
        return () if path.endswith("/embed") else (("options", "num_predict"),)

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read the counts of a finished response."""
        if (
            not message.get("done")
            and "prompt_eval_count" not in message
            and "embeddings" not in message
        ):
            return None
        model = text_or_none(message.get("model")) or call.model()
        if not says_any(message, "prompt_eval_count", "eval_count"):
            if "embeddings" in message:
                return Usage(model=model, input_tokens=call.prompt_tokens(), estimated=True)
            if message.get("done_reason") != "load":  # a request without a prompt
                return None
        return Usage(
            model=model,
            input_tokens=count(message.get("prompt_eval_count")),
            output_tokens=count(message.get("eval_count")),
        )

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the line with ``done``; estimate when the stream ended before it."""
        for line in events.newest(b'"done"'):
            if line.get("done") is True:
                return self.from_message(line, call)
        opening = events.opening()
        if "done" not in opening:
            return None
        spoken = (
            part
            for line in events.every()
            for part in (line.get("message"), line.get("response"), line.get("thinking"))
        )
        model = text_or_none(opening.get("model")) or call.model()
        return call.estimated(events, spoken, model=model)
