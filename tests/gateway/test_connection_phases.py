"""Every message, cut, stretched and repeated in every phase, by strangers and by tenants.

Whatever comes, the gateway answers or closes, holds little, and serves others meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Final

import attrs
import httpx
import psutil
import pytest

from tests.support.attacker import connect, pour, read_to_end
from tests.support.gateway_process import GatewayProcess, gateway_process

_MB: Final = 1 << 20
POURED_MAX: Final = 48 * _MB
DEADLINE_MS: Final = 1000
AT_ONCE: Final = 16

Part = tuple[str, bytes]
"""A phase of a message, and its bytes."""


@attrs.frozen
class Message:
    """One request, or two, in parts."""

    name: str
    parts: list[Part]


def _head(line: bytes, key: bytes, *fields: bytes) -> list[Part]:
    before = (b"Host: x", b"X-Guard-Protocol: 3", b"X-API-Key: " + key, *fields)
    return [
        ("request line", line + b"\r\n"),
        ("header", b"".join(each + b"\r\n" for each in before)),
        ("header name", b"X-Other"),
        ("header value", b": other"),
        ("end of head", b"\r\n\r\n"),
    ]


POST: Final = b"POST /gate HTTP/1.1"
BODY: Final = b'{"call_id": "c", "kind": "call", "function": "f"}'
JSON: Final = b"Content-Type: application/json"


def messages(key: bytes) -> list[Message]:
    """Return one of each kind."""
    length = b"Content-Length: %d" % len(BODY)
    plain = [*_head(POST, key, JSON, length), ("body", BODY)]
    chunked = [
        *_head(POST, key, JSON, b"Transfer-Encoding: chunked"),
        ("chunk size", b"%x" % len(BODY)),
        ("chunk extension", b";name=value"),
        ("end of chunk size", b"\r\n"),
        ("chunk data", BODY),
        ("end of chunk", b"\r\n0\r\n"),
        ("trailer name", b"X-Trailer"),
        ("trailer value", b": value"),
        ("end of trailer", b"\r\n\r\n"),
    ]
    after: Part = ("after the message", b"\r\n")
    upgrade = _head(
        b"GET /api/v1/control/ws HTTP/1.1",
        key,
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    frame: Part = ("frame", b"\x81\x82\0\0\0\0{}")
    return [
        Message("plain", [*plain, after]),
        Message("chunked", [*chunked, after]),
        Message("pipelined", [*plain, *chunked, *plain, after]),
        Message("upgrade", [*upgrade, frame]),
        Message("upgrade with a body", [*upgrade[:2], ("length", length + b"\r\n"),
                                        *upgrade[2:], ("body", BODY)]),
    ]  # fmt: skip


def cut(before: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Send the first half of a part, and nothing more."""
    return before + part[: len(part) // 2], b""


def stretched(before: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Send a part whose last byte but line ends comes for ever."""
    stem = part.rstrip(b"\r\n") or part
    return before + stem, stem[-1:]


def repeated(before: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Send a part for ever."""
    return before + part, part


def repeated_by_lines(before: bytes, part: bytes) -> tuple[bytes, bytes]:
    """Send a part and a line end for ever."""
    return before + part, b"\r\n" + part


CHANGES: Final = [cut, stretched, repeated, repeated_by_lines]
Case = tuple[str, bytes, bytes]


def cases(key: bytes) -> Iterator[Case]:
    """Return what is sent first and what without an end, for each message, phase and change."""
    for message in messages(key):
        for number, (phase, part) in enumerate(message.parts):
            before = b"".join(each for _, each in message.parts[:number])
            for change in CHANGES:
                if change is cut and phase == "after the message":
                    continue  # a complete message, and a connection that is kept for the next
                first, endless = change(before, part)
                yield f"{message.name}, {phase} {number}, {change.__name__}", first, endless


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with gateway_process(request_deadline_ms=DEADLINE_MS) as running:
        yield running


def _attack(gateway: GatewayProcess, case: Case, failed: list[str]) -> None:
    name, first, endless = case
    with connect(gateway.url) as sock:
        if "frame" in name:  # whoever has a key may go on, and is not read while it does not read
            sock.settimeout(1.0)
            pour(sock, first, endless or b"\0", _MB)
            return
        if endless and pour(sock, first, endless, POURED_MAX) >= POURED_MAX:
            failed.append(f"{name}: took everything")
            return
        if not endless:
            with contextlib.suppress(OSError):
                sock.sendall(first)
        try:
            answer = read_to_end(sock)
        except TimeoutError:
            failed.append(f"{name}: neither answered nor closed")
            return
        if answer and not answer.startswith(b"HTTP/1.1 "):
            failed.append(f"{name}: answered {answer[:40]!r}")


@pytest.mark.long
@pytest.mark.generator("messages cut, stretched and repeated in every phase")
@pytest.mark.parametrize("who", ["stranger", "tenant"])
def test_the_gateway_has_the_last_word(
    gateway: GatewayProcess, who: str, count_cases: Callable[[int], None]
) -> None:
    key = gateway.key if who == "tenant" else "gdk_stranger"
    process = psutil.Process(gateway.pid)
    before = process.memory_info().rss
    headers = {"X-API-Key": gateway.key, "X-Guard-Protocol": "3"}
    numbers = itertools.count()
    all_cases = list(cases(key.encode()))
    failed: list[str] = []
    with httpx.Client(base_url=gateway.url, headers=headers) as http:
        for start in range(0, len(all_cases), AT_ONCE):
            group = all_cases[start : start + AT_ONCE]
            threads = [
                threading.Thread(target=_attack, args=(gateway, case, failed)) for case in group
            ]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                number = next(numbers)
                call = {"call_id": f"{who}-{number}", "kind": "call", "function": "f"}
                assert http.post("/gate", json=call).status_code == 200
                gateway.admin.kill(f"{who}-{number}")
                threads[0].join(0.05)
            for thread in threads:
                thread.join()
            assert process.memory_info().rss - before < 96 * _MB, group
    assert not failed
    count_cases(len(all_cases))
