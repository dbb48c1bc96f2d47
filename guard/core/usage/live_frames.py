"""Gemini's Live sessions: their frames are named by a member, and a turn is one answer."""

from __future__ import annotations

from typing import ClassVar

from guard.core.usage.conversation import Conversation, FrameStep
from guard.core.usage.frames import Asked, Role, encoded, read_event
from guard.core.usage.message import Message, mapping, text_or_none


class LiveConversation(Conversation):
    """A session of ``BidiGenerateContent``.

    The vendor answers what it hears when it likes, so there is always one answer held for whatever
    was said last. A call of a tool and what follows its result are one turn.
    """

    kind: ClassVar[str] = "live"

    def __init__(self, model: str | None = None) -> None:
        super().__init__(model)
        self._setup: Message = {}
        # Whether the turn that runs has said what it used, is complete, and waits for a tool: what
        # follows the tool's result is another answer where this one was counted by itself.
        self._is_counted = self._is_complete = self._is_parted = False

    def _role(self, frame: Message) -> Role:
        roles = {self.facts.role(name) for name in _camel(frame)}
        for role in ("unknown", "asks", "speaks"):
            if role in roles:
                content = _camel(mapping(_camel(frame).get("clientContent")))
                waits = role == "asks" and content.get("turnComplete") is False
                return "free" if waits else role
        if "setup" in _camel(frame):
            self._setup = _camel(mapping(_camel(frame)["setup"]))
            self.model = (text_or_none(self._setup.get("model")) or "").rpartition("/")[2] or None
        return "free" if frame else "unknown"

    def _name(self, frame: Message) -> str:
        return next((each for each in _camel(frame) if self.facts.role(each) == "unknown"), "")

    def _asking(self, frame: Message, data: bytes) -> Asked:
        return Asked(self._open())

    def _ahead(self, frame: Message) -> list[Asked]:
        if any(each.is_ahead for each in self.waiting):
            return []
        return [Asked(self._open(), is_ahead=True)]

    def _open(self) -> bytes:
        settings = _camel(mapping(self._setup.get("generationConfig")))
        return encoded(
            {
                "model": self.model,
                "setup": {"tools": self._setup.get("tools")},
                "conversation": "any",
                "modalities": ["audio"],
                "max_output_tokens": settings.get("maxOutputTokens"),
            }
        )

    def received(self, data: bytes) -> list[FrameStep]:
        """Return what an event means for the answers, and take note of it."""
        event = _camel(read_event(data))
        steps: list[FrameStep] = []
        if self._begins(event):
            steps += self._end()
            asked = self._next("")
            if asked is None:
                return steps
            self.waiting.remove(asked)
            self.running[""] = asked
            self._is_counted = self._is_complete = self._is_parted = False
        running = self.running.get("")
        if running is None:
            return steps
        steps.append(FrameStep(running, is_part=True))
        counts, calls = "usageMetadata" in event, "toolCall" in event
        self._is_counted = counts or (self._is_counted and not calls)
        self._is_complete |= _camel(mapping(event.get("serverContent"))).get("turnComplete") is True
        self._is_parted = calls or (self._is_parted and not _speaks(event))
        if self._is_counted and (self._is_complete or self._is_parted):
            steps += self._end()
        return steps

    def _begins(self, event: Message) -> bool:
        event = _camel(event)
        works = _speaks(event) or "toolCall" in event
        return works and ("" not in self.running or self._is_complete)

    def _end(self) -> list[FrameStep]:
        running = self.running.pop("", None)
        return [] if running is None else [FrameStep(running, is_part=False, end="done")]


def _speaks(event: Message) -> bool:
    content = _camel(mapping(event.get("serverContent")))
    return not {"modelTurn", "outputTranscription"}.isdisjoint(content)


def _camel(message: Message) -> Message:
    """Return a message with its names as Google writes them; it takes snake case as well.

    >>> _camel({"client_content": 1})
    {'clientContent': 1}
    """
    return {_renamed(name): value for name, value in message.items()}


def _renamed(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)
