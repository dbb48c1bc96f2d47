"""A connection that has ended is freed at once, not by the collector or when a timer fires."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
from collections.abc import Iterator

from guard.gateway.embedded import Gateway, run_gateway
from tests.guard.control.test_fanout import handshake
from tests.support.waiting import WAIT_S, until


def living(gateway: Gateway) -> int:
    """Count the connections of this gateway: those of others may end meanwhile."""
    assert gateway._server is not None
    config = gateway._server._server.config
    kinds = {config.http, config.ws}  # classes of each server's own
    # Not isinstance: it asks proxies of other tests what they stand for, and that may be gone.
    return sum(type(each) in kinds for each in gc.get_objects())


@contextlib.contextmanager
def freed_without_collection() -> Iterator[tuple[str, str, list[socket.socket]]]:
    """Yield a gateway's address, its key and ten connections, and check that all are freed."""
    with run_gateway() as gateway:
        netloc = gateway.base_url.removeprefix("http://")
        host, port = netloc.split(":")
        gc.collect()
        gc.disable()
        try:
            before = living(gateway)
            sockets = [socket.create_connection((host, int(port)), WAIT_S) for _ in range(10)]
            yield netloc, gateway.api_key, sockets
            assert living(gateway) >= before + 10
            for each in sockets:
                each.close()
            until(lambda: living(gateway) <= before)
        finally:
            gc.enable()


def test_it_is_in_no_cycle() -> None:
    with freed_without_collection() as (netloc, api_key, sockets):
        for each in sockets:
            each.sendall(handshake(netloc, api_key))
            said = b""
            while b'"hello"' not in said:
                piece = each.recv(65_536)
                assert piece, said
                said += piece


def test_it_is_freed_when_it_is_reset() -> None:
    """Its request was answered, and it was kept open for the next one."""
    with freed_without_collection() as (netloc, _, sockets):
        for each in sockets:
            each.sendall(f"GET /healthz HTTP/1.1\r\nHost: {netloc}\r\n\r\n".encode())
            assert each.recv(65_536).startswith(b"HTTP/1.1 200")
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
