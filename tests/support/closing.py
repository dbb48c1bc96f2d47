"""How a server of the tests ends: asyncio forgets what it has just accepted."""

from __future__ import annotations

import asyncio

_TURNS = 10


async def turns() -> None:
    """Let what is due happen: a connection gets its task, or ends, some turns of the loop later."""
    for _ in range(_TURNS):
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
