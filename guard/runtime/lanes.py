"""Callers that a lease does not cover now: one ask for each lane at a time, the others wait.

What the answer grants covers those that wait as well, as far as it goes; the next one asks again.
"""

from __future__ import annotations

import copy
import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from guard.breaker.exceptions import (
    GuardBudgetError,
    GuardChainError,
    GuardError,
    GuardTransportError,
)
from guard.core import wire
from guard.core.leases import Asked, LaneKey, LeaseBook, Subject
from guard.core.request_bound import RequestBound
from guard.runtime.questions import Grant, Question, Questions, granted

_ALONE_S: Final = 1.0
"""How long a subject that got no lease is asked for without one."""
_ALONE_MAX: Final = 10_000
LANES_MAX: Final = 10_000


class _Queue:
    """The callers of one lane: the one that is asked for, and those that wait for its answer."""

    __slots__ = ("asking", "waiting")

    def __init__(self) -> None:
        self.asking: Question | None = None
        self.waiting: deque[Question] = deque()


class Lanes:
    """Asks for leases; on the background loop.

    Args:
        book: the leases.
        questions: sends what is asked.
        can_lease: whether the gateway grants leases now.
        read_answers: reads the LLM answers that are unread, so that their holds settle.
        give_back: releases a grant that nobody waits for any more.

    Attributes:
        inbox: where callers put their questions, from any thread, before the loop is told to
            :meth:`take_in`.
    """

    def __init__(
        self,
        book: LeaseBook,
        questions: Questions,
        *,
        can_lease: Callable[[], bool],
        read_answers: Callable[[], None],
        give_back: Callable[[Grant], None],
    ) -> None:
        self._book = book
        self._questions = questions
        self._can_lease = can_lease
        self._read_answers = read_answers
        self._give_back = give_back
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's callers."""
        self.inbox: deque[Question] = deque()
        self._queues: dict[LaneKey, _Queue] = {}
        self._alone: dict[tuple[LaneKey, Subject], float] = {}

    def take_in(self) -> None:
        """Cover the questions in the inbox, or ask for them; those that come together, together."""
        inbox = self.inbox
        if not inbox:  # an earlier call has taken them all
            return
        due: dict[LaneKey, _Queue] = {}
        with self._questions.in_one_frame():
            while inbox:
                self._take(inbox.popleft(), due)
            for lane, queue in due.items():
                self._pump(lane, queue)

    def _take(self, question: Question, due: dict[LaneKey, _Queue]) -> None:
        lane = question.asking.lane
        if question.ticket.cancelled():
            return
        if lane is None or not self._can_lease() or self._book.lanes >= LANES_MAX:
            self._ask_alone(question)
            return
        queue = self._queues.get(lane)
        if queue is None:
            queue = self._queues[lane] = _Queue()
        queue.waiting.append(question)
        due[lane] = queue

    def _pump(self, lane: LaneKey, queue: _Queue) -> None:
        """Cover those that wait, as far as there is room, and ask for the first that is left."""
        if queue.asking is not None:
            return
        waiting = self._uncovered(queue.waiting)
        if waiting:
            self._read_answers()  # what they used is less than what is held for them
            waiting = self._uncovered(waiting)
        if waiting and self._book.is_asked_ahead(lane):  # its answer may cover them
            queue.waiting = waiting
            return
        queue.waiting = deque()
        leasable = self._can_lease()
        for question in waiting:
            if leasable and not self._is_alone(question):
                queue.waiting.append(question)
            else:
                self._ask_alone(question)
        if queue.waiting:
            self._ask(lane, queue, queue.waiting.popleft())
        elif self._queues.get(lane) is queue:
            del self._queues[lane]

    def told_ahead(self, lane: LaneKey) -> None:
        """Look again at those that have waited while a lane's lease was topped up."""
        queue = self._queues.get(lane)
        if queue is not None:
            with self._questions.in_one_frame():
                self._pump(lane, queue)

    def _uncovered(self, questions: deque[Question]) -> deque[Question]:
        now_s = time.monotonic()
        left: deque[Question] = deque()
        for question in questions:
            if question.ticket.cancelled():
                continue
            grant = covered(self._book, question, now_s)
            if grant is None:
                left.append(question)
            else:
                self._complete(question, grant)
        return left

    def _is_alone(self, question: Question) -> bool:
        assert question.asking.lane is not None
        assert question.asking.subject is not None
        key = (question.asking.lane, question.asking.subject)
        until_s = self._alone.get(key)
        if until_s is None:
            return False
        if time.monotonic() < until_s:
            return True
        del self._alone[key]
        return False

    # -- asking -------------------------------------------------------------------------------

    def _ask(self, lane: LaneKey, queue: _Queue, question: Question) -> None:
        queue.asking = question
        waiting = len(queue.waiting)
        needed = calls = 0
        for each in (question, *queue.waiting):
            if each.asking.subject is not None:
                needed += self._book.needs(lane, each.asking.subject, each.asking.bound)
            calls += each.asking.calls
        asked = self._book.ask(lane, time.monotonic(), needed, calls)
        question.asking.request.lease = asked.ask
        decided = functools.partial(self._decided, queue, question, asked, waiting)
        self._questions.ask(question.asking.request, question.ends_s, decided)

    def _decided(
        self,
        queue: _Queue,
        question: Question,
        asked: Asked,
        waiting: int,
        outcome: wire.GateReply | BaseException,
    ) -> None:
        queue.asking = None
        if isinstance(outcome, wire.GateReply):
            self._complete(question, self._granted(question, asked, outcome))
        else:
            if isinstance(outcome, GuardTransportError):
                self._book.unanswered(asked)
            self._fail(question, outcome)
            if isinstance(outcome, GuardBudgetError | GuardChainError):
                self._refuse_like(queue, question, outcome, waiting)
        assert question.asking.lane is not None
        self._pump(question.asking.lane, queue)

    def _granted(self, question: Question, asked: Asked, reply: wire.GateReply) -> Grant:
        assert question.asking.subject is not None
        if reply.lease is None:
            self._book.unanswered(asked)
            if len(self._alone) >= _ALONE_MAX:
                self._alone.clear()
            self._alone[(asked.lane, question.asking.subject)] = time.monotonic() + _ALONE_S
            return granted(question.asking, reply)
        hold = self._book.granted(
            asked,
            reply.lease,
            question.asking.subject,
            reply.reserved_nanousd,
            question.asking.calls,
        )
        hold.lease.question = question.asking.request
        return granted(question.asking, reply, hold)

    def _refuse_like(
        self, queue: _Queue, refused: Question, error: GuardError, waiting: int
    ) -> None:
        """Refuse those that waited already and need at least as much as what was refused."""
        left: deque[Question] = deque()
        for number, question in enumerate(queue.waiting):
            if (
                number < waiting
                and question.asking.subject == refused.asking.subject
                and _at_least(question.asking.bound, refused.asking.bound)
            ):
                self._fail(question, copy.copy(error))
            else:
                left.append(question)
        queue.waiting = left

    def _ask_alone(self, question: Question) -> None:
        question.asking.request.lease = None
        self._questions.ask(
            question.asking.request,
            question.ends_s,
            functools.partial(self._decided_alone, question),
        )

    def _decided_alone(self, question: Question, outcome: wire.GateReply | BaseException) -> None:
        if isinstance(outcome, wire.GateReply):
            self._complete(question, granted(question.asking, outcome))
        else:
            self._fail(question, outcome)

    # -- answering callers --------------------------------------------------------------------

    def _complete(self, question: Question, grant: Grant) -> None:
        ticket = question.ticket
        if ticket.set_running_or_notify_cancel():
            ticket.set_result(grant)
        else:
            self._give_back(grant)

    def _fail(self, question: Question, error: BaseException) -> None:
        if question.ticket.set_running_or_notify_cancel():
            question.ticket.set_exception(error)


def covered(book: LeaseBook, question: Question, now_s: float) -> Grant | None:
    """Cover a question by its lane's lease, if it can be."""
    asking = question.asking
    lane, subject, bound = asking.lane, asking.subject, asking.bound
    assert lane is not None
    assert subject is not None
    if bound is None:
        hold = book.take(lane, subject, now_s, asking.calls)
        return None if hold is None else Grant(None, hold)
    found = book.take_request(lane, subject, bound, now_s, asking.calls)
    return None if found is None else Grant(None, *found)


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
