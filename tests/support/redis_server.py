"""A Redis for the benchmark that measures beside one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import RedisError

from tests.support.programs import killed_at_last
from tests.support.waiting import until

MISSING = "no Redis: set GUARD_TEST_REDIS_URL, or install redis-server"


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis that tests share: ``GUARD_TEST_REDIS_URL``, or a private one."""
    given = os.environ.get("GUARD_TEST_REDIS_URL")
    if given:
        yield given
        return
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip(MISSING)
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:  # a short path: it has a limit
        url = f"unix://{folder}/redis.sock"
        words = "--port", "0", "--save", "", "--unixsocket", f"{folder}/redis.sock"
        process = subprocess.Popen(
            [program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        with killed_at_last(process):
            until(lambda: _answers(url))
            yield url


def _answers(url: str) -> bool:
    with Redis.from_url(url) as redis:
        try:
            return bool(redis.ping())
        except RedisError:
            return False
