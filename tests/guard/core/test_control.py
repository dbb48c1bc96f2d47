"""Control state: whatever the order of delivery, newest wins and only a revive ends a kill."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from guard.core import control
from guard.core.control import ControlState, Halt
from guard.core.globs import is_pattern, matches
from guard.core.wire import Budget, ControlMessage
from guard.gateway.domain.control import Directives

WORKFLOWS = ["a", "ab", "abc", "b", "job[1]", "job1"]
TARGETS = [*WORKFLOWS, "*", "a*", "ab*", "?b", "*c", "job[1]*"]
RUNS = ["r1", "r2"]
NOW_MS = 1_000_000
OVER = ["resume", "revive"]
"""What ends a pause."""


def message(seq: int, kind: str, target: str | None = "a", **fields: Any) -> ControlMessage:
    return ControlMessage(seq, kind, workflow_id=target, **fields)


def after(*messages: ControlMessage) -> ControlState:
    state = ControlState()
    for each in messages:
        state = state.apply(each)
    return state


def kind_of(halt: Halt | None) -> str | None:
    return None if halt is None else halt.kind


def concerns(target: str | None, workflow: str | None) -> bool:
    """The meaning of a target, said independently of the code under test."""
    if target in (None, "*"):
        return True
    if workflow is None:
        return False
    if "*" not in target and "?" not in target:
        return target == workflow
    return fnmatchcase(workflow, target.replace("[", "[[]"))


def oracle(
    messages: list[ControlMessage], workflow: str | None, run: str | None, now_ms: int
) -> str | None:
    """The newest message that concerns this run decides, separately for kills and for pauses.

    A pause that lifts itself replaces one of the same target, and says nothing once it is over.
    """
    timed: dict[object, ControlMessage] = {}
    for each in messages:
        if each.type == "pause" and each.resume_after_ms is not None:
            slot = each.run_id or (each.workflow_id or "*", None)
            timed[slot] = max(timed.get(slot, each), each, key=lambda known: known.seq)
    messages = [
        each
        for each in messages
        if each.type != "pause"
        or each.resume_after_ms is None
        or (each in timed.values() and now_ms < each.at_ms + each.resume_after_ms)
    ]
    for kind, starts, ends in (("kill", "kill", ["revive"]), ("pause", "pause", OVER)):
        newest = max(
            (
                each
                for each in messages
                if each.type in (starts, *ends)
                and (
                    each.run_id == run
                    if each.run_id is not None
                    else concerns(each.workflow_id, workflow)
                )
            ),
            key=lambda each: each.seq,
            default=None,
        )
        if newest is not None and newest.type not in ends:
            return kind
    return None


@st.composite
def histories(draw: st.DrawFn) -> list[ControlMessage]:
    """Messages as a gateway numbers them: 1, 2, 3 ..."""
    return [
        ControlMessage(
            seq,
            draw(st.sampled_from(["kill", "revive", "pause", "resume", "ping", "policy", "novel"])),
            workflow_id=draw(st.sampled_from(TARGETS)),
            run_id=draw(st.none() | st.sampled_from(RUNS)),
            resume_after_ms=draw(st.none() | st.sampled_from([0, 10, 1000])),
            at_ms=NOW_MS,
        )
        for seq in range(1, draw(st.integers(1, 14)) + 1)
    ]


def verdicts(state: ControlState) -> dict[tuple[str | None, str | None, int], str | None]:
    return {
        (workflow, run, now_ms): kind_of(state.halt(workflow, run, now_ms))
        for workflow in [None, *WORKFLOWS]
        for run in [None, *RUNS]
        for now_ms in (NOW_MS, NOW_MS + 10, NOW_MS + 5000)
    }


@given(histories())
def test_the_state_is_what_the_newest_messages_say(history: list[ControlMessage]) -> None:
    state = after(*history)
    for (workflow, run, now_ms), verdict in verdicts(state).items():
        assert verdict == oracle(history, workflow, run, now_ms)


@given(histories(), st.data())
def test_out_of_order_and_repeated_delivery_converges(
    history: list[ControlMessage], data: st.DataObject
) -> None:
    repeated = history + data.draw(st.lists(st.sampled_from(history), max_size=6))
    shuffled = data.draw(st.permutations(repeated))
    assert verdicts(after(*shuffled)) == verdicts(after(*history))


@given(histories(), st.data())
def test_batches_say_what_single_messages_say(
    history: list[ControlMessage], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    anew = [message(0, "hello", None)] if data.draw(st.booleans()) else []
    batch = [*history[:cut], *anew, *history[cut:]]
    one_by_one = after(*batch)
    assert verdicts(ControlState().apply(*batch)) == verdicts(one_by_one)
    assert ControlState().apply(*batch).seq == one_by_one.seq


def copied_by_batches(monkeypatch: pytest.MonkeyPatch, size: int) -> int:
    """Return how many marks are copied while a batch is applied to a state of its own size."""
    copied: list[int] = []
    copy = control._copied

    def counting(marks: Any) -> Any:
        copied.append(len(marks))
        return copy(marks)

    kinds = ["kill", "pause", "resume", "revive"]
    batch = [message(seq, kinds[seq % 4], f"w{seq % size}") for seq in range(1, 2 * size)]
    state = ControlState().apply(*batch[:size])
    with monkeypatch.context() as patch:
        patch.setattr(control, "_copied", counting)
        assert state.apply(*batch[size:]).seq == 2 * size - 1
    return sum(copied)


def test_a_batch_copies_the_state_once(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (copied_by_batches(monkeypatch, size) for size in (500, 2000))
    assert 0 < small <= 3 * 500
    assert large <= 4.5 * small


def test_what_changes_nothing_copies_nothing() -> None:
    state = after(message(1, "kill"), message(2, "pause"), message(3, "revive", "b"))
    again = state.apply(message(1, "kill"), message(2, "pause"), message(3, "hello"))
    assert again is state


def test_a_number_is_known_with_its_epoch() -> None:
    state = after(message(1, "kill", epoch="one"), message(2, "pause", epoch="two"))
    assert (state.seq, state.epoch) == (2, "two")
    assert state.apply(message(1, "kill", epoch="one")).epoch == "two"
    assert state.apply(message(-1, "hello", epoch="three")).epoch == ""


@given(histories(), histories())
def test_halts_survive_a_gateway_that_counts_anew(
    history: list[ControlMessage], new: list[ControlMessage]
) -> None:
    """A replaced store starts at 1 again: what was halted stays so until it says otherwise."""
    before = after(*history, message(99, "policy", None))
    restarted = before.apply(message(0, "hello", None))
    assert restarted.seq == 0
    assert verdicts(restarted) == verdicts(before)
    continued = restarted
    for each in new:
        continued = continued.apply(each)
    renumbered = [
        ControlMessage(
            each.seq + 100, each.type, workflow_id=each.workflow_id, run_id=each.run_id,
            resume_after_ms=each.resume_after_ms, at_ms=each.at_ms,
        )
        for each in new
    ]  # fmt: skip
    for (workflow, run, now_ms), verdict in verdicts(continued).items():
        assert verdict == oracle(history + renumbered, workflow, run, now_ms)


@given(histories())
def test_a_state_is_never_changed_in_place(history: list[ControlMessage]) -> None:
    """Checks read the state without a lock: an old reference must keep saying the same."""
    half = after(*history[: len(history) // 2])
    said = verdicts(half)
    state = half
    for each in history:
        state = state.apply(each)
    assert verdicts(half) == said


class KillMachine(RuleBasedStateMachine):
    """An operator, a network that repeats and reorders, and one workflow's kill."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ControlState()
        self.seq = 0
        self.sent: list[ControlMessage] = []
        self.killed = False

    def deliver(self, kind: str, target: str) -> None:
        self.seq += 1
        self.sent.append(message(self.seq, kind, target))
        self.state = self.state.apply(self.sent[-1])

    @rule(where=st.sampled_from(["a", "*", "a*"]))
    def kill(self, where: str) -> None:
        self.deliver("kill", where)
        self.killed = True

    @rule(where=st.sampled_from(["a", "*", "a*"]))
    def revive(self, where: str) -> None:
        self.deliver("revive", where)
        self.killed = False

    @rule(kind=st.sampled_from(["resume", "pause", "budget", "policy", "ping", "hello"]))
    def something_else(self, kind: str) -> None:
        self.deliver(kind, "a")

    @rule(where=st.sampled_from(["b", "ab", "b*"]))
    def kill_another(self, where: str) -> None:
        self.deliver("kill", where)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        self.state = self.state.apply(data.draw(st.sampled_from(self.sent)))

    @rule()
    def the_gateway_counts_anew(self) -> None:
        if self.state.seq > 0:
            self.state = self.state.apply(message(0, "hello", None))
            self.sent.clear()
            self.seq = 0

    @invariant()
    def a_kill_ends_only_by_a_revive(self) -> None:
        halt = self.state.halt("a", "r", NOW_MS)
        assert (kind_of(halt) == "kill") == self.killed


TestKill = KillMachine.TestCase


def test_a_resume_never_lifts_a_kill() -> None:
    for target in ("a", "*", "a*"):
        state = after(message(1, "kill"), message(2, "resume", target))
        assert kind_of(state.halt("a", None, NOW_MS)) == "kill"


def test_a_revive_lets_the_workflow_run_again_paused_or_not() -> None:
    state = after(message(1, "pause"), message(2, "kill"), message(3, "revive"))
    assert state.halt("a", None, NOW_MS) is None
    state = after(message(1, "kill"), message(2, "revive"), message(3, "pause"))
    assert kind_of(state.halt("a", None, NOW_MS)) == "pause"


@given(histories())
def test_the_gateway_and_the_sdk_agree(history: list[ControlMessage]) -> None:
    """What the gate refuses and what the process refuses by itself must be the same."""
    book, state = Directives(), after(*history)
    for each in history:
        book.apply(each)
    kinds = {"killed": "kill", "paused": "pause", "active": None}
    for (workflow, run, now_ms), verdict in verdicts(state).items():
        assert verdict == kinds[book.state_of(workflow, run, now_ms).state]


def test_a_killed_run_ends_alone() -> None:
    state = after(message(1, "kill", "a", run_id="r1", reason="runaway"))
    assert state.halt("a", "r1", NOW_MS) == Halt("kill", "runaway")
    assert state.halt("a", "r2", NOW_MS) is None
    assert state.halt("a", None, NOW_MS) is None


def test_a_pause_with_resume_after_lifts_itself_then() -> None:
    state = after(message(1, "pause", "a", at_ms=NOW_MS, resume_after_ms=500))
    assert state.halt("a", None, NOW_MS + 499) == Halt("pause", "", NOW_MS + 500)
    assert state.halt("a", None, NOW_MS + 500) is None
    assert state.apply(message(1, "pause", "a", at_ms=NOW_MS, resume_after_ms=500)) == state


def test_a_pause_without_resume_after_has_no_end() -> None:
    assert after(message(1, "pause")).halt("a", None, 2**60) == Halt("pause", "", None)


def test_outside_of_any_workflow_only_everything_concerns() -> None:
    assert after(message(1, "kill", "a")).halt(None, None, NOW_MS) is None
    assert after(message(1, "kill", "a*")).halt(None, None, NOW_MS) is None
    assert kind_of(after(message(1, "kill", "*")).halt(None, None, NOW_MS)) == "kill"


def test_budgets_halt_only_where_the_gateway_is_not_going_to_be_asked() -> None:
    spent = Budget.of(limit=10, spent=10, reserved=0)
    state = after(message(1, "budget", "a", exhausted=True, budget=spent, reason="used up"))
    assert state.halt("a", None, NOW_MS) is None
    assert state.halt("a", None, NOW_MS, budgets=True) == Halt("budget", "used up", budget=spent)
    raised = state.apply(message(2, "budget", "a", exhausted=False))
    assert raised.halt("a", None, NOW_MS, budgets=True) is None


def test_a_kill_is_told_before_a_pause_before_a_budget() -> None:
    state = after(
        message(1, "kill"), message(2, "pause"), message(3, "budget", "a", exhausted=True)
    )
    assert kind_of(state.halt("a", None, NOW_MS, budgets=True)) == "kill"
    state = state.apply(message(4, "revive")).apply(message(5, "pause"))
    assert kind_of(state.halt("a", None, NOW_MS, budgets=True)) == "pause"
    state = state.apply(message(6, "resume"))
    assert kind_of(state.halt("a", None, NOW_MS, budgets=True)) == "budget"


@pytest.mark.parametrize(
    ("target", "workflow", "expected"),
    [
        ("*", "anything", True),
        ("billing-*", "billing-eu", True),
        ("billing-*", "Billing-eu", False),
        ("billing-*", "my-billing-eu", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("job[1]", "job[1]", True),
        ("job[1]", "job1", False),
        ("job[1]*", "job[1]-x", True),
        ("job[1]*", "job1-x", False),
        ("[!a]*", "b", False),
        ("a.b", "aXb", False),
        ("a*", "a\nb", True),
        ("", "", True),
    ],
)
def test_only_stars_and_question_marks_are_wild(target: str, workflow: str, expected: bool) -> None:
    assert matches(target, workflow) is expected


def test_what_is_a_pattern() -> None:
    assert is_pattern("a*")
    assert is_pattern("a?")
    assert not is_pattern("job[1]")
    assert not is_pattern("plain")


def test_a_pattern_of_many_stars_is_matched_in_no_time() -> None:
    assert not matches("*a" * 40 + "b", "a" * 250)


def test_marks_that_a_newer_pattern_covers_are_forgotten() -> None:
    """A long-lived process must not collect a mark for every workflow that ever was."""
    state = ControlState()
    for seq in range(1, 1001):
        state = state.apply(message(seq, "kill" if seq % 2 else "revive", f"w{seq // 2}"))
    state = state.apply(message(2000, "revive", "*"))
    assert len(state.kills.exact) == 0
    assert len(state.kills.patterns) == 1


def test_hello_and_ping_do_not_move_the_number() -> None:
    """They tell the newest number; what it stands for is still to be replayed."""
    state = after(message(5, "kill"))
    assert state.apply(message(9, "hello", None)) == state
    assert state.apply(message(9, "ping", None)) == state


def test_a_type_that_is_not_known_moves_the_number_and_nothing_else() -> None:
    state = after(message(3, "kill"), message(4, "confetti", "a"))
    assert state.seq == 4
    assert kind_of(state.halt("a", None, NOW_MS)) == "kill"
