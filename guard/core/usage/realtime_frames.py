"""OpenAI's realtime sessions: what an answer there can cost, and which the vendor begins itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from guard.core.usage.conversation import Conversation, FrameStep
from guard.core.usage.frames import Asked, encoded, read_event, read_frame, type_of
from guard.core.usage.message import Message, mapping, text_or_none

_BYTES_PER_TOKEN: Final = 800
"""A token of sound is a tenth of a second of what a user says (https://developers.openai.com/api/
docs/guides/realtime-costs), and the format with the fewest bytes (G.711) has 8,000 a second."""

_ROOM: Final = 3_000
"""For how many tokens of what is said later an answer of the vendor's own is held: five minutes of
sound, or less by the bytes of a richer format."""

_BUSY: Final = "conversation_already_has_active_response"
"""The error of a frame that asks while an answer runs, where it does not name the frame."""


class RealtimeConversation(Conversation):
    """A session at ``/v1/realtime``.

    The prompt of an answer is the conversation: what the newest answer has reported, and what was
    sent since that one was asked for.

    Args:
        model: as the URL names it; None where it does not.
    """

    kind: ClassVar[str] = "realtime"

    def __init__(self, model: str | None = None) -> None:
        super().__init__(model)
        # The session's settings as the server has shown them; None before. Then those that were
        # sent since, each of which may be in force or refused.
        self._settings: Message | None = None
        self._updates: list[Message] = []
        # What was sent to the conversation: items, or the tokens of sound. `_first` is the number
        # of the oldest that is kept: those before it are in the prompt of `_newest`.
        self._sent: list[Message | int] = []
        self._first = 0
        # How much of it the newest answer that was looked at has in its prompt.
        self._marked = 0
        # The id of the newest answer that has become part of the conversation.
        self._newest: str | None = None
        # Whether somebody has spoken since the vendor's newest answer.
        self._is_spoken_to = False

    @property
    def hears(self) -> str | None:
        """The model that writes down what a user says, by the newest settings that name one."""
        for settings in (*reversed(self._updates), self._settings or {}):
            heard = mapping(mapping(settings.get("audio")).get("input"))
            said = mapping(heard.get("transcription") or settings.get("input_audio_transcription"))
            if "model" in said:
                return text_or_none(said["model"])
        return self.model

    # -- what the client sends ----------------------------------------------------------------

    def plan(self, data: bytes) -> list[Asked]:
        """Return the answers that a frame may bring about; empty for one that costs nothing.

        What is said to a vendor that may answer at any moment makes that answer dearer.
        """
        asked = super().plan(data)
        if asked or self._expects is None:
            return asked
        return self._ahead(read_frame(data) or {})

    def _asking(self, frame: Message, data: bytes) -> Asked:
        wanted = mapping(frame.get("response"))
        asked = self._expected(wanted)
        asked.event_id = text_or_none(frame.get("event_id"))
        asked.apart = wanted.get("conversation") == "none" or "input" in wanted
        return asked

    @property
    def _expects(self) -> Asked | None:
        """The answer of the vendor's own for which money is held, and that has not begun."""
        return next((each for each in self.waiting if each.is_ahead), None)

    def _ahead(self, frame: Message) -> list[Asked]:
        """Return the answer that the vendor may begin by itself, unless enough is held for it."""
        if not self._answers_itself():
            return []
        held, said = self._expects, _tokens(_said(frame))
        if held is not None:
            since = self._sent[max(0, held.mark - self._first) :]
            said += sum(map(_tokens, since))
            if said <= held.room and held.after == self._newest:
                return []
        return [self._expected({}, room=max(_ROOM, 2 * said))]

    def went(self, data: bytes, asked: Sequence[Asked]) -> list[FrameStep]:
        """Note that a frame is about to be sent; return the answers that it has outdated."""
        outdated = []
        if any(each.is_ahead for each in asked) and (old := self._expects) is not None:
            self.waiting.remove(old)
            outdated.append(FrameStep(old, is_part=False, end="free"))
        super().went(data, asked)
        frame = read_frame(data) or {}
        said = _said(frame)
        if type_of(frame) == "session.update":
            self._updates.append(mapping(said))
        elif said is not None:
            joins = self._first + len(self._sent) > self._marked  # no answer is asked for between
            last = self._sent[-1] if joins else None
            if type(said) is int and type(last) is int:
                self._sent[-1] = said + last
            else:
                self._sent.append(said)
        return outdated

    def _expected(self, wanted: Message, room: int = 0) -> Asked:
        """Return an answer with the settings of a frame that asks, and those of the session."""
        mark = self._marked = self._first + len(self._sent)
        body: dict[str, Any] = {
            "model": self.model,
            "response": wanted,
            "session": [each for each in (self._settings, *self._updates) if each is not None],
            "items": [each for each in self._sent if type(each) is dict],
            "heard_tokens": room + sum(each for each in self._sent if type(each) is int),
            "modalities": ["audio"],
        }
        limit = self._limit(wanted)
        if limit is not None:
            body["max_output_tokens"] = limit
        others = [each for each in (*self.running.values(), *self.waiting) if not each.apart]
        largest = [each.output_tokens for each in others]
        if (self._newest is None and self._settings is None) or None in largest:
            body["conversation"] = "any"  # the vendor's own instructions, or how much it will say
        elif self._newest is not None:
            body["previous_response_id"] = self._newest
        body["heard_tokens"] += sum(each or 0 for each in largest)
        return Asked(
            encoded(body),
            is_ahead=room > 0,
            mark=mark,
            room=room,
            after=self._newest,
            output_tokens=limit,
        )

    def _open(self) -> bytes:
        return encoded({"model": self.model, "conversation": "any", "modalities": ["audio"]})

    def _limit(self, wanted: Message) -> int | None:
        """Return the largest limit on an answer that may be in force; None without one."""
        if "max_output_tokens" in wanted:
            limits = [wanted["max_output_tokens"]]
        else:
            names = ("max_output_tokens", "max_response_output_tokens")
            shown = self._settings or {}
            limits = [next((shown[each] for each in names if each in shown), None)]
            limits += [each[name] for each in self._updates for name in names if name in each]
        numbers = [each for each in limits if type(each) is int and each > 0]
        return max(numbers) if len(numbers) == len(limits) else None

    def _answers_itself(self) -> bool:
        """Return whether the vendor may answer what it hears, by any settings in force."""
        if self._settings is None:
            return True
        if self._settings.get("type") == "transcription":
            return False
        if _detects_turns(self._settings) is not False:
            return True
        return any(map(_detects_turns, self._updates))

    # -- what the server sends ----------------------------------------------------------------

    def received(self, data: bytes) -> list[FrameStep]:
        """Return what an event means for the answers, and take note of it."""
        event = read_event(data)
        kind = type_of(event)
        if kind in ("session.created", "session.updated"):
            self._settings = mapping(event.get("session"))
            shown = text_or_none(self._settings.get("model"))
            if self.model is None and shown is not None:
                for each in (*self.running.values(), *self.waiting):  # asked for before it was said
                    each.body = encoded({**read_event(each.body), "model": shown})
            self.model = shown or self.model
            if kind == "session.updated":
                del self._updates[:1]
            return self._unneeded()
        if kind == "input_audio_buffer.speech_started":
            self._is_spoken_to = True
        return super().received(data)

    def _unneeded(self) -> list[FrameStep]:
        """Return the answers of the vendor's own that its new settings rule out."""
        if self._answers_itself():
            return []
        ahead = [each for each in self.waiting if each.is_ahead]
        for each in ahead:
            self.waiting.remove(each)
        return [FrameStep(each, is_part=False, end="free") for each in ahead]

    def _lane(self, event: Message) -> str:
        return ""

    def _key(self, event: Message) -> str:
        named = event.get("response_id") or mapping(event.get("response")).get("id")
        key = text_or_none(named) or ""
        return "" if "" in self.running and key not in self.running else key

    def _unasked(self, event: Message) -> Asked:
        return self._expected({}, room=_ROOM)

    def _began(self, event: Message, asked: Asked) -> None:
        self._is_spoken_to = False

    def _ended(self, event: Message, asked: Asked) -> None:
        response = mapping(event.get("response"))
        answer = text_or_none(response.get("id"))
        outside = "conversation_id" in response and response["conversation_id"] is None
        if answer is None or asked.apart or outside or response.get("usage") is None:
            return
        self._newest = answer
        del self._sent[: max(0, asked.mark - self._first)]
        self._first = max(self._first, asked.mark)

    def _failed(self, event: Message) -> list[FrameStep]:
        """Return the answer whose frame an error names; others stay held until the end."""
        error = mapping(event.get("error"))
        named, is_busy = error.get("event_id"), error.get("code") == _BUSY
        for each in self.waiting:
            if not each.is_ahead and (each.event_id == named if named else is_busy):
                self.waiting.remove(each)
                return [FrameStep(each, is_part=False, end="free")]
        return []

    def _may_answer(self) -> bool:
        return self._is_spoken_to


def _detects_turns(settings: Message) -> bool | None:
    """Return whether settings let the vendor answer by itself what it hears; None if unsaid."""
    heard = mapping(mapping(settings.get("audio")).get("input"))
    for place in (heard, settings):  # the second is where its preview had it
        if "turn_detection" in place:
            found = place["turn_detection"]
            if type(found) is not dict:
                return found is not None
            return found.get("create_response") is not False or bool(found.get("idle_timeout_ms"))
    return None


def _said(frame: Message) -> Message | int | None:
    """Return what a frame adds to the conversation: an item, settings, or the tokens of sound."""
    match type_of(frame):
        case "session.update":
            return mapping(frame.get("session"))
        case "conversation.item.create":
            return mapping(frame.get("item"))
        case "input_audio_buffer.append":
            return -(-len(str(frame.get("audio"))) * 3 // 4 // _BYTES_PER_TOKEN)
    return None


def _tokens(said: Message | int | None) -> int:
    """Return the most tokens of what was said; a text has at most one for each byte."""
    if said is None or type(said) is int:
        return said or 0
    return len(encoded(mapping(said)))
