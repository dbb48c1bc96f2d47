"""Carries a kill out of a worker of ``multiprocessing.Pool`` or ``ThreadPool``, as a result.

Such a worker hands an ``Exception`` to the task's caller, but any other exception ends the worker:
the task is lost, and its caller waits for ever. Executors of ``concurrent.futures`` need no help.
"""

from __future__ import annotations

import functools
from typing import Any

import wrapt

from guard.breaker.exceptions import WorkflowKilledInterrupt

_original: Any = None


class _CarriedKill(Exception):
    """A kill on its way from a task to the worker's outbox."""

    def __init__(self, interrupt: WorkflowKilledInterrupt) -> None:
        super().__init__(str(interrupt))
        self.interrupt = interrupt


def carry_kills_out() -> None:
    """Have the workers of pools that are made from now on hand kills on. Idempotent."""
    if _original is None:
        wrapt.register_post_import_hook(_install, "multiprocessing.pool")


def _install(module: Any) -> None:
    global _original
    if _original is None:
        _original = module.worker
        module.worker = worker


def worker(inqueue: Any, outqueue: Any, *args: Any, **options: Any) -> None:
    """Work as ``multiprocessing.pool.worker`` does; a started process finds it by this name."""
    from multiprocessing import pool

    original: Any = _original or pool.worker  # type: ignore[attr-defined]
    original(_Inbox(inqueue), _Outbox(outqueue), *args, **options)


class _Inbox:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self) -> Any:
        """Return the next task, as one that turns a kill into an ``Exception``."""
        from multiprocessing import pool

        task = self._queue.get()
        # None ends the worker. The helper is passed on as it is: the worker compares with it.
        if task is None or task[2] is pool._helper_reraises_exception:  # type: ignore[attr-defined]
            return task
        job, number, function, args, kwargs = task
        return job, number, functools.partial(_run, function), args, kwargs


class _Outbox:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def put(self, item: Any) -> None:
        """Hand a result on, with the kill itself in place of its carrier."""
        job, number, (success, value) = item
        if isinstance(value, _CarriedKill):
            value = value.interrupt
        elif isinstance(getattr(value, "exc", None), _CarriedKill):  # with its traceback as text
            value.exc = value.exc.interrupt
        self._queue.put((job, number, (success, value)))


def _run(function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except WorkflowKilledInterrupt as exc:
        raise _CarriedKill(exc) from exc
