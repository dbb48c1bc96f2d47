"""Every message, cut, stretched and repeated in every phase, by strangers and by tenants.

Whatever comes, the gateway answers or closes, holds little, and serves others meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Final

import httpx
import psutil
import pytest

from tests.support.attacker import connect, pour, read_to_end
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.phases import Case, Message, Part, cases, head, messages

_MB: Final = 1 << 20
POURED_MAX: Final = 48 * _MB
DEADLINE_MS: Final = 1000
AT_ONCE: Final = 16

POST: Final = b"POST /gate HTTP/1.1"
BODY: Final = b'{"call_id": "c", "kind": "call", "function": "f"}'
JSON: Final = b"Content-Type: application/json"


def messages_with(key: bytes) -> list[Message]:
    """Return one of each kind."""
    fields = (b"X-Guard-Protocol: 3", b"X-API-Key: " + key)
    upgrade = head(
        b"GET /api/v1/control/ws HTTP/1.1",
        *fields,
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    length: Part = ("length", b"Content-Length: %d\r\n" % len(BODY))
    return [
        *messages(POST, BODY, *fields, JSON),
        Message("upgrade", [*upgrade, ("frame", b"\x81\x82\0\0\0\0{}")]),
        Message("upgrade with a body", [*upgrade[:2], length, *upgrade[2:], ("body", BODY)]),
    ]


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
    all_cases = list(cases(messages_with(key.encode())))
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
