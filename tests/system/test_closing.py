"""What the tests' own servers leave behind."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import warnings

import pytest

from tests.support.closing import close_server, turns
from tests.support.waiting import WAIT_S


async def _served(closes_at_once: bool) -> list[str]:
    """Return what the garbage collector finds of a server that ends while it accepts."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    listening = server.sockets[0].fileno()
    with socket.create_connection(server.sockets[0].getsockname()):
        # The client is told first that they are connected; on a busy machine, well before.
        assert select.select([listening], [], [], WAIT_S)[0]
        for _ in range(2):  # it is seen in the first turn and accepted in the second
            await asyncio.sleep(0)
        if closes_at_once:
            server.close()
        else:
            await close_server(server)
    await turns()
    if not closes_at_once:
        await asyncio.wait_for(ended.wait(), WAIT_S)
        await turns()
    assert ended.is_set() is not closes_at_once
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gc.collect()
    return [str(each.message) for each in found if each.category is ResourceWarning]


@pytest.mark.asyncio
async def test_a_connection_that_is_just_accepted_is_served_and_closed() -> None:
    assert await _served(closes_at_once=False) == []


# CPython 3.13.0 stumbles over its own server as well, when the transport is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.asyncio
async def test_asyncio_alone_forgets_it() -> None:
    """The day that this fails, `close_server` is no longer needed."""
    assert any("unclosed transport" in each for each in await _served(closes_at_once=True))
