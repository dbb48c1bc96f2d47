"""One slow reader of control messages holds nobody up."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from guard.core import wire
from guard.gateway.services.fanout import QUEUE_MAX, Hub
from guard.gateway.storage.base import Announcement
from tests.support.waiting import until

WAIT_S = 30.0


def news(seq: int) -> list[Announcement]:
    return [Announcement("control", "o", wire.ControlMessage(seq=seq, type="kill"), None)]


@pytest.mark.asyncio
async def test_a_channel_that_falls_behind_is_given_up_and_the_others_get_everything() -> None:
    hub = Hub()
    slow = hub.subscribe("o", "slow")
    others = [hub.subscribe("o", "k") for _ in range(50)]
    elsewhere = hub.subscribe("another", "k")
    for seq in range(1, QUEUE_MAX + 51):
        hub.publish(news(seq))
        for other in others:
            message = await other.next(WAIT_S)
            assert message is not None
            assert message.seq == seq
    assert slow.overrun
    assert slow._queue.qsize() == QUEUE_MAX  # bounded: what is beyond comes with the replay
    assert not any(other.overrun for other in others)
    with pytest.raises(TimeoutError):
        await elsewhere.next(0.01)


def test_a_socket_that_is_never_read_delays_nobody(connected: Any, tenant: Any) -> None:
    """Its buffers fill up; the kill of everybody else comes through all the same."""
    parts = urlsplit(tenant.url)
    with socket.create_connection((parts.hostname, parts.port)) as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        mute.sendall(
            (
                f"GET {wire.CONTROL_WS_PATH}?after=0 HTTP/1.1\r\nHost: {parts.netloc}\r\n"
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                f"Sec-WebSocket-Protocol: {wire.CONTROL_SUBPROTOCOL}\r\n"
                f"{wire.HEADER_API_KEY}: {tenant.key}\r\n{wire.HEADER_PROTOCOL}: 3\r\n\r\n"
            ).encode()
        )
        for number in range(60):
            tenant.admin.pause(f"noise-{number}", reason="x" * 500)
        tenant.admin.kill("w")
        until(lambda: connected.control.kills.exact.get("w"), WAIT_S)
