"""Fixtures of every spamdetect test: the real service, real stores, a server that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from spamdetect.testing import RunningService, run_service

SPAM = "Congratulations! You won a free prize. Claim now: http://bit.ly/x1 or call 0800 123 456"
HAM = "Hi Anna, the meeting is moved to Thursday at ten. See you there, Tom"


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
            server.close()
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


def _unprivileged() -> dict[str, object]:
    """PostgreSQL refuses to run as root; another user of the machine runs it then."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return {}


def _find(name: str) -> str | None:
    found = shutil.which(name)
    if found:
        return found
    candidates = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(candidates[-1]) if candidates else None


class Server:
    """A private server process that a test may stop and start."""

    def __init__(
        self, url: str, command: list[str], is_up: Callable[[], bool], **options: object
    ) -> None:
        self.url = url
        self._command = command
        self._is_up = is_up
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._options,  # type: ignore[call-overload]  # user and group, as found
        )
        deadline = time.monotonic() + 20
        while not self._is_up():
            assert self._process.poll() is None, f"{self._command[0]} ended"
            assert time.monotonic() < deadline, f"{self._command[0]} did not start"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None


@pytest.fixture(scope="session")
def private_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A PostgreSQL of the tests' own, on a socket in a folder."""
    initdb, postgres, ready = _find("initdb"), _find("postgres"), _find("pg_isready")
    if not (initdb and postgres and ready):
        pytest.skip("NOT TESTED: no PostgreSQL binaries on this machine")
    user = _unprivileged()
    # Sockets have short names only, and the other user must reach the folder.
    folder = Path(f"/tmp/spamdetect-pg-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    if user:
        os.chown(folder, user["user"], user["group"])  # type: ignore[arg-type]  # numbers
    data = folder / "data"
    subprocess.run(
        [initdb, "-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync"],
        check=True,
        capture_output=True,
        cwd="/",
        **user,  # type: ignore[call-overload]  # user and group, as found
    )

    def is_up() -> bool:
        check = [ready, "-q", "-h", str(folder), "-U", "postgres"]
        return subprocess.run(check, check=False).returncode == 0

    server = Server(
        f"postgresql://postgres@/postgres?host={folder}",
        [
            postgres,
            *("-D", str(data), "-k", str(folder)),
            *("-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"),
        ],
        is_up,
        cwd="/",
        **user,
    )
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def private_redis() -> Iterator[Server]:
    """A Redis of the tests' own, on a socket in a folder."""
    binary, client = _find("redis-server"), _find("redis-cli")
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

    async def wait(condition: Callable[[], object], seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    return wait
