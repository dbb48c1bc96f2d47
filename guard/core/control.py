"""Control messages folded into an immutable state that every check reads without a lock.

A halt is marked for a workflow id, a glob pattern or ``"*"``, with the sequence number of the
message. For any run of a workflow the newest matching mark decides, as it does in the gateway.
``resume`` lifts a pause only; ``revive`` lifts a kill or a pause. A message about a run affects
only that run. A pause that lifts itself counts until then; afterwards the earlier marks apply.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import attrs
from msgspec import Struct
from msgspec.structs import replace

from guard.core.gateway_facts import GatewayFacts
from guard.core.globs import is_pattern, matches
from guard.core.tool_rules import CompiledToolRules
from guard.core.wire import NO_FACTS, NO_TOOL_RULES, Budget, ControlMessage, OwnFacts
from guard.core.wire import ToolRules as ToolRulesMessage

EVERYTHING: Final = "*"


class Mark(Struct, frozen=True):
    """The content of the newest message about one target.

    Attributes:
        seq: the number of the message.
        halted: whether it halts the target; False for a mark that lifts an earlier halt.
        reason: the operator's, for the error.
        until_ms: when a pause lifts itself, in Unix milliseconds; None for never.
        budget: the exhausted budget.
    """

    seq: int
    halted: bool
    reason: str = ""
    until_ms: int | None = None
    budget: Budget | None = None

    def counts(self, now_ms: int) -> bool:
        """Return whether the mark applies at a given time."""
        return self.until_ms is None or now_ms < self.until_ms

    def covers(self, other: Mark) -> bool:
        """Return whether the mark supersedes another one about the same target at all times."""
        if self.seq < other.seq:
            return False
        # One that lifts itself leaves an older mark that lasts longer in force.
        return self.until_ms is None or (
            other.until_ms is not None and self.until_ms >= other.until_ms
        )


class Halt(Struct, frozen=True):
    """Why a call must stop."""

    kind: Literal["kill", "pause", "budget"]
    reason: str = ""
    resume_at_ms: int | None = None
    budget: Budget | None = None


_NO_MARK: Final = Mark(-1, False)
_NO_MARKS: Final[Mapping[str, Mark]] = MappingProxyType({})


class HaltMarks(Struct, frozen=True):
    """The marks of one kind of halt: by workflow id, by pattern, by run."""

    exact: Mapping[str, Mark] = _NO_MARKS
    patterns: Mapping[str, Mark] = _NO_MARKS
    runs: Mapping[str, Mark] = _NO_MARKS

    def __bool__(self) -> bool:
        return bool(self.exact or self.patterns or self.runs)

    def find(self, workflow_id: str | None, run_id: str | None, now_ms: int) -> Mark | None:
        """Return the mark that halts this run of this workflow, if any: the newest decides."""
        newest = self.newest(workflow_id, run_id, now_ms)
        return newest if newest is not None and newest.halted else None

    def newest(self, workflow_id: str | None, run_id: str | None, now_ms: int) -> Mark | None:
        """Return the newest mark that matches this run of this workflow and applies now."""
        # Read without a lock, for every call: the maps of a state are never changed.
        # By the number of the message, whatever the target: a kill of "*" can be lifted for one
        # workflow by a later revive.
        newest = self.exact.get(workflow_id) if workflow_id is not None else None
        if newest is not None and not newest.counts(now_ms):
            newest = None
        if run_id is not None and self.runs:
            mark = self.runs.get(run_id)
            if mark is not None and (newest is None or mark.seq > newest.seq):
                newest = mark if mark.counts(now_ms) else newest
        for target, mark in self.patterns.items():
            concerned = target == EVERYTHING or (
                workflow_id is not None and matches(target, workflow_id)
            )
            if concerned and (newest is None or mark.seq > newest.seq) and mark.counts(now_ms):
                newest = mark
        return newest

    def restarted(self, newest: int) -> HaltMarks:
        """Return the lane with every mark made older than any message still to come.

        The marks keep their relative order: a kill that was newer than a revive still is.
        """

        def aged(marks: Mapping[str, Mark]) -> dict[str, Mark]:
            return {key: replace(mark, seq=mark.seq - newest - 1) for key, mark in marks.items()}

        return HaltMarks(aged(self.exact), aged(self.patterns), aged(self.runs))


class _LaneDraft:
    """A lane while a batch of messages is folded into it: each map is copied at most once."""

    __slots__ = ("_before", "_covering", "exact", "patterns", "runs")

    def __init__(self, lane: HaltMarks) -> None:
        self._before = lane
        # Patterns that this batch has set: they may supersede marks of the lane.
        self._covering: dict[str, Mark] = {}
        self.exact = lane.exact
        self.patterns = lane.patterns
        self.runs = lane.runs

    def put(self, target: str, run_id: str | None, mark: Mark) -> None:
        """Add one mark; it replaces an older one for the same target."""
        if run_id is not None:
            self.runs = self._with(self.runs, self._before.runs, run_id, mark)
        elif not is_pattern(target):
            self.exact = self._with(self.exact, self._before.exact, target, mark)
        else:
            self.patterns = self._with(self.patterns, self._before.patterns, target, mark)
            self._covering[target] = self.patterns[target]

    def _with(
        self, marks: Mapping[str, Mark], before: Mapping[str, Mark], key: str, mark: Mark
    ) -> Mapping[str, Mark]:
        old = marks.get(key)
        # With equal numbers the later one decides: a reply's decision carries the state's number.
        if old is not None and (old.seq > mark.seq or old == mark):
            return marks
        draft = _copied(marks) if marks is before else marks
        draft[key] = mark  # type: ignore[index]  # a dict that only this draft holds
        return draft

    def lane(self) -> HaltMarks:
        """Return the lane with every mark; the same object when nothing has changed."""
        before = self._before
        if (
            self.exact is before.exact
            and self.patterns is before.patterns
            and self.runs is before.runs
        ):
            return before
        exact, patterns, covering = self.exact, self.patterns, self._covering
        if covering:
            # A pattern supersedes the older marks that it covers, so the maps stay small.
            exact = {
                name: mark
                for name, mark in exact.items()
                if not any(
                    over.covers(mark) and matches(target, name) for target, over in covering.items()
                )
            }
        if everything := covering.get(EVERYTHING):
            patterns = {
                target: mark
                for target, mark in patterns.items()
                if target == EVERYTHING or not everything.covers(mark)
            }
        return HaltMarks(exact, patterns, self.runs)


def _copied(marks: Mapping[str, Mark]) -> dict[str, Mark]:
    return dict(marks)


_NO_HALTS: Final = HaltMarks()


@attrs.frozen
class ControlState:
    """All directives and budget decisions as of message ``seq``.

    Attributes:
        seq: number of the newest message that was applied.
        kills, pauses, budgets: the active halts.
        timed_pauses: pauses that lift themselves.
        epoch: the epoch of that message: together they identify one message, even if a gateway
            that was restored from a copy has assigned the number a second time.
        tools: the tool rules of this key; None when it has none, or the gateway sends none.
        facts: what its operators have judged; None likewise.
    """

    seq: int = 0
    kills: HaltMarks = _NO_HALTS
    pauses: HaltMarks = _NO_HALTS
    budgets: HaltMarks = _NO_HALTS
    epoch: str = ""
    timed_pauses: HaltMarks = _NO_HALTS
    tools: CompiledToolRules | None = None
    facts: GatewayFacts | None = None

    @functools.cached_property
    def stops_requests(self) -> bool:
        """Whether any LLM request may have to stop; looked at before each of them."""
        return bool(self.kills or self.pauses or self.timed_pauses or self.budgets)

    @property
    def known(self) -> str:
        """The versions of the tool rules and the facts, as the query that names them."""
        tools = NO_TOOL_RULES if self.tools is None else self.tools.version
        return f"tools={tools}&facts={NO_FACTS if self.facts is None else self.facts.version}"

    def pause(self, workflow_id: str | None, run_id: str | None, now_ms: int) -> Mark | None:
        """Return the mark that pauses this run of this workflow, if any."""
        newest = self.pauses.newest(workflow_id, run_id, now_ms)
        if self.timed_pauses:
            timed = self.timed_pauses.newest(workflow_id, run_id, now_ms)
            if timed is not None and (newest is None or timed.seq > newest.seq):
                newest = timed
        return newest if newest is not None and newest.halted else None

    def halt(
        self, workflow_id: str | None, run_id: str | None, now_ms: int, *, budgets: bool = False
    ) -> Halt | None:
        """Return why this run of this workflow must stop now, or None.

        Args:
            workflow_id: the workflow, or None outside one (then only ``"*"`` matches).
            run_id: the run, or None.
            now_ms: the time in Unix milliseconds, for pauses that lift themselves.
            budgets: also check exhausted budgets (the gateway is not going to be asked).
        """
        if killed := self.kills.find(workflow_id, run_id, now_ms):
            return Halt("kill", killed.reason)
        if paused := self.pause(workflow_id, run_id, now_ms):
            return Halt("pause", paused.reason, paused.until_ms)
        if budgets and (spent := self.budgets.find(workflow_id, run_id, now_ms)):
            return Halt("budget", spent.reason, budget=spent.budget)
        return None

    def apply(self, *messages: ControlMessage) -> ControlState:
        """Return the state after the messages; duplicates and late messages change nothing.

        A batch costs its messages and one copy of the state.
        """
        # One draft for the batch: a replay of thousands of messages copies each map once.
        draft = _StateDraft(self)
        for message in messages:
            if message.type == "hello" and message.seq < draft.seq:
                draft = _StateDraft(draft.state()._restarted())
            draft.take(message)
        return draft.state()

    def _restarted(self) -> ControlState:
        # The gateway's numbering restarted (its store was replaced). Halts stay until it says
        # otherwise: forgetting a kill is the one mistake that this state must not make.
        return ControlState(
            0,
            self.kills.restarted(self.seq),
            self.pauses.restarted(self.seq),
            self.budgets.restarted(self.seq),
            timed_pauses=self.timed_pauses.restarted(self.seq),
            tools=self.tools,
            facts=self.facts,
        )


def messages_of_decision(
    state: ControlState,
    workflow_id: str,
    run_id: str | None,
    decision: str | None,
    budget: Budget | None = None,
) -> list[ControlMessage]:
    """Return a reply's decision about one run as control messages for ``state``.

    They carry the number of the newest message: later messages of the control channel supersede
    them. A reply that allows the run lifts what an earlier reply has halted.

    >>> [m.type for m in messages_of_decision(ControlState(), "w", "r", "exhausted")]
    ['budget']
    """

    def message(kind: str, **fields: Any) -> ControlMessage:
        return ControlMessage(state.seq, kind, workflow_id=workflow_id, epoch=state.epoch, **fields)

    match decision:
        case "kill" | "pause":
            return [message(decision, run_id=run_id, reason="the gateway says so")]
        case "exhausted":
            return [
                message("budget", exhausted=True, budget=budget, reason="the budget is exhausted")
            ]
        case "allow":
            lifted = []
            if state.budgets.exact.get(workflow_id, _NO_MARK).halted:
                lifted.append(message("budget"))
            if run_id is not None and any(
                lane.runs.get(run_id, _NO_MARK).halted for lane in (state.kills, state.pauses)
            ):
                lifted.append(message("revive", run_id=run_id))
            return lifted
        case _:
            return []


class _StateDraft:
    """A state while a batch of messages is folded into it."""

    __slots__ = (
        "_before", "_budgets", "_facts", "_kills", "_pauses", "_timed_pauses", "_tools", "epoch",
        "seq",
    )  # fmt: skip

    def __init__(self, state: ControlState) -> None:
        self._before = state
        self.seq = state.seq
        self.epoch = state.epoch
        self._kills = _LaneDraft(state.kills)
        self._pauses = _LaneDraft(state.pauses)
        self._timed_pauses = _LaneDraft(state.timed_pauses)
        self._budgets = _LaneDraft(state.budgets)
        self._tools = state.tools
        self._facts = state.facts

    def take(self, message: ControlMessage) -> None:
        """Fold one message in."""
        if message.tools is not None:
            self._tools = _compiled(message.tools, self._tools)
        if message.facts is not None:
            self._facts = _facts(message.facts, self._facts)
        if message.type in ("hello", "ping"):
            return  # they carry the newest number; its message is still to come
        if message.seq >= self.seq:
            self.seq, self.epoch = message.seq, message.epoch
        target, run_id = message.workflow_id or EVERYTHING, message.run_id
        match message.type:
            case "kill":
                self._kills.put(target, run_id, Mark(message.seq, True, message.reason))
            case "revive":  # lifts both, so it is a mark in both lanes
                mark = Mark(message.seq, False, message.reason)
                self._kills.put(target, run_id, mark)
                self._pauses.put(target, run_id, mark)
            case "pause" | "resume":
                wait_ms = message.resume_after_ms
                until_ms = None if wait_ms is None else message.at_ms + wait_ms
                halted = message.type == "pause"
                # In a lane of its own: once it has lifted itself, the earlier marks apply again.
                timed = halted and until_ms is not None
                draft = self._timed_pauses if timed else self._pauses
                mark = Mark(message.seq, halted, message.reason, until_ms if timed else None)
                draft.put(target, run_id, mark)
            case "budget":
                mark = Mark(message.seq, message.exhausted, message.reason, budget=message.budget)
                self._budgets.put(target, run_id, mark)

    def state(self) -> ControlState:
        """Return the state; unchanged parts are the same objects as before."""
        before, seq, epoch = self._before, self.seq, self.epoch
        kills, pauses, budgets = self._kills.lane(), self._pauses.lane(), self._budgets.lane()
        timed = self._timed_pauses.lane()
        if (
            seq == before.seq
            and epoch == before.epoch
            and kills is before.kills
            and pauses is before.pauses
            and timed is before.timed_pauses
            and budgets is before.budgets
            and self._tools is before.tools
            and self._facts is before.facts
        ):
            return before
        return ControlState(seq, kills, pauses, budgets, epoch, timed, self._tools, self._facts)


def _compiled(
    message: ToolRulesMessage, before: CompiledToolRules | None
) -> CompiledToolRules | None:
    """Return the rules of a message; the same object when they are those of before."""
    if not message.rules:
        return None
    if before is not None and before.version == message.version:
        return before
    return CompiledToolRules(message)


def _facts(message: OwnFacts, before: GatewayFacts | None) -> GatewayFacts | None:
    """Return the facts of a message; the same object when they are those of before."""
    if not message.groups:
        return None
    if before is not None and before.version == message.version:
        return before
    return GatewayFacts(message)
