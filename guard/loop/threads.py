"""Blocking work alongside a loop, on daemon threads instead of executors.

An executor's threads are joined when the interpreter exits, so a name look-up that hangs would
hold up the program's exit; and once the exit has begun an executor accepts no work, so a last
delivery could not look up its gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, finish: bool = False) -> T:
    """Run a blocking function in its own daemon thread and await its result.

    When no thread can be started any more (the interpreter is exiting), it runs in the calling
    thread.

    Args:
        function, args: what to call.
        finish: whether to wait for the function to end even if the caller is cancelled, so that
            its effect is known; for work that is short.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    # Runs on the loop.
    def tell(result: Any, exc: BaseException | None) -> None:
        if future.done():
            return
        if exc is None:
            future.set_result(result)
        else:
            future.set_exception(exc)
            future.exception()  # marked as retrieved, in case the caller has gone

    def work() -> None:
        result, failure = None, None
        try:
            result = function(*args)
        except BaseException as exc:  # noqa: BLE001  # raised in the awaiting task
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop has closed, and the caller with it
            loop.call_soon_threadsafe(tell, result, failure)

    try:
        threading.Thread(target=work, name="guard-blocking", daemon=True).start()
    except RuntimeError:
        return function(*args)
    if not finish:
        return await future
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])  # does not cancel the future when it is cancelled again
        future.exception()  # marked as retrieved; the cancellation is raised instead
        raise


class ServiceLoop(asyncio.SelectorEventLoop):
    """A selector loop that looks up names without an executor, and is woken once for many calls.

    Always the plain selector loop, whatever policy the user has set.

    ``call_soon_threadsafe`` writes a byte for each call, and each write releases the interpreter
    lock: ten thousand callers spend half of their time in it. Here one byte wakes the loop for all
    calls that are queued before the loop reads it.
    """

    # Whether a byte is on its way. Set by any thread, cleared by the loop before it reads its
    # queue.
    _is_woken = False

    def _write_to_self(self) -> None:
        # The callback is queued already. While this is set the loop has not read the byte, so it
        # looks at its queue once more before it waits.
        if self._is_woken:
            return
        try:
            self._is_woken = True
            super()._write_to_self()  # type: ignore[misc]
        except BaseException:  # an interrupt or a kill: the byte may not have been written
            self._is_woken = False
            raise

    def _process_self_data(self, data: bytes) -> None:
        # First: a callback that is queued from here on writes a byte of its own.
        self._is_woken = False
        super()._process_self_data(data)  # type: ignore[misc]

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        """Look up a name; see :func:`socket.getaddrinfo`."""
        return await in_thread(lambda: socket.getaddrinfo(*args, **kwargs))
