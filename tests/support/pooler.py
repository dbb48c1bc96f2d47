"""Poolers in front of PostgreSQL: a stand-in that runs everywhere, and PgBouncer where it is."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import conninfo

from tests.support.ports import free_port
from tests.support.private_server import Server, _unprivileged, find

_NO_ANSWER = (0, 12)
"""The requests for authentication to which a client has nothing to say: done, and SASL's end."""


class TransactionPooler:
    """Gives each transaction another session of the server, the newest that is free.

    Like PgBouncer with ``pool_mode = transaction``, it tells clients a process id of its own.

    Args:
        dsn: of the server.
    """

    def __init__(self, dsn: str) -> None:
        parts = conninfo.conninfo_to_dict(dsn)
        self._address = str(parts["host"]), int(parts.get("port") or 5432)
        self._free: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        user, password = quote(str(parts["user"])), quote(str(parts.get("password") or ""), safe="")
        who = f"{user}:{password}" if password else user
        self.dsn = f"postgresql://{who}@127.0.0.1:{port}/{parts['dbname']}?sslmode=disable"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more clients, and end the sessions."""
        self._listening.close()
        for each in self._free:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), client:
            self._free.append(self._introduce(client))
            while (request := client.recv(65_536)) and request[:1] != b"X":
                server = self._free.pop()
                server.sendall(request)
                self._until_idle(client, server)
                self._free.append(server)

    def _introduce(self, client: socket.socket) -> socket.socket:
        """Open a session with what the client says, also of who it is."""
        server = socket.create_connection(self._address)
        server.sendall(_exactly(client, 4, includes_length=True))
        while True:
            kind, message = _message(server)
            if kind == b"K":
                message = message[:5] + struct.pack("!I", secrets.randbits(31)) + message[9:]
            client.sendall(message)
            if kind == b"R" and struct.unpack("!I", message[5:9])[0] not in _NO_ANSWER:
                server.sendall(_message(client)[1])
            if kind == b"Z":
                return server

    def _until_idle(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what both say until the server is in no transaction."""
        while True:
            ready, _, _ = select.select([client, server], [], [])
            if client in ready:
                more = client.recv(65_536)
                if not more:
                    raise EOFError
                server.sendall(more)
            if server in ready:
                kind, message = _message(server)
                client.sendall(message)
                if kind == b"Z" and message[5:6] == b"I":
                    return


def _exactly(line: socket.socket, size: int, *, includes_length: bool = False) -> bytes:
    """Read so many bytes; or those that a length in front, which is read first, counts."""
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found + _exactly(line, struct.unpack("!I", found)[0] - 4) if includes_length else found


def _message(line: socket.socket) -> tuple[bytes, bytes]:
    kind = _exactly(line, 1)
    return kind, kind + _exactly(line, 4, includes_length=True)


@contextlib.contextmanager
def pgbouncer(dsn: str, mode: str) -> Iterator[str]:
    """Run PgBouncer in front of a database; yield the URI by which it is reached."""
    parts = conninfo.conninfo_to_dict(dsn)
    folder, port, user = Path(f"/tmp/bouncer-{secrets.token_hex(4)}"), free_port(), _unprivileged()
    folder.mkdir(mode=0o755)
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\nguard = {dsn if '://' not in dsn else _keywords(parts)}\n[pgbouncer]\n"
        f"pool_mode = {mode}\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n"
        "unix_socket_dir =\nignore_startup_parameters = extra_float_digits\n"
    )
    if user:
        os.chown(folder, user["user"], user["group"])  # type: ignore[arg-type]  # numbers
    url = f"postgresql://127.0.0.1:{port}/guard"

    def is_up() -> bool:
        with contextlib.suppress(psycopg.Error), psycopg.connect(url):
            return True
        return False

    server = Server(url, [str(find("pgbouncer")), str(config)], is_up, cwd="/", **user)
    server.start()
    yield url
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _keywords(parts: dict[str, object]) -> str:
    """Return a connection string as PgBouncer reads it."""
    return " ".join(f"{name}={value}" for name, value in parts.items())
