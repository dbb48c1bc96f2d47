"""Control messages folded into the state of a workflow or run. Newest wins, by ``seq``.

``resume`` never lifts a kill, only ``revive`` does. A target is an exact workflow id, a glob, or a
run id. Three slots per target are enough: the newest of kill and revive; the newest of resume,
revive and pauses without an end; and the newest pause with an end, which counts until then and
leaves the earlier state as it was. So messages may be applied in any order and more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from guard.core import globs
from guard.core.wire import ControlMessage

State = Literal["active", "paused", "killed"]


class TargetState(Struct, frozen=True):
    """The control state of one workflow or run at one moment.

    Attributes:
        state: active, paused or killed.
        reason: of the directive that decides.
        resume_at_ms: when a pause ends by itself.
        by_run: whether that directive names one run.
        by: the workflow id or glob that it names.
    """

    state: State = "active"
    reason: str = ""
    resume_at_ms: int | None = None
    by_run: bool = False
    by: str = ""


ACTIVE = TargetState()
Undo = Callable[[], None]


class _Slots(Struct):
    life: ControlMessage | None = None
    flow: ControlMessage | None = None
    timed: ControlMessage | None = None


class Directives:
    """The active directives of one organisation.

    Belongs to the store's unit of work, which undoes changes of a failed command.
    """

    __slots__ = ("_exact", "_patterns", "_runs")

    def __init__(self) -> None:
        # By exact workflow id, by glob, and by run id. For a call, its id is looked up in the first
        # and the last one, and all globs are compared.
        self._exact: dict[str, _Slots] = {}
        self._patterns: dict[str, _Slots] = {}
        self._runs: dict[str, _Slots] = {}

    def apply(self, message: ControlMessage) -> Undo | None:
        """Apply one message; one that is older than the known ones changes nothing.

        Returns:
            A callable that undoes exactly this message, or ``None`` when nothing changed.
        """
        if message.type not in ("kill", "revive", "pause", "resume"):
            return None
        slots = self._slots(message)
        life, flow, timed = slots.life, slots.flow, slots.timed
        # A revive is in two slots: it lifts a kill, and a pause as well.
        if message.type in ("kill", "revive"):
            slots.life = newest(slots.life, message)
        if is_timed(message):
            slots.timed = newest(slots.timed, message)
        elif message.type != "kill":
            slots.flow = newest(slots.flow, message)

        def undo() -> None:
            slots.life, slots.flow, slots.timed = life, flow, timed

        return undo

    def state_of(self, workflow_id: str | None, run_id: str | None, now_ms: int) -> TargetState:
        """Return the current state of a run of a workflow."""
        if not (self._exact or self._patterns or self._runs):
            return ACTIVE
        life = flow = None
        for slots in self._matching(workflow_id, run_id):
            life = newest(life, slots.life)
            flow = newest(flow, slots.flow)
            if slots.timed is not None and now_ms < end_of(slots.timed):
                flow = newest(flow, slots.timed)
        # A kill first: no pause or resume, however new, changes anything about it.
        if life is not None and life.type == "kill":
            return _state_by(life, "killed")
        if flow is not None and flow.type == "pause":
            return _state_by(flow, "paused", end_of(flow) if is_timed(flow) else None)
        return ACTIVE

    def stop(self, target: str, now_ms: int) -> bool:
        """Return whether a kill or pause is in force under this id or glob.

        For an id also under a glob that matches it.
        """
        slots = self._exact.get(target) or self._patterns.get(target) or _Slots()
        held = (slots.life, slots.flow, slots.timed)
        if any(each is not None and _holds(each, now_ms) for each in held):
            return True
        is_glob = globs.is_pattern(target)
        return not is_glob and self.state_of(target, None, now_ms).state != "active"

    def resumed(self, workflow_id: str | None, run_id: str | None) -> ControlMessage | None:
        """Return the message that resumed or revived a run last, or its workflow.

        ``None`` if a pause without an end is newer.
        """
        flow = None
        for slots in self._matching(workflow_id, run_id):
            flow = newest(flow, slots.flow)
        return None if flow is None or flow.type == "pause" else flow

    def targets(self) -> list[str]:
        """Return the exact workflow ids and patterns that have directives."""
        return [
            target
            for table in (self._exact, self._patterns)
            for target, slots in table.items()
            if slots.life is not None or slots.flow is not None or slots.timed is not None
        ]

    def forget_run(self, run_id: str, slot: Literal["life", "flow", "timed"]) -> Undo:
        """Drop one slot of a run; return a callable that undoes it."""
        slots = self._runs.setdefault(run_id, _Slots())
        known = getattr(slots, slot)
        setattr(slots, slot, None)
        if slots == _Slots():
            del self._runs[run_id]

        def undo() -> None:
            setattr(self._runs.setdefault(run_id, slots), slot, known)

        return undo

    def _slots(self, message: ControlMessage) -> _Slots:
        if message.run_id is not None:
            return self._runs.setdefault(message.run_id, _Slots())
        target = message.workflow_id or "*"
        table = self._patterns if globs.is_pattern(target) else self._exact
        return table.setdefault(target, _Slots())

    def _matching(self, workflow_id: str | None, run_id: str | None) -> Iterator[_Slots]:
        if run_id is not None and run_id in self._runs:
            yield self._runs[run_id]
        if workflow_id is not None and workflow_id in self._exact:
            yield self._exact[workflow_id]
        for pattern, slots in self._patterns.items():
            if pattern == "*" or (workflow_id is not None and globs.matches(pattern, workflow_id)):
                yield slots


def _state_by(
    message: ControlMessage, state: State, resume_at_ms: int | None = None
) -> TargetState:
    by_run = message.run_id is not None
    return TargetState(state, message.reason, resume_at_ms, by_run, message.workflow_id or "*")


def _holds(message: ControlMessage, now_ms: int) -> bool:
    if message.type not in ("kill", "pause"):
        return False
    return not is_timed(message) or now_ms < end_of(message)


def is_timed(message: ControlMessage) -> bool:
    """Return whether a message is a pause that ends by itself."""
    return message.type == "pause" and message.resume_after_ms is not None


def end_of(pause: ControlMessage) -> int:
    """Return when a pause ends by itself, in Unix milliseconds."""
    return pause.at_ms + (pause.resume_after_ms or 0)


def newest(left: ControlMessage | None, right: ControlMessage | None) -> ControlMessage | None:
    """Return the message with the higher number."""
    if left is None or (right is not None and right.seq > left.seq):
        return right
    return left
