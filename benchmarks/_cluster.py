"""Gateways on one database for benchmarks: replicas in processes of their own.

On a machine with few cores replicas take them from each other, from the database and from
the clients. With ``share`` each has a part of a core and no more, as if on a machine of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import attrs
import psutil

from guard.gateway.admin import AdminClient

CONNECTIONS: Final = 4
"""For each replica; there is an organisation for each."""

PERIOD_US: Final = 10_000
_GROUPS: Final = Path("/sys/fs/cgroup")


def _serve(pipe: Connection, database: str) -> None:
    from guard.gateway.app import GatewayApp
    from guard.gateway.bootstrap import first_run
    from guard.gateway.server import GatewayServer, bind, new_event_loop, tune_process
    from guard.gateway.settings import GatewaySettings

    async def main() -> None:
        listening = bind("127.0.0.1", 0)
        app = GatewayApp(GatewaySettings(database=database))
        await app.open()
        made = await first_run(app.storage, app.clock_ms())
        pipe.send((listening.getsockname()[1], "" if made is None else made.admin_key))
        tune_process()
        await GatewayServer(app, listening).serve()

    new_event_loop().run_until_complete(main())


@attrs.frozen
class Cluster:
    """Replicas on one database, and the keys of its organisations."""

    ports: list[int]
    keys: list[str]
    processes: list[psutil.Process]

    def cpu_s(self) -> float:
        """Return the CPU time that the replicas have used."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)


@contextlib.contextmanager
def cluster(database: str, replicas: int, share: float = 0.0) -> Iterator[Cluster]:
    """Run replicas with an organisation for each connection until the block ends.

    Args:
        database: what they share.
        replicas: how many.
        share: the part of a core that each gets; 0: all it can get.
    """
    context = multiprocessing.get_context("spawn")
    started, ports, admin_key = [], [], ""
    try:
        for _ in range(replicas):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, database), daemon=True)
            process.start()
            started.append(process)
            if not ours.poll(60):
                raise RuntimeError("a replica did not start")
            port, first_key = ours.recv()
            ports.append(port)
            admin_key = admin_key or first_key
            _wait_for(port)
        keys = _organisations(ports[0], admin_key, replicas * CONNECTIONS)
        processes = [psutil.Process(each.pid) for each in started]
        with contextlib.ExitStack() as limits:
            for each in processes if share else []:
                limits.enter_context(_limited(each, share))
            yield Cluster(ports, keys, processes)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.join(30)


def _wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def _organisations(port: int, admin_key: str, count: int) -> list[str]:
    url, keys = f"http://127.0.0.1:{port}", []
    for number in range(count):
        name = f"o{number}"
        admin = AdminClient(url, admin_key, organisation=name)
        admin.create_organisation(name)
        admin.set_budget(window="month", limit_nanousd=2**60)
        admin.set_budget(scope_kind="workflow", scope_id="*", window="day", limit_nanousd=2**60)
        keys.append(admin.create_key(organisation=name))
        admin.close()
    return keys


@contextlib.contextmanager
def database_on(engine: str, dsn: str) -> Iterator[str]:
    """Make a database of an engine, ``sqlite`` or ``postgres``, and remove it at the end."""
    if engine == "postgres":
        with fresh_database(dsn) as database:
            yield database
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield str(Path(folder) / "gateway.sqlite3")


@contextlib.contextmanager
def fresh_database(dsn: str) -> Iterator[str]:
    """Make a database and drop it at the end."""
    import psycopg

    name = f"guard_bench_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    try:
        yield dsn.rpartition("/")[0] + "/" + name
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.contextmanager
def _limited(process: psutil.Process, share: float) -> Iterator[None]:
    """Give a process this part of a core, and no more, until the block ends.

    Raises:
        RuntimeError: this needs Linux and the right to make control groups.
    """
    unified = (_GROUPS / "cgroup.subtree_control").exists()
    group = (_GROUPS if unified else _GROUPS / "cpu") / f"guard-bench-{secrets.token_hex(4)}"
    quota_us = int(share * PERIOD_US)
    try:
        if unified:
            (_GROUPS / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        if unified:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        (group / "cgroup.procs").write_text(str(process.pid))
    except OSError as exc:
        raise RuntimeError(f"--share needs Linux control groups, and root: {exc}") from None
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(process.pid))
        group.rmdir()
