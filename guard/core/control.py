"""Control messages folded into an immutable state that every check reads without a lock.

A halt is marked for a workflow id, a glob pattern or ``"*"``, with the sequence number of the
message. For any run of a workflow the newest matching mark decides, as it does in the gateway.
``resume`` lifts a pause only; ``revive`` lifts a kill and a pause. A message about a run concerns
that run alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, Literal

import attrs

from guard.core.wire import Budget, ControlMessage

EVERYTHING: Final = "*"


@attrs.frozen
class Mark:
    """What the newest message about one target said."""

    seq: int
    halted: bool
    reason: str = ""
    until_ms: int | None = None
    budget: Budget | None = None

    def holds(self, now_ms: int) -> bool:
        """Tell whether the halt is in force at a time."""
        return self.halted and (self.until_ms is None or now_ms < self.until_ms)


@attrs.frozen
class Halt:
    """Why a call must not go on."""

    kind: Literal["kill", "pause", "budget"]
    reason: str = ""
    resume_at_ms: int | None = None
    budget: Budget | None = None


def is_pattern(target: str) -> bool:
    """Tell whether a target is a glob pattern rather than one workflow's id."""
    return "*" in target or "?" in target


def matches(target: str, workflow_id: str) -> bool:
    """Tell whether a target (an id, a pattern or ``"*"``) concerns a workflow."""
    return target in (EVERYTHING, workflow_id) or (
        # Only * and ? are signs of a pattern: `job[1]` is a name and must not concern `job1`.
        is_pattern(target) and fnmatchcase(workflow_id, target.replace("[", "[[]"))
    )


_NO_MARKS: Final[Mapping[str, Mark]] = MappingProxyType({})


@attrs.frozen
class Lane:
    """The marks of one kind of halt: by workflow id, by pattern, by run."""

    exact: Mapping[str, Mark] = _NO_MARKS
    patterns: Mapping[str, Mark] = _NO_MARKS
    runs: Mapping[str, Mark] = _NO_MARKS

    def __bool__(self) -> bool:
        return bool(self.exact or self.patterns or self.runs)

    def find(self, workflow_id: str | None, run_id: str | None, now_ms: int) -> Mark | None:
        """Return the mark that halts this run of this workflow, if one does: the newest decides."""
        newest = self.exact.get(workflow_id) if workflow_id is not None else None
        if run_id is not None and self.runs:
            mark = self.runs.get(run_id)
            if mark is not None and (newest is None or mark.seq > newest.seq):
                newest = mark
        for target, mark in self.patterns.items():
            concerned = target == EVERYTHING or (
                workflow_id is not None and matches(target, workflow_id)
            )
            if concerned and (newest is None or mark.seq > newest.seq):
                newest = mark
        return newest if newest is not None and newest.holds(now_ms) else None

    def with_mark(self, target: str, run_id: str | None, mark: Mark) -> Lane:
        """Return the lane with one more mark; an older mark for the same target is replaced."""
        if run_id is not None:
            return attrs.evolve(self, runs=_put(self.runs, run_id, mark))
        if not is_pattern(target):
            return attrs.evolve(self, exact=_put(self.exact, target, mark))
        # A pattern supersedes the older marks that it covers, so that the maps stay small.
        exact = {
            name: old
            for name, old in self.exact.items()
            if old.seq > mark.seq or not matches(target, name)
        }
        patterns = _put(self.patterns, target, mark)
        if target == EVERYTHING:
            patterns = {t: m for t, m in patterns.items() if t == target or m.seq > mark.seq}
        return attrs.evolve(self, exact=exact, patterns=patterns)

    def restarted(self, newest: int) -> Lane:
        """Return the lane with every mark older than anything that is still to come.

        The marks keep their order among themselves: a kill that was newer than a revive still is.
        """

        def aged(marks: Mapping[str, Mark]) -> dict[str, Mark]:
            return {
                key: attrs.evolve(mark, seq=mark.seq - newest - 1) for key, mark in marks.items()
            }

        return Lane(aged(self.exact), aged(self.patterns), aged(self.runs))


def _put(marks: Mapping[str, Mark], key: str, mark: Mark) -> Mapping[str, Mark]:
    old = marks.get(key)
    if old is not None and old.seq > mark.seq:
        return marks
    return {**marks, key: mark}


@attrs.frozen
class ControlState:
    """Everything that operators and budgets have said, as of message ``seq``."""

    seq: int = 0
    kills: Lane = Lane()
    pauses: Lane = Lane()
    budgets: Lane = Lane()

    def halt(
        self, workflow_id: str | None, run_id: str | None, now_ms: int, *, budgets: bool = False
    ) -> Halt | None:
        """Return why this run of this workflow must stop now, or None.

        Args:
            workflow_id: the workflow, or None outside one (only ``"*"`` concerns it then).
            run_id: the run, or None.
            now_ms: the time in Unix milliseconds, for pauses that lift themselves.
            budgets: also look at exhausted budgets (the gateway is not going to be asked).
        """
        if killed := self.kills.find(workflow_id, run_id, now_ms):
            return Halt("kill", killed.reason)
        if paused := self.pauses.find(workflow_id, run_id, now_ms):
            return Halt("pause", paused.reason, paused.until_ms)
        if budgets and (spent := self.budgets.find(workflow_id, run_id, now_ms)):
            return Halt("budget", spent.reason, budget=spent.budget)
        return None

    def apply(self, message: ControlMessage) -> ControlState:
        """Return the state after one message; duplicates and late messages change nothing."""
        seq = max(self.seq, message.seq)
        target = message.workflow_id or EVERYTHING
        match message.type:
            case "kill":
                mark = Mark(message.seq, True, message.reason)
                kills = self.kills.with_mark(target, message.run_id, mark)
                return attrs.evolve(self, seq=seq, kills=kills)
            case "revive":
                mark = Mark(message.seq, False, message.reason)
                kills = self.kills.with_mark(target, message.run_id, mark)
                pauses = self.pauses.with_mark(target, message.run_id, mark)
                return attrs.evolve(self, seq=seq, kills=kills, pauses=pauses)
            case "pause" | "resume":
                wait_ms = message.resume_after_ms
                until_ms = None if wait_ms is None else message.at_ms + wait_ms
                mark = Mark(message.seq, message.type == "pause", message.reason, until_ms)
                return attrs.evolve(
                    self, seq=seq, pauses=self.pauses.with_mark(target, message.run_id, mark)
                )
            case "budget":
                mark = Mark(message.seq, message.exhausted, message.reason, budget=message.budget)
                return attrs.evolve(
                    self, seq=seq, budgets=self.budgets.with_mark(target, message.run_id, mark)
                )
            case "hello" if message.seq < self.seq:
                return self._restarted()
            case "hello" | "ping":
                return self  # they tell the newest number; what it stands for is still to come
            case _:
                return attrs.evolve(self, seq=seq)

    def _restarted(self) -> ControlState:
        # The gateway counts anew (its store was replaced). Halts stay until it says otherwise:
        # forgetting a kill is the one mistake that this state must not make.
        return ControlState(
            0,
            self.kills.restarted(self.seq),
            self.pauses.restarted(self.seq),
            self.budgets.restarted(self.seq),
        )
