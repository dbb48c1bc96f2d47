"""Carries the bytes between the programs of a run and the servers that they name.

Of HTTP it reads the head of a connection's first request, and passes on all that follows: the
server's own answers, and both ends' closing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from guard.running import processes
from guard.running.name_lookup import LookupLoop
from guard.running.outward import UserProxies, UserProxy
from guard.running.past_guard import HostConnection, PastGuard, RefusedError

logger = logging.getLogger("guard.run")

_HEAD_BYTES_MAX: Final = 65_536
_HEAD_S: Final = 60.0
_CONNECT_S: Final = 60.0
_READ_BYTES: Final = 262_144
_EYEBALLS_S: Final = 0.25
_DESCRIPTORS_KEPT: Final = 256
_DESCRIPTORS_MAX: Final = 8192
_ESTABLISHED: Final = 1
_REQUEST: Final = re.compile(rb"([A-Z]+) (\S+) (HTTP/1\.[01])\r\n", re.IGNORECASE)
_PLAIN: Final = re.compile(rb"http://([^/?#]+)(.*)$", re.IGNORECASE)
_PLACE: Final = re.compile(r"(?:\[([0-9a-f:.%]+)\]|([^:\[\]@]+))(?::(\d{1,5}))?$", re.IGNORECASE)
_WEBSOCKET: Final = re.compile(rb"(?im)^upgrade:[ \t]*websocket[ \t]*\r$")
_HOPS: Final = re.compile(rb"(?im)^(?:proxy-authorization|proxy-connection|connection):.*\r\n")


class _Asked(NamedTuple):
    """What a program has asked its forward proxy for: a server, and what to send there first."""

    scheme: str
    host: str
    port: int
    head: bytes = b""


class _Failure(Exception):
    """An answer instead of a connection."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Tunnels:
    """The open connections of one run.

    Args:
        proxies: the user's own forward proxies.
        past: judges connections to LLM hosts.
    """

    def __init__(self, proxies: UserProxies, past: PastGuard) -> None:
        self._proxies = proxies
        self._past = past
        self._tasks: set[asyncio.Task[None]] = set()
        # Others wait: `guard run` needs descriptors of its own, to see its processes.
        self._turns = asyncio.Semaphore(_tunnels_max())

    def run(
        self, woken: socket.socket, taken: Callable[[], list[tuple[socket.socket, int | None]]]
    ) -> None:
        """Serve until the other end of a socket is closed.

        Args:
            woken: has a byte to read when there are more sockets to serve.
            taken: returns these, each with the port that its connections are joined with, or None.
        """
        with asyncio.Runner(loop_factory=LookupLoop) as runner:
            runner.run(self._serve(woken, taken))

    async def _serve(
        self, woken: socket.socket, taken: Callable[[], list[tuple[socket.socket, int | None]]]
    ) -> None:
        loop = asyncio.get_running_loop()
        woken.setblocking(False)
        async with contextlib.AsyncExitStack() as servers:
            is_over = False
            while not is_over:
                for listening, port in taken():
                    server = await asyncio.start_server(
                        self._handler(port), sock=listening, limit=_READ_BYTES
                    )
                    servers.callback(server.close)
                is_over = not await loop.sock_recv(woken, 4096)
        for task in self._tasks:
            task.cancel()

    def _handler(
        self, port: int | None
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            work = self._in_turn(reader, writer) if port is None else _join(reader, writer, port)
            task = asyncio.create_task(self._guarded(work, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return handle

    async def _guarded(self, work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
        try:
            await work
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # one of the two ends has gone
        except Exception:
            logger.exception("a connection of the forward proxy has failed")
        finally:
            writer.close()

    async def _in_turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._turns:
            await self._program(reader, writer)

    async def _program(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        owner = processes.owner(peer, own)
        if owner is not None and owner != os.geteuid():
            return  # another user of this machine
        try:
            asked = await _asked(reader)
            connection = await asyncio.to_thread(
                self._past.open, asked.host, asked.port, (peer[:2], own[:2]), lambda: _left(writer)
            )
            server = await self._connect(asked)
        except _Failure as exc:
            await _answer(writer, exc.status, str(exc))
            return
        except RefusedError as exc:
            await _answer(writer, "403 Forbidden", str(exc))
            return
        if not asked.head:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with contextlib.closing(server[1]):
            await self._carry(reader, writer, *server, connection)

    async def _connect(self, asked: _Asked) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the connection to a server, or to the user's proxy that leads there.

        Raises:
            _Failure: there is none.
        """
        behind = self._proxies.behind(asked.scheme, asked.host, asked.port)
        host, port = (asked.host, asked.port) if behind is None else (behind.host, behind.port)
        context = ssl.create_default_context() if behind is not None and behind.tls else None
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    host, port, limit=_READ_BYTES, ssl=context,
                    happy_eyeballs_delay=_EYEBALLS_S,
                )  # fmt: skip
                try:
                    await _begin(reader, writer, asked, behind)
                except BaseException:
                    writer.close()
                    raise
        except (OSError, EOFError, asyncio.LimitOverrunError, UnicodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "no answer"
            raise _Failure("502 Bad Gateway", f"{host}:{port} cannot be reached: {why}") from exc
        return reader, writer

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
        connection: HostConnection,
    ) -> None:
        def sent(size: int) -> bool:
            return self._past.sent(connection, size)

        def received(size: int) -> bool:
            return self._past.received(connection, size)

        await _both(_pump(reader, server_writer, sent), _pump(server_reader, writer, received))


def _left(writer: asyncio.StreamWriter) -> bool:
    """Return whether a program has closed its connection, as the kernel knows it by now."""
    if not processes.IS_LINUX:
        return writer.is_closing()
    try:
        found: socket.socket = writer.get_extra_info("socket")
        return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED
    except OSError:
        return True


def _tunnels_max() -> int:
    """Return how many connections may be open: each needs two descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(16, (min(limit, _DESCRIPTORS_MAX) - _DESCRIPTORS_KEPT) // 2)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Join a connection with one to a port of this machine."""
    there, back = await asyncio.open_connection("127.0.0.1", port, limit=_READ_BYTES)
    with contextlib.closing(back):
        await _both(_pump(reader, back, _anything), _pump(there, writer, _anything))


def _anything(_: int) -> bool:
    return True


async def _both(*pumps: Coroutine[Any, Any, None]) -> None:
    """Run two pumps; the failure of one ends the other."""
    tasks = [asyncio.create_task(each) for each in pumps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Callable[[int], bool]
) -> None:
    """Carry one direction to its end; bytes that ``passes`` refuses end the connection."""
    while data := await reader.read(_READ_BYTES):
        if not passes(len(data)):
            writer.transport.abort()
            raise ConnectionAbortedError
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:  # TLS cannot say that one direction has ended, and the other one would never
        writer.close()


async def _asked(reader: asyncio.StreamReader) -> _Asked:
    """Read the head of a program's request.

    Raises:
        _Failure: it is none for a forward proxy.
    """
    try:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Failure("431 Request Header Fields Too Large", "the head is too large") from None
    found = _REQUEST.match(head)
    if found is None or len(head) > _HEAD_BYTES_MAX:
        raise _Failure("400 Bad Request", "this is the forward proxy of a guard run")
    method, target, version = found.groups()
    if method.upper() == b"CONNECT":
        return _Asked("https", *_place(target, None))
    plain = _PLAIN.match(target)
    if plain is None:
        raise _Failure("400 Bad Request", "this is the forward proxy of a guard run")
    path = plain[2] if plain[2].startswith(b"/") else b"/" + plain[2]
    rest = _HOPS.sub(b"", head[found.end() :])
    # One request a connection: the next may be for another server, but none follows a WebSocket.
    what = b"Upgrade" if _WEBSOCKET.search(rest) else b"close"
    first = b"%b %b %b\r\nConnection: %b\r\n%b" % (method, path, version, what, rest)
    return _Asked("http", *_place(plain[1], 80), first)


def _place(text: bytes, port: int | None) -> tuple[str, int]:
    found, host = None, ""
    with contextlib.suppress(UnicodeError):
        if (found := _PLACE.match(text.decode().rpartition("@")[2])) is not None:
            # As it is looked up: other letters may stand for those of a name that is judged.
            host = found[1] or found[2].encode("idna").decode("ascii")
    given = int(found[3]) if found is not None and found[3] else port
    if not host or given is None or not 0 < given < 65_536 or not host.isprintable():
        raise _Failure("400 Bad Request", "the request names no server: host:port is wanted")
    return host, given


async def _begin(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    asked: _Asked,
    behind: UserProxy | None,
) -> None:
    """Send what a server, or the user's proxy in front of it, gets first."""
    if behind is None:
        writer.write(asked.head)
        return
    named = f"[{asked.host}]" if ":" in asked.host else asked.host
    said = f"Proxy-Authorization: {behind.authorization}\r\n" if behind.authorization else ""
    if asked.head:  # it reads the whole address, and answers for itself
        line, _, rest = asked.head.partition(b"\r\n")
        method, path, version = line.split(b" ")
        whole = b"http://%b:%d%b" % (named.encode("latin-1"), asked.port, path)
        writer.write(b"%b %b %b\r\n%b%b" % (method, whole, version, said.encode(), rest))
        return
    place = f"{named}:{asked.port}"
    writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{said}\r\n".encode("latin-1"))
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].split(b" ", 1)[-1].decode("latin-1").strip()
    if not status.startswith("2"):
        raise _Failure(
            "502 Bad Gateway", f"the proxy {behind.host} does not lead to {asked.host}: {status}"
        )


async def _answer(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = f"guard run: {text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()
