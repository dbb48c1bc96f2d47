"""Blocking work beside a loop, on daemon threads instead of executors.

An executor's threads are joined when the interpreter exits, so a name look-up that hangs would
hold up the program's end; and from the moment that the exit begins an executor takes no work, so
a last delivery could not look up its gateway.
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
    """Run a blocking function in a daemon thread of its own and await its result.

    When no thread can be started any more (the interpreter exits) it runs in the calling one.

    Args:
        function, args: what to call.
        finish: wait for the function's end even when the caller is cancelled, so that its effect
            is known; for work that is short by itself.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: Any, exc: BaseException | None) -> None:
        if future.done():
            return
        if exc is None:
            future.set_result(result)
        else:
            future.set_exception(exc)
            future.exception()  # marked as seen: whoever awaits it is told, and nobody else

    def work() -> None:
        result, failure = None, None
        try:
            result = function(*args)
        except BaseException as exc:  # noqa: BLE001  # carried to whoever awaits it
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
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
        await asyncio.wait([future])
        future.exception()  # seen; the cancellation is what is told
        raise


class ServiceLoop(asyncio.SelectorEventLoop):
    """A selector loop that looks up names without an executor.

    The plain selector loop on purpose: the user's loop policy is the user's.
    """

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        """Look up a name; see :func:`socket.getaddrinfo`."""
        return await in_thread(lambda: socket.getaddrinfo(*args, **kwargs))
