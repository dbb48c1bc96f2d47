"""How the writer groups work: a fake unit of work that commits when the test lets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import UnstorableError
from guard.gateway.storage import group_writer
from guard.gateway.storage.group_writer import (
    HEAVY_WEIGHT_MAX,
    REMOTE_WEIGHT_MAX,
    GroupWriter,
)
from guard.gateway.unit.state import Touches
from tests.support.waiting import until_async


class Unit:
    """Counts the pieces of each group; commits wait until they may.

    Attributes:
        groups: the sizes of groups that have begun.
    """

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.may_commit = threading.Event()

    def begin(self, scopes: Sequence[Touches]) -> None:
        self.groups.append(len(scopes))

    def savepoint(self) -> None:
        pass

    def undo(self) -> None:
        pass

    def commit(self) -> list[PostCommitEvent]:
        assert self.may_commit.wait(60)
        return []

    def rollback(self) -> None:
        pass


def writer(unit: Unit, *, remote: bool) -> GroupWriter[Any]:
    return GroupWriter(unit, lambda _: None, inline=False, remote=remote)


def piece(number: int) -> Callable[[Unit], int]:
    return lambda _: number


def _note(order: list[str], name: str, _: Unit) -> None:
    order.append(name)


async def over_ticks(made: GroupWriter[Any], count: int, weight: int) -> list[Any]:
    """Submit work in one tick of the loop after another, as requests come."""
    futures = []
    for number in range(count):
        futures.append(made.submit(piece(number), weight=weight))
        await asyncio.sleep(0)
    return futures


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("remote", "groups"), [(True, [1, 2, 1]), (False, [2, 2])], ids=["remote", "embedded"]
)
async def test_heavy_work_waits_for_more_only_where_nothing_is_gained(
    remote: bool, groups: list[int]
) -> None:
    """The database works on the first batch of events while the loop reads the others."""
    unit = Unit()
    made = writer(unit, remote=remote)
    futures = await over_ticks(made, 4, HEAVY_WEIGHT_MAX // 2)
    await until_async(lambda: unit.groups == groups[:1])
    unit.may_commit.set()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*futures) == [0, 1, 2, 3]
    assert unit.groups == groups
    await made.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("remote", [True, False])
async def test_small_work_is_gathered_over_ticks(remote: bool) -> None:
    unit = Unit()
    unit.may_commit.set()
    made = writer(unit, remote=remote)
    async with asyncio.timeout(60):
        await asyncio.gather(*await over_ticks(made, 8, 1))
    assert unit.groups == [8]
    await made.close()


@pytest.mark.asyncio
async def test_one_piece_may_be_heavier_than_a_group() -> None:
    unit = Unit()
    unit.may_commit.set()
    made = writer(unit, remote=True)
    futures = [made.submit(piece(n), weight=2 * REMOTE_WEIGHT_MAX) for n in range(3)]
    async with asyncio.timeout(60):
        assert await asyncio.gather(*futures) == [0, 1, 2]
    assert unit.groups == [1, 1, 1]
    await made.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("remote", [True, False])
async def test_heavy_and_light_work_take_turns(remote: bool) -> None:
    """Whoever has much to do, on however many connections, is ahead of a decision by one group."""
    unit, order = Unit(), list[str]()
    made = writer(unit, remote=remote)

    def heavy(count: int) -> list[Any]:
        work = partial(_note, order, "heavy")
        return [made.submit(work, weight=HEAVY_WEIGHT_MAX) for _ in range(count)]

    futures = heavy(4)
    await until_async(lambda: unit.groups == [1])
    futures += [made.submit(partial(_note, order, "light")) for _ in range(3)]
    futures += heavy(2)
    unit.may_commit.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*futures)
    assert order == ["heavy", *["light"] * 3, *["heavy"] * 5]
    assert unit.groups == [1, 3, 1, 1, 1, 1, 1]
    await made.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("remote", [True, False])
async def test_heavy_work_is_not_held_up_by_light_work_that_goes_on(remote: bool) -> None:
    unit, order = Unit(), list[str]()
    unit.may_commit.set()
    made = writer(unit, remote=remote)
    futures = list[Any]()

    def more(_: Any) -> None:
        if len(order) < 40:
            futures.append(made.submit(partial(_note, order, "light")))
            futures[-1].add_done_callback(more)

    work = partial(_note, order, "heavy")
    futures += [made.submit(work, weight=HEAVY_WEIGHT_MAX) for _ in range(4)]
    more(None)
    more(None)
    async with asyncio.timeout(60):
        await asyncio.gather(*futures[:4])
    assert order.count("light") <= 10
    await until_async(lambda: len(order) >= 40)
    await made.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("weight", [1, HEAVY_WEIGHT_MAX])
async def test_the_gateways_own_work_is_the_first_of_its_queue(weight: int) -> None:
    unit, order = Unit(), list[str]()
    made = writer(unit, remote=False)
    futures = [made.submit(partial(_note, order, "first"), weight=HEAVY_WEIGHT_MAX)]
    await until_async(lambda: unit.groups == [1])
    for name in ("asked", "asked", "own"):
        work = partial(_note, order, name)
        futures.append(made.submit(work, weight=weight, is_own=name == "own"))
    unit.may_commit.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*futures)
    assert order == ["first", "own", "asked", "asked"]
    await made.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("weight", [1, 20])
async def test_a_group_that_takes_long_leaves_the_rest_to_later_ones(
    monkeypatch: pytest.MonkeyPatch, weight: int
) -> None:
    monkeypatch.setattr(group_writer, "UNIT_S", -1.0)
    unit, committed = Unit(), list[int]()
    unit.may_commit.set()
    made = writer(unit, remote=False)
    futures = await over_ticks(made, 5, weight)
    for future in futures:
        future.add_done_callback(lambda done: committed.append(done.result()))
    async with asyncio.timeout(60):
        assert await asyncio.gather(*futures) == [0, 1, 2, 3, 4]
    assert (unit.groups, committed) == ([5, 4, 3, 2, 1], [0, 1, 2, 3, 4])
    assert made.items == 5
    await made.close()


def noted(number: int) -> Callable[[Poisoned], int]:
    def work(unit: Poisoned) -> int:
        unit.done.append(number)
        return number

    return work


@pytest.mark.asyncio
async def test_what_was_left_is_not_answered_when_its_group_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each piece is run once in what is committed, whatever its group was cut and halved into."""
    monkeypatch.setattr(group_writer, "UNIT_S", -1.0)
    unit = Poisoned(2)
    made = GroupWriter(unit, lambda _: None, inline=False, failures=(_NotTakenError,))

    async with asyncio.timeout(60):
        found = await asyncio.gather(
            *(made.submit(noted(number)) for number in range(8)), return_exceptions=True
        )
    assert [each for each in found if each != found[2]] == [0, 1, 3, 4, 5, 6, 7]
    assert isinstance(found[2], UnstorableError)
    assert unit.committed == [0, 1, 3, 4, 5, 6, 7]
    await made.close()


class Poisoned(Unit):
    """Fails each commit of a group with a bad piece in it; counts commits that are tried."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.may_commit.set()
        self.bad = set(bad)
        self.done: list[int] = []
        self.committed: list[int] = []
        self.tried = 0

    def begin(self, scopes: Sequence[Touches]) -> None:
        super().begin(scopes)
        self.done = []

    def commit(self) -> list[PostCommitEvent]:
        self.tried += 1
        if self.bad.intersection(self.done):
            raise _NotTakenError
        self.committed += self.done
        return []


class _NotTakenError(Exception):
    sqlstate = "54000"


@pytest.mark.asyncio
@pytest.mark.parametrize("bad", [[0], [63], [31, 32], [7, 7], range(64)])
async def test_a_group_that_fails_is_halved_until_what_is_to_blame_stands_alone(
    bad: Sequence[int],
) -> None:
    unit = Poisoned(*bad)
    made = GroupWriter(unit, lambda _: None, inline=False, failures=(_NotTakenError,))

    futures = [made.submit(noted(number)) for number in range(64)]
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*futures, return_exceptions=True)
    for number, answer in enumerate(answers):
        if number in bad:
            assert isinstance(answer, UnstorableError)
        else:
            assert answer == number
    assert unit.committed == [number for number in range(64) if number not in bad]
    if len(set(bad)) <= 2:
        assert unit.tried <= 1 + 2 * 6 * len(set(bad)), "not one commit for each of the others"
    assert made.healthy, "the store works, and /readyz says so"
    await made.close()


class _Publishing(Unit):
    """Each of its commits has an event."""

    def commit(self) -> list[PostCommitEvent]:
        return [PostCommitEvent("catalogue", None)]


@pytest.mark.asyncio
@pytest.mark.parametrize("inline", [True, False])
async def test_callers_are_answered_though_an_event_could_not_be_delivered(
    inline: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(events: list[PostCommitEvent]) -> None:
        raise LookupError("no such channel")

    made: GroupWriter[Any] = GroupWriter(_Publishing(), fail, inline=inline)
    async with asyncio.timeout(60):
        assert await made.submit(piece(1)) == 1
        assert await made.submit(piece(2)) == 2
        await made.close()
    assert caplog.text.count("LookupError: no such channel") == 2
