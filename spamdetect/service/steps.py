"""A request's steps, written once as a generator, and the two ways to run them.

A step that takes time is yielded, and its outcome is sent back in: the engine's `Job`, or anything
else that can be awaited. `run_steps` runs them in a task, for ASGI. `run_soon` runs them in plain
calls up to the first thing that takes time and goes on when it is there; a request whose body has
come and whose key is known then needs no task, and is answered from the engine's callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from spamdetect.service.work import Job

R = TypeVar("R")
Steps: TypeAlias = Generator[Awaitable[Any], Any, R]

# The loop holds its tasks weakly.
_tasks: Final[set[asyncio.Task[None]]] = set()


async def run_steps(steps: Steps[R]) -> R:
    """Run steps to their end in the current task."""
    try:
        wanted = next(steps)
        while True:
            try:
                outcome = await wanted
            except Exception as error:  # noqa: BLE001 - it belongs to the step that waits
                wanted = steps.throw(error)
            else:
                wanted = steps.send(outcome)
    except StopIteration as stop:
        result: R = stop.value
        return result
    finally:
        steps.close()


def run_soon(steps: Steps[R], done: Callable[[R], None]) -> None:
    """Run steps without a task where they allow it.

    Args:
        steps: The steps; they must not raise.
        done: Takes the result on the loop, perhaps before this returns.
    """
    _go_on(steps, done, None)


def _go_on(steps: Steps[R], done: Callable[[R], None], outcome: object) -> None:
    try:
        wanted = steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)
    except StopIteration as stop:
        done(stop.value)
        return
    if isinstance(wanted, Job):
        wanted.done = partial(_go_on, steps, done)
        return
    task = asyncio.get_running_loop().create_task(_wait(wanted, steps, done))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _wait(wanted: Awaitable[Any], steps: Steps[R], done: Callable[[R], None]) -> None:
    try:
        outcome = await wanted
    except Exception as error:  # noqa: BLE001 - as above
        outcome = error
    _go_on(steps, done, outcome)
