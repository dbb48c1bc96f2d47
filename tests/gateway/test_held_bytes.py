"""The bytes that an account holds are those in the backlogs of its living connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio
from websockets.frames import Frame, Opcode

from guard.gateway.api.http import Scope
from guard.gateway.api.socket import Socket
from guard.gateway.connections import HttpConnections
from guard.gateway.server import config_of
from guard.gateway.uvicorn_http import Config, GuardedHttpProtocol
from guard.gateway.websocket import SocketProtocol
from tests.support.closing import turns
from tests.support.waiting import until_async

OWNER = "the organisation"


class Wire:
    """A transport without a network, and the client at its other end."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        self.is_reading = True
        self.is_lost = False
        protocol.connection_made(cast("Any", self))

    def receive(self, data: bytes) -> None:
        """Hand data over, if the gateway reads."""
        if self.is_reading and not self.is_lost:
            self.protocol.data_received(data)

    def lose(self) -> None:
        """End the connection, now."""
        if not self.is_lost:
            self.is_lost = True
            self.protocol.connection_lost(None)

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.is_lost

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.lose)

    close = abort

    def write(self, data: bytes) -> None:
        """Drop what is sent."""

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else None


class Reader:
    """Counts the frames of one socket."""

    def __init__(self) -> None:
        self.frames = 0

    def received(self, frames: list[bytes]) -> None:
        self.frames += len(frames)

    def writable(self) -> None:
        pass

    def lost(self) -> None:
        pass


class Server:
    """Makes connections whose handshakes are answered when a test says so."""

    def __init__(self) -> None:
        self.watch = HttpConnections(60.0, 100)
        self._answered: dict[Socket, asyncio.Event] = {}
        self.reader = Reader()
        self._sockets: Any = type(
            "TestSocketProtocol",
            (SocketProtocol,),
            {"endpoint": staticmethod(self._serve), "bytes_max": 1 << 20,
             "accounts": self.watch.accounts},
        )  # fmt: skip
        self._http: Any = type("TestHttpProtocol", (GuardedHttpProtocol,), {"watch": self.watch})
        self._config: Config = config_of(
            _no_application, http=self._http, ws=self._sockets, tls=None, drain_s=1
        )
        self._state: Any = type("State", (), {"connections": set(), "tasks": set()})()
        self.own = self.watch.accounts.of_organisation(OWNER)
        self.strangers = self.watch.accounts.of_address("192.0.2.1")

    def http(self) -> Wire:
        return Wire(self._http(self._config, self._state, {}))

    def socket(self) -> Wire:
        """Return a connection whose handshake has been received."""
        wire = Wire(self._sockets(self._config, self._state, {}))
        wire.receive(handshake())
        return wire

    def answer(self, wire: Wire) -> None:
        """Answer a handshake in the next turns of the loop."""
        self._answered.setdefault(cast("Socket", wire.protocol), asyncio.Event()).set()

    async def _serve(self, socket: Socket, _: Scope) -> None:
        await self._answered.setdefault(socket, asyncio.Event()).wait()
        socket.identified(OWNER)
        socket.accept(None, self.reader)

    async def end(self) -> None:
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)


async def _no_application(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("a WebSocket alone")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    yield made
    await made.end()


def handshake(padding: int = 0) -> bytes:
    fields = "".join(f"X-{n}: {'x' * 1000}\r\n" for n in range(padding // 1000))
    return (
        "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{fields}\r\n"
    ).encode()


def frame(size: int) -> bytes:
    return Frame(Opcode.TEXT, b"x" * size).serialize(mask=True)


@pytest.mark.asyncio
async def test_a_lost_connection_that_is_let_read_again_counts_once(server: Server) -> None:
    """As when it is lost while its key is checked again."""
    wire = server.socket()
    server.answer(wire)
    await turns(3)
    protocol = cast("SocketProtocol", wire.protocol)
    protocol.hold_reading(True)
    protocol.data_received(frame(60_000))  # was under way when reading was paused
    assert server.own.held > 60_000
    wire.lose()
    assert server.own.held == 0
    protocol.hold_reading(False)
    await turns(10)
    assert server.own.held == 0
    assert server.reader.frames == 0


@pytest.mark.asyncio
async def test_nothing_is_read_between_a_handshake_and_its_answer(server: Server) -> None:
    """A handshake that has waited for its turn among HTTP requests is no exception."""
    wire = server.http()
    wire.receive(handshake(padding=6000))
    await until_async(lambda: isinstance(wire.protocol, SocketProtocol))
    await turns(3)
    assert not wire.is_reading
    wire.receive(frame(60_000))
    server.answer(wire)
    await turns(5)
    assert wire.is_reading
    assert (server.own.held, server.strangers.held) == (0, 0)
    wire.receive(frame(60_000))
    await until_async(lambda: server.reader.frames)
    wire.lose()
    assert (server.own.held, server.strangers.held) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(30))
async def test_whenever_connections_end_their_bytes_count_once(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    wires: list[Wire] = []
    accepted: set[Wire] = set()

    def check() -> None:
        accepted.update(each for each in wires if cast("Any", each.protocol)._reader is not None)
        for account in (server.own, server.strangers):
            there = [cast("Any", each.protocol) for each in wires if not each.is_lost]
            assert account.held == sum(
                len(each._backlog) for each in there if cast("Any", each)._account is account
            )

    for _ in range(300):
        if len(wires) < 6 or chance.random() < 0.05:
            wires.append(server.socket())
        wire = chance.choice(wires[-8:])
        protocol = cast("SocketProtocol", wire.protocol)
        match chance.randrange(8):
            case 0:
                server.answer(wire)
            case 1 | 2:
                wire.receive(frame(chance.choice((10, 20_000, 90_000))))
            case 3 if wire in accepted:
                protocol.hold_reading(True)
            case 4 if wire in accepted:  # the reader may do so after the end too
                protocol.hold_reading(False)
            case 5 if not wire.is_lost:
                protocol.pause_writing()
            case 6 if not wire.is_lost:
                protocol.resume_writing()
            case 7 if chance.random() < 0.4:
                wire.lose()
            case _:
                await turns(chance.randrange(4))
        check()
    for each in wires:
        each.lose()
    check()
    for each in wires:
        server.answer(each)
        if each in accepted:
            cast("SocketProtocol", each.protocol).hold_reading(False)
    await turns(100)
    assert (server.own.held, server.strangers.held) == (0, 0)
    assert server.reader.frames, "some were read"
