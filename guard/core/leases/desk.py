"""Decides about the questions that no lease covers at once: who is covered, who waits, who asks.

Input events come in, a list of effects goes out. No input or output, no callback, no clock: time is
an argument. Used on the background loop only; the book behind it is shared with callers' threads.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from guard.core import wire
from guard.core.leases.book import LeaseBook
from guard.core.leases.effects import Answer, AskGateway, Complete, Effect, Fail, NotGranted, TopUp
from guard.core.leases.lease import LaneKey, Subject
from guard.core.leases.question import Grant, Question, granted
from guard.core.leases.records import Asked, Update
from guard.core.request_bound import RequestBound

_ALONE_S: Final = 1.0
"""How long a subject that got no lease is asked for without one."""
_ALONE_MAX: Final = 10_000
LANES_MAX: Final = 10_000
_VOIDING: Final = frozenset({"policy", "price", "budget", "settings"})
"""Control messages after which nothing is covered until the gateway has allowed it anew."""


class _Line:
    """The questions of one lane.

    Attributes:
        asked: the one that the gateway is asked now; the others wait for its answer.
        waiting: the others, in the order of asking.
    """

    __slots__ = ("asked", "waiting")

    def __init__(self) -> None:
        self.asked: Question | None = None
        self.waiting: deque[Question] = deque()


class Desk:
    """Takes questions and events, and says what is to be done.

    Args:
        book: the leases of this process.

    Attributes:
        can_lease: whether the gateway grants leases now; set before each event.
        tops_up: whether it tops leases up before a call has to wait.
    """

    def __init__(self, book: LeaseBook) -> None:
        self._book = book
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's questions."""
        self.can_lease = False
        self.tops_up = False
        # Whether no more lanes are taken in; looked at with each tick.
        self._is_full = False
        # A line exists while a question of its lane is asked, or waits.
        self._lines: dict[LaneKey, _Line] = {}
        # What got an answer without a lease, and until when it is asked for alone.
        self._alone: dict[tuple[LaneKey, Subject], float] = {}

    # -- questions ------------------------------------------------------------------------------

    def asked(self, questions: Iterable[Question], now_s: float) -> list[Effect]:
        """Take in questions; those of one lane that come together are asked for together."""
        effects: list[Effect] = []
        due: dict[LaneKey, _Line] = {}
        for question in questions:
            lane = question.lane
            if question.ticket is not None and question.ticket.cancelled():
                continue  # its caller has given up before the loop came to it
            if lane is None or not self.can_lease or self._is_full:
                effects.append(AskGateway(question))
                continue
            line = self._lines.get(lane)
            if line is None:
                line = self._lines[lane] = _Line()
            line.waiting.append(question)
            due[lane] = line
        for lane, line in due.items():
            self._serve(lane, line, now_s, effects)
        return effects

    def _serve(self, lane: LaneKey, line: _Line, now_s: float, effects: list[Effect]) -> None:
        """Decide about those that wait in a line. The cases, in this order:

        1. A question of the lane is under way: all wait for its answer, which may cover them.
        2. The lease covers a question by now: it is answered.
        3. A top-up of the lease is under way: the others wait for it likewise.
        4. No lease can cover a question, or none did a moment ago: it is asked alone.
        5. The first that is left is asked for, and with it what all the others need.
        """
        if line.asked is not None:
            return
        left: deque[Question] = deque()
        for question in line.waiting:
            if question.ticket is not None and question.ticket.cancelled():
                continue
            grant = self._covered(question, now_s)
            if grant is None:
                left.append(question)
            else:
                effects.append(Complete(question, grant))
        line.waiting = left
        if left and self._book.is_asked_ahead(lane):
            return
        line.waiting = deque()
        for question in left:
            if self.can_lease and not (self._alone and self._is_alone(question, now_s)):
                line.waiting.append(question)
            else:
                effects.append(AskGateway(question))
        if line.waiting:
            effects.append(self._ask(lane, line, now_s))
        else:
            del self._lines[lane]

    def _covered(self, question: Question, now_s: float) -> Grant | None:
        lane, subject, bound = question.lane, question.subject, question.bound
        assert lane is not None
        assert subject is not None
        if bound is None:
            hold = self._book.take(lane, subject, now_s, question.calls)
            return None if hold is None else Grant(None, hold)
        found = self._book.take_request(lane, subject, bound, now_s, question.calls)
        return None if found is None else Grant(None, *found)

    def _is_alone(self, question: Question, now_s: float) -> bool:
        assert question.lane is not None
        assert question.subject is not None
        key = (question.lane, question.subject)
        until_s = self._alone.get(key)
        if until_s is None or now_s < until_s:
            return until_s is not None
        del self._alone[key]
        return False

    def _ask(self, lane: LaneKey, line: _Line, now_s: float) -> AskGateway:
        needed = calls = 0
        for question in line.waiting:
            if question.subject is not None:
                needed += self._book.needs(lane, question.subject, question.bound)
            calls += question.calls
        # All that wait are counted in the demand, so that one answer can cover them all.
        line.asked = line.waiting.popleft()
        return AskGateway(line.asked, self._book.ask(lane, now_s, needed, calls), len(line.waiting))

    # -- answers ----------------------------------------------------------------------------------

    def answered(self, ask: AskGateway, answer: Answer, now_s: float) -> list[Effect]:
        """Take in the answer to a question; what it grants may cover those that waited for it."""
        question, asked = ask.question, ask.asked
        if asked is None:
            return [_outcome(question, answer)]
        effects: list[Effect] = []
        line = self._lines[asked.lane]
        line.asked = None
        if isinstance(answer, NotGranted):
            if answer.is_unanswered:
                # What was asked has given back what was free here; whether the gateway has taken
                # that, or granted more, is unknown, so nothing more is taken from this lease.
                self._book.unanswered(asked)
            effects.append(Fail(question, answer.error))
            if answer.for_money:
                self._refuse_alike(line, question, answer, ask.waiting, effects)
        else:
            effects.append(Complete(question, self._granted(question, asked, answer, now_s)))
        self._serve(asked.lane, line, now_s, effects)
        return effects

    def _granted(
        self, question: Question, asked: Asked, reply: wire.GateReply, now_s: float
    ) -> Grant:
        subject = question.subject
        assert subject is not None
        if reply.lease is None:
            self._book.unanswered(asked)
            if len(self._alone) >= _ALONE_MAX:
                self._alone.clear()
            self._alone[(asked.lane, subject)] = now_s + _ALONE_S
            return granted(question, reply)
        hold = self._book.granted(
            asked, reply.lease, subject, reply.reserved_nanousd, question.calls
        )
        # A top-up asks the like of this again.
        hold.lease.question = question.request
        return granted(question, reply, hold)

    def _refuse_alike(
        self, line: _Line, refused: Question, answer: NotGranted, waited: int, effects: list[Effect]
    ) -> None:
        """Refuse those that waited already and need at least as much as what was refused."""
        left: deque[Question] = deque()
        for number, question in enumerate(line.waiting):
            if (
                number < waited
                and question.subject == refused.subject
                and _at_least(question.bound, refused.bound)
            ):
                effects.append(Fail(question, copy.copy(answer.error)))
            else:
                left.append(question)
        line.waiting = left

    def topped_up(
        self, asked: Asked, reply: wire.GateReply | None, now_s: float, *, is_known: bool = True
    ) -> list[Effect]:
        """Take in the answer to a top-up, and look again at those that have waited for it.

        Args:
            asked: what was asked for.
            reply: None when it was refused, or its answer did not come.
            now_s: the time.
            is_known: whether the gateway's answer came.
        """
        effects: list[Effect] = []
        if not is_known:
            self._book.unanswered(asked)
        elif reply is None or reply.lease is None:
            self._book.not_topped_up(asked)
        else:
            back = self._book.topped_up(asked, reply.lease)
            if back is not None:
                effects.append(back)
        line = self._lines.get(asked.lane)
        if line is not None:
            self._serve(asked.lane, line, now_s, effects)
        return effects

    # -- the leases -------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Effect]:
        """Return what is due: renewals, what goes back, what is topped up."""
        self._is_full = self._book.lanes >= LANES_MAX
        if not self._book.lanes:
            self._book.metered.clear()  # a workflow without a lane asks anyway
            return []
        effects: list[Effect] = list(self._book.due(now_s))
        if self.tops_up and self.can_lease:
            effects += [TopUp(asked, like) for asked, like in self._book.low(now_s)]
        return effects

    def recalled(self, lease_ids: Collection[str]) -> list[Update]:
        """Give back at once what the gateway wants back and nothing here uses."""
        return self._book.recall(lease_ids)

    def pushed(self, messages: Iterable[wire.ControlMessage]) -> None:
        """Void what control messages concern."""
        for message in messages:
            if message.type in _VOIDING:
                self._book.void(message.workflow_id)

    def switched(self, usable_until_s: float) -> None:
        """The socket has opened; or it is lost, and leases are good for a moment and no longer."""
        self._book.usable_until(usable_until_s)

    def updated(self, update: Update, state: wire.LeaseState | None, sent_s: float) -> None:
        """Take in the answer to an update; None when the gateway does not know the lease."""
        self._book.answered(update, state, sent_s)

    def close(self) -> list[Update]:
        """End all leases; nothing is covered any more."""
        return self._book.close()


def _outcome(question: Question, answer: Answer) -> Effect:
    if isinstance(answer, NotGranted):
        return Fail(question, answer.error)
    return Complete(question, granted(question, answer))


def _at_least(bound: RequestBound | None, other: RequestBound | None) -> bool:
    """Tell whether a request needs at least what another one does."""
    if bound is None or other is None:
        return bound is other
    return _reaches(bound.input_tokens, other.input_tokens) and _reaches(
        bound.output_tokens, other.output_tokens
    )


def _reaches(tokens: int | None, other: int | None) -> bool:
    if tokens is None or other is None:
        return tokens is other
    return tokens >= other
