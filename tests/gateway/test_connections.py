"""What one connection may cost, in every phase of its messages, without a key and with one."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from tests.support.attacker import connect, pour, read_to_end
from tests.support.gateway_process import GatewayProcess, gateway_process

_MB = 1 << 20
POURED_MAX = 64 * _MB
"""Far beyond all that a connection may send in vain, and all buffers between it and the gateway."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    """In a process of its own, as attackers find it."""
    with gateway_process() as running:
        yield running


def _head(path: str, key: str, *fields: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "X-Guard-Protocol: 3",
        f"X-API-Key: {key}",
        *fields,
    ]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"


def endless_trailer(key: str) -> tuple[bytes, bytes]:
    """A request whose last chunk has come, and whose trailer does not end."""
    return _head("/gate", key, JSON, CHUNKED) + b"2\r\n{}\r\n0\r\nX-Trailer: ", b"a" * 1024


def many_trailers(key: str) -> tuple[bytes, bytes]:
    return _head("/gate", key, JSON, CHUNKED) + b"2\r\n{}\r\n0\r\n", b"a: b\r\n"


def chunks_of_one_byte(key: str) -> tuple[bytes, bytes]:
    return _head("/gate", key, JSON, CHUNKED), b"1\r\n \r\n"


def endless_extension(key: str) -> tuple[bytes, bytes]:
    return _head("/gate", key, JSON, CHUNKED) + b"1;name=", b"a" * 1024


def empty_lines(key: str) -> tuple[bytes, bytes]:
    return b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"


def tiny_requests(key: str) -> tuple[bytes, bytes]:
    return b"", b"GET / HTTP/1.1\r\n\r\n"


ATTACKS = [endless_trailer, many_trailers, chunks_of_one_byte, endless_extension, empty_lines]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("who", ["stranger", "tenant"])
def test_what_does_not_end_is_ended_by_the_gateway(
    gateway: GatewayProcess, attack: Callable[[str], tuple[bytes, bytes]], who: str
) -> None:
    """Four at once: a count of bytes, not the deadline of ten seconds, is what ends them."""
    key = gateway.key if who == "tenant" else "gdk_stranger"
    process = psutil.Process(gateway.pid)
    before = process.memory_info().rss
    poured: list[int] = []
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(gateway.url)) for _ in range(4)]
        threads = [
            threading.Thread(target=lambda s=sock: poured.append(pour(s, *attack(key), POURED_MAX)))
            for sock in socks
        ]
        for thread in threads:
            thread.start()
        try:
            gateway.admin.kill(f"beside-{who}-{attack.__name__}")
            headers = {"X-API-Key": gateway.key, "X-Guard-Protocol": "3"}
            call = {"call_id": f"{who}-{attack.__name__}", "kind": "call", "function": "f"}
            with httpx.Client(base_url=gateway.url, headers=headers) as http:
                assert http.post("/gate", json=call).status_code == 200
        finally:
            for thread in threads:
                thread.join()
        for sock in socks:
            read_to_end(sock)
    assert max(poured) < POURED_MAX
    assert process.memory_info().rss - before < 64 * _MB


def test_a_request_behind_a_large_body_is_read_by_itself(gateway: GatewayProcess) -> None:
    body = b" " * 60_000 + b"{}"
    first = _head("/gate", gateway.key, JSON, f"Content-Length: {len(body)}") + body
    second = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 20_000
    with connect(gateway.url) as sock:
        sock.sendall(first + second)
        received = sock.recv(1)
        sock.sendall(b"\r\nConnection: close\r\n\r\n")
        received += read_to_end(sock)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"400", b"200"]


@pytest.mark.generator("large bodies that nobody asked for, by path and method")
@pytest.mark.parametrize("size", [100_000, 3_000_000])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize(
    "path",
    ["/gate", "/events", "/leases", "/budgets", "/nowhere", "/", "/login", "/control", "/docs",
     "/healthz", "/metrics", "/dashboard"],
)  # fmt: skip
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_an_answer_before_its_request_ends_says_that_the_connection_ends(
    gateway: GatewayProcess, path: str, method: str, size: int, is_chunked: bool
) -> None:
    """Else the next request on the connection would get no answer."""
    body, fields = b" " * size, f"Content-Length: {size}"
    if is_chunked:
        body, fields = b"%x\r\n%b\r\n0\r\n\r\n" % (size, body), CHUNKED
    head = _head(path, gateway.key, JSON, fields).replace(b"POST", method.encode(), 1)
    with connect(gateway.url) as sock:
        with contextlib.suppress(ConnectionError):  # it has heard enough
            sock.sendall(head + body)
        first = http.client.HTTPResponse(sock, method=method)
        first.begin()
        first.read()
        if first.getheader("Connection") != "close":
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            second = http.client.HTTPResponse(sock, method="GET")
            second.begin()
            assert second.status == 200


UPGRADE = (
    b"GET /api/v1/control/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"X-Guard-Protocol: 3\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"X-Long: " + b"a" * 9_000 + b"\r\n\r\n", b"431"),
        (b"".join(b"X-%d: b\r\n" % number for number in range(127)) + b"\r\n", b"431"),
        (b"Content-Length: 100000\r\n\r\n" + b"a" * 100_000, b"400"),
        (b"Content-Length: 100000\r\n\r\n", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"\r\n", b"401"),
    ],
    ids=["long line", "many fields", "body", "body that does not come", "chunks", "no key"],
)
def test_an_upgrade_that_is_refused_is_answered(
    gateway: GatewayProcess, rest: bytes, status: bytes
) -> None:
    with connect(gateway.url) as sock:
        sock.sendall(UPGRADE + rest)
        assert read_to_end(sock).split(b" ", 2)[1] == status


def test_an_upgrade_by_another_method_is_answered(gateway: GatewayProcess) -> None:
    with connect(gateway.url) as sock:
        sock.sendall(UPGRADE.replace(b"GET", b"PUT", 1) + b"\r\n")
        assert read_to_end(sock).split(b" ", 2)[1] == b"400"


@pytest.mark.parametrize("frame", [b"\x01\x80\0\0\0\0", b"\x89\x80\0\0\0\0"], ids=["part", "ping"])
def test_frames_without_a_message_end_the_socket(gateway: GatewayProcess, frame: bytes) -> None:
    """A first part, then empty ones; or pings."""
    first = UPGRADE + f"X-API-Key: {gateway.key}\r\n\r\n".encode()
    with connect(gateway.url) as sock:
        sock.sendall(first)
        assert sock.recv(12) == b"HTTP/1.1 101"
        endless = frame.replace(b"\x01", b"\0", 1)
        reading = threading.Thread(target=read_to_end, args=(sock,))
        reading.start()
        assert pour(sock, frame, endless, POURED_MAX) < POURED_MAX
        reading.join()


def test_a_trailer_is_no_header(gateway: GatewayProcess) -> None:
    fields = "Host: x", "X-Guard-Protocol: 3", JSON, CHUNKED
    head = "".join(f"{line}\r\n" for line in ("POST /gate HTTP/1.1", *fields, ""))
    body = f"2\r\n{{}}\r\n0\r\nConnection: close\r\nX-API-Key: {gateway.key}\r\n\r\n"
    with connect(gateway.url) as sock:
        sock.sendall((head + body).encode())
        assert sock.recv(100).split(b" ", 2)[1] == b"401"
