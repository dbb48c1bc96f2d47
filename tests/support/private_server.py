"""Servers of the tests' own, which a test may kill and start again."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql

from tests.support.waiting import WAIT_S


def find(name: str) -> str | None:
    """Return where a program is, also one of PostgreSQL's."""
    found = shutil.which(name)
    if found:
        return found
    candidates = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(candidates[-1]) if candidates else None


def _unprivileged() -> dict[str, object]:
    """PostgreSQL refuses to run as root; another user of the machine runs it then."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return {}


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
        """Start it unless it runs, and wait until it answers."""
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._options,  # type: ignore[call-overload]  # user and group, as found
        )
        deadline = time.monotonic() + WAIT_S
        while not self._is_up():
            assert self._process.poll() is None, f"{self._command[0]} ended"
            assert time.monotonic() < deadline, f"{self._command[0]} did not start"
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill all its processes at once (SIGKILL)."""
        if self._process is None:
            return
        first = psutil.Process(self._process.pid)
        family = [first, *first.children(recursive=True)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait(120)
        psutil.wait_procs(family, WAIT_S)
        self._process = None


@contextlib.contextmanager
def postgres_server() -> Iterator[Server]:
    """Run a PostgreSQL on a socket in a folder; what is committed survives its end."""
    initdb, postgres, ready = find("initdb"), find("postgres"), find("pg_isready")
    if not (initdb and postgres and ready):
        pytest.skip("NOT TESTED: no PostgreSQL binaries on this machine")
    user = _unprivileged()
    # Sockets have short names only, and the other user must reach the folder.
    folder = Path(f"/tmp/private-pg-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    if user:
        os.chown(folder, user["user"], user["group"])  # type: ignore[arg-type]  # numbers
    data = folder / "data"
    subprocess.run(
        [initdb, "-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8"],
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


@contextlib.asynccontextmanager
async def schema_in(url: str) -> AsyncIterator[str]:
    """Make a schema in a database, dropped in the end; yield the URL that selects it."""
    schema = f"test_{secrets.token_hex(6)}"
    name = sql.Identifier(schema)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    joint = "&" if "?" in url else "?"
    yield f"{url}{joint}options=-csearch_path%3D{schema}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(name))


@pytest.fixture(scope="session")
def private_postgres() -> Iterator[Server]:
    """A PostgreSQL of the tests' own."""
    with postgres_server() as server:
        yield server
