"""Fixtures of every spamdetect test: the real service, real stores, a server that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spamdetect.engine import classifier, concepts
from spamdetect.engine.features import table_size
from spamdetect.testing import RunningService, run_service
from tests.support.closing import close_server
from tests.support.private_server import Server, find, private_postgres  # noqa: F401  # a fixture

# Each of hundreds of services reads the shipped model, and making its lexicon takes the longest.
concepts.load = functools.lru_cache(4)(concepts.load)

PATIENT = {"SPAMDETECT_TIMEOUT_MS": "60000"}
"""A setting for all clients whose subject is not this deadline."""

SPAM = "Congratulations! You won a free prize. Claim now: http://bit.ly/x1 or call 0800 123 456"
HAM = "Hi Anna, the meeting is moved to Thursday at ten. See you there, Tom"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer for an answer than a client waits by itself."""
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def spam_text() -> str:
    return SPAM


@pytest.fixture(scope="session")
def ham_text() -> str:
    return HAM


@pytest.fixture(scope="session")
def service() -> Iterator[RunningService]:
    """One real service for every test that does not change it; a busy machine sheds no request."""
    with run_service(store_feedback=True, max_queue_wait_ms=60_000) as running:
        yield running


@pytest.fixture(scope="session")
def small_model() -> tuple[str, dict[str, Any], dict[str, Any]]:
    """What `pack` takes: the shipped model with few n-grams, since packing all takes seconds."""
    kind, meta, arrays = classifier.dump(classifier.load())
    bits = 8
    return kind, meta | {"bits": bits}, arrays | {"weights": arrays["weights"][: table_size(bits)]}


class Wire:
    """A TCP server that answers each request with what a function says, byte by byte."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self.requests: list[bytes] = []
        self.connections = 0


Script = Callable[[Wire, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head + await reader.readexactly(length)


def http_answer(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture
def wire() -> Callable[[Script], contextlib.AbstractAsyncContextManager[Wire]]:
    """A server of one's own making: ``async with wire(script) as server``."""

    @contextlib.asynccontextmanager
    async def serve(script: Script) -> AsyncIterator[Wire]:
        tasks: set[asyncio.Task[None]] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            state.connections += 1
            try:
                await script(state, reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                pass
            finally:
                tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=4096)
        state = Wire(server.sockets[0].getsockname()[1])
        try:
            yield state
        finally:
            await close_server(server)
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return serve


@pytest.fixture
def answering(
    wire: Callable[[Script], contextlib.AbstractAsyncContextManager[Wire]],
) -> Callable[..., contextlib.AbstractAsyncContextManager[Wire]]:
    """A server that gives these raw answers one after the other, the last one for ever."""

    def make(*answers: bytes) -> contextlib.AbstractAsyncContextManager[Wire]:
        async def script(
            state: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            while True:
                state.requests.append(await read_request(reader))
                writer.write(answers[min(len(state.requests), len(answers)) - 1])
                await writer.drain()

        return wire(script)

    return make


@pytest.fixture(scope="session")
def answer() -> Callable[..., bytes]:
    return http_answer


@pytest.fixture(scope="session")
def private_redis() -> Iterator[Server]:
    """A Redis of the tests' own, on a socket in a folder."""
    binary, client = find("redis-server"), find("redis-cli")
    if not (binary and client):
        pytest.skip("NOT TESTED: no Redis binaries on this machine")
    folder = Path(f"/tmp/spamdetect-redis-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    path = folder / "redis.sock"

    def is_up() -> bool:
        ping = subprocess.run([client, "-s", str(path), "ping"], check=False, capture_output=True)
        return b"PONG" in ping.stdout

    server = Server(
        f"unix://{path}",
        [binary, "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)],
        is_up,
    )
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> str:
    """Any PostgreSQL: the one that is named, else a private one."""
    named = os.environ.get("SPAMDETECT_TEST_POSTGRES_DSN")
    return named or str(request.getfixturevalue("private_postgres").url)


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """Any Redis: the one that is named, else a private one."""
    named = os.environ.get("SPAMDETECT_TEST_REDIS_URL")
    return named or str(request.getfixturevalue("private_redis").url)


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Wait for a condition, with a deadline."""

    async def wait(condition: Callable[[], object], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    return wait
