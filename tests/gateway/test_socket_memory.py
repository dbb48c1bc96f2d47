"""A connection that has ended is freed at once, not by the collector or when a timer fires."""

from __future__ import annotations

import gc
import socket
import struct

from guard.gateway.embedded import run_gateway
from guard.gateway.server import GuardedHttpProtocol
from guard.gateway.websocket import SocketProtocol
from tests.guard.control.test_fanout import handshake
from tests.support.waiting import until


def living() -> int:
    kinds = SocketProtocol, GuardedHttpProtocol
    return sum(isinstance(each, kinds) for each in gc.get_objects())


def test_it_is_in_no_cycle() -> None:
    with run_gateway() as gateway:
        netloc = gateway.base_url.removeprefix("http://")
        host, port = netloc.split(":")
        gc.collect()
        gc.disable()
        try:
            before = living()
            sockets = [socket.create_connection((host, int(port))) for _ in range(10)]
            for each in sockets:
                each.sendall(handshake(netloc, gateway.api_key))
                each.settimeout(20)
                while b'"hello"' not in each.recv(65_536):
                    pass
            assert living() >= before + 10
            for each in sockets:
                each.close()
            until(lambda: living() <= before, 20)
        finally:
            gc.enable()


def test_it_is_freed_when_it_is_reset() -> None:
    """Its request was answered, and it was kept open for the next one."""
    with run_gateway() as gateway:
        netloc = gateway.base_url.removeprefix("http://")
        host, port = netloc.split(":")
        gc.collect()
        gc.disable()
        try:
            before = living()
            sockets = [socket.create_connection((host, int(port))) for _ in range(10)]
            for each in sockets:
                each.settimeout(20)
                each.sendall(f"GET /healthz HTTP/1.1\r\nHost: {netloc}\r\n\r\n".encode())
                assert each.recv(65_536).startswith(b"HTTP/1.1 200")
            assert living() >= before + 10
            for each in sockets:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.close()
            until(lambda: living() <= before, 20)
        finally:
            gc.enable()
