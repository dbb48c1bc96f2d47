"""Leases: nothing is taken that was not granted, whatever the order of things."""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from guard.core.leases import (
    Hold,
    LeaseBook,
    LeaseRequest,
    Totals,
    Update,
    cost_of,
    paid_output,
    request_subject,
    worst_case,
)
from guard.core.leases.book import IDLE_S
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.core.wire import GateRequest, LeaseGrant, LeaseState, LeaseUpdate, ModelRates

KEY = ("w", "a", None, None, "m")
CALL = ("call", "f", "f", ())
LLM = request_subject("openai")
RATES = ModelRates(
    input_per_mtok=1_000_000, output_per_mtok=4_000_000, cache_read_per_mtok=500_000,
    cache_write_per_mtok=2_000_000, reasoning_per_mtok=4_000_000, audio_per_mtok=8_000_000,
    worst_input_per_mtok=2_000_000, worst_output_per_mtok=8_000_000,
)  # fmt: skip


def lease(granted: int, lease_id: str = "l", **fields: Any) -> LeaseGrant:
    return LeaseGrant(lease_id, granted, fields.pop("ttl_ms", 30_000), **fields)


def opened(granted: int = 100, amount: int = 10, **fields: Any) -> tuple[LeaseBook, Hold]:
    """A book with one lease, asked for at second 0 by a call that holds ``amount``."""
    book = LeaseBook()
    book.usable_until(math.inf)
    asked = book.ask(KEY, 0.0)
    return book, book.granted(asked, lease(granted, **fields), CALL, amount)


class TestCover:
    def test_a_call_like_an_allowed_one_takes_its_hold_and_returns_it(self) -> None:
        book, first = opened()
        second = book.take(KEY, CALL, 1.0)
        assert second is not None
        assert (second.amount, second.lease.free, second.lease.under_way) == (10, 80, 2)
        assert first.give_back()
        assert second.give_back()
        assert not second.give_back()
        assert book.totals() == Totals(1, 100, 0)
        assert (second.lease.free, second.lease.held, second.lease.under_way) == (100, 0, 0)

    def test_what_a_call_gave_back_serves_the_next_one_and_whatever_else_needs_it(self) -> None:
        book, _ = opened(granted=20)
        for _ in range(5):
            hold = book.take(KEY, CALL, 1.0)
            assert hold is not None
            assert book.take(KEY, CALL, 1.0) is None, "the other half of the lease is under way"
            assert hold.give_back()
        assert book.ask(KEY, 2.0).ask.unused_nanousd == 10

    def test_an_end_counts_once_although_its_money_has_gone_to_another_call(self) -> None:
        book, _ = opened(granted=20)
        first = book.take(KEY, CALL, 1.0)
        assert first is not None
        assert first.give_back()
        second = book.take(KEY, CALL, 1.0)
        assert second is not None
        assert not first.give_back()
        assert not first.keep()
        assert not first.settle(3)
        assert book.totals().under_way == 2
        assert second.settle(3)
        assert book.totals() == Totals(1, 17, 1)

    @pytest.mark.parametrize("end", ["void", "close", "policy"])
    def test_a_call_that_ends_after_its_cover_gives_all_of_it_back(self, end: str) -> None:
        book, first = opened()
        hold = book.take(KEY, CALL, 1.0)
        assert hold is not None
        first.give_back()
        if end == "void":
            book.void()
        elif end == "policy":
            asked = book.ask(KEY, 2.0)
            book.granted(asked, lease(0, policy_version="2"), ("call", "g", "g", ()), 0).give_back()
        else:
            book.close()
        assert book.take(KEY, CALL, 2.0) is None
        assert hold.give_back()
        assert (hold.lease.held, hold.lease.under_way) == (0, 0)

    def test_threads_take_and_give_back_while_the_cover_comes_and_goes(self) -> None:
        book, first = opened(granted=1000)
        lease_, ends_s = first.lease, time.monotonic() + 0.5
        first.give_back()
        taken = [0] * 4

        def call(number: int) -> None:
            while time.monotonic() < ends_s:
                hold = book.take(KEY, CALL, 1.0)
                if hold is not None:
                    taken[number] += 1
                    hold.give_back() if taken[number] % 3 else hold.settle(0)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        old = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            while time.monotonic() < ends_s:
                book.void()
                with book.lock:
                    lease_.cover(CALL, 10)
                book.totals()
        finally:
            for thread in threads:
                thread.join()
            sys.setswitchinterval(old)
        assert all(taken)
        assert book.totals() == Totals(1, 1000, 0)
        assert (lease_.free, lease_.held, lease_.under_way) == (1000, 0, 0)

    @pytest.mark.parametrize(
        ("key", "subject"),
        [
            (KEY, ("call", "g", "f", ())),
            (KEY, ("call", "f", "g", ())),
            (KEY, ("call", "f", "f", ("t",))),
            (KEY, ("tool", "f", "f", ())),
            (("w", "a", None, None, "other"), CALL),
            (("w", "a", "chain", None, "m"), CALL),
            (("w", None, None, None, "m"), CALL),
            (("w", "a", None, "user", "m"), CALL),
            (("v", "a", None, None, "m"), CALL),
        ],
    )
    def test_another_call_is_not_covered(self, key: Any, subject: Any) -> None:
        book, _ = opened()
        assert book.take(key, subject, 1.0) is None

    def test_what_is_not_there_is_not_taken(self) -> None:
        book, _ = opened(granted=29)
        assert book.take(KEY, CALL, 1.0) is not None
        assert book.take(KEY, CALL, 1.0) is None

    def test_a_lease_lasts_from_the_moment_it_was_asked_for(self) -> None:
        book, _ = opened(ttl_ms=1000)
        assert book.take(KEY, CALL, 0.999) is not None
        assert book.take(KEY, CALL, 1.0) is None

    def test_without_the_socket_it_lasts_as_long_as_said(self) -> None:
        book, _ = opened()
        book.usable_until(1.5)
        assert book.take(KEY, CALL, 1.49) is not None
        assert book.take(KEY, CALL, 1.5) is None
        book.usable_until(math.inf)
        assert book.take(KEY, CALL, 1.6) is not None

    def test_the_share_of_a_rate_cap_is_used_up(self) -> None:
        book, _ = opened(calls=3)
        assert book.take(KEY, CALL, 1.0) is not None
        assert book.take(KEY, CALL, 1.0, calls=0) is not None
        assert book.take(KEY, CALL, 1.0) is not None
        assert book.take(KEY, CALL, 1.0) is None
        assert book.take(KEY, CALL, 1.0, calls=0) is not None

    @pytest.mark.parametrize("target", [None, "w", "*", "w*"])
    def test_a_change_voids_what_is_covered_and_not_the_money(self, target: str | None) -> None:
        book, _ = opened()
        book.void(target)
        assert book.take(KEY, CALL, 1.0) is None
        assert book.ask(KEY, 1.0).ask.unused_nanousd == 90

    def test_a_change_of_another_workflow_voids_nothing(self) -> None:
        book, _ = opened()
        book.void("v")
        assert book.take(KEY, CALL, 1.0) is not None

    def test_an_answer_decided_before_a_change_covers_nothing_after_it(self) -> None:
        book = LeaseBook()
        book.usable_until(math.inf)
        asked = book.ask(KEY, 0.0)
        book.void()
        hold = book.granted(asked, lease(100), CALL, 10)
        assert hold.amount == 10
        assert book.take(KEY, CALL, 1.0) is None

    def test_another_policy_version_covers_only_what_it_has_allowed(self) -> None:
        book, _ = opened(policy_version="1")
        other = ("call", "g", "g", ())
        book.granted(book.ask(KEY, 1.0), lease(100, policy_version="2"), other, 10)
        assert book.take(KEY, CALL, 1.0) is None
        assert book.take(KEY, other, 1.0) is not None


class TestRequests:
    BOUND = RequestBound("openai", "m", input_tokens=1000, output_tokens=100)

    def book(self, granted: int = 100_000) -> LeaseBook:
        book = LeaseBook()
        book.usable_until(math.inf)
        book.granted(book.ask(KEY, 0.0), lease(granted, rates=RATES), LLM, 2800)
        return book

    def test_a_request_takes_its_worst_case_and_pays_what_it_used(self) -> None:
        book = self.book()
        found = book.take_request(KEY, LLM, self.BOUND, 1.0)
        assert found is not None
        hold, rates, tokens = found
        assert (hold.amount, tokens) == (2800, 100)
        cost = cost_of(rates, Usage(input_tokens=500, output_tokens=20))
        assert cost == 580
        hold.settle(cost)
        assert hold.lease.free == 100_000 - 2800 - 580

    def test_another_vendors_rates_are_not_known(self) -> None:
        assert self.book().take_request(KEY, request_subject("azure"), self.BOUND, 1.0) is None

    def test_what_nothing_bounds_is_asked_for(self) -> None:
        assert worst_case(RATES, RequestBound("openai", "m", None, 10)) is None
        assert worst_case(RATES, RequestBound("openai", "m", 10, None)) is None
        assert self.book().take_request(KEY, LLM, RequestBound("openai", "m"), 1.0) is None

    def test_rounded_up_and_every_bucket_counts(self) -> None:
        usage = Usage(
            input_tokens=1, cache_read_tokens=2, cache_write_tokens=3, output_tokens=5,
            reasoning_tokens=7, audio_tokens=11, others=(Usage(input_tokens=13),),
        )  # fmt: skip
        assert cost_of(RATES, usage) == 1 + 1 + 6 + 20 + 28 + 88 + 13
        assert cost_of(RATES, Usage(cache_read_tokens=1)) == 1
        assert cost_of(RATES, Usage(input_tokens=1000, cost_nanousd=7)) == 7

    def test_an_answer_above_its_bound_is_counted(self) -> None:
        book = self.book(granted=2800 * 2)
        found = book.take_request(KEY, LLM, self.BOUND, 1.0)
        assert found is not None
        found[0].settle(3000)
        assert (book.overshoots, book.overshot_nanousd) == (1, 200)
        asked = book.ask(KEY, 1.0)
        assert asked.ask.unused_nanousd == 0
        assert asked.ask.demand_nanousd >= 200

    def test_a_hold_grows_from_what_is_free(self) -> None:
        found = self.book().take_request(KEY, LLM, self.BOUND, 1.0)
        assert found is not None
        hold = found[0]
        assert hold.grow(1000)
        assert not hold.grow(100_000)
        hold.settle(0)
        assert hold.lease.free == 100_000 - 2800
        assert not hold.grow(1)


class TestAsking:
    def test_it_gives_back_what_is_free(self) -> None:
        book, hold = opened(calls=7)
        asked = book.ask(KEY, 1.0, needed=40, calls=3).ask
        assert (asked.lease_id, asked.unused_nanousd, asked.calls_left) == ("l", 90, 6)
        assert asked.demand_nanousd == 40
        assert book.take(KEY, CALL, 1.0) is None
        hold.give_back()
        assert hold.lease.free == 10

    def test_the_demand_is_what_was_spent_lately(self) -> None:
        book, hold = opened(granted=10_000)
        hold.settle(10)
        for number in range(99):
            hold = book.take(KEY, CALL, number / 100)  # type: ignore[assignment]
            hold.settle(10)
        asked = book.ask(KEY, 1.0, needed=10).ask
        assert asked.demand_nanousd == 10 + 2 * 1000
        assert asked.demand_calls == 1 + 2 * 100
        assert book.ask(KEY, 60.0).ask.demand_nanousd < 100

    def test_without_an_answer_the_lease_is_used_no_more(self) -> None:
        book, hold = opened()
        asked = book.ask(KEY, 1.0)
        book.unanswered(asked)
        hold.give_back()
        assert book.take(KEY, CALL, 1.0) is None
        assert book.ask(KEY, 1.0).ask.lease_id is None
        [update] = book.due(1.0)
        assert (update.body.unused_nanousd, update.closes) == (10, True)

    def test_a_new_lease_replaces_one_that_the_gateway_has_forgotten(self) -> None:
        book, hold = opened()
        book.granted(book.ask(KEY, 1.0), lease(50, "new"), CALL, 10)
        hold.give_back()
        taken = book.take(KEY, CALL, 1.0)
        assert taken is not None
        assert (taken.lease.lease_id, taken.lease.free) == ("new", 30)
        [update] = book.due(1.1)
        assert (update.lease, update.closes) == (hold.lease, True)


class TestKeeping:
    def test_idle_money_goes_back(self) -> None:
        book, hold = opened(calls=5)
        assert book.due(IDLE_S - 0.01) == []
        [update] = book.due(IDLE_S)
        assert (update.body.unused_nanousd, update.body.calls_left) == (90, 4)
        assert not update.closes
        hold.give_back()
        [update] = book.due(2 * IDLE_S)
        assert update.body.unused_nanousd == 10
        assert update.closes
        assert book.totals() == Totals()

    def test_it_is_renewed_while_something_is_under_way(self) -> None:
        book, hold = opened(granted=10, ttl_ms=9000)
        [update] = book.due(3.0)
        assert (update.body.unused_nanousd, update.closes) == (0, False)
        assert book.due(3.1) == []
        book.answered(update, LeaseState("l", "open", 10, 9000), 3.0)
        assert hold.lease.expires_s == 12.0
        assert book.totals() == Totals(1, 10, 1)

    def test_it_is_renewed_by_itself_while_other_calls_ask_and_have_to_wait(self) -> None:
        book, hold = opened(granted=10, ttl_ms=9000)
        for second in range(1, 4):
            book.not_granted(book.ask(KEY, float(second)))
        [update] = book.due(3.0)
        assert (update.lease, update.closes) == (hold.lease, False)

    def test_what_is_under_way_when_a_process_ends_is_told_with_the_close(self) -> None:
        book = LeaseBook()
        book.usable_until(math.inf)
        book.granted(book.ask(KEY, 0.0), lease(100), LLM, 40)
        [update] = book.close()
        assert (update.body.under_way_nanousd, update.body.unused_nanousd) == (40, 60)
        assert update.closes

    @pytest.mark.parametrize("state", [None, LeaseState("l", "expired", 0, 0)])
    def test_one_that_the_gateway_has_ended_covers_nothing(self, state: LeaseState | None) -> None:
        book, _ = opened(granted=100, ttl_ms=900)
        [update] = book.due(0.3)
        book.answered(update, state, 0.3)
        assert book.take(KEY, CALL, 0.4) is None

    def test_one_that_has_expired_is_closed_when_its_last_hold_has_ended(self) -> None:
        """By this the gateway learns that nothing more comes than what was reported."""
        book, hold = opened(ttl_ms=1000)
        assert book.due(1.0) == []
        assert book.take(KEY, CALL, 1.0) is None
        assert book.due(9.0) == [], "it cannot be renewed"
        hold.settle(3)
        [update] = book.due(9.1)
        assert (update.closes, update.body.under_way_nanousd) == (True, 0)
        assert book.totals() == Totals()
        hold.settle(3)

    def test_a_recall_returns_what_is_unused_at_once(self) -> None:
        book, _ = opened()
        [update] = book.recall(["other", "l"])
        assert (update.body.unused_nanousd, update.closes) == (90, False)
        assert book.take(KEY, CALL, 1.0) is None
        assert book.totals() == Totals(1, 10, 1)

    def test_the_end_closes_all_and_covers_nothing(self) -> None:
        book, _ = opened()
        [update] = book.close()
        assert (update.body.unused_nanousd, update.closes) == (90, True)
        assert book.take(KEY, CALL, 1.0) is None
        assert book.close() == []

    def test_a_fork_leaves_the_leases_to_the_parent(self) -> None:
        book, hold = opened()
        book.after_fork()
        book.usable_until(math.inf)
        assert book.take(KEY, CALL, 1.0) is None
        hold.give_back()
        assert book.totals() == Totals()

    @pytest.mark.parametrize("retired", [False, True])
    def test_a_lease_is_not_closed_while_a_question_that_names_it_is_under_way(
        self, retired: bool
    ) -> None:
        """The gateway may have added to it already: closing it would end that money there."""
        book, hold = opened()
        hold.keep() if retired else hold.give_back()
        asked = book.ask(KEY, 0.5)
        assert asked.ask.lease_id == "l"
        assert book.due(0.5 + 2 * IDLE_S) == []
        assert hold.lease.is_current is not retired
        second = book.granted(asked, lease(30), CALL, 10)
        assert second.lease is hold.lease
        second.give_back()
        [update] = book.due(0.5 + 4 * IDLE_S)
        assert (update.body.unused_nanousd, update.closes) == (30, True)

    @pytest.mark.parametrize("outcome", ["refused", "unknown", "another lease"])
    def test_it_is_closed_once_the_question_has_an_outcome(self, outcome: str) -> None:
        book, hold = opened()
        hold.give_back()
        asked = book.ask(KEY, 0.5)
        if outcome == "refused":
            book.not_granted(asked)
        elif outcome == "unknown":
            book.unanswered(asked)
        else:
            book.granted(asked, lease(30, "other"), CALL, 10)
        assert [each.body.lease_id for each in book.due(0.5 + IDLE_S) if each.closes] == ["l"]

    def test_what_was_counted_as_spent_unseen_goes_back_with_its_lease(self) -> None:
        book, hold = opened()
        hold.keep()
        assert book.take(KEY, CALL, 0.1) is not None
        updates = book.due(0.2)
        assert [update.closes for update in updates] == [False], "one call is still under way"
        assert book.take(KEY, CALL, 0.3) is None, "the next call gets another lease"

    def test_an_old_lease_is_replaced(self) -> None:
        book, hold = opened(granted=1000, ttl_ms=1_000_000)
        hold.give_back()
        for second in range(70):
            taken = book.take(KEY, CALL, float(second))
            if taken is None:
                break
            taken.give_back()
            book.due(second + 0.5)
        assert 55 < second < 65


class LeaseModel(RuleBasedStateMachine):
    """A process's book beside the gateway's own account of each lease, in any interleaving.

    The gateway has ``room``; asks, answers, updates and events arrive at any time, or never.
    """

    LIMIT = 1000

    def __init__(self) -> None:
        super().__init__()
        self.book = LeaseBook()
        self.book.usable_until(math.inf)
        self.now_s = 0.0
        self.room = self.LIMIT
        self.leases: dict[str, int] = {}  # held by the gateway
        self.asks: list[LeaseRequest] = []
        self.grants: list[tuple[LeaseRequest, LeaseGrant, int]] = []
        self.updates: list[Update] = []
        self.holds: list[Hold] = []
        self.unreported: list[tuple[str, int]] = []
        self.spent = 0
        self.over = 0
        self.names = 0

    # -- the gateway ---------------------------------------------------------------------------

    def _release(self, lease_id: str, amount: int) -> None:
        amount = min(amount, self.leases.get(lease_id, 0))
        if amount:
            self.leases[lease_id] -= amount
            self.room += amount

    @precondition(lambda self: self.asks)
    @rule(data=st.data(), amount=st.integers(0, 60), more=st.integers(0, 300))
    def the_gateway_decides(self, data: st.DataObject, amount: int, more: int) -> None:
        asked = self.asks.pop(data.draw(st.integers(0, len(self.asks) - 1)))
        lease_id = asked.ask.lease_id
        if lease_id is not None:
            self._release(lease_id, asked.ask.unused_nanousd)
        if amount > self.room:  # refused: what was unused is back all the same
            self.book.not_granted(asked)
            return
        if lease_id is None or lease_id not in self.leases:
            self.names += 1
            lease_id = f"l{self.names}"
            self.leases[lease_id] = 0
        granted = min(self.room, amount + more)
        self.room -= granted
        self.leases[lease_id] += granted
        calls = None if granted % 2 else 5
        self.grants.append((asked, LeaseGrant(lease_id, granted, 30_000, calls=calls), amount))

    @precondition(lambda self: self.updates)
    @rule(data=st.data(), arrives=st.booleans())
    def an_update_arrives(self, data: st.DataObject, arrives: bool) -> None:
        update = self.updates.pop(data.draw(st.integers(0, len(self.updates) - 1)))
        if arrives:
            self._take_in(update)

    def _take_in(self, update: Update) -> None:
        lease_id = update.body.lease_id
        self._release(lease_id, update.body.unused_nanousd)
        if update.closes:  # after its events; from here on the gateway has its money
            for event in [each for each in self.unreported if each[0] == lease_id]:
                self.unreported.remove(event)
                self._charge(*event)
            self.room += self.leases.pop(lease_id, 0)
        held = self.leases.get(lease_id)
        state = None if held is None else LeaseState(lease_id, "open", held, 30_000)
        self.book.answered(update, state, self.now_s)

    @precondition(lambda self: self.unreported)
    @rule(data=st.data())
    def an_event_is_charged(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.unreported) - 1))
        self._charge(*self.unreported.pop(index))

    def _charge(self, lease_id: str, cost: int) -> None:
        self.spent += cost
        paid = min(cost, self.leases.get(lease_id, 0))
        if lease_id in self.leases:
            self.leases[lease_id] -= paid
        self.room -= cost - paid

    # -- the process ---------------------------------------------------------------------------

    @rule(needed=st.integers(0, 100))
    def it_asks(self, needed: int) -> None:
        if not self.asks and not self.grants:  # one ask for each lane at a time
            self.asks.append(self.book.ask(KEY, self.now_s, needed))

    @precondition(lambda self: self.grants)
    @rule(arrives=st.booleans())
    def an_answer_arrives(self, arrives: bool) -> None:
        asked, granted, amount = self.grants.pop()
        if arrives:
            self.holds.append(self.book.granted(asked, granted, CALL, amount))
        else:
            self.book.unanswered(asked)

    @rule()
    def it_takes(self) -> None:
        hold = self.book.take(KEY, CALL, self.now_s)
        if hold is not None:
            assert hold.lease.free >= 0
            self.holds.append(hold)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), end=st.sampled_from(["settle", "over", "back", "keep", "grow"]))
    def a_call_ends(self, data: st.DataObject, end: str) -> None:
        hold = self.holds[data.draw(st.integers(0, len(self.holds) - 1))]
        if end == "grow":
            hold.grow(data.draw(st.integers(0, 50)))
            return
        self.holds.remove(hold)
        lease_id, amount = hold.lease.lease_id, hold.amount
        if end == "back":
            assert hold.give_back()
            return
        cost = amount if end == "keep" else data.draw(st.integers(0, amount))
        if end == "over":
            cost = amount + data.draw(st.integers(1, 30))
            self.over += cost - amount
        assert hold.settle(cost)
        self.unreported.append((lease_id, cost))

    @rule(passed_s=st.floats(0.01, 3))
    def time_passes(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.updates += self.book.due(self.now_s)

    @precondition(lambda self: self.grants)
    @rule()
    def an_answer_is_slow(self) -> None:
        """Meanwhile calls end, their lease becomes idle, and what it sends arrives."""
        while self.holds:
            assert self.holds.pop().give_back()
        self.time_passes(IDLE_S)
        while self.updates:
            self._take_in(self.updates.pop(0))

    @rule(which=st.lists(st.integers(1, 4)))
    def a_recall(self, which: list[int]) -> None:
        self.updates += self.book.recall([f"l{number}" for number in which])

    @rule()
    def a_change(self) -> None:
        self.book.void()

    @rule()
    def a_fork(self) -> None:
        other = LeaseBook()
        other.after_fork()
        assert other.take(KEY, CALL, self.now_s) is None

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def nothing_is_under_way_that_the_gateway_has_not_set_aside(self) -> None:
        """What is held, free and spent here is inside the gateway's hold, but for overshoots."""
        if self.now_s >= 29:
            return  # what has expired is the gateway's to judge
        under_way = sum(hold.amount for hold in self.holds)
        unreported = sum(cost for _, cost in self.unreported)
        free = sum(max(0, lease.free) for lease in self.book._leases.values())
        assert under_way + free + unreported <= sum(self.leases.values()) + self.over
        assert self.spent + under_way + unreported <= self.LIMIT + self.over

    @invariant()
    def overshoots_are_counted(self) -> None:
        assert self.book.overshot_nanousd == self.over


LeaseModel.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestLeaseModel = LeaseModel.TestCase


@pytest.mark.parametrize(
    ("bound", "amount", "paid"),
    [
        (RequestBound("openai", "m", 10, 50), 1, 50),  # its own limit
        (RequestBound("openai", "m", 10, None), 20 + 8 * 100, 100),
        (RequestBound("openai", "m", 10, None), 20 + 8 * 7, 7),  # less was left than is assumed
        (RequestBound("openai", "m", 10, None), 1, 1),
    ],
)
def test_a_hold_says_which_output_it_pays_for(bound: RequestBound, amount: int, paid: int) -> None:
    rates = msgspec.structs.replace(RATES, largest_output_tokens=100)
    assert paid_output(rates, bound, amount) == paid
    assert paid_output(None, bound, amount) == bound.output_tokens


class TestToppingUp:
    def spending(self, granted: int = 100, **fields: Any) -> LeaseBook:
        """A book whose lease has paid for nine calls of ten in its first second."""
        book, first = opened(granted=granted, **fields)
        first.lease.question = GateRequest(call_id="c", kind="call", function="f")
        first.settle(10)
        for _ in range(8):
            hold = book.take(KEY, CALL, 0.9)
            assert hold is not None
            hold.settle(10)
        return book

    def test_what_two_seconds_take_is_asked_for_before_it_is_used_up(self) -> None:
        book = self.spending()
        [(asked, _)] = book.low(1.0)
        assert (asked.lane, book._leases["l"].free) == (KEY, 10), "nothing is given back by asking"
        ask = asked.ask
        assert (ask.lease_id, ask.unused_nanousd, ask.ahead) == ("l", 0, True)
        assert ask.demand_nanousd == 180 + 2 * 10 - 10
        book.topped_up(asked, lease(190))
        assert book.totals() == Totals(1, 200, 0)
        assert book.low(1.1) == []

    def test_nothing_is_asked_for_what_lasts_is_idle_or_no_longer_covered(self) -> None:
        assert self.spending(granted=1000).low(1.0) == []
        assert self.spending().low(0.9 + IDLE_S) == []
        book = self.spending()
        book.void()
        assert book.low(1.0) == []
        book = self.spending()
        book.usable_until(1.0)
        assert book.low(1.0) == []

    def test_a_share_of_rate_caps_is_topped_up_by_a_call(self) -> None:
        assert self.spending(calls=50).low(1.0) == []

    def test_one_that_got_less_or_no_answer_is_left_alone_for_a_while(self) -> None:
        book = self.spending()
        [(asked, _)] = book.low(1.0)
        book.topped_up(asked, lease(1))
        assert book.low(1.5) == []
        assert len(book.low(2.0)) == 1

    def test_what_comes_for_a_lease_that_was_replaced_goes_back(self) -> None:
        book = self.spending()
        [(asked, _)] = book.low(1.0)
        again = book.ask(KEY, 1.0)
        book.granted(again, lease(50, "other"), CALL, 10)
        book.topped_up(asked, lease(190))
        [update] = [each for each in book.due(1.1) if each.body.lease_id == "l"]
        assert (update.body.unused_nanousd, update.closes) == (190, True)

    def test_what_comes_for_a_lease_that_is_gone_goes_back_at_once(self) -> None:
        book = self.spending()
        [(asked, _)] = book.low(1.0)
        book.close()
        back = book.topped_up(asked, lease(190))
        assert back is not None
        assert back.body == LeaseUpdate("l", unused_nanousd=190, close=True)
        assert book.totals() == Totals()

    def test_until_it_is_answered_nothing_is_asked_again_or_closed(self) -> None:
        book = self.spending()
        [(asked, _)] = book.low(1.0)
        idle_s = 1.0 + IDLE_S
        assert book.is_asked_ahead(KEY)
        assert book.low(1.5) == []
        assert not any(update.closes for update in book.due(idle_s))
        book.not_granted(asked)
        assert not book.is_asked_ahead(KEY)
        assert [update.closes for update in book.due(idle_s)] == [True]

    def test_without_an_answer_nothing_more_is_taken(self) -> None:
        book = self.spending()
        [(asked, _)] = book.low(1.0)
        book.unanswered(asked)
        assert not book.is_asked_ahead(KEY)
        assert book.take(KEY, CALL, 1.1) is None

    def test_what_comes_under_another_policy_covers_nothing(self) -> None:
        book = self.spending()
        [(asked, _)] = book.low(1.0)
        book.topped_up(asked, lease(190, policy_version="2"))
        assert book.take(KEY, CALL, 1.1) is None
