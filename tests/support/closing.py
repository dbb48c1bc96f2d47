"""How a server of the tests ends: asyncio forgets what it has just accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

_TURNS = 10


async def turns(number: int = _TURNS) -> None:
    """Let what is due happen: a connection gets its task, or ends, some turns of the loop later."""
    for _ in range(number):
        await asyncio.sleep(0)


async def close_server(server: asyncio.Server) -> None:
    """Close a server when everything that it has accepted is served.

    A connection that is accepted, and whose server is closed before it has a transport, is never
    closed: asyncio fails to attach it, and only a warning of the garbage collector tells.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    await turns()
    server.close()


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class Accepted:
    """Serves connections, each in a task, and leaves none open at the end.

    Pass it to ``asyncio.start_server``. A task that is cancelled before its first step does nothing
    for its connection, so that is noted before.

    Args:
        serve: what a task does.

    Attributes:
        transports: of all connections, and what else is to be closed.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self.transports: set[asyncio.WriteTransport] = set()

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.transports.add(writer.transport)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, server: asyncio.Server) -> None:
        """Close the server, end all tasks of its loop, and abort what is still open."""
        await close_server(server)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in list(self.transports):
            transport.abort()  # also where something is still to be sent
        await turns()
