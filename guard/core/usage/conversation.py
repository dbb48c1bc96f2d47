"""The answers of one WebSocket: which of them a server's event belongs to. Pure; not thread-safe.

``plan`` says what must be held before a frame is sent, ``went`` takes note of it; ``unheld`` names
an answer that the vendor has begun by itself, ``received`` what an event means for those that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, NamedTuple

from guard.core.usage.frames import (
    Asked,
    Role,
    encoded,
    facts_of,
    label,
    read_event,
    read_frame,
    type_of,
)
from guard.core.usage.message import Message, mapping, text_or_none

_STEERING: Final = "response.steer."
_KEPT: Final = 64
"""How many ended answers are remembered, which a frame may still steer."""


class FrameStep(NamedTuple):
    """What an event means for one answer.

    Attributes:
        asked: the answer.
        is_part: whether the event is a part of it.
        end: how it has ended: ``done``, ``free`` (it has cost nothing), ``cut`` (nobody knows);
            None while it runs.
    """

    asked: Asked
    is_part: bool
    end: Literal["done", "free", "cut"] | None = None


class Conversation:
    """What all kinds of WebSockets have in common; as it is, that of OpenAI's Responses.

    Args:
        model: as the URL names it; None where it does not.
    """

    kind: ClassVar[str] = "responses"

    def __init__(self, model: str | None = None) -> None:
        self.model = model
        self.facts = facts_of(self.kind)
        # Answers that were asked for and have not begun, the oldest first.
        self.waiting: list[Asked] = []
        # Those that have, by their key.
        self.running: dict[str, Asked] = {}
        # The newest answers by their id: a frame that steers one inherits its settings.
        self._known: dict[str, Asked] = {}

    @property
    def hears(self) -> str | None:
        """The model that writes down what a user says."""
        return self.model

    # -- what the client sends ----------------------------------------------------------------

    def plan(self, data: bytes) -> list[Asked]:
        """Return the answers that a frame may bring about; empty for one that costs nothing."""
        frame = read_frame(data)
        if frame is None:
            return [Asked(data)]  # which nothing bounds
        match self._role(frame):
            case "free":
                return []
            case "speaks":
                return self._ahead(frame)
            case "unknown":
                return [Asked(self._open(), unknown=label(self._name(frame)))]
            case "steers":
                return [self._steering(frame)]
        return [self._asking(frame, data)]

    def went(self, data: bytes, asked: Sequence[Asked]) -> list[FrameStep]:
        """Note that a frame is about to be sent; return the answers that it has outdated."""
        self.waiting += asked
        return []

    def forget(self, asked: Asked) -> None:
        """Note that a frame was not sent after all."""
        if asked in self.waiting:
            self.waiting.remove(asked)

    def _role(self, frame: Message) -> Role:
        return self.facts.role(type_of(frame))

    def _name(self, frame: Message) -> str:
        return type_of(frame)

    def _asking(self, frame: Message, data: bytes) -> Asked:
        self.model = text_or_none(frame.get("model")) or self.model
        return Asked(data, text_or_none(frame.get("stream_id")) or "")

    def _ahead(self, frame: Message) -> list[Asked]:
        return []

    def _steering(self, frame: Message) -> Asked:
        """Return the answer that follows the one which runs: it inherits that one's settings."""
        parent = self._known.get(str(frame.get("previous_response_id")))
        if parent is None:
            return Asked(self._open(), steers=True)
        said = read_frame(parent.body) or {}
        body = encoded({**said, **frame, "type": "response.create"})
        return Asked(body, parent.lane, steers=True)

    def _open(self) -> bytes:
        """Return the body of an answer whose prompt may be the whole context of the model."""
        return encoded({"model": self.model, "conversation": "any"})

    # -- what the server sends ----------------------------------------------------------------

    def unheld(self, data: bytes) -> Asked | None:
        """Return the answer that an event begins although nothing has asked for it; or None."""
        event = read_event(data)
        if not self._begins(event) or self._next(self._lane(event)) is not None:
            return None
        return self._unasked(event)

    def received(self, data: bytes) -> list[FrameStep]:
        """Return what an event means for the answers, and take note of it."""
        event = read_event(data)
        kind, lane = type_of(event), self._lane(event)
        if kind == "error":
            return self._failed(event)
        if kind.startswith(_STEERING):
            return self._steered(kind, lane)
        if self._begins(event):
            asked = self._next(lane)
            if asked is None:
                return []
            self.waiting.remove(asked)
            self.running[self._key(event)] = asked
            self._began(event, asked)
        key = self._key(event)
        running = self.running.get(key)
        if running is None or not kind.startswith("response."):
            return []
        if kind not in self.facts.ends:
            return [FrameStep(running, is_part=True)]
        del self.running[key]
        self._ended(event, running)
        return [FrameStep(running, is_part=True, end="done"), *self._merged(running)]

    def _unasked(self, event: Message) -> Asked:
        """Return an answer that the vendor has begun by itself."""
        return Asked(self._open(), self._lane(event), is_ahead=True)

    def _lane(self, event: Message) -> str:
        return text_or_none(event.get("stream_id")) or ""

    def _key(self, event: Message) -> str:
        """Return under which key the event's answer runs: in its lane there is one at a time."""
        return self._lane(event)

    def _begins(self, event: Message) -> bool:
        kind = type_of(event)
        if not kind.startswith("response.") or kind.startswith(_STEERING):
            return False
        return self._key(event) not in self.running

    def _next(self, lane: str) -> Asked | None:
        """Return the answer that begins next in a lane."""
        own = [each for each in self.waiting if each.lane == lane and not each.merged]
        return min(own, key=lambda each: each.is_ahead, default=None)

    def _began(self, event: Message, asked: Asked) -> None:
        answer = text_or_none(mapping(event.get("response")).get("id"))
        if answer is not None:
            self._known[answer] = asked
            while len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]

    def _ended(self, event: Message, asked: Asked) -> None:
        pass

    def _failed(self, event: Message) -> list[FrameStep]:
        """Return the answer that an error refuses; one in the middle of an answer ends that."""
        lane = self._lane(event)
        running, status = self.running.get(lane), event.get("status")
        if running is not None and status is None:
            del self.running[lane]
            return [FrameStep(running, is_part=True, end="done")]
        asked = self._next(lane)
        if asked is None or asked.is_ahead:
            return []
        self.waiting.remove(asked)
        return [FrameStep(asked, is_part=False, end="free" if status is not None else "done")]

    def _steered(self, kind: str, lane: str) -> list[FrameStep]:
        steering = [each for each in self.waiting if each.steers and each.lane == lane]
        if kind.endswith(".failed") and steering:
            self.waiting.remove(steering[0])
            return [FrameStep(steering[0], is_part=False, end="free")]
        if kind.endswith(".pending"):
            for each in steering:
                each.merged = True
        return []

    def _merged(self, ended: Asked) -> list[FrameStep]:
        """Return what the client's next frame has taken along, now that this was answered."""
        done = [each for each in self.waiting if each.merged and each.lane == ended.lane]
        for each in done:
            self.waiting.remove(each)
        return [FrameStep(each, is_part=False, end="free") for each in done]

    # -- its end ------------------------------------------------------------------------------

    def rest(self, *, seen: bool) -> list[FrameStep]:
        """Return what is left when the connection is over.

        Args:
            seen: whether all that the server has said was read.
        """
        left = [*self.running.values(), *self.waiting]
        self.running.clear()
        self.waiting.clear()
        free = seen and not self._may_answer()
        return [
            FrameStep(each, is_part=False, end="free" if each.is_ahead and free else "cut")
            for each in left
        ]

    def _may_answer(self) -> bool:
        """Return whether the vendor may have begun an answer of its own by now."""
        return True
