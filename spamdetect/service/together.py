"""Calls of a store that come while one is under way are made together, as the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from spamdetect.service.keys import StoreError

T = TypeVar("T")
R = TypeVar("R")


class Together(Generic[T, R]):
    """Makes one call for all that wait, so that however many come, one connection is busy.

    A call begins after all that it is for have been asked, so it sees what was written before.

    Args:
        call: Takes what was asked and returns as many answers in the same order.
        most: How much one call takes.
    """

    def __init__(self, call: Callable[[list[T]], Awaitable[list[R]]], most: int) -> None:
        self._call = call
        self._most = most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._task is None

    async def __call__(self, asked: T) -> R:
        """Ask.

        Raises:
            StoreError: The call failed.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                answers = await self._call([asked for asked, _ in taken])
            except Exception as error:  # noqa: BLE001 - it belongs to those who asked
                for _, answer in taken:
                    if not answer.done():
                        # One for each: a traceback grows with every raise.
                        is_known = isinstance(error, StoreError)
                        answer.set_exception(StoreError(str(error)) if is_known else error)
            else:
                for (_, answer), found in zip(taken, answers, strict=True):
                    if not answer.done():
                        answer.set_result(found)
        self._task = None
