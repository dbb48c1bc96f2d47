"""An event loop that looks each name up in a thread of its own.

asyncio's own looks up in a pool of a few threads, for which all other work waits as long as a name
server does not answer, and so does the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any, Final

_AT_ONCE: Final = 128


class LookupLoop(asyncio.SelectorEventLoop):
    """The event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> list[Any]:
        """Look a name up, as :func:`socket.getaddrinfo` does."""
        found: asyncio.Future[list[Any]] = self.create_future()

        def tell(result: list[Any] | Exception) -> None:
            if found.done():
                return
            if isinstance(result, Exception):
                found.set_exception(result)
            else:
                found.set_result(result)

        def look_up() -> None:
            try:
                result: list[Any] | Exception = socket.getaddrinfo(host, port, **hints)
            except (OSError, ValueError) as exc:  # UnicodeError among these
                result = exc
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.call_soon_threadsafe(tell, result)

        async with self._turns:
            threading.Thread(target=look_up, name="guard-lookup", daemon=True).start()
            return await found
