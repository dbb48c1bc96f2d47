"""Calls that are cancelled, and clients that are closed, at every moment of a call.

The service is on the same loop as the client, so the n-th turn of the loop is the same moment each
time: from before the connection is made to after the answer was read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from spamdetect import AsyncSpamClient
from spamdetect.errors import SpamAuthError
from tests.spamdetect.conftest import Wire, read_request
from tests.support.closing import turns
from tests.support.waiting import until_async

pytestmark = pytest.mark.asyncio

TURNS = range(40)
"""More than a call takes here."""
CONNECTIONS = 8
"""As many as one pool of the client has."""


class Service:
    """Refuses every key.

    Attributes:
        url: where it is.
        open: how many connections are.
    """

    url = ""
    open = 0


@pytest_asyncio.fixture
async def refusing(wire: Any, answer: Callable[..., bytes]) -> AsyncIterator[Service]:
    """A service on this loop."""
    service = Service()

    async def script(_: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        service.open += 1
        try:
            while True:
                await read_request(reader)
                writer.write(answer(401, b"{}"))
                await writer.drain()
        finally:
            service.open -= 1

    async with wire(script) as server:
        service.url = server.base_url
        yield service


@pytest.mark.generator("moments at which a spam client is closed")
async def test_what_is_closed_at_any_moment_leaves_nothing_open(
    refusing: Service, count_cases: Callable[[int], None]
) -> None:
    seen = set()
    for number in TURNS:
        spam = AsyncSpamClient(refusing.url, "key")
        calls = [asyncio.create_task(spam.predict("hello")) for _ in range(3)]
        await turns(number)
        closing = asyncio.create_task(spam.aclose())
        await turns(2)
        await asyncio.gather(closing, spam.aclose())  # once is enough, twice is harmless
        seen |= {type(each) for each in await asyncio.gather(*calls, return_exceptions=True)}
        await until_async(lambda: refusing.open == 0)
    assert seen == {SpamAuthError, RuntimeError}
    count_cases(len(TURNS))


@pytest.mark.generator("moments at which a prediction is cancelled, again and again")
async def test_calls_that_are_cancelled_at_any_moment_use_no_connection_up(
    refusing: Service, count_cases: Callable[[int], None]
) -> None:
    for number in TURNS:
        spam = AsyncSpamClient(refusing.url, "key", timeout=60, max_connections=CONNECTIONS)
        for _ in range(2 * CONNECTIONS):
            call = asyncio.create_task(spam.predict("hello"))
            await turns(number)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, SpamAuthError):
                await call
        with pytest.raises(SpamAuthError):
            await spam.predict("hello")
        await spam.aclose()
        await until_async(lambda: refusing.open == 0)
    count_cases(len(TURNS))
