"""The desk under every interleaving of two questions with what can happen beside them.

No loop, no clock: the test is the courier and the gateway at once. Each order of events is played;
then what is still under way is answered, and each question has had exactly one outcome.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final

import pytest

from guard.breaker.exceptions import GuardBudgetError, GuardTransportError
from guard.core import wire
from guard.core.leases import (
    AskGateway,
    Complete,
    Desk,
    Effect,
    Fail,
    Grant,
    LeaseBook,
    NotGranted,
    Question,
    Settle,
    TopUp,
    Update,
    Wait,
    Withdraw,
)
from guard.core.leases.book import IDLE_S

LANE: Final = ("w", None, None, None, "")
SUBJECT: Final = ("call", "f", "f", ())
COST: Final = 10
UNKNOWN: Final = NotGranted(GuardTransportError("no answer"), is_unanswered=True, has_left=True)


class World:
    """A gateway with a budget, and a courier that does what the desk wants.

    Attributes:
        room: what the budget has left to reserve.
        held: what the gateway holds for the lease.
        elsewhere: what others hold of the budget: as long as there is some, questions wait.
        asks, top_ups: under way.
        outcomes: what each question got.
        decided: what the gateway has answered under each key, and returns to repeats.
        outlasts_s: for how long questions are sent again without an answer.
    """

    def __init__(
        self, room: int, elsewhere: int = 0, *, has_socket: bool = True, outlasts_s: float = 0.0
    ) -> None:
        self.outlasts_s = outlasts_s
        self.decided: dict[str, wire.GateReply | NotGranted] = {}
        self.book = LeaseBook()
        self.desk = Desk(self.book)
        self.desk.tops_up = True
        if has_socket:
            self.gain_socket()
        self.now_s = 0.0
        self.room = room
        self.held = 0
        self.elsewhere = elsewhere
        self.asks: list[AskGateway] = []
        self.top_ups: list[TopUp] = []
        self.questions: dict[str, Question] = {}
        self.outcomes: dict[str, list[Grant | BaseException]] = {}

    # -- what may happen ------------------------------------------------------------------------

    def ask(self, *names: str) -> None:
        for name in names:
            request = wire.GateRequest(call_id=name, kind="call", function="f", workflow_id="w")
            question = Question(
                request, LANE, SUBJECT, ticket=Future[Grant](), outlasts_s=self.outlasts_s
            )
            request.wait_ms = int(1000 * self.outlasts_s)
            self.questions[name], self.outcomes[name] = question, []
        self.do(self.desk.asked([self.questions[name] for name in names], self.now_s))

    def cancel(self, name: str) -> None:
        """Its caller gives up, as far as it has asked and still waits."""
        if name in self.questions and not self.outcomes[name]:
            ticket: Any = self.questions[name].ticket
            ticket.cancel()

    def answer(self) -> None:
        """The gateway answers the oldest question, by what is left."""
        if self.asks:
            ask = self.asks.pop(0)
            self.do(self.desk.answered(ask, self.decide(ask), self.now_s))

    def lose_answer(self) -> None:
        """The gateway decides, and its answer is lost: what it granted stays held there."""
        if self.asks:
            ask = self.asks.pop(0)
            self.decide(ask)
            self.do(self.desk.answered(ask, UNKNOWN, self.now_s))

    def end_call(self) -> None:
        """The oldest call that runs under a hold costs half of it and ends."""
        for outcomes in self.outcomes.values():
            for outcome in outcomes:
                if isinstance(outcome, Grant) and outcome.hold and outcome.hold.settle(COST // 2):
                    self.held -= COST // 2
                    return

    def recall(self) -> None:
        for update in self.desk.recalled(["lease"]):
            self.take_back(update)

    def void(self) -> None:
        self.desk.pushed([wire.ControlMessage(seq=1, type="policy", workflow_id="w")])

    def tick(self) -> None:
        self.now_s += 0.25
        self.do(self.desk.tick(self.now_s))
        for question in self.desk._parked.values():
            line = self.desk._lines.get(LANE)
            if question.again_s <= self.now_s and (line is None or line.asked is None):
                raise AssertionError(f"{question.request.call_id} is due, and is not asked")

    def top_up(self) -> None:
        """The tick asks for more, or the gateway answers what it has asked for."""
        if not self.top_ups:
            self.tick()
            return
        effect = self.top_ups.pop(0)
        granted = min(self.room, effect.asked.ask.demand_nanousd)
        reply = wire.GateReply("allow", "top-up", lease=wire.LeaseGrant("lease", granted, 30_000))
        self.reserve(granted)
        self.do(self.desk.topped_up(effect.asked, reply, self.now_s))

    def money_returns(self) -> None:
        """Others give back what they hold, and the gateway wakes who waits in its line."""
        self.room, self.elsewhere = self.room + self.elsewhere, 0
        self.do(self.desk.room(list(self.questions), self.now_s))

    def gain_socket(self) -> None:
        """The socket has opened: from now on the gateway grants leases."""
        self.desk.can_lease = True
        self.desk.switched(float("inf"))

    def lose_socket(self) -> None:
        """Who has an answer coming asks over HTTP, and no lease is granted any more."""
        self.desk.can_lease = False
        self.desk.switched(self.now_s + 1.0)
        while self.top_ups:
            effect = self.top_ups.pop()
            self.do(self.desk.topped_up(effect.asked, None, self.now_s, is_known=False))

    # -- courier and gateway --------------------------------------------------------------------

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Complete | Fail):
                outcome = effect.grant if isinstance(effect, Complete) else effect.error
                name = effect.question.request.call_id
                self.outcomes[name].append(outcome)
                ticket: Any = effect.question.ticket
                if not ticket.set_running_or_notify_cancel() and isinstance(outcome, Grant):
                    self.give_back(outcome)
            elif isinstance(effect, AskGateway):
                self.asks.append(effect)
            elif isinstance(effect, TopUp):
                self.top_ups.append(effect)
            elif isinstance(effect, Settle):
                reply = self.decide(effect.ask)
                if isinstance(reply, wire.GateReply):
                    for back in self.desk.unwanted(effect.ask, reply):
                        self.take_back(back)
                    if reply.reservation_id and reply.lease is None:
                        self.room += COST
            elif isinstance(effect, Wait):
                assert effect.question.ends_s > self.now_s, "its caller must not give up meanwhile"
            elif isinstance(effect, Withdraw):
                ticket = effect.question.ticket
                assert ticket is not None
                assert ticket.cancelled()
            else:
                self.take_back(effect)

    def decide(self, ask: AskGateway) -> wire.GateReply | NotGranted:
        """Answer by what was decided under the same key, else by what is left."""
        key = ask.question.key
        if key not in self.decided:
            self.decided[key] = self._decide(ask)
        return self.decided[key]

    def _decide(self, ask: AskGateway) -> wire.GateReply | NotGranted:
        asked, name = ask.asked, ask.question.request.call_id
        if asked is not None and asked.ask.lease_id:
            self.reserve(-asked.ask.unused_nanousd)
        if self.room < COST and self.elsewhere:
            return wire.GateReply("waiting", name, place=1, retry_after_ms=1000)
        if self.room < COST:
            error = GuardBudgetError(workflow_id="w", reason="exhausted", action="budget")
            return NotGranted(error, for_money=True)
        if asked is None or not self.desk.can_lease:
            self.room -= COST
            return wire.GateReply("allow", name, reservation_id=name, reserved_nanousd=COST)
        granted = min(self.room, max(COST, asked.ask.demand_nanousd))
        self.reserve(granted)
        lease = wire.LeaseGrant("lease", granted, 30_000)
        return wire.GateReply("allow", name, "lease", COST, lease=lease)

    def reserve(self, amount: int) -> None:
        self.room -= amount
        self.held += amount
        assert self.room >= 0

    def take_back(self, update: Update) -> None:
        self.reserve(-update.body.unused_nanousd)

    def give_back(self, grant: Grant) -> None:
        if grant.hold is not None:
            grant.hold.give_back()
        else:
            self.room += COST

    # -- what always holds ----------------------------------------------------------------------

    def check(self) -> None:
        asked = [ask.asked for ask in self.asks if ask.asked is not None]
        assert len(asked) <= 1, "one question at a time for a lane"
        assert self.book.totals().nanousd <= self.held, "no more is used than was granted"
        for outcomes in self.outcomes.values():
            assert len(outcomes) <= 1, "a question is answered once"

    def finish(self) -> None:
        """Answer what is under way; then nothing may be left waiting."""
        for turn in range(20):
            if turn == 10:
                self.money_returns()
            if self.top_ups:
                self.top_up()
            self.answer()
            if self.desk._parked:
                self.now_s += 1.0
                self.do(self.desk.tick(self.now_s))
            self.check()
        assert not self.desk._parked
        assert not self.asks
        assert not self.desk._lines, "a line exists as long as somebody stands in it"
        for name, question in self.questions.items():
            ticket: Any = question.ticket
            assert self.outcomes[name] or ticket.cancelled(), f"{name} waits for ever"


ACTIONS: Final[dict[str, Callable[[World], object]]] = {
    "ask a": lambda world: world.ask("a"),
    "ask b": lambda world: world.ask("b"),
    "cancel a": lambda world: world.cancel("a"),
    "answer": World.answer,
    "answer again": World.answer,
    "lose answer": World.lose_answer,
    "end call": World.end_call,
    "recall": World.recall,
    "void": World.void,
    "top up": World.top_up,
    "topped up": World.top_up,
    "money returns": World.money_returns,
    "lose socket": World.lose_socket,
    "gain socket": World.gain_socket,
}


BESIDE_THE_SOCKET: Final = {
    "cancel a", "lose answer", "recall", "void", "topped up", "lose socket",
}  # fmt: skip
"""What does not matter to questions from before the socket has opened."""


def orders(count: int, without: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Both questions, and each choice of so many other events, in each order that differs."""
    others = [name for name in ACTIONS if not name.startswith("ask ") and name not in without]
    for chosen in itertools.combinations(others, count):
        for order in itertools.permutations(("ask a", "ask b", *chosen)):
            if order.index("ask a") < order.index("ask b"):  # they are alike
                yield order


def play_all(
    room: int,
    others: int,
    elsewhere: int = 0,
    *,
    has_socket: bool = True,
    outlasts_s: float = 0.0,
) -> int:
    """Play each order; return how many there were."""
    played = 0
    without = {"gain socket"} if has_socket else BESIDE_THE_SOCKET
    if not elsewhere:
        without = without | {"money returns"}
    for order in orders(others, without):
        world = World(room, elsewhere, has_socket=has_socket, outlasts_s=outlasts_s)
        try:
            for name in order:
                ACTIONS[name](world)
                world.check()
            world.finish()
        except AssertionError as exc:
            raise AssertionError(f"{' -> '.join(order)}: {exc}") from exc
        played += 1
    return played


@pytest.mark.parametrize("room", [0, COST, 3 * COST, 1000])
def test_every_interleaving_answers_each_question_once(room: int) -> None:
    assert play_all(room, 3) == 7_200


@pytest.mark.parametrize(
    ("room", "elsewhere"),
    [
        (0, COST),
        (COST, COST // 2),
        *(pytest.param(*both, marks=pytest.mark.long) for both in ((0, COST // 2), (COST, 30))),
    ],
)
def test_every_interleaving_with_money_that_others_hold(room: int, elsewhere: int) -> None:
    """Who waits in line is asked again, answered once, and forgotten when its caller gives up."""
    assert play_all(room, 3, elsewhere) == 9_900


@pytest.mark.parametrize(("room", "elsewhere"), [(0, COST), (COST, COST // 2), (3 * COST, 0)])
def test_every_interleaving_of_questions_that_outlast_a_lost_answer(
    room: int, elsewhere: int
) -> None:
    """The same is asked again, so what was granted in the answer that is lost is nobody else's."""
    assert play_all(room, 3, elsewhere, outlasts_s=5.0) == (9_900 if elsewhere else 7_200)


@pytest.mark.parametrize(("room", "elsewhere"), [(0, COST), (COST, COST // 2), (3 * COST, 0)])
def test_every_interleaving_while_the_socket_opens(room: int, elsewhere: int) -> None:
    """Who was told to wait before there was one is asked again beside the lanes of later ones."""
    assert play_all(room, 4, elsewhere, has_socket=False) == (5_400 if elsewhere else 1_800)


@pytest.mark.long
@pytest.mark.parametrize("room", [0, COST, 3 * COST, 1000])
def test_every_interleaving_with_one_event_more(room: int) -> None:
    assert play_all(room, 4) == 75_600


def test_questions_that_come_together_are_asked_for_together() -> None:
    world = World(1000)
    world.ask("a", "b", "c")
    [ask] = world.asks
    assert (ask.question, ask.waiting) == (world.questions["a"], 2)
    assert ask.asked is not None
    assert ask.asked.ask.demand_calls == 3


def test_who_waited_and_needs_as_much_is_refused_with_the_one_that_was_asked() -> None:
    world = World(0)
    world.ask("a", "b")
    world.answer()
    [a], [b] = world.outcomes["a"], world.outcomes["b"]
    assert isinstance(b, GuardBudgetError)
    assert a is not b, "each caller gets its own traceback"
    assert not world.asks


@pytest.mark.parametrize("elsewhere", [0, COST])
def test_a_lease_is_closed_although_its_last_question_was_refused_or_has_to_wait(
    elsewhere: int,
) -> None:
    world = World(room=COST, elsewhere=elsewhere)
    world.ask("a")
    world.answer()
    world.ask("b")
    world.answer()
    assert len(world.desk._parked) == (1 if elsewhere else 0)
    world.end_call()
    world.now_s += IDLE_S
    closed = [each for each in world.desk.tick(world.now_s) if isinstance(each, Update)]
    assert [each.closes for each in closed] == [True]


def test_without_leases_each_question_is_asked_by_itself() -> None:
    world = World(1000)
    world.desk.can_lease = False
    world.ask("a", "b")
    assert [ask.asked for ask in world.asks] == [None, None]


def test_what_got_no_lease_is_asked_alone_for_a_second() -> None:
    world = World(1000)
    world.ask("a")
    [ask] = world.asks
    world.asks.clear()
    reply = wire.GateReply("allow", "a", "r", COST)
    world.do(world.desk.answered(ask, reply, 0.0))
    world.ask("b")
    assert [each.asked for each in world.asks] == [None]
    world.now_s = 1.5
    world.ask("c")
    assert world.asks[-1].asked is not None


def test_who_waits_since_before_the_socket_is_asked_when_it_is_due() -> None:
    world = World(0, elsewhere=COST, has_socket=False)
    world.ask("a")
    world.answer()  # it waits
    world.gain_socket()
    world.ask("b")
    world.answer()
    for _ in range(4):
        world.tick()
    assert [ask.question.request.call_id for ask in world.asks] == ["a", "b"]


def test_the_time_for_an_answer_begins_when_the_one_before_has_its_own() -> None:
    world = World(0, elsewhere=COST)
    world.ask("a", "b")
    world.answer()
    b = world.questions["b"]
    b.answer_s, b.ends_s = 2.0, 2.0
    for _ in range(20):
        world.tick()
    world.money_returns()
    world.answer()
    assert world.outcomes["a"]
    assert b.ends_s == world.now_s + 2.0


def waits(world: World, idle_ms: int | None = 0) -> None:
    """The gateway, which may be an older one, tells the one that is asked to wait."""
    ask = world.asks.pop(0)
    name = ask.question.request.call_id
    reply = wire.GateReply("waiting", name, place=2, retry_after_ms=1000, idle_ms=idle_ms)
    world.do(world.desk.answered(ask, reply, world.now_s))


def unreached(world: World) -> None:
    world.do(world.desk.answered(world.asks.pop(0), UNKNOWN, world.now_s))


def test_a_repeat_is_the_question_as_it_was() -> None:
    """With another key, or another body, it would be decided twice."""
    world = World(0, elsewhere=COST)
    in_line_for(world, 3)
    [first] = world.asks
    key, body = first.question.key, wire.encode(first.question.request)
    for _ in range(5):
        unreached(world)
        assert not world.asks
        world.now_s += 1.0
        world.do(world.desk.tick(world.now_s))
        [ask] = world.asks
        assert ask.is_repeat
        assert (ask.asked, ask.question.key) == (first.asked, key)
        assert wire.encode(ask.question.request) == body
    waits(world)
    world.now_s += 1.0
    world.do(world.desk.tick(world.now_s))
    [ask] = world.asks
    assert not ask.is_repeat
    assert ask.question.key != key, "it is decided anew"


def test_those_in_line_wait_as_long_as_the_one_that_is_asked_again() -> None:
    world = World(0, elsewhere=5 * COST)
    in_line_for(world, 3)
    world.ask("b")
    unreached(world)
    world.ask("c")
    for _ in range(15):
        world.now_s += 1.0
        world.do(world.desk.tick(world.now_s))
        for name in "bc":
            question = world.questions[name]
            assert question.ends_s > world.now_s
        unreached(world)
    world.money_returns()
    world.finish()
    assert all(isinstance(outcome, Grant) for [outcome] in world.outcomes.values())


def in_line_for(world: World, seconds: int) -> wire.GateRequest:
    """Ask, and stay in line for so long; return what is asked at last."""
    world.ask("a")
    question = world.questions["a"]
    question.request.wait_ms, question.answer_s = 120_000, 2.0
    for _ in range(seconds):
        waits(world)
        world.now_s += 1.0
        world.do(world.desk.tick(world.now_s))
    return question.request


@pytest.mark.parametrize("has_socket", [True, False])
def test_a_gateway_that_dies_late_in_a_wait_is_asked_again(has_socket: bool) -> None:
    """The time for its restart begins when it is missed, not when the wait began."""
    world = World(0, elsewhere=COST, has_socket=has_socket)
    in_line_for(world, 100)
    for _ in range(19):
        unreached(world)
        world.now_s += 1.0
        world.do(world.desk.tick(world.now_s))
    assert not world.outcomes["a"]
    waits(world)  # it is back; the next outage has as long
    for _ in range(25):
        world.now_s += 1.0
        world.do(world.desk.tick(world.now_s))
        if world.asks:
            unreached(world)
    assert isinstance(world.outcomes["a"][0], GuardTransportError)


def test_a_wait_is_renewed_with_the_gateways_knowledge_and_stops_with_its_absence() -> None:
    world = World(0, elsewhere=COST)
    request = in_line_for(world, 50)
    assert (request.waited_ms, request.idle_ms) == (50_000, 1000), "money came back all the time"
    waits(world, 30_000)
    world.now_s += 1.0
    world.do(world.desk.tick(world.now_s))
    assert request.idle_ms == 31_000
    for _ in range(10):  # nothing can come back while there is no gateway
        unreached(world)
        world.now_s += 1.0
        world.do(world.desk.tick(world.now_s))
    assert (request.waited_ms, request.idle_ms) == (51_000, 31_000), "it is repeated as it was"
    waits(world, 31_000)
    world.now_s += 1.0
    world.do(world.desk.tick(world.now_s))
    assert (request.waited_ms, request.idle_ms) == (62_000, 32_000)
    waits(world, None)
    world.now_s += 5.0
    world.do(world.desk.room(["a"], world.now_s))
    assert request.idle_ms == 0, "it was woken, because some has come back"


def test_who_stands_behind_another_begins_to_wait_when_it_is_asked() -> None:
    world = World(0, elsewhere=5 * COST)
    world.ask("a", "b")
    for name in "ab":
        world.questions[name].request.wait_ms = 20_000
    for _ in range(40):
        world.answer()
        assert [ask.question.request.call_id for ask in world.asks] == []
        world.tick()
        world.tick()
        world.tick()
        world.tick()
    assert world.questions["a"].request.waited_ms > 30_000
    world.room = COST
    world.answer()
    assert isinstance(world.outcomes["a"][0], Grant)
    [asked] = world.asks
    assert (asked.question.request.call_id, asked.question.request.waited_ms) == ("b", 0)
