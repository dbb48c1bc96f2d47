"""Speech and videos, which are charged by the piece: their answers say nothing of their cost."""

from __future__ import annotations

from guard.core import fees
from guard.core.usage.framing import Events
from guard.core.usage.message import Message, text_or_none
from guard.core.usage.openai_responses import read_usage
from guard.core.usage.response_format import (
    Call,
    ResponseFormat,
    Usage,
    by_the_piece,
    replaced,
)


class Piecework(ResponseFormat, frozen=True):
    """OpenAI's ``/v1/audio/speech`` and ``/v1/videos``.

    Attributes:
        provider: the vendor behind the host.
    """

    provider: str

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Return a usage without tokens, of a model that is charged by the piece."""
        model = text_or_none(message.get("model")) or call.model()
        if not fees.by_the_piece(model):
            return None
        return Usage(model=model, response_id=text_or_none(message.get("id")))

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the usage of a stream of speech that says it."""
        for event in events.newest(b'"usage"'):
            usage = read_usage(event, self.provider)
            if usage is not None:
                return replaced(usage, model=usage.model or call.model(), fees={})
        return by_the_piece(call)
