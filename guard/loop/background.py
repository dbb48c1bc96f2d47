"""The background loop: start lazily, submit, cancel, fork, close."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars

# Not used here, but loaded in the caller's thread, before there is another. When one thread imports
# a package and another one a module of it at the same moment, Python may end one of the imports
# with "deadlock detected". The loop's thread would import this package, for the certificates of its
# client; and many programs import its module ``abc``, by way of ``importlib.metadata``.
import importlib.resources  # noqa: F401
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

from guard.loop.quiet import unlogged
from guard.loop.threads import ServiceLoop

T = TypeVar("T")

_START_TIMEOUT_S: Final = 10.0
_ROUNDS: Final = 5
_WIND_UP_SHARE: Final = 0.8
"""Share of the closing time in which tasks must end; the rest is for the thread itself to end."""


class LoopClosedError(RuntimeError):
    """Work was given to a loop that has been closed."""


class _Thread(threading.Thread):
    """One whose identifier may change while it runs, as gevent's patches change it."""

    def _delete(self) -> None:
        with contextlib.suppress(KeyError):  # it is known by the identifier that it began with
            super()._delete()  # type: ignore[misc]  # no method for others


class BackgroundLoop:
    """An asyncio loop in its own daemon thread, started on first use.

    A forked child drops the thread, the loop and the locks without touching them, because the copy
    of the old loop still claims to be running. It starts anew at its own first use.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str = "guard-loop") -> None:
        self._name = name
        self._forget()
        _alive.add(self)

    def _forget(self) -> None:
        # Re-entrant: a signal handler may close the loop while its thread is inside submit().
        self._lock = threading.RLock()
        # Both are set once, under the lock; any thread reads them without it.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Tasks of `spawn`. Changed on the loop only.
        self._services: set[asyncio.Task[Any]] = set()
        # Futures that callers wait for: cancelled at the end, so that no caller waits for a loop
        # that has ended. Any thread adds and discards, each in one atomic operation.
        self._pending: set[Future[Any]] = set()
        # Coroutine functions to run once the tasks have ended, in this order.
        self._closers: list[Callable[[], Awaitable[object]]] = []
        # Set before `close` takes the lock: from then on new work is refused.
        self._closed = False
        # Whether a thread that closes the loop has begun to end its tasks; under the lock.
        self._winding_up = False

    @property
    def is_running(self) -> bool:
        """Whether the loop's thread is running and accepts work."""
        thread = self._thread
        return not self._closed and thread is not None and thread.is_alive()

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is the loop's own, where waiting would deadlock."""
        thread = self._thread  # once it has ended, another thread can have its identifier
        return thread is not None and thread.ident == threading.get_ident() and thread.is_alive()

    def start(self) -> asyncio.AbstractEventLoop:
        """Start the thread if it is not running and return its loop.

        Raises:
            LoopClosedError: the loop was closed.
            RuntimeError: the thread could not start (no resources, interpreter shutting down).
        """
        loop = self._loop
        if loop is not None and not self._closed:  # the common case, without the lock
            return loop
        # Held until the thread runs, so that two first callers start one loop.
        with self._lock:
            if self._closed:
                raise LoopClosedError("the background loop is closed")
            if self._loop is not None:
                return self._loop
            started: Future[asyncio.AbstractEventLoop] = Future()
            # An empty context: a service must not keep the first caller's variables for ever.
            thread = _Thread(
                target=contextvars.Context().run,
                args=(self._main, started),
                name=self._name,
                daemon=True,
            )
            thread.start()
            try:
                loop = started.result(timeout=_START_TIMEOUT_S)
            # Also Ctrl-C: a loop that `_loop` does not name could never be closed.
            except BaseException:
                started.add_done_callback(_stop_when_started)
                raise
            self._thread, self._loop = thread, loop
            return loop

    def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            with unlogged():
                loop = ServiceLoop()
        except BaseException as exc:  # noqa: BLE001  # it belongs to the caller who waits
            started.set_exception(exc)
            return
        asyncio.set_event_loop(loop)
        # From here on the caller may stop the loop, or submit to it, before it runs: both are
        # queued and take effect in `run_forever`.
        started.set_result(loop)
        try:
            loop.run_forever()
        finally:
            with contextlib.suppress(Exception):
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(_settled())
            asyncio.set_event_loop(None)
            loop.close()

    def submit(
        self,
        function: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        future: Future[T] | None = None,
    ) -> Future[T]:
        """Run ``function(*args)`` on the loop, in the caller's context.

        The coroutine is created on the loop, so an exception that a signal handler raises in the
        calling thread never hits one that is already running.

        Args:
            function, args: creates the coroutine.
            future: takes the result; a caller that makes it beforehand can cancel the coroutine
                even when interrupted in here.

        Raises:
            LoopClosedError: the loop was closed.
            RuntimeError: called from the loop's own thread, where waiting would deadlock.
        """
        if self.is_own_thread:
            raise RuntimeError("a blocking call from the background loop's own thread")
        if future is None:
            future = Future()
        try:
            # Under the lock, so that close() also cancels everything submitted before it.
            with self._lock:
                loop = self.start()
                self.track(future)
                loop.call_soon_threadsafe(_begin, loop, function, args, future)
        except BaseException as exc:
            future.cancel()
            if self._closed and isinstance(exc, RuntimeError):
                raise LoopClosedError("the background loop is closed") from None
            raise
        return future

    def track(self, future: Future[Any]) -> None:
        """Have a future cancelled if the loop ends before it has completed the future."""
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    def run(
        self,
        function: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        timeout_s: float | Callable[[], float] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> T:
        """Run a coroutine on the loop and wait for it in this thread.

        Anything that ends the wait early (``KeyboardInterrupt``, the timeout) cancels the coroutine
        before it propagates.

        Args:
            function, args: creates the coroutine.
            timeout_s: how long to wait, or returns for how long yet; None waits to the end.
            meanwhile: called in this thread before it waits.

        Raises:
            TimeoutError: the time is over.
        """
        future: Future[T] = Future()
        try:
            self.submit(function, *args, future=future)
            if meanwhile is not None:
                meanwhile()
            while callable(timeout_s) and not future.done() and (left_s := timeout_s()) > 0:
                wait((future,), left_s)
            return future.result(0 if callable(timeout_s) else timeout_s)
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine on the loop, awaited from another loop; a cancellation is passed on."""
        return await asyncio.wrap_future(self.submit(function, *args))

    def call_soon(self, callback: Callable[..., object], *args: Any) -> bool:
        """Schedule a callback on the loop, if it is running; never starts it and never waits.

        Returns:
            Whether the callback was scheduled.
        """
        loop = self._loop
        if loop is None or self._closed:
            return False
        try:
            loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop closed in between
            return False
        return True

    def spawn(self, function: Callable[[], Awaitable[None]], *, name: str) -> asyncio.Task[None]:
        """Start a long-lived service task; call it on the loop's thread.

        The task runs in an empty context and is cancelled by :meth:`close`.
        """

        async def service() -> None:
            await function()

        task = asyncio.get_running_loop().create_task(
            service(), name=name, context=contextvars.Context()
        )
        self._services.add(task)
        task.add_done_callback(self._services.discard)
        return task

    def at_close(self, closer: Callable[[], Awaitable[object]]) -> None:
        """Register a coroutine function to run on the loop after its tasks have ended."""
        self._closers.append(closer)

    def closed_already(self, closer: Callable[[], Awaitable[object]]) -> None:
        """Remove a function that :meth:`at_close` has registered."""
        with contextlib.suppress(ValueError):
            self._closers.remove(closer)

    def close(self, timeout_s: float = 1.0) -> bool:
        """Refuse new work, cancel running tasks, stop the loop and join the thread. Idempotent.

        Returns:
            Whether the thread ended within ``timeout_s`` seconds.
        """
        if self._thread is threading.current_thread():
            raise RuntimeError("the background loop cannot be closed from its own thread")
        ends = time.monotonic() + timeout_s
        # Before the lock: new work is refused from here on, even while another thread holds the
        # lock.
        self._closed = True
        # A thread that is starting the loop holds the lock; wait for it no longer than the timeout.
        locked = self._lock.acquire(timeout=timeout_s)
        try:
            loop, thread = self._loop, self._thread
            first, self._winding_up = not self._winding_up, True
        finally:
            if locked:
                self._lock.release()
        if loop is None or thread is None or not thread.is_alive():
            return locked
        left_s = max(0.0, ends - time.monotonic())
        # Once: a second one would cancel the first, or come after the loop's last callback.
        if first:
            winding_up = self._wind_up(left_s * _WIND_UP_SHARE)
            try:
                asyncio.run_coroutine_threadsafe(winding_up, loop)
            except RuntimeError:  # it has already ended
                winding_up.close()
        thread.join(left_s)
        # A task blocks the loop. The daemon thread is left to itself; callers must not wait for it.
        if thread.is_alive():
            self._cancel_pending()
        return not thread.is_alive()

    def _cancel_pending(self) -> None:
        for future in list(self._pending):
            future.cancel()

    async def _wind_up(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        # A task may start others while it is cancelled, hence the loop. Each is cancelled once.
        seen: set[asyncio.Task[Any]] = set()
        while tasks := asyncio.all_tasks() - seen - {asyncio.current_task()}:
            # All of them begin first: anyio's wrapper of a task that is cancelled before that
            # leaves the task's own coroutine behind, never awaited.
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=max(0.0, ends_s - loop.time()))
            seen |= tasks
        for task in seen:
            if not task.done():
                # It swallowed its cancellation. The loop ends without it and without a warning.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            elif not task.cancelled():
                task.exception()  # marked as retrieved: no caller is left
        # Only now: until their end, tasks use the connections that the closers close.
        for closer in self._closers:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(closer(), timeout_s / 4)
        await _settled()  # deliver the results of those that did end
        self._cancel_pending()  # and cancel the others
        loop.call_soon(loop.stop)


def _begin(
    loop: asyncio.AbstractEventLoop,
    function: Callable[..., Coroutine[Any, Any, T]],
    args: tuple[Any, ...],
    future: Future[T],
) -> None:
    """Run a coroutine as a task, on the loop, and give its result to the future."""
    if future.cancelled():  # the caller gave up before its turn came: nothing is started
        return
    try:
        task = loop.create_task(function(*args))
    except BaseException as exc:  # noqa: BLE001  # it belongs to the caller who waits
        if future.set_running_or_notify_cancel():
            future.set_exception(exc)
        return

    def cancelled(ended: Future[T]) -> None:
        if ended.cancelled():
            with contextlib.suppress(RuntimeError):  # the loop is closed, so the task has ended
                loop.call_soon_threadsafe(task.cancel)

    def settled(ended: asyncio.Task[T]) -> None:
        if ended.cancelled():
            future.cancel()
            return
        exc = ended.exception()
        if not future.set_running_or_notify_cancel():
            return
        if exc is not None:
            future.set_exception(exc)
        else:
            future.set_result(ended.result())

    # In both directions: the task completes the future, and a cancelled future cancels the task.
    task.add_done_callback(settled)
    future.add_done_callback(cancelled)


async def _settled() -> None:
    """Let pending callbacks of closed or finished objects run; a transport needs a few rounds."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


def _stop_when_started(started: Future[asyncio.AbstractEventLoop]) -> None:
    if started.exception() is None:
        loop = started.result()
        loop.call_soon_threadsafe(loop.stop)


# Weak: a loop that its owner dropped is not kept for the sake of a fork.
_alive: weakref.WeakSet[BackgroundLoop] = weakref.WeakSet()
_parents: list[object] = []


def _forget_after_fork() -> None:
    for background in list(_alive):
        # Kept, never closed: closing the copy would touch descriptors that the parent uses.
        _parents.append((background._loop, background._thread, background._services))
        background._forget()


os.register_at_fork(after_in_child=_forget_after_fork)
