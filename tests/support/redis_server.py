"""A Redis of a test's own: started, stopped, emptied and killed at will."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from tests.support.waiting import until

MISSING = "no Redis: set GUARD_TEST_REDIS_URL, or install redis-server"


class RedisServer:
    """One ``redis-server``, on a socket file unless a port is given.

    Args:
        folder: for the socket, and what it keeps.
        port: of TCP, on loopback.
        keeps: whether it writes down each command before it answers; else all is gone when it ends.

    Attributes:
        url: of its socket or port; the same after a restart.
    """

    def __init__(self, folder: Path, *, keeps: bool = False, port: int = 0) -> None:
        self._folder = folder
        self._keeps = keeps
        self._process: subprocess.Popen[bytes] | None = None
        self._port = port
        self.url = f"redis://127.0.0.1:{port}/0" if port else f"unix://{folder}/redis.sock"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip(MISSING)
        self._process = subprocess.Popen(
            [program, "--port", str(self._port), "--save", "",
             *(() if self._port else ("--unixsocket", f"{self._folder}/redis.sock")),
             "--appendonly", "yes" if self._keeps else "no", "--appendfsync", "always",
             "--dir", str(self._folder)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until(self._answers)

    def _answers(self) -> bool:
        with Redis.from_url(self.url) as redis:
            try:
                return bool(redis.ping())
            except RedisError:
                return False

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(120)
            self._process = None

    def flush(self) -> None:
        """Drop all data and all scripts."""
        with Redis.from_url(self.url) as redis:
            redis.flushall()
            redis.script_flush()


@contextlib.contextmanager
def kept_redis(*, keeps: bool) -> Iterator[RedisServer]:
    """Run a Redis that keeps its data, or not, when it is killed."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:  # a short path: it has a limit
        server = RedisServer(Path(folder), keeps=keeps)
        yield server
        server.kill()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis that this test may break."""
    with kept_redis(keeps=False) as server:
        yield server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis that tests share: ``GUARD_TEST_REDIS_URL``, or a private one."""
    given = os.environ.get("GUARD_TEST_REDIS_URL")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder))
        yield server.url
        server.kill()
