"""One slow reader of control messages holds nobody up."""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from guard.core import wire
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.embedded import run_gateway
from guard.gateway.services.fanout import QUEUE_MAX, Hub
from guard.gateway.websocket import SocketProtocol
from tests.support.waiting import WAIT_S, until, until_async


def events(seq: int) -> list[PostCommitEvent]:
    return [PostCommitEvent("control", "o", wire.ControlMessage(seq=seq, type="kill"), None)]


@pytest.mark.asyncio
async def test_a_channel_that_falls_behind_is_given_up_and_the_others_get_everything() -> None:
    hub = Hub()
    slow = hub.subscribe("o", "slow")
    others = [hub.subscribe("o", "k") for _ in range(50)]
    elsewhere = hub.subscribe("another", "k")
    for seq in range(1, QUEUE_MAX + 51):
        hub.publish(events(seq))
        for other in others:
            message = await other.next(WAIT_S)
            assert message is not None
            assert message.seq == seq
    assert slow.overrun
    assert slow._queue.qsize() == QUEUE_MAX  # bounded: what is beyond comes with the replay
    assert not any(other.overrun for other in others)
    with pytest.raises(TimeoutError):
        await elsewhere.next(0.01)


def handshake(netloc: str, key: str) -> bytes:
    return (
        f"GET {wire.CONTROL_WS_PATH}?after=0 HTTP/1.1\r\nHost: {netloc}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Protocol: {wire.CONTROL_SUBPROTOCOL}\r\n"
        f"{wire.HEADER_API_KEY}: {key}\r\n{wire.HEADER_PROTOCOL}: 3\r\n\r\n"
    ).encode()


def test_a_socket_that_is_never_read_delays_nobody(connected: Any, tenant: Any) -> None:
    """Its buffers fill up; the kill of everybody else comes through all the same."""
    parts = urlsplit(tenant.url)
    with socket.create_connection((parts.hostname, parts.port)) as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        mute.sendall(handshake(parts.netloc, tenant.key))
        for number in range(60):
            tenant.admin.pause(f"noise-{number}", reason="x" * 500)
        tenant.admin.kill("w")
        until(lambda: connected.enforcement.control.kills.exact.get("w"), WAIT_S)


class Reader(asyncio.Protocol):
    """A control socket that notes when it is greeted and when it hears of the kill."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._came = b""
        self.greeted = False
        self.killed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._came += data
        self.greeted = self.greeted or b'"hello"' in self._came
        self.killed = self.killed or b'"kill"' in self._came


SOCKETS = 2000
SLOW = 5
NOISE = "x" * 16_384


@pytest.mark.fault
@pytest.mark.asyncio
async def test_a_kill_reaches_thousands_past_several_that_do_not_read() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * (SOCKETS + SLOW) + 500  # both ends of each are in this process
    if soft < wanted and hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} open files, and {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    loop = asyncio.get_running_loop()
    mutes: list[socket.socket] = []
    readers: list[Reader] = []
    try:
        with run_gateway(connections_max=2 * SOCKETS) as gateway:
            parts = urlsplit(gateway.base_url)
            request = handshake(parts.netloc, gateway.api_key)
            assert gateway._server is not None
            assert gateway._loop is not None
            hub = gateway._server.app.hub
            for _ in range(SLOW):
                mute = socket.create_connection((parts.hostname, parts.port))
                mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                mute.sendall(request)
                mutes.append(mute)
            await until_async(lambda: hub.count() == SLOW, WAIT_S)
            slow = list(hub._subscriptions[gateway.organisation_id])
            numbers = itertools.count(1)

            def shout(count: int) -> None:
                """Publish large messages, which are not persisted."""
                for seq in itertools.islice(numbers, count):
                    message = wire.ControlMessage(seq=seq, type="policy", reason=NOISE)
                    events = [PostCommitEvent("control", gateway.organisation_id, message)]
                    gateway._loop.call_soon_threadsafe(hub.publish, events)  # type: ignore[union-attr]

            def stuck() -> bool:
                """Tell whether the buffers of both ends of all of them are full."""
                if all(each._queue.qsize() > 100 for each in slow):
                    return True
                shout(20)
                return False

            await until_async(stuck, WAIT_S)
            shout(2 * QUEUE_MAX)
            await until_async(lambda: all(each.overrun for each in slow), WAIT_S)
            assert hub.count() == SLOW  # stuck where they are
            assert all(each._queue.qsize() == QUEUE_MAX for each in slow)

            async def connect() -> None:
                async with room:
                    _, reader = await loop.create_connection(
                        lambda: Reader(request), parts.hostname, parts.port
                    )
                    readers.append(reader)
                    await until_async(lambda: reader.greeted, WAIT_S)

            room = asyncio.Semaphore(50)
            await asyncio.gather(*(connect() for _ in range(SOCKETS)))
            await asyncio.to_thread(gateway.admin.kill, "w")
            await until_async(lambda: all(reader.killed for reader in readers), WAIT_S)
            assert all(each._queue.qsize() == QUEUE_MAX for each in slow)
            for reader in readers:
                reader.transport.abort()
            await until_async(lambda: hub.count() == SLOW, WAIT_S)
            # One is given up as after pings without an answer; the others by the gateway's end.
            connections = gateway._server._server.server_state.connections
            given_up = next(each for each in connections if isinstance(each, SocketProtocol))
            gateway._loop.call_soon_threadsafe(given_up.keepalive_timeout)  # type: ignore[union-attr]
            await until_async(lambda: hub.count() == SLOW - 1, WAIT_S)
        assert hub.count() == 0
    finally:
        for mute in mutes:
            mute.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
