"""Carries a kill out of a worker of ``multiprocessing.Pool`` or ``ThreadPool``, as a result.

Such a worker passes an ``Exception`` to the task's caller. Any other exception, such as a kill,
ends the worker: the task is lost, and its caller waits for ever. So a kill travels inside an
``Exception`` as far as the worker's result. Executors of ``concurrent.futures`` need no help.
"""

from __future__ import annotations

import functools
from typing import Any

import wrapt

from guard.breaker.exceptions import WorkflowKilledInterrupt

_original: Any = None


class _CarriedKill(Exception):
    """Wraps a kill on its way from a task to the worker's outbox."""

    def __init__(self, interrupt: WorkflowKilledInterrupt) -> None:
        super().__init__(str(interrupt))
        self.interrupt = interrupt


def carry_kills_out() -> None:
    """Make pools that are created from here on pass kills to their callers. Idempotent."""
    if _original is None:
        wrapt.register_post_import_hook(_install, "multiprocessing.pool")


def _install(module: Any) -> None:
    global _original
    if _original is None:
        _original = module.worker
        module.worker = worker


def worker(inqueue: Any, outqueue: Any, *args: Any, **options: Any) -> None:
    """Run ``multiprocessing.pool.worker`` between two queues that convert kills.

    A process that was spawned imports it by this name, without :func:`_install` having run there.
    """
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
        """Put a result into the queue, with the kill unwrapped."""
        job, number, (success, value) = item
        if isinstance(value, _CarriedKill):
            value = value.interrupt
        # A process's worker wraps the exception together with its traceback as text.
        elif isinstance(getattr(value, "exc", None), _CarriedKill):
            value.exc = value.exc.interrupt
        self._queue.put((job, number, (success, value)))


def _run(function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except WorkflowKilledInterrupt as exc:
        raise _CarriedKill(exc) from exc
