"""Realtime APIs over WebSockets: usage in the messages of OpenAI's and Gemini's sessions."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from guard.core.usage.gemini import Gemini
from guard.core.usage.message import Message, UnreadableUsage, mapping, parse
from guard.core.usage.openai_responses import read_usage
from guard.core.usage.response_format import Call, Usage, replaced
from guard.core.usage.vendors import provider_of

_ENDED: Final = frozenset({
    "response.done", "response.completed", "response.incomplete", "response.failed",
    "conversation.item.input_audio_transcription.completed",
})  # fmt: skip


class RealtimeUsage:
    """Reads the messages of one session.

    Args:
        provider: the vendor.
        query: the query of the session's URL, which may name the model.
    """

    def __init__(self, provider: str, query: str) -> None:
        asked = parse_qs(query)
        named = asked.get("model") or asked.get("deployment") or []
        self._model = named[0] if named else None
        self._gemini = Gemini(provider)
        # What the current turn has used so far.
        self._turn: Usage | None = None

    def read(self, message: str | bytes) -> Usage | None:
        """Return what a response used, if this message reports it.

        Gemini repeats a turn's usage as it grows: it is counted when the turn is complete.
        """
        try:
            return self._read(message)
        except UnreadableUsage:
            return None

    def _read(self, message: str | bytes) -> Usage | None:
        data = message.encode("utf-8", "replace") if isinstance(message, str) else message
        if b'"usage' not in data and b'"session' not in data and b'"serverContent"' not in data:
            return None
        event = mapping(parse(data))
        kind = event.get("type")
        if kind in ("session.created", "session.updated"):
            model = mapping(event.get("session")).get("model")
            self._model = model if isinstance(model, str) and model else self._model
        if kind in _ENDED:
            response = mapping(event.get("response", event))
            return self._named(read_usage(response, self._gemini.provider))
        return self._read_turn(event)

    def sent(self, message: str | bytes) -> None:
        """Inspect a message from the client: the first one may name the model."""
        data = message.encode("utf-8", "replace") if isinstance(message, str) else message
        if self._model is None and b'"setup"' in data:
            model = mapping(mapping(parse(data)).get("setup")).get("model")
            self._model = model.rpartition("/")[2] if isinstance(model, str) and model else None

    def rest(self) -> Usage | None:
        """Return what an unfinished turn has used by the end of the session."""
        turn, self._turn = self._turn, None
        return None if turn is None else self._named(turn)

    def _read_turn(self, event: Message) -> Usage | None:
        if "usageMetadata" in event:
            said = mapping(event["usageMetadata"])
            # Live sessions report `responseTokenCount` where other responses report candidates.
            answered = said.get("candidatesTokenCount", said.get("responseTokenCount"))
            whole = {"usageMetadata": {**said, "candidatesTokenCount": answered}}
            self._turn = self._gemini.from_message(whole, Call()) or self._turn
        if mapping(event.get("serverContent")).get("turnComplete"):
            return self.rest()
        return None

    def _named(self, usage: Usage | None) -> Usage | None:
        return None if usage is None else replaced(usage, model=usage.model or self._model)


def find_realtime(host: str, path: str) -> str | None:
    """Return the vendor of a WebSocket to an LLM, or None when it is not one.

    Args:
        host: the host name, in lower case, without the port.
        path: the path of the URL, without the query.
    """
    provider = provider_of(host)
    if provider is None and path.rstrip("/").endswith("/v1/realtime"):
        return "openai"
    return provider
