"""For URLs of LLM hosts that no other file covers: tells the format by the response's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from guard.core.usage.anthropic import AnthropicMessages
from guard.core.usage.bedrock import Converse
from guard.core.usage.cohere import Cohere
from guard.core.usage.framing import Events
from guard.core.usage.gemini import Gemini, Interactions
from guard.core.usage.message import Message, mapping
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.openai_responses import Responses
from guard.core.usage.response_format import Call, ResponseFormat, ToolCallReader, Usage
from guard.core.usage.tool_calls import ANY


class AnyShape(ResponseFormat, frozen=True):
    """Tries one format after another; never estimates.

    Attributes:
        provider: the vendor behind the host.
    """

    provider: str
    tool_calls: ClassVar[ToolCallReader] = ANY

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read the usage in whichever format matches."""
        inner = mapping(message.get("result"))
        for candidate in (message, inner) if inner else (message,):
            for known in self._formats(candidate):
                usage = known.from_message(candidate, call)
                if usage is not None and not usage.estimated:
                    return usage
        return None

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the last message that reports usage."""
        for marker in (b'"usage"', b'"usageMetadata"', b'"billed_units"'):
            for event in events.newest(marker):
                for candidate in (event, mapping(event.get("response"))):
                    usage = self.from_message(candidate, call)
                    if usage is not None:
                        return usage
        return None

    def _formats(self, message: Message) -> Sequence[ResponseFormat]:
        said = mapping(message.get("usage"))
        if "cache_creation_input_tokens" in said or message.get("type") == "message":
            return (AnthropicMessages(self.provider),)
        # Each returns None for a shape that is not its own.
        return (
            ChatCompletions(self.provider),
            Responses(self.provider),
            Gemini(self.provider),
            Interactions(self.provider),
            Converse(self.provider),
            Cohere(self.provider),
        )
