"""Decides about the questions that no lease covers at once: which are covered, wait or are sent.

Each method takes an event and returns a list of effects. There is no I/O, no callback and no clock:
time is an argument. Used on the background loop only, so it needs no lock; the book behind it is
shared with callers' threads.

The purpose: when a hundred calls of one lane start together, one question goes to the gateway, its
demand covers all of them, and its answer completes them all.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import structs

from guard.core import wire
from guard.core.leases.book import LeaseBook
from guard.core.leases.effects import (
    Answer,
    AskGateway,
    Complete,
    Effect,
    Fail,
    NotGranted,
    Settle,
    TopUp,
    Wait,
    Withdraw,
)
from guard.core.leases.lease import LaneKey, Lease, Subject
from guard.core.leases.question import Grant, Question, granted
from guard.core.leases.records import LeaseRequest, Update
from guard.core.request_bound import RequestBound

_ALONE_S: Final = 1.0
"""For how long a subject that got no lease is asked for without one, each question by itself."""
_ALONE_MAX: Final = 10_000
LANES_MAX: Final = 10_000
"""With so many lanes in the book, questions are sent without asking for a lease."""
RETURN_S: Final = 3.0
"""For how long a lane covers nothing after one of its questions had to wait; else later calls would
overtake it."""
_UNWOKEN_S: Final = 0.1
"""Without a socket, the first in line asks again after this time, the second after twice that."""
_UNREACHED_S: Final = 0.5
"""Pause before an unreachable gateway is asked again, for questions that outlast its absence."""
OUTLASTS_S: Final = 20.0
"""For how long a question that may wait for room waits for a gateway that is away, at most."""
_VOIDING: Final = frozenset({"policy", "price", "budget", "settings"})
"""Control messages after which nothing is covered until the gateway has allowed it anew."""


class _Line:
    """The questions of one lane.

    Attributes:
        asked: the one that is under way with a request for a lease; None when there is none. At
            most one at a time: two would both return the lease's free money.
        waiting: the others, first come first served.
        parked: those that have a place in the gateway's line, until they are decided. One that is
            being asked again is in ``asked`` as well.
    """

    __slots__ = ("asked", "parked", "waiting")

    def __init__(self) -> None:
        self.asked: Question | None = None
        self.waiting: deque[Question] = deque()
        self.parked: list[Question] = []

    def before(self, question: Question) -> Question | None:
        """Return a parked question that needs at most as much as ``question``, if there is one.

        While that one has to wait, asking for this one is pointless.
        """
        for other in self.parked:
            if question.subject == other.subject and _at_least(question.bound, other.bound):
                return other
        return None

    def was_answered(self, now_s: float) -> None:
        """Restart the deadlines of the others: the question before them has its answer."""
        for question in (*self.waiting, *self.parked):
            question.ends_s = max(question.ends_s, now_s + question.answer_s)
            # Money could not come back while the gateway was away, so that was no idle time.
            question.freed_s += max(0.0, now_s - question.unreached_s)
            question.unreached_s = math.inf

    def was_missed(self, asked: Question) -> None:
        """Let the others wait as long as the one that is asked again and again, and no longer."""
        for question in (*self.waiting, *self.parked):
            if question is not asked:
                question.ends_s = max(question.ends_s, asked.ends_s + question.answer_s)
                question.unreached_s = min(question.unreached_s, asked.unreached_s)


class Desk:
    """Turns questions and events into effects.

    Args:
        book: the leases of this process.

    Attributes:
        can_lease: whether the gateway grants leases now; set before each event.
        tops_up: whether the gateway tops up leases before a call has to wait.
    """

    def __init__(self, book: LeaseBook) -> None:
        self._book = book
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's questions."""
        # All of it belongs to the background loop; only `waiting` is read from other threads.
        self.can_lease = False
        self.tops_up = False
        # Whether the book has too many lanes to ask for more; updated with each tick.
        self._is_full = False
        # A line exists while a question of its lane is under way, waits, or is parked.
        self._lines: dict[LaneKey, _Line] = {}
        # Subjects that were answered without a lease, and until when they are asked for alone.
        self._alone: dict[tuple[LaneKey, Subject], float] = {}
        # Questions that wait for money, by call id. One that is being asked again is not here, so
        # that a tick does not send it twice; it stays in its line's `parked`.
        self._parked: dict[str, Question] = {}
        # Questions whose answer has not come, as they were sent, by call id. They are parked, or
        # under way again.
        self._unanswered: dict[str, AskGateway] = {}

    # -- questions ------------------------------------------------------------------------------

    def asked(self, questions: Iterable[Question], now_s: float) -> list[Effect]:
        """Take in new questions; those of one lane that come together are sent together."""
        effects: list[Effect] = []
        due: dict[LaneKey, _Line] = {}
        # First line up all of them, then serve each line once: so the first question of a lane
        # carries the demand of the others.
        for question in questions:
            lane = question.lane
            if question.ticket is not None and question.ticket.cancelled():
                continue  # its caller has given up before the loop came to it
            if lane is None or not self.can_lease or self._is_full:
                effects.append(_alone(question, now_s))
                continue
            line = self._lines.get(lane)
            if line is None:
                line = self._lines[lane] = _Line()
            line.waiting.append(question)
            if line.asked is not None and line.asked.outlasts_s:
                question.ends_s = max(question.ends_s, line.asked.ends_s + question.answer_s)
            due[lane] = line
        for lane, line in due.items():
            self._serve(lane, line, now_s, effects)
        return effects

    def _serve(self, lane: LaneKey, line: _Line, now_s: float, effects: list[Effect]) -> None:
        """Decide about the waiting questions of a line.

        It is called after every event that may change the outcome: a new question, an answer, a
        top-up, money that came back. The cases, in this order:

        1. A question of the lane is under way: all wait for its answer, which may cover them.
        2. The lease covers a question by now: it is completed.
        3. A top-up of the lease is under way: the others wait for it likewise.
        4. A parked question is due: it is sent again, and the others wait.
        5. A question needs as much as a parked one: it waits behind that.
        6. No lease can cover a question, or none did a moment ago: it is sent alone.
        7. The first that is left is sent, with the demand of all the others.
        """
        # 1.
        if line.asked is not None:
            return
        # 2. In order, so that a later question does not take the money of an earlier one; but a
        #    smaller one may fit where an earlier one does not.
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
        # 3. `topped_up` serves the line again, whatever the answer is.
        if left and self._book.is_asked_ahead(lane):
            return
        # 4. Before new questions: it has waited longest.
        for question in line.parked:
            if now_s >= question.again_s:
                # Off the list of those that a tick looks at, while it is under way.
                del self._parked[question.request.call_id]
                effects.append(self._ask_again(question, line, now_s))
                return
        # 5. to 7.
        line.waiting = deque()
        askable = None
        for question in left:
            before = line.before(question) if line.parked else None
            if before is not None:
                question.ends_s = max(question.ends_s, before.ends_s + question.answer_s)
                line.waiting.append(question)
            elif self.can_lease and not (self._alone and self._is_alone(question, now_s)):
                askable = askable or question
                line.waiting.append(question)
            else:
                effects.append(_alone(question, now_s))
        if askable is not None:
            # All that wait are counted in the demand, so that one answer can cover them all.
            line.waiting.remove(askable)
            effects.append(self._ask(askable, line, now_s, line.waiting))
        elif not (line.waiting or line.parked):
            del self._lines[lane]

    def _covered(self, question: Question, now_s: float) -> Grant | None:
        """Return a grant from the lane's lease, if it covers the question."""
        lane, subject, bound = question.lane, question.subject, question.bound
        assert lane is not None
        assert subject is not None
        if bound is None:
            hold = self._book.take(lane, subject, now_s, question.calls)
            return None if hold is None else Grant(None, hold)
        found = self._book.take_request(lane, subject, bound, now_s, question.calls)
        return None if found is None else Grant(None, *found)

    def _is_alone(self, question: Question, now_s: float) -> bool:
        """Return whether a like question got no lease a moment ago."""
        assert question.lane is not None
        assert question.subject is not None
        key = (question.lane, question.subject)
        until_s = self._alone.get(key)
        if until_s is None or now_s < until_s:
            return until_s is not None
        del self._alone[key]
        return False

    def _ask(
        self, question: Question, line: _Line, now_s: float, others: Collection[Question] = ()
    ) -> AskGateway:
        """Send a question that also asks for a lease; its line waits for the answer."""
        lane = question.lane
        assert lane is not None
        needed = calls = 0
        for each in (question, *others):
            if each.subject is not None:
                needed += self._book.needs(lane, each.subject, each.bound)
            calls += each.calls
        line.asked = question
        _note_wait(question, now_s)
        return AskGateway(question, self._book.ask(lane, now_s, needed, calls), len(others))

    # -- in line for money that is only set aside -------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether there is no lease and nobody waits in line."""
        return not (self._book.lanes or self._parked)

    @property
    def is_still(self) -> bool:
        """Whether no lease is open and nobody waits in line: nothing is due before long."""
        return not (self._book.leases or self._parked)

    @property
    def waiting(self) -> int:
        """How many wait in line, with those behind one of their own lane; from any thread."""
        # Copies: the loop may change both meanwhile. The number is for the status only.
        lanes = [line for line in list(self._lines.values()) if line.parked]
        alone = [each for each in list(self._parked.values()) if self._line_of(each) is None]
        return len(alone) + sum(len(line.parked) + len(line.waiting) for line in lanes)

    def _park(self, ask: AskGateway, again_s: float, answer: Answer) -> Wait:
        """Keep a question that has to wait; it is sent again by ``again_s`` at the latest."""
        question = ask.question
        # Without an answer the same attempt again: if it was decided, the gateway returns that
        # decision. With another key it would set money aside twice, once for nobody.
        if isinstance(answer, NotGranted):
            repeat = structs.replace(ask, is_repeat=True)
            self._unanswered[question.request.call_id] = repeat
        else:
            question.attempt += 1  # another attempt has another key, so it is decided anew
        question.again_s = again_s
        question.ends_s = again_s + question.answer_s
        self._parked[question.request.call_id] = question
        line = self._line_of(question)
        if line is not None and question not in line.parked:
            line.parked.append(question)
        if isinstance(answer, NotGranted):
            return Wait(question)
        return Wait(question, answer.place, answer.asks)

    def _again_s(self, question: Question, answer: Answer, now_s: float) -> float | None:
        """Return when a question is sent again; None if this answer is the last.

        1. Refused: it is the last.
        2. No answer: again, until the question has outlasted the gateway's absence.
        3. Granted, or a person is asked: it is the last.
        4. The gateway has put it into its line: again after the pause that it asks for.
        """
        if isinstance(answer, NotGranted):
            # 1.
            if not answer.is_unanswered:
                return None
            # 2. `outlasts_s` may be 0: then the first failure is the last.
            question.unreached_s = min(question.unreached_s, now_s)
            is_over = now_s >= question.unreached_s + question.outlasts_s
            return None if is_over else now_s + _UNREACHED_S
        # 3.
        if answer.decision != "waiting":
            return None
        # 4.
        question.unreached_s = math.inf
        # It may wait for room, and so for a gateway that is away as well.
        question.outlasts_s = min(question.request.wait_ms / 1000, OUTLASTS_S)
        if answer.idle_ms is not None:
            question.freed_s = now_s - answer.idle_ms / 1000
        wait_s = answer.retry_after_ms / 1000
        # Over the socket the gateway wakes it (`room`). Without, it has to poll: the nearer to the
        # head of the line, the more often.
        if not self.can_lease:
            wait_s = min(wait_s, _UNWOKEN_S * max(1, answer.place))
        return now_s + wait_s

    def _line_of(self, question: Question) -> _Line | None:
        return None if question.lane is None else self._lines.get(question.lane)

    def _ask_again(self, question: Question, line: _Line | None, now_s: float) -> AskGateway:
        """Send a parked question again."""
        question.again_s = math.inf  # it is under way, so no tick may send it
        repeat = self._unanswered.get(question.request.call_id)
        if repeat is not None:
            return repeat
        if line is None or not self.can_lease:
            return _alone(question, now_s)
        return self._ask(question, line, now_s)

    def room(self, call_ids: Iterable[str], now_s: float) -> list[Effect]:
        """Send the questions of these calls again: money has come back for them."""
        effects: list[Effect] = []
        for call_id in call_ids:
            # None for a call that is decided or under way again: this message was overtaken.
            question = self._parked.get(call_id)
            if question is not None:
                question.again_s = question.freed_s = now_s
                self._look_at(question, now_s, effects)
        return effects

    def _look_at(self, question: Question, now_s: float, effects: list[Effect]) -> None:
        """Send a parked question that is due again, unless its caller has given up."""
        line = self._line_of(question)
        is_unanswered = question.request.call_id in self._unanswered
        # 1. Given up: the gateway should not keep its place, and those behind it move up. Not
        #    before the answer, which may set money aside that has to go back.
        if question.ticket is not None and question.ticket.cancelled() and not is_unanswered:
            del self._parked[question.request.call_id]
            effects.append(Withdraw(question))
            self._decided(question, now_s, effects)
        # 2. It was sent alone, perhaps before there was a socket; the line has begun since. Or its
        #    line still waits for this answer.
        elif is_unanswered or line is None or question not in line.parked:
            del self._parked[question.request.call_id]
            effects.append(self._ask_again(question, None, now_s))
        # 3. Its line decides: another question of the lane may be under way.
        else:
            assert question.lane is not None
            self._serve(question.lane, line, now_s, effects)

    def _decided(self, question: Question, now_s: float, effects: list[Effect]) -> None:
        """Remove a decided question from its line, and serve those behind it."""
        line = self._line_of(question)
        if line is None or question not in line.parked:
            return
        line.parked.remove(question)
        assert question.lane is not None
        self._serve(question.lane, line, now_s, effects)

    # -- answers ----------------------------------------------------------------------------------

    def answered(self, ask: AskGateway, answer: Answer, now_s: float) -> list[Effect]:
        """Take in the answer to a question; its grant may cover those that waited for it.

        1. The question was sent alone: only its own outcome matters.
        2. It has to wait: it is parked, and its lane covers nothing meanwhile. Without an answer
           its line waits with it, for the same answer.
        3. It is refused: so are those in its line that could not fare better. What was granted in
           an answer that comes too late goes back.
        4. It is granted: the lease takes in the money, and the line is served from it.
        """
        question, asked = ask.question, ask.asked
        effects: list[Effect] = []
        was_missed = self._unanswered.pop(question.request.call_id, None) is not None
        again_s = self._again_s(question, answer, now_s)
        if again_s is None and isinstance(answer, NotGranted) and answer.has_left:
            effects.append(Settle(ask))
        # 1.
        if asked is None:
            if again_s is not None:
                effects.append(self._park(ask, again_s, answer))
            else:
                effects.append(_outcome(question, answer))
                self._decided(question, now_s, effects)
            return effects
        line = self._lines[asked.lane]  # it exists as long as one of its questions is under way
        # 2.
        if again_s is not None and isinstance(answer, NotGranted):
            effects.append(self._park(ask, again_s, answer))
            line.was_missed(question)
            return effects
        line.asked = None
        is_answered = not (isinstance(answer, NotGranted) and answer.is_unanswered)
        if is_answered and (question.attempt or was_missed):
            line.was_answered(now_s)
        if again_s is not None:
            self._book.not_granted(asked)
            self._book.return_until(asked.lane, now_s + RETURN_S)
            effects.append(self._park(ask, again_s, answer))
            self._serve(asked.lane, line, now_s, effects)
            return effects
        if question in line.parked:
            line.parked.remove(question)
        # 3.
        if isinstance(answer, NotGranted):
            if answer.is_unanswered:
                # The question returned the free money; whether the gateway has taken it, or
                # granted more, is unknown, so nothing more is taken from this lease.
                self._book.unanswered(asked)
            else:
                self._book.not_granted(asked)
            effects.append(Fail(question, answer.error))
            if answer.for_money:
                self._refuse_alike(line, question, answer, ask.waiting, effects)
            elif answer.for_all:
                _refuse_rest(line, answer, effects)
        # 4.
        else:
            effects.append(Complete(question, self._granted(question, asked, answer, now_s)))
        # Last, after the grant is in the book: this is what covers the others.
        self._serve(asked.lane, line, now_s, effects)
        return effects

    def _granted(
        self, question: Question, asked: LeaseRequest, reply: wire.GateReply, now_s: float
    ) -> Grant:
        subject = question.subject
        assert subject is not None
        if reply.lease is None:
            # Allowed, but without a lease: the gateway has the returned money, and what it did
            # with the old lease is not said. The next questions of this kind are sent alone, else
            # they would queue up one behind the other for a lease that does not come.
            self._book.unanswered(asked)
            if len(self._alone) >= _ALONE_MAX:  # forgetting costs one question each
                self._alone.clear()
            self._alone[(asked.lane, subject)] = now_s + _ALONE_S
            return granted(question, reply)
        hold = self._book.granted(
            asked, reply.lease, subject, reply.reserved_nanousd, question.calls
        )
        # A top-up repeats this question.
        hold.lease.question = question.request
        return granted(question, reply, hold)

    def _refuse_alike(
        self, line: _Line, refused: Question, answer: NotGranted, waited: int, effects: list[Effect]
    ) -> None:
        """Refuse the questions that need at least as much as a refused one.

        Only the first ``waited``, which waited when it was sent: money may have come back before
        the others arrived. One that is winding down may use money that others may not.
        """
        left: deque[Question] = deque()
        for number, question in enumerate(line.waiting):
            if (
                number < waited
                and question.subject == refused.subject
                and _at_least(question.bound, refused.bound)
                and question.request.winding_down <= refused.request.winding_down
            ):
                # A copy for each: callers raise it, which sets its traceback.
                effects.append(Fail(question, copy.copy(answer.error)))
            else:
                left.append(question)
        line.waiting = left

    def topped_up(
        self,
        asked: LeaseRequest,
        reply: wire.GateReply | None,
        now_s: float,
        *,
        is_known: bool = True,
    ) -> list[Effect]:
        """Take in the answer to a top-up, and serve the questions that have waited for it.

        Args:
            asked: what was asked for.
            reply: None when it was refused, or its answer did not come.
            now_s: the time.
            is_known: whether the gateway's answer came.
        """
        effects: list[Effect] = []
        # 1. It may have been granted: what the lease holds at the gateway is unknown.
        if not is_known:
            self._book.unanswered(asked)
        # 2. Refused: the lease is as before.
        elif reply is None or reply.lease is None:
            self._book.not_granted(asked)
        # 3. Granted.
        else:
            back = self._book.topped_up(asked, reply.lease)
            if back is not None:
                effects.append(back)
        line = self._lines.get(asked.lane)
        if line is not None:
            self._serve(asked.lane, line, now_s, effects)
        return effects

    def unwanted(self, ask: AskGateway, reply: wire.GateReply) -> list[Update]:
        """Return what returns the lease in an answer that nobody waits for."""
        if ask.asked is None or reply.lease is None:
            return []
        back = self._book.unwanted(ask.asked, reply.lease)
        return [] if back is None else [back]

    # -- the leases -------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Effect]:
        """Return what is due by time: renewals, returns, top-ups, and questions to send again."""
        self._is_full = self._book.lanes >= LANES_MAX
        if self.is_empty:
            self._book.metered.clear()  # a workflow without a lane asks anyway
            return []
        # First the leases: a question must not name one that is closed in this tick.
        effects: list[Effect] = list(self._book.due(now_s))
        self._ask_due(now_s, effects)
        if self.tops_up and self.can_lease:
            effects += [TopUp(asked, like) for asked, like in self._book.low(now_s)]
        return effects

    def _ask_due(self, now_s: float, effects: list[Effect]) -> None:
        for question in [each for each in self._parked.values() if now_s >= each.again_s]:
            # Looked at once more: serving the line of an earlier one may have sent it already.
            if now_s >= question.again_s:
                self._look_at(question, now_s, effects)

    def is_returning(self, now_s: float) -> bool:
        """Return whether others wait for money of this process: then ticks should be frequent."""
        return self._book.is_returning(now_s)

    def recalled(self, lease_ids: Collection[str], until_s: float = -math.inf) -> list[Update]:
        """Return at once the unused money of leases that the gateway recalls.

        Args:
            lease_ids: the leases.
            until_s: until then other calls wait for it, so unused money goes back at once.
        """
        return self._book.recall(lease_ids, until_s)

    def pushed(self, messages: Iterable[wire.ControlMessage]) -> None:
        """Void the coverage that control messages may have changed."""
        for message in messages:
            if message.type in _VOIDING:
                self._book.void(message.workflow_id)

    def switched(self, usable_until_s: float) -> None:
        """Set until when leases may be used: the control socket has opened or was lost."""
        self._book.usable_until(usable_until_s)

    def renewal(self, lease: Lease) -> Update:
        """Return an update that only renews a lease."""
        return self._book.renewal(lease)

    def updated(self, update: Update, state: wire.LeaseState | None, sent_s: float) -> None:
        """Take in the answer to an update; None when the gateway does not know the lease."""
        self._book.answered(update, state, sent_s)

    def close(self) -> list[Update]:
        """End all leases; from here on nothing is covered."""
        return self._book.close()


def _refuse_rest(line: _Line, answer: NotGranted, effects: list[Effect]) -> None:
    """Refuse all waiting questions except those that outlast the gateway's absence.

    Together: one by one, each refusal would serve the line again, in quadratic time.
    """
    effects += [Fail(each, copy.copy(answer.error)) for each in line.waiting if not each.outlasts_s]
    line.waiting = deque(each for each in line.waiting if each.outlasts_s)


def _alone(question: Question, now_s: float) -> AskGateway:
    """Send a question without asking for a lease."""
    _note_wait(question, now_s)
    return AskGateway(question)


def _note_wait(question: Question, now_s: float) -> None:
    """Note in a question that is sent how long it has waited: it keeps its place at any gateway.

    The wait begins when the question is first sent, not while it is behind another of its lane.
    While the gateway cannot be reached, money cannot come back, so that time does not count as
    idle.
    """
    request = question.request
    question.asked_s, question.sent_s = min(question.asked_s, now_s), now_s
    if request.wait_ms:
        request.waited_ms = _ms(now_s - question.asked_s)
        if question.attempt:
            freed_s = max(question.asked_s, question.freed_s)
            request.idle_ms = _ms(min(now_s, question.unreached_s) - freed_s)


def _ms(duration_s: float) -> int:
    return int(max(0.0, duration_s) * 1000)


def _outcome(question: Question, answer: Answer) -> Effect:
    if isinstance(answer, NotGranted):
        return Fail(question, answer.error)
    return Complete(question, granted(question, answer))


def _at_least(bound: RequestBound | None, other: RequestBound | None) -> bool:
    """Return whether a request needs at least as much as another one."""
    if bound is None or other is None:
        return bound is other
    return (
        _reaches(bound.input_tokens, other.input_tokens)
        and _reaches(bound.output_tokens, other.output_tokens)
        and bound.fees == other.fees
        and bound.unnumbered == other.unnumbered
    )


def _reaches(tokens: int | None, other: int | None) -> bool:
    if tokens is None or other is None:
        return tokens is other
    return tokens >= other
