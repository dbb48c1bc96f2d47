"""Runs of OpenAI's Assistants API: work that is started, then polled or streamed."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from guard.core.usage.framing import Events
from guard.core.usage.message import Message
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.response_format import PENDING, Call, ToolCallReader, Usage
from guard.core.usage.tool_calls import RUNS

_NOT_YET: Final = frozenset({"queued", "in_progress", "requires_action", "cancelling"})


@attrs.frozen
class ThreadRuns:
    """``/v1/threads/runs``, ``/v1/threads/{id}/runs`` and the paths below them.

    Attributes:
        provider: the vendor behind the host.
    """

    provider: str
    tool_calls: ClassVar[ToolCallReader] = RUNS

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` of a run; it has none before it ends."""
        usage = ChatCompletions(self.provider).from_message(message, call)
        if usage is not None:
            return usage
        ended_unused = message.get("object") == "thread.run"
        return PENDING if ended_unused or message.get("status") in _NOT_YET else None

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the run's last event; its steps report their parts of the same usage earlier."""
        for event in events.newest(b'"usage"'):
            if event.get("object") == "thread.run":
                return self.from_message(event, call)
        return PENDING if "object" in events.opening() else None
