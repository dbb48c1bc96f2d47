"""A gateway under a limit of open files: raised where that is allowed, else said and kept."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from guard.gateway.open_files import RESERVED

pytestmark = pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="reads /proc")
WANTED = 400


@contextlib.contextmanager
def served(folder: Path, soft: int, hard: int) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """Serve under limits; yields the process, its address and what it writes to standard error."""
    command = f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$0" "$@"'
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            ["sh", "-c", command, sys.executable, "-m", "guard", "gateway", "serve", "--port", "0",
             "--database", str(folder / "g.sqlite3"), "--connections-max", str(WANTED)],
            stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1], log
    finally:
        process.kill()
        process.communicate()


def soft_limit(process: subprocess.Popen[str]) -> int:
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    found = re.search(r"Max open files\s+(\d+)", limits)
    assert found is not None
    return int(found[1])


def test_the_limit_is_raised_where_that_is_allowed(tmp_path: Path) -> None:
    with served(tmp_path, 128, 4096) as (process, _, log):
        assert soft_limit(process) == WANTED + RESERVED
        assert log.read_text() == ""


def test_fewer_connections_where_it_is_not(tmp_path: Path) -> None:
    """The gateway says how many there is room for, and never runs out of files."""
    with served(tmp_path, 128, 250) as (process, url, log), contextlib.ExitStack() as stack:
        assert soft_limit(process) == 250
        assert f"has room for {250 - RESERVED} connections and not for {WANTED}" in log.read_text()
        host, port = url.removeprefix("http://").split(":")
        for _ in range(300):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        for _ in range(3):
            assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 250
        assert "Too many open files" not in log.read_text()
