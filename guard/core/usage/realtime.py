"""WebSockets to a model: which there are, and how the usage of their answers is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple
from urllib.parse import parse_qs

from msgspec import structs

from guard.core.local_address import is_local
from guard.core.usage.conversation import Conversation
from guard.core.usage.framing import Events
from guard.core.usage.gemini import Gemini
from guard.core.usage.live_frames import LiveConversation
from guard.core.usage.message import Message, UnreadableUsage, mapping, parse
from guard.core.usage.openai_responses import Responses, read_usage
from guard.core.usage.realtime_frames import RealtimeConversation
from guard.core.usage.response_format import (
    Call,
    MemberPath,
    ToolCallReader,
    Usage,
    replaced,
)
from guard.core.usage.tool_calls import LIVE
from guard.core.usage.vendors import Endpoint, find_endpoint, provider_of


class Realtime(Responses, frozen=True):
    """An answer of a realtime session; its body is that of ``realtime_frames``."""

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return nothing: the settings of a session are its program's own."""
        return ()


class LiveTurn(Gemini, frozen=True):
    """A turn of a Live session; its body is that of ``live_frames``."""

    tool_calls: ClassVar[ToolCallReader] = LIVE

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return nothing: the settings of a session are its program's own."""
        return ()

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the newest ``usageMetadata`` of the turn: it grows while the turn does."""
        for event in events.newest(b'"usageMetadata"'):
            said = mapping(event["usageMetadata"])
            # Live sessions report a response where other answers report candidates.
            names = {each.replace("response", "candidates"): each for each in said}
            renamed = {name: said[each] for name, each in names.items()}
            usage = super().from_message({**event, "usageMetadata": renamed}, call)
            if usage is not None:
                return replaced(usage, fees=None, estimated=not _is_whole(events))
        texts = (event.get("serverContent") for event in events.every())
        return call.estimated(events, texts, model=call.model())


def _is_whole(events: Events) -> bool:
    """Return whether a turn was seen to its end, or until it waits for a tool."""
    ends = (b'"turnComplete"', b'"turn_complete"', b'"toolCall"', b'"tool_call"')
    return any(next(events.newest(each), None) is not None for each in ends)


class ModelSocket(NamedTuple):
    """A WebSocket whose frames are known.

    Attributes:
        endpoint: reads its answers.
        conversation: follows its frames.
    """

    endpoint: Endpoint
    conversation: Conversation


def find_socket(host: str, path: str, query: str) -> ModelSocket | None:
    """Return a WebSocket whose frames are known, or None for any other one.

    Args:
        host: the host name, without the port.
        path: the path of the URL.
        query: the query of the URL, which may name the model.
    """
    path, provider, named = path.rstrip("/"), provider_of(host), parse_qs(query)
    model = next((named[each][0] for each in ("model", "deployment") if each in named), None)
    if path.endswith("/v1/realtime" if provider is None else "/realtime"):
        endpoint = Endpoint(
            Realtime(provider or "openai"),
            is_local=is_local(host),
            is_vendors=provider is not None,
        )
        return ModelSocket(endpoint, RealtimeConversation(model))
    if path.endswith("BidiGenerateContent"):
        return ModelSocket(
            Endpoint(LiveTurn(), is_vendors=provider is not None), LiveConversation()
        )
    found = find_endpoint("POST", host, path)
    if found is None or type(found.format) is not Responses or not path.endswith("/responses"):
        return None
    return ModelSocket(structs.replace(found, streams=True), Conversation(model))


_HEARD: Final = "conversation.item.input_audio_transcription.completed"


def transcript(provider: str, data: bytes, conversation: Conversation) -> Usage | None:
    """Return what the transcript of a user's words used, if a server's event reports it."""
    if b"input_audio_transcription.completed" not in data:
        return None
    event = mapping(parse(data))
    if event.get("type") != _HEARD:
        return None
    try:
        usage = read_usage(event, provider)
    except UnreadableUsage:
        return None
    return None if usage is None else replaced(usage, model=usage.model or conversation.hears)
