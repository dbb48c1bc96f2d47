"""Slow, huge, malformed and hostile input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard.gateway.admin import AdminClient
from guard.gateway.domain.errors import StoreError
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.server import PortInUseError, bind
from tests.gateway.conftest import new_tenant
from tests.support.prometheus import metrics_of
from tests.support.waiting import until

HEAD = b"POST /gate HTTP/1.1\r\nHost: x\r\nX-Guard-Protocol: 3\r\nX-API-Key: %s\r\n"


@pytest.fixture(scope="module")
def strict() -> Iterator[Gateway]:
    with run_gateway(request_deadline_ms=1000) as gateway:
        yield gateway


def talk(gateway: Gateway, *parts: bytes, timeout_s: float = 60.0) -> bytes:
    """Send parts and read until the gateway closes."""
    host, port = gateway.base_url.removeprefix("http://").split(":")
    received = b""
    with (
        socket.create_connection((host, int(port)), timeout=timeout_s) as sock,
        # On a busy machine a part may be sent so late that the gateway has answered and closed.
        contextlib.suppress(ConnectionError),
    ):
        with contextlib.suppress(ConnectionError):
            for part in parts:
                sock.sendall(part.replace(b"KEY", gateway.api_key.encode()))
        while data := sock.recv(65536):
            received += data
    return received


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ((), b"408"),
        ((b"POST /gate HTTP/1.1\r\nHost: x\r\n",), b"408"),
        ((HEAD % b"KEY" + b"Content-Length: 100\r\n\r\n", b"{"), b"408"),
        ((HEAD % b"KEY" + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",), b"408"),
    ],
)
def test_stalled_requests_end(strict: Gateway, parts: tuple[bytes, ...], status: bytes) -> None:
    assert talk(strict, *parts).split(b" ", 2)[1] == status


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ((HEAD % b"no" + b"Content-Length: 100\r\n\r\n", b"{"), b"401"),  # no wait for its body
        ((b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n", b"x: y\r\n"), b"431"),
        ((b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,), b"431"),
        ((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",), b"400"),
    ],
)  # fmt: skip
def test_swollen_requests_are_answered(
    tenant: Any, parts: tuple[bytes, ...], status: bytes
) -> None:
    """At once: neither the rest nor the end of the connection is waited for."""
    host, port = tenant.gateway.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(b"".join(parts))
        assert sock.recv(100).split(b" ", 2)[1] == status


def test_keep_alive_connections_are_not_ended_while_idle(strict: Gateway) -> None:
    limits = httpx.Limits(keepalive_expiry=None)  # the client ends none, either
    with httpx.Client(base_url=strict.base_url, limits=limits) as http:
        assert http.get("/healthz").status_code == 200
        stream = http.get("/healthz").extensions["network_stream"]
        time.sleep(1.2)  # longer than the deadline of a request
        assert http.get("/healthz").extensions["network_stream"] is stream


def _first_bytes(sock: socket.socket) -> bytes:
    try:
        return sock.recv(12)
    except ConnectionResetError:
        return b""


def test_connections_are_capped() -> None:
    # With a deadline that none of them reaches: only the cap ends connections.
    with run_gateway(request_deadline_ms=3_600_000, connections_max=20) as gateway:
        host, port = gateway.base_url.removeprefix("http://").split(":")
        socks = [socket.create_connection((host, int(port)), timeout=60) for _ in range(30)]
        try:
            ends = [_first_bytes(sock) for sock in socks[:10]]
            assert ends == [b""] * 10, "the oldest made room"
            for sock in socks[10:]:
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert _first_bytes(sock) == b"HTTP/1.1 200"
        finally:
            for sock in socks:
                sock.close()
        until(lambda: httpx.get(f"{gateway.base_url}/healthz").status_code == 200)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"nonsense", b"[]", b"null", b"NaN", b'{"call_id": NaN}', b"\xff\xfe", b"{" * 100_000,
        b"[" * 100_000, b'{"call_id":"\\ud800","kind":"call","function":"f"}',
        b'{"call_id":"c","kind":"other","function":"f"}',
        b'{"call_id":"c","kind":"call","function":"f","max_input_tokens":1e400}',
        b'{"call_id":"c","kind":"call","function":"f","max_input_tokens":-1}',
        b'{"call_id":"c","kind":"call","function":"f","max_input_tokens":18446744073709551616}',
        json.dumps({"call_id": "c" * 257, "kind": "call", "function": "f"}).encode(),
    ],
)  # fmt: skip
def test_malformed_bodies_are_400(tenant: Any, body: bytes) -> None:
    reply = tenant.http.post("/gate", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error_code"]) == (400, "GD-P002")


def test_pipelined_requests_are_answered_in_order(tenant: Any) -> None:
    requests = b""
    for number in range(5):
        body = json.dumps({"call_id": f"p{number}", "kind": "call", "function": "f"}).encode()
        requests += (
            f"POST /gate HTTP/1.1\r\nHost: x\r\nX-API-Key: {tenant.api_key}\r\n"
            f"X-Guard-Protocol: 3\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
    last = b"HEAD /gate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    received = talk(tenant.gateway, requests + last)
    assert re.findall(rb'"call_id":"(p\d)"', received) == [b"p0", b"p1", b"p2", b"p3", b"p4"]
    assert received.endswith(b"\r\n\r\n")  # an answer to HEAD has no body


def test_hostile_names_are_only_names(tenant: Any) -> None:
    names = ["'; DROP TABLE events; --", "\x01", "\u202e", "𝕎" * 192, "../../etc", "%00", "*"]
    for name in names:
        tenant.allowed(workflow_id=name, agent=name)
        tenant.send(tenant.llm(1, workflow_id=name, event_id=f"e-{name}"[:256]))
    listed = {w["workflow_id"] for w in tenant.admin.workflows()}
    assert listed == set(names)


def test_oversized_bodies_are_413(tenant: Any) -> None:
    headers = {"content-type": "application/json"}
    big = tenant.http.post("/gate", content=b" " * 1_100_000, headers=headers)
    assert (big.status_code, big.json()["error_code"]) == (413, "GD-P003")
    chunks = (b" " * 100_000 for _ in range(20))
    assert tenant.http.post("/gate", content=chunks, headers=headers).status_code == 413
    events = [{"event_id": str(n), "type": "x", "at_ms": 1} for n in range(1001)]
    many = {"batch_id": "b", "sent_at_ms": 1, "events": events}
    assert tenant.http.post("/api/v1/events", json=many).status_code == 413


def test_doubled_headers_are_refused(tenant: Any) -> None:
    for name in ("X-API-Key", "Idempotency-Key"):
        reply = tenant.http.get(
            "/api/v1/control", headers=[(name, tenant.api_key), (name, "other")]
        )
        assert reply.status_code in (400, 401)


def test_wrong_methods_and_paths_are_problems(tenant: Any) -> None:
    for method, path, status in (
        ("GET", "/gate", 405), ("PUT", "/api/v1/events", 405), ("POST", "/api/v1/control", 405),
        ("GET", "/nowhere", 404), ("POST", "/healthz", 405),
    ):  # fmt: skip
        reply = tenant.http.request(method, path)
        assert (reply.status_code, reply.json()["status"]) == (status, status)
        assert reply.headers["content-type"] == "application/problem+json"


def test_admin_api_takes_no_sdk_key(tenant: Any) -> None:
    url = f"{tenant.gateway.base_url}/api/v1/admin/keys"
    for headers in ({}, {"Authorization": f"Bearer {tenant.api_key}"},
                    {"Authorization": tenant.gateway.admin_key}):  # fmt: skip
        assert httpx.get(url, headers=headers).status_code == 401
    as_sdk = tenant.gate(headers={"X-API-Key": tenant.gateway.admin_key})
    assert as_sdk.status_code == 401


def test_admin_key_of_one_organisation_stays_there(make_tenant: Any) -> None:
    one, two = make_tenant(), make_tenant()
    own = one.admin.create_key("ops", role="admin")
    base = f"{one.gateway.base_url}/api/v1/admin"
    headers = {"Authorization": f"Bearer {own}"}

    def status(method: str, path: str, **options: Any) -> int:
        return httpx.request(method, base + path, headers=headers, **options).status_code

    assert status("GET", "/keys") == 200
    assert status("GET", f"/keys?organisation={two.organisation_id}") == 403
    assert status("GET", "/ledger/verify") == 403
    assert status("POST", "/organisations", json={"name": "mine"}) == 409
    other_key = two.admin.keys()[0]["key_id"]
    assert status("DELETE", f"/keys/{other_key}") == 404
    assert [o["organisation_id"] for o in httpx.get(f"{base}/organisations", headers=headers)
            .json()] == [one.organisation_id]  # fmt: skip


def test_keys_are_nowhere_on_disk(tmp_path: Any) -> None:
    with run_gateway(tmp_path / "g.sqlite3") as gateway:
        keys = [gateway.api_key, gateway.admin_key, gateway.admin.create_key("x")]
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert not any(key.encode() in content for key in keys)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_port_and_database_in_use(gateway: Gateway, tmp_path: Any) -> None:
    port = int(gateway.base_url.rsplit(":", 1)[1])
    with pytest.raises(PortInUseError, match=str(port)), run_gateway(port=port):
        pass
    taken = pytest.raises(StoreError, match="another gateway")
    with run_gateway(tmp_path / "g"), taken, run_gateway(tmp_path / "g"):
        pass


def test_drain_lets_requests_finish_and_closes_channels(serve: Any) -> None:
    served = serve()
    headers = {"X-API-Key": served.api_key, "X-Guard-Protocol": "3"}
    until(lambda: httpx.get(f"{served.base_url}/readyz").status_code == 200)
    with httpx.Client(base_url=served.base_url, headers=headers) as http:
        http.post("/gate", json={"call_id": "c", "kind": "call", "function": "f"})
        with http.stream("GET", "/openapi.json") as answer:
            assert answer.status_code == 200
        os.kill(served.process.pid, signal.SIGTERM)
        assert served.process.wait(60) == 0


def test_metrics_count(tenant: Any) -> None:
    tenant.allowed()
    text = metrics_of(tenant.gateway.base_url)
    assert 'guard_gateway_answers_total{route="/gate",status="200"}' in text
    assert "guard_gateway_store_healthy 1.0" in text
    families = [
        line.partition("{")[0] for line in text.splitlines() if tenant.organisation_id in line
    ]
    # Some of them are named: the busiest where commands are counted, the oldest where spend is.
    may_name = ("guard_gateway_organisation_command", "guard_gateway_spent_usd_total",
                "guard_gateway_tokens_total", "guard_gateway_llm_requests_total")  # fmt: skip
    assert all(family.startswith(may_name) for family in families), families
    assert len(families) == len(set(families)), "one series of a family"


def _nested(depth: int) -> dict[str, Any]:
    data: Any = 1
    for _ in range(depth - 1):
        data = {"a": data}
    return {"metadata": data}


def test_data_that_is_nested_too_deeply_is_rejected_alone(tenant: Any) -> None:
    events = [
        {"event_id": f"deep-{depth}", "type": "note", "at_ms": 1, "data": _nested(depth)}
        for depth in (64, 65, 300)
    ]
    reply = tenant.send(*events).json()
    assert reply["accepted"] == 1
    assert [each["event_id"] for each in reply["rejected"]] == ["deep-65", "deep-300"]
    assert "deeper than 64" in reply["rejected"][0]["detail"]


def test_a_page_shows_the_rest_when_one_stored_event_is_too_deep(tmp_path: Path) -> None:
    database = tmp_path / "gateway.sqlite3"
    with run_gateway(database) as gateway:
        tenant = new_tenant(gateway)
        tenant.send(
            {"event_id": "deep", "type": "note", "at_ms": 1, "data": {"a": 1}},
            {"event_id": "flat", "type": "note", "at_ms": 1, "data": {"a": 2}},
        )
    text = json.dumps({"a": 0}).replace("0", "[" * 975 + "]" * 975)
    store = sqlite3.connect(database)
    with store:
        store.execute("UPDATE events SET data = ? WHERE event_id = 'deep'", (text,))
    store.close()
    with run_gateway(database) as gateway:
        admin = AdminClient(
            gateway.base_url, gateway.admin_key, organisation=tenant.organisation_id
        )
        shown = {each["event_id"]: each["data"] for each in admin.request("GET", "/events")}
        assert shown == {"deep": {"unreadable": "nested too deeply"}, "flat": {"a": 2}}
        admin.close()
    tenant.http.close()
    tenant.admin.close()


@pytest.mark.asyncio
async def test_an_answer_does_not_wait_for_the_clients_acknowledgement() -> None:
    """Also on asyncio's own loop, which looks at the listening socket's protocol."""
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        told.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = bind("127.0.0.1", 0)
    async with await asyncio.start_server(serve, sock=listening):
        reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
        assert await told == 1
        await reader.read()
        writer.close()
        await writer.wait_closed()
