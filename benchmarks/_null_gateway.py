"""A gateway that answers at once and decides nothing, so that only the SDK is measured.

Run as ``python -m benchmarks._null_gateway http|socket|lease``: what it offers beside plain HTTP.
It speaks HTTP and the control socket by hand: no framework's time is in the figures.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_GZIP = b"\x1f\x8b"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FEATURES = {"http": [], "socket": ["gate_ws", "request_gate"],
             "lease": ["gate_ws", "request_gate", "leases"]}  # fmt: skip
_RATES = dict.fromkeys(
    ("input_per_mtok", "output_per_mtok", "cache_read_per_mtok", "cache_write_per_mtok",
     "reasoning_per_mtok", "audio_per_mtok", "worst_input_per_mtok", "worst_output_per_mtok"),
    1_000_000,
)  # fmt: skip
_LEASE = {"lease_id": "lease", "state": "open", "held_nanousd": 10**15, "ttl_ms": 600_000}


class NullGateway(asyncio.Protocol):
    """One connection.

    Args:
        kind: what is offered: ``http``, ``socket`` or ``lease``.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._waiting = b""
        self._open = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while self._socket() if self._open else self._http():
            pass

    # -- HTTP ---------------------------------------------------------------------------------

    def _http(self) -> bool:
        head, end, rest = self._waiting.partition(b"\r\n\r\n")
        if not end:
            return False
        low = head.lower()
        length = low.partition(b"content-length:")[2].partition(b"\r\n")[0]
        size = int(length or 0)
        if len(rest) < size:
            return False
        self._waiting = rest[size:]
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        if path == b"/api/v1/control/ws" and self._kind != "http":
            self._upgrade(head)
        elif path == b"/api/v1/control":
            wait_s = 0 if b"wait_ms=0" in head.partition(b"\r\n")[0] else 5
            asyncio.get_running_loop().call_later(wait_s, self._reply, {"messages": [], "seq": 0})
        else:
            body = rest[:size]
            self._reply(self._answer(path, gzip.decompress(body) if body[:2] == _GZIP else body))
        return True

    def _answer(self, path: bytes, body: bytes) -> dict[str, Any]:
        if path.endswith((b"/gate", b"/execute")):
            return self._gate(json.loads(body))
        if path.endswith(b"/track/batch"):  # a peer's events
            ids = [event.get("event_id") for event in json.loads(body)["events"]]
            return {"accepted_event_ids": ids, "rejected": []}
        if path == b"/api/v1/capabilities":
            return {"protocol": 3, "min_sdk_version": "0.0.1", "server": "null", "version": "3",
                    "features": _FEATURES[self._kind]}  # fmt: skip
        if path == b"/gate/lease":
            return _LEASE
        return {"accepted": 0, "organization_id": "o", "workflow_id": "w"}

    def _gate(self, call: dict[str, Any]) -> dict[str, Any]:
        reply = {"decision": "allow", "decision_source": "gateway",
                 "call_id": call.get("call_id"), "reservation_id": "r",
                 "reserved_nanousd": 1000, "rates": _RATES}  # fmt: skip
        if self._kind == "lease" and "lease" in call:
            reply["reservation_id"] = "lease"
            reply["lease"] = {"lease_id": "lease", "granted_nanousd": 10**15, "ttl_ms": 600_000,
                              "policy_version": "1", "rates": _RATES}  # fmt: skip
        return reply

    def _reply(self, message: dict[str, Any]) -> None:
        body = json.dumps(message, separators=(",", ":")).encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )

    # -- the control socket -------------------------------------------------------------------

    def _upgrade(self, head: bytes) -> None:
        lines = head.split(b"\r\n")[1:]
        headers = {name.lower(): value.strip() for name, _, value in
                   (line.partition(b":") for line in lines)}  # fmt: skip
        key = headers[b"sec-websocket-key"]
        accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        self._transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: guard.v3\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        self._open = True
        self._send({"type": "hello", "seq": 0})

    def _socket(self) -> bool:
        data = self._waiting
        if len(data) < 2:
            return False
        size, at = data[1] & 127, 2
        if size == 126:
            size, at = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, at = int.from_bytes(data[2:10], "big"), 10
        if len(data) < at + 4 + size:
            return False
        mask = int.from_bytes((data[at : at + 4] * (size // 4 + 1))[:size], "big")
        payload = data[at + 4 : at + 4 + size]
        self._waiting = data[at + 4 + size :]
        opcode = data[0] & 15
        if opcode == 8:
            self._transport.close()
            return True
        payload = (int.from_bytes(payload, "big") ^ mask).to_bytes(size, "big")
        if opcode == 9:
            self._transport.write(b"\x8a" + bytes([size]) + payload)
        elif opcode == 1:
            self._frame(payload)
        return True

    def _frame(self, payload: bytes) -> None:
        message = json.loads(payload)
        if message["type"] == "asks":
            answers = [
                {"id": ask["id"], "status": 200,
                 "body": self._gate(ask["body"]) if ask["op"] == "gate" else _LEASE}
                for ask in message["asks"]
            ]  # fmt: skip
            self._send({"type": "answers", "answers": answers})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message, separators=(",", ":")).encode()
        size = bytes([len(body)]) if len(body) < 126 else b"\x7f" + len(body).to_bytes(8, "big")
        self._transport.write(b"\x81" + size + body)


def serve(kind: str) -> tuple[str, subprocess.Popen[str]]:
    """Run one in a process of its own; return its address and the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._null_gateway", kind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    return process.stdout.readline().strip(), process


async def _main(kind: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullGateway(kind), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
