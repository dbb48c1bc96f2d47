"""The bounded buffer: exact bound, exact count, importance first."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from guard.core.buffer import EventBuffer, Priority, Record, priority_of
from guard.scope.scope import Scope

KINDS = ("llm", "tool", "span", "custom", "sdk.loss")


def record(kind: str, number: int, workflow: str = "w") -> Record:
    return Record(kind, number, number, Scope(workflow_id=workflow).event_fields, {})


Step = tuple[str, Any]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(KINDS)),
        st.tuples(st.just("take"), st.integers(0, 8)),
        st.tuples(st.just("put_back"), st.integers(0, 8)),
        st.tuples(st.just("rest"), st.none()),
    ),
    max_size=200,
)


@given(steps, st.integers(1, 20), st.integers(1, 8))
@settings(deadline=None)
def test_nothing_disappears_and_the_bound_holds(
    script: list[Step], capacity: int, batch_size: int
) -> None:
    buffer = EventBuffer(capacity, batch_size)
    appended = delivered = 0
    for action, argument in script:
        if action == "append":
            buffer.append(record(argument, appended))
            appended += 1
        elif action == "take":
            delivered += len(buffer.take(argument))
        elif action == "put_back":
            buffer.put_back(buffer.take(argument))
        else:
            buffer.park()
        assert len(buffer) <= capacity
        assert appended == delivered + buffer.dropped + len(buffer)


@given(st.lists(st.sampled_from(KINDS), max_size=60), st.integers(1, 20))
@settings(deadline=None)
def test_the_least_important_and_oldest_are_shed_first(kinds: list[str], capacity: int) -> None:
    buffer = EventBuffer(capacity)
    everything = [record(kind, number) for number, kind in enumerate(kinds)]
    for each in everything:
        buffer.append(each)
    kept = buffer.take(1000)
    for lane in Priority:
        of_lane = [each for each in everything if priority_of(each.kind) is lane]
        left = [each for each in kept if priority_of(each.kind) is lane]
        assert left == of_lane[len(of_lane) - len(left) :], "the newest of a lane stay, in order"
    ranks = [priority_of(each.kind) for each in kept]
    assert ranks == sorted(ranks, reverse=True), "the most important come first"


@given(st.lists(st.sampled_from("ab"), max_size=30), st.integers(0, 10), st.integers(0, 30))
@settings(deadline=None)
def test_luggage_takes_one_workflow_and_keeps_the_order(
    workflows: list[str], most: int, look_at: int
) -> None:
    buffer = EventBuffer(100)
    everything = [record("llm", number, name) for number, name in enumerate(workflows)]
    for each in everything:
        buffer.append(each)
    taken = buffer.take_if(lambda each: each.event_fields[0] == "a", most, look_at)
    assert taken == [each for each in everything[:look_at] if each.event_fields[0] == "a"][:most]
    assert buffer.take(100) == [each for each in everything if each not in taken]


def test_wakes_once_for_a_batch_and_again_after_a_rest() -> None:
    wakes: list[int] = []
    buffer = EventBuffer(1000, 10, lambda: bool(wakes.append(1)) or True)
    buffer.append(record("llm", 0))
    assert len(wakes) == 1  # the first record starts the consumer
    assert buffer.park()
    for number in range(8):
        buffer.append(record("llm", number))
    assert len(wakes) == 1
    for number in range(20):
        buffer.append(record("llm", number))
    assert len(wakes) == 2
    assert not buffer.park()  # there is a batch: no sleep
    buffer.take(100)
    assert buffer.park()
    for number in range(10):
        buffer.append(record("llm", number))
    assert len(wakes) == 3


def test_a_consumer_that_naps_is_woken_for_more_than_a_batch() -> None:
    wakes: list[int] = []
    buffer = EventBuffer(1000, 10, lambda: bool(wakes.append(1)) or True)
    assert buffer.park(50)
    for number in range(49):
        buffer.append(record("llm", number))
    assert not wakes
    buffer.append(record("llm", 49))
    assert len(wakes) == 1
    assert not buffer.park(50)
    assert buffer.park(100)
    buffer.take(45)
    assert buffer.park()  # for a batch again
    for number in range(5):
        buffer.append(record("llm", number))
    assert len(wakes) == 2


def test_a_consumer_that_cannot_be_woken_is_tried_again_but_not_each_time() -> None:
    wakes: list[int] = []
    buffer = EventBuffer(1000, 10, lambda: bool(wakes.append(1)))
    for number in range(100):
        buffer.append(record("llm", number))
    assert 2 <= len(wakes) <= 11
    assert len(buffer) == 100


def test_threads_lose_nothing_that_is_not_counted() -> None:
    buffer = EventBuffer(500, 50)
    taken: list[Any] = []
    done = threading.Event()

    def consume() -> None:
        while not done.is_set():
            taken.extend(buffer.take(70))
            buffer.park()

    def produce(name: int) -> None:
        for number in range(5000):
            buffer.append(record(KINDS[number % 4], name * 10_000 + number))

    consumer = threading.Thread(target=consume)
    producers = [threading.Thread(target=produce, args=(name,)) for name in range(4)]
    consumer.start()
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join()
    done.set()
    consumer.join()
    assert len(taken) + len(buffer) + buffer.dropped == 20_000
    assert len({each.serial for each in taken}) == len(taken)
