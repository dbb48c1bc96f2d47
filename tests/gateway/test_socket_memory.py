"""A control socket that has ended is freed at once, and not when the collector comes."""

from __future__ import annotations

import gc
import socket

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
