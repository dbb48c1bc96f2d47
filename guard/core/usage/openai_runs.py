"""Runs of OpenAI's Assistants API: work that is started, then polled or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from guard.core.usage.framing import Events
from guard.core.usage.message import Message, text_or_none
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.response_format import (
    Call,
    MemberPath,
    ResponseFormat,
    ToolCallReader,
    Usage,
    ended_unseen,
    pending,
)
from guard.core.usage.tool_calls import RUNS

_NOT_YET: Final = frozenset({"queued", "in_progress", "requires_action", "cancelling"})


class ThreadRuns(ResponseFormat, frozen=True):
    """``/v1/threads/runs``, ``/v1/threads/{id}/runs`` and the paths below them.

    Attributes:
        provider: the vendor behind the host.
    """

    provider: str
    tool_calls: ClassVar[ToolCallReader] = RUNS

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit of a run."""
        return (("max_completion_tokens",),) if path.endswith("/runs") else ()

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` of a run; it has none before it ends."""
        usage = ChatCompletions(self.provider).from_message(message, call)
        if usage is not None:
            return usage
        status, identity = message.get("status"), text_or_none(message.get("id"))
        if status in _NOT_YET:
            return pending(identity)
        if message.get("object") != "thread.run":
            return None
        return ended_unseen(text_or_none(message.get("model")), identity)

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the run's last event; its steps report their parts of the same usage earlier."""
        for event in events.newest(b'"usage"'):
            if event.get("object") == "thread.run":
                return self.from_message(event, call)
        for event in events.every():
            if event.get("object") == "thread.run":
                return pending(text_or_none(event.get("id")))
        return pending(None) if "object" in events.opening() else None
