"""The buffer: bounded, sheds the least important first, loses nothing that it does not count."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from guard.core.buffer import EventBuffer, Record

KINDS = ["span", "custom.thing", "tool", "chain", "llm", "sdk.loss"]
IMPORTANCE = {"span": 0, "custom.thing": 0, "tool": 1, "chain": 1, "llm": 2, "sdk.loss": 2}


def record(kind: str, serial: int) -> Record:
    return Record(kind, 0, serial, (None,) * 9, None)


def filled(capacity: int, *kinds: str) -> EventBuffer:
    buffer = EventBuffer(capacity)
    for serial, kind in enumerate(kinds):
        buffer.append(record(kind, serial))
    return buffer


def serials(records: list[Record]) -> list[int]:
    return [each.serial for each in records]


def test_it_knows_how_many_wait() -> None:
    buffer = EventBuffer(10)
    for serial in range(3):
        assert len(buffer) == serial
        buffer.append(record(KINDS[serial], serial))
    buffer.take(2)
    assert len(buffer) == 1


@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        (["span", "span", "span"], [1, 2]),
        (["llm", "span", "llm"], [0, 2]),
        (["llm", "tool", "llm"], [0, 2]),
        (["tool", "span", "llm"], [0, 2]),
        (["tool", "custom.thing", "tool"], [0, 2]),
        (["chain", "llm", "llm"], [1, 2]),
        (["llm", "llm", "llm"], [1, 2]),
        (["llm", "llm", "span"], [0, 1]),
        (["llm", "sdk.loss", "tool"], [0, 1]),
    ],
)
def test_when_full_the_oldest_of_the_least_important_goes_and_is_counted(
    kinds: list[str], left: list[int]
) -> None:
    """Delivery: oldest droppable (span, custom) first, ``llm`` last."""
    buffer = filled(2, *kinds)
    assert buffer.dropped == 1
    assert sorted(serials(buffer.take(10))) == left


def test_a_batch_takes_the_most_important_first_and_the_oldest_of_those() -> None:
    buffer = filled(10, "span", "tool", "llm", "span", "llm")
    assert serials(buffer.take(3)) == [2, 4, 1]
    assert serials(buffer.take(3)) == [0, 3]
    assert buffer.take(3) == []


def test_nothing_is_taken_when_nothing_is_wanted() -> None:
    buffer = filled(10, "llm")
    assert buffer.take(0) == []
    assert buffer.take_if(lambda _: True, 0) == []
    assert len(buffer) == 1


def test_take_if_leaves_the_others_in_their_order() -> None:
    buffer = filled(20, *["llm"] * 8)
    assert serials(buffer.take_if(lambda each: each.serial % 2 == 1, 2)) == [1, 3]
    assert serials(buffer.take(20)) == [0, 2, 4, 5, 6, 7]


def test_what_is_put_back_comes_first_again() -> None:
    buffer = filled(20, "llm", "tool", "llm")
    taken = buffer.take(2)
    buffer.append(record("llm", 9))
    buffer.put_back(taken)
    assert serials(buffer.take(20)) == [0, 2, 9, 1]


def test_what_does_not_fit_any_more_when_put_back_is_counted() -> None:
    buffer = filled(3, "span", "llm", "llm")
    taken = buffer.take(3)
    for serial in (10, 11):
        buffer.append(record("llm", serial))
    buffer.put_back(taken)
    assert len(buffer) == 3
    assert buffer.dropped == 2
    assert serials(buffer.take(9)) == [2, 10, 11]


class BufferMachine(RuleBasedStateMachine):
    """Against a plain model: a list per importance."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = 6
        self.buffer = EventBuffer(self.capacity)
        self.lanes: list[list[Record]] = [[], [], []]
        self.numbers: Iterator[int] = count()
        self.made = self.delivered = 0
        self.out: list[Record] = []

    def shed(self) -> None:
        while sum(map(len, self.lanes)) > self.capacity:
            next(lane for lane in self.lanes if lane).pop(0)

    @rule(kind=st.sampled_from(KINDS))
    def append(self, kind: str) -> None:
        made = record(kind, next(self.numbers))
        self.made += 1
        self.lanes[IMPORTANCE[kind]].append(made)
        self.shed()
        self.buffer.append(made)

    @rule(most=st.integers(0, 8))
    def take(self, most: int) -> None:
        expected: list[Record] = []
        for lane in reversed(self.lanes):
            while lane and len(expected) < most:
                expected.append(lane.pop(0))
        taken = self.buffer.take(most)
        assert taken == expected
        self.out += taken

    @rule(most=st.integers(0, 8), divisor=st.integers(1, 3))
    def take_if(self, most: int, divisor: int) -> None:
        def wanted(each: Record) -> bool:
            return each.serial % divisor == 0

        expected: list[Record] = []
        for lane in reversed(self.lanes):
            found = [each for each in lane if wanted(each)][: most - len(expected)]
            lane[:] = [each for each in lane if each not in found]
            expected += found
        taken = self.buffer.take_if(wanted, most)
        assert taken == expected
        self.out += taken

    @rule()
    def put_back(self) -> None:
        for each in reversed(self.out):
            self.lanes[IMPORTANCE[each.kind]].insert(0, each)
        self.shed()
        self.buffer.put_back(self.out)
        self.out = []

    @rule()
    def deliver(self) -> None:
        self.delivered += len(self.out)
        self.out = []

    @invariant()
    def bounded_and_nothing_lost_silently(self) -> None:
        assert len(self.buffer) <= self.capacity
        accounted = len(self.buffer) + len(self.out) + self.delivered + self.buffer.dropped
        assert accounted == self.made


TestBuffer = BufferMachine.TestCase


def test_many_threads_and_one_consumer_lose_nothing_silently() -> None:
    """Invariant: every event is delivered, kept or counted; memory stays bounded."""
    threads, each, capacity = 16, 2_000, 500
    buffer = EventBuffer(capacity)
    done = threading.Event()
    start = threading.Barrier(threads + 1)
    sizes = [0] * threads
    taken: list[Record] = []

    def produce(number: int) -> None:
        start.wait()
        for serial in range(each):
            buffer.append(record(KINDS[serial % 6], number * each + serial))
            sizes[number] = max(sizes[number], len(buffer))

    def consume() -> None:
        start.wait()
        while not done.is_set():
            batch = buffer.take(50)
            if len(batch) > 25:
                buffer.put_back(batch[25:])
                batch = batch[:25]
            taken.extend(batch)
            taken.extend(buffer.take_if(lambda record: record.serial % 7 == 0, 5))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        producers = [threading.Thread(target=produce, args=(n,)) for n in range(threads)]
        consumer = threading.Thread(target=consume)
        for thread in [*producers, consumer]:
            thread.start()
        for thread in producers:
            thread.join(120)
        done.set()
        consumer.join(120)
    finally:
        sys.setswitchinterval(interval)
    taken.extend(buffer.take(capacity + threads))
    assert len(buffer) == 0
    assert max(Counter(serials(taken)).values()) == 1
    assert len(taken) + buffer.dropped == threads * each
    # One record for each thread that appends at this instant, and a batch that comes back.
    assert max(sizes) <= capacity + threads + 50
