"""Ten thousand calls at once through one client, against a service that is slow and flaps."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from spamdetect import AsyncSpamClient, PredictResult, SpamError
from spamdetect.testing import RunningService, run_service_async

_CALLS = 10_000
_SPAM_ERRORS = {
    "SpamTimeoutError",
    "SpamTransportError",
    "SpamServerError",
    "SpamRateLimitError",
    "SpamResponseError",
}


def _peak_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.fault
@pytest.mark.asyncio
async def test_ten_thousand_calls_end_in_results_or_documented_errors(
    wire: Callable[..., contextlib.AbstractAsyncContextManager[Any]],
    answer: Callable[..., bytes],
) -> None:
    numbers = itertools.count()
    async with run_service_async(max_connections=10_000) as service:
        behind = int(service.base_url.rpartition(":")[2])

        async def flapping(state: Any, reader: Any, writer: Any) -> None:
            """Hands requests to the real service, or drops, delays, truncates, refuses them."""
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", behind)
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = next(
                        int(line.split(b":")[1])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length")
                    )
                    body = await reader.readexactly(length)
                    number = next(numbers)
                    # Whole stretches in which nothing works, between stretches that do.
                    if number // 500 % 4 == 3:
                        return
                    match number % 17:
                        case 3:
                            return
                        case 5:
                            writer.write(answer(503, b"{}"))
                            continue
                        case 7:
                            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{}")
                            return
                        case 11:
                            await asyncio.sleep(0.2)
                    upstream_writer.write(head + body)
                    reply = await upstream_reader.readuntil(b"\r\n\r\n")
                    size = next(
                        int(line.split(b":")[1])
                        for line in reply.lower().split(b"\r\n")
                        if line.startswith(b"content-length")
                    )
                    writer.write(reply + await upstream_reader.readexactly(size))
                    await writer.drain()
            finally:
                upstream_writer.close()

        async with (
            wire(flapping) as server,
            AsyncSpamClient(server.base_url, service.api_key, timeout=12) as spam,
        ):
            before_mb = _peak_memory_mb()
            async with asyncio.timeout(240):
                outcomes = await asyncio.gather(
                    *(spam.predict(f"text {n}") for n in range(_CALLS)), return_exceptions=True
                )
            grown_mb = _peak_memory_mb() - before_mb
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, PredictResult):
                    assert outcome.input_text == f"text {number}"
                else:
                    assert isinstance(outcome, SpamError), repr(outcome)
            kinds = Counter(type(outcome).__name__ for outcome in outcomes)
            print(f"{dict(kinds)}, {server.connections} connections, {grown_mb:.0f} MB more")
            assert set(kinds) <= {"PredictResult", *_SPAM_ERRORS}, kinds
            assert kinds["PredictResult"] > _CALLS / 20, kinds
            assert server.connections < _CALLS
            assert grown_mb < 400, grown_mb
            # The client is as good as new: the service behind the flapping is asked once more.
        async with AsyncSpamClient(service.base_url, service.api_key) as again:
            assert (await again.predict("hello")).text_length == 5


@pytest.mark.asyncio
async def test_one_client_never_opens_more_connections_than_it_may(
    service: RunningService,
    wire: Callable[..., contextlib.AbstractAsyncContextManager[Any]],
) -> None:
    open_now = most = 0

    async def silent(state: Any, reader: Any, writer: Any) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            while await reader.read(1000):
                pass
        finally:
            open_now -= 1

    async with (
        wire(silent) as server,
        AsyncSpamClient(
            server.base_url, "key", timeout=3, max_connections=7, queue_timeout=3
        ) as spam,
    ):
        calls = [spam.predict("hello") for _ in range(200)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome).__name__ for outcome in outcomes} == {"SpamTimeoutError"}
    assert most == 7


@pytest.mark.fault
@pytest.mark.timeout(900)
@pytest.mark.asyncio
async def test_ten_thousand_calls_of_one_client_all_succeed() -> None:
    """The time of a call starts when it is sent, however long it waited for its turn."""
    async with (
        run_service_async(
            max_pending=_CALLS, max_queue_wait_ms=60_000, rate_per_minute=0
        ) as service,
        AsyncSpamClient(service.base_url, service.api_key, 120, queue_timeout=800) as spam,
    ):
        found = await asyncio.gather(*(spam.predict(f"text {n}") for n in range(_CALLS)))
    assert [each.input_text for each in found] == [f"text {n}" for n in range(_CALLS)]
