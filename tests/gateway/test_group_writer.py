"""How the writer groups work: a fake unit of work that commits when the test lets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import UnstorableError
from guard.gateway.ledger.state import Scopes
from guard.gateway.storage.group_writer import REMOTE_WEIGHT_MAX, GroupWriter
from tests.support.waiting import until_async


class Unit:
    """Counts the pieces of each group; commits wait until they may.

    Attributes:
        groups: the sizes of groups that have begun.
    """

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.may_commit = threading.Event()

    def begin(self, scopes: Sequence[Scopes]) -> None:
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


async def over_ticks(made: GroupWriter[Any], count: int, weight: int) -> list[Any]:
    """Submit work in one tick of the loop after another, as requests come."""
    futures = []
    for number in range(count):
        futures.append(made.submit(piece(number), weight=weight))
        await asyncio.sleep(0)
    return futures


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("remote", "groups"), [(True, [1, 2, 1]), (False, [4])], ids=["remote", "embedded"]
)
async def test_heavy_work_waits_for_more_only_where_nothing_is_gained(
    remote: bool, groups: list[int]
) -> None:
    """The database works on the first batch of events while the loop reads the others."""
    unit = Unit()
    made = writer(unit, remote=remote)
    futures = await over_ticks(made, 4, 101)
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


class Poisoned(Unit):
    """Fails each commit of a group with a bad piece in it; counts commits that are tried."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.may_commit.set()
        self.bad = set(bad)
        self.done: list[int] = []
        self.committed: list[int] = []
        self.tried = 0

    def begin(self, scopes: Sequence[Scopes]) -> None:
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

    def piece(number: int) -> Callable[[Poisoned], int]:
        def work(unit: Poisoned) -> int:
            unit.done.append(number)
            return number

        return work

    futures = [made.submit(piece(number)) for number in range(64)]
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
