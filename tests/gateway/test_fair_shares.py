"""What one organisation, or a stranger, takes up is never what another needs."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from guard.gateway import connections
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.reading import ANSWER_S, ReadQuota
from guard.gateway.services.change_watcher import ChangeWatcher
from guard.gateway.storage.sqlite.store import SqliteStorage
from tests.gateway.conftest import Tenant, new_tenant
from tests.gateway.test_signing import BODY, SECRET, signed
from tests.support.waiting import until

CAP = 40


def _readable(socks: list[socket.socket]) -> list[socket.socket]:
    """Return those that have something to read, whatever their numbers: `select` stops at 1023."""
    polled = select.poll()
    for each in socks:
        polled.register(each, select.POLLIN)
    ready = {number for number, _ in polled.poll(0)}
    return [each for each in socks if each.fileno() in ready]


@pytest.fixture(scope="module")
def small() -> Iterator[Gateway]:
    """A gateway with room for few connections."""
    with run_gateway(
        connections_max=CAP, control_ping_interval_ms=200, poll_wait_max_ms=3_600_000
    ) as gateway:
        yield gateway


@pytest.fixture
def tenants(small: Gateway) -> Iterator[list[Tenant]]:
    made = [new_tenant(small), new_tenant(small)]
    for tenant in made:  # whose clients keep an idle connection, however slow the machine is
        tenant.http.close()
        tenant.http = _keeping(small, tenant.http.headers)
    yield made
    for tenant in made:
        tenant.http.close()
        tenant.admin.close()


def _keeping(gateway: Gateway, headers: Any) -> httpx.Client:
    """Return a client that ends no connection; httpx by itself does so after 5 seconds."""
    limits = httpx.Limits(keepalive_expiry=None)
    base_url = gateway.base_url
    return httpx.Client(base_url=base_url, headers=headers, limits=limits, trust_env=False)


def _open(gateway: Gateway, first: bytes = b"") -> socket.socket:
    host, port = gateway.base_url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    with contextlib.suppress(ConnectionError):  # it may be refused before all of it is sent
        sock.sendall(first)
    return sock


def _post(tenant: Tenant, body: bytes, length: int) -> bytes:
    head = (
        f"POST /api/v1/events HTTP/1.1\r\nHost: x\r\nX-Guard-Protocol: 3\r\n"
        f"X-API-Key: {tenant.api_key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    return head.encode() + body


def test_slow_bodies_of_one_key_do_not_refuse_another() -> None:
    with run_gateway(request_deadline_ms=3_600_000) as gateway:  # none of them is late
        slow, other = new_tenant(gateway), new_tenant(gateway)
        # All but the last byte of as much as the gateway takes of one body, a hundred times.
        socks = [_open(gateway, _post(slow, b" " * 1_000_000, 1_000_001)) for _ in range(100)]
        try:
            answers = [other.gate().status_code for _ in range(200)]
            answers += [other.send(other.llm(1)).status_code for _ in range(50)]
            assert set(answers) == {200, 202}
            until(lambda: len(_readable(socks)) > 80)
            refused = _readable(socks)[0]
            assert refused.recv(12) == b"HTTP/1.1 429", "beyond its share it is refused"
            assert slow.gate().status_code == 200, "calls have a share of their own"
        finally:
            for sock in socks:
                sock.close()
        for tenant in (slow, other):
            tenant.http.close()
            tenant.admin.close()


def test_bodies_that_do_not_come_take_no_room(tenants: list[Tenant], small: Gateway) -> None:
    socks = [_open(small, _post(tenants[0], b" ", 1_000_000)) for _ in range(CAP - 10)]
    try:
        assert tenants[0].send(tenants[0].llm(1)).status_code == 202
        assert tenants[1].send(tenants[1].llm(1)).status_code == 202
    finally:
        for sock in socks:
            sock.close()


def test_idle_strangers_make_room(tenants: list[Tenant], small: Gateway) -> None:
    tenants[0].allowed()
    kept = tenants[0].gate().extensions["network_stream"]
    socks = [_open(small) for _ in range(4 * CAP)]
    try:
        for _ in range(20):
            tenants[1].allowed()
        fresh = httpx.get(f"{small.base_url}/healthz")
        assert fresh.status_code == 200
        assert tenants[0].gate().extensions["network_stream"] is kept, "who is known stays"
    finally:
        for sock in socks:
            sock.close()


def test_bodies_that_trickle_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_TRICKLES_S", 0.0)
    with run_gateway(connections_max=CAP, request_deadline_ms=3_600_000) as gateway:
        slow, slower, other = (new_tenant(gateway) for _ in range(3))
        assert gateway._server is not None
        watch, app = gateway._server._connections, gateway._server.app
        socks: list[socket.socket] = []
        try:
            while app.connections() < CAP:
                of = slow if len(socks) < CAP // 2 else slower
                before = len(watch.known.get(of.organisation_id, ()))
                socks.append(_open(gateway, _post(of, b" ", 1_000)))
                until(lambda o=of.organisation_id, n=before: len(watch.known.get(o, ())) > n)  # type: ignore[misc]
            assert other.gate().status_code == 200, "at its first attempt"
        finally:
            for sock in socks:
                sock.close()
        for tenant in (slow, slower, other):
            tenant.http.close()
            tenant.admin.close()


@pytest.mark.parametrize("path", ["/api/v1/control", "/api/v1/admin/keys"])
def test_strangers_do_not_put_out_whoever_has_shown_a_key(
    tenants: list[Tenant], small: Gateway, path: str
) -> None:
    headers = {
        "X-API-Key": tenants[0].api_key,
        "X-Guard-Protocol": "3",
        "Authorization": f"Bearer {small.admin_key}",
    }
    with _keeping(small, headers) as http:
        kept = http.get(path).extensions["network_stream"]
        socks = [_open(small) for _ in range(2 * CAP)]
        try:
            again = http.get(path)
            assert again.status_code in (200, 400)  # the organisation is not named
            assert again.extensions["network_stream"] is kept
        finally:
            for sock in socks:
                sock.close()


def test_the_organisation_with_the_most_connections_makes_room(
    tenants: list[Tenant], small: Gateway
) -> None:
    kept = tenants[1].gate().extensions["network_stream"]
    gate = b'{"call_id": "c", "kind": "call", "function": "f"}'
    request = _post(tenants[0], gate, len(gate)).replace(b"/api/v1/events", b"/gate")
    socks = []
    try:
        for _ in range(CAP + 20):
            socks.append(_open(small, request))
            assert socks[-1].recv(12) == b"HTTP/1.1 200"
        assert tenants[1].gate().extensions["network_stream"] is kept
    finally:
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("how", ["idle", "bodies that trickle", "polls that wait and idle"])
def test_a_neighbour_gets_places_beside_an_organisation_that_takes_all(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_TRICKLES_S", 0.0)
    settings = {"connections_max": 200, "request_deadline_ms": 3_600_000}
    with run_gateway(poll_wait_max_ms=3_600_000, **settings) as gateway:
        greedy, other = new_tenant(gateway), new_tenant(gateway)
        gate = b'{"call_id": "c", "kind": "call", "function": "f"}'
        call = _post(greedy, gate, len(gate)).replace(b"/api/v1/events", b"/gate")
        greedy.admin.kill("w")
        seq = greedy.http.get("/api/v1/control").json()["seq"]
        assert gateway._server is not None
        app = gateway._server.app
        socks: list[socket.socket] = []
        with contextlib.ExitStack() as opened:
            for number in range(240):
                polls = how.startswith("polls") and number < 160
                trickles = _post(greedy, b" ", 1_000) if how.startswith("bodies") else call
                socks.append(_open(gateway, _poll(greedy, seq) if polls else trickles))
                opened.callback(socks[-1].close)
            until(lambda: app.connections() >= 180)
            # Calls that are being served are not ended for others: all are answered, or closed.
            calls = {"idle": socks, "polls that wait and idle": socks[160:]}.get(how, [])
            until(lambda: len(_readable(socks)) >= 40)
            until(lambda: len(_readable(calls)) == len(calls))
            mine = [_open(gateway) for _ in range(30)]
            for sock in mine:
                opened.callback(sock.close)
            ask = _post(other, gate, len(gate)).replace(b"/api/v1/events", b"/gate")
            for sock in mine:
                sock.sendall(ask)
            assert [sock.recv(12) for sock in mine] == [b"HTTP/1.1 200"] * 30
            # Nor is an operator's kill held up, by a key of the greedy organisation itself.
            own = greedy.admin.create_key("ops", role="admin")
            with _keeping(gateway, {"Authorization": f"Bearer {own}"}) as operator:
                killed = operator.post(
                    "/api/v1/admin/control", json={"action": "kill", "workflow_id": "w"}
                )
                assert killed.is_success
        for tenant in (greedy, other):
            tenant.http.close()
            tenant.admin.close()


@attrs.define(eq=False)
class Connection:
    """Stands for a connection of an organisation."""

    of: connections.HttpConnections
    is_idle: bool = True
    waiting_since: float | None = None
    organisation_id: str | None = "o"
    is_held: bool = False

    def evict(self) -> None:
        self.of.forget(self)

    def end_stalled(self) -> None: ...


@pytest.mark.asyncio
@pytest.mark.parametrize("is_idle", [True, False])
async def test_one_organisation_has_nine_tenths_of_the_connections(is_idle: bool) -> None:
    """Its WebSockets count. Beyond, one of its own that is idle makes room, else there is none."""
    made = connections.HttpConnections(10.0, 100, {"o": 30}.__getitem__)
    group = made.known["o"] = {}
    for number in range(1, 71):
        newest = Connection(made, is_idle)
        group[newest] = None
        assert made.has_place("o", newest) is (number <= 60 or is_idle)
        if number > 60 and not is_idle:
            made.forget(newest)
        assert len(group) == min(number, 60)
        assert newest in group or not is_idle


def test_control_channels_of_one_organisation_leave_room(
    tenants: list[Tenant], small: Gateway
) -> None:
    url = small.base_url.replace("http", "ws", 1) + "/api/v1/control/ws"
    headers = {"X-API-Key": tenants[0].api_key, "X-Guard-Protocol": "3"}
    open_, refused = [], []
    try:
        for _ in range(CAP):
            try:
                open_.append(connect(url, additional_headers=headers))
            except InvalidStatus as exc:
                refused.append(exc.response.status_code)
        assert len(open_) == int(CAP * 0.8)
        assert set(refused) == {429}
        tenants[1].allowed()
    finally:
        for channel in open_:
            channel.close()


def _poll(tenant: Tenant, after: int, wait_ms: int = 3_600_000) -> bytes:
    return (
        f"GET /api/v1/control?after={after}&wait_ms={wait_ms} HTTP/1.1\r\nHost: x\r\n"
        f"X-Guard-Protocol: 3\r\nX-API-Key: {tenant.api_key}\r\n\r\n"
    ).encode()


def test_long_polls_of_one_organisation_leave_room(tenants: list[Tenant], small: Gateway) -> None:
    """They count with the sockets; beyond the share none waits, and what is new is answered."""
    greedy, other = tenants
    greedy.admin.kill("w")
    seq = greedy.http.get("/api/v1/control").json()["seq"]
    url = small.base_url.replace("http", "ws", 1) + "/api/v1/control/ws"
    headers = {"X-API-Key": greedy.api_key, "X-Guard-Protocol": "3"}
    socks: list[socket.socket] = []
    assert small._server is not None
    hub = small._server.app.hub
    until(lambda: hub.count() == 0)  # the channels of the test before are gone
    with connect(url, additional_headers=headers):
        try:
            said = set()
            for number in range(2 * CAP):
                socks.append(_open(small, _poll(greedy, seq)))
                if number < CAP * 0.8 - 1:  # the socket has one place
                    until(lambda: hub.count() == len(socks) + 1)
                else:
                    said.add(socks[-1].recv(4096)[:12])
            assert said == {b"HTTP/1.1 429"}
            assert hub.count() == int(CAP * 0.8)
            for _ in range(5):
                with httpx.Client(base_url=small.base_url, headers=_headers(other)) as fresh:
                    body = {"call_id": "c", "kind": "call", "function": "f"}
                    assert fresh.post("/gate", json=body).status_code == 200
                    polled = fresh.get("/api/v1/control", params={"after": 0, "wait_ms": 1})
                    assert polled.status_code == 200
                    bearer = {"Authorization": f"Bearer {small.admin_key}"}
                    admin = fresh.get("/api/v1/admin/organisations", headers=bearer)
                    assert admin.status_code == 200
            # A kill reaches those who wait, and those who may not wait at their next question.
            with pytest.raises(InvalidStatus):
                connect(url, additional_headers=headers)
            late = _open(small, _poll(greedy, 0))
            assert b'"kill"' in late.recv(65536)
            late.close()
        finally:
            for sock in socks:
                sock.close()
    until(lambda: hub.count() == 0)


def _headers(tenant: Tenant) -> dict[str, str]:
    return {"X-API-Key": tenant.api_key, "X-Guard-Protocol": "3"}


def _read_all(channel: ClientConnection) -> None:
    while True:
        channel.recv(timeout=60)


def test_a_key_that_expires_closes_its_channel(small: Gateway) -> None:
    tenant = new_tenant(small)
    url = small.base_url.replace("http", "ws", 1) + "/api/v1/control/ws"
    headers = {"X-API-Key": tenant.api_key, "X-Guard-Protocol": "3"}
    with connect(url, additional_headers=headers) as channel:
        key_id = tenant.admin.keys()[0]["key_id"]
        tenant.admin.rotate_key(key_id, 300)  # it goes on for 0.3 s
        with pytest.raises(ConnectionClosed) as closed:
            _read_all(channel)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401
    tenant.http.close()
    tenant.admin.close()


def test_a_strangers_answers_count_until_a_key_is_shown(
    tenants: list[Tenant], small: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[float] = []
    charge = ReadQuota.charge

    def noted(account: ReadQuota, used_s: float) -> None:
        charged.append(used_s)
        charge(account, used_s)

    monkeypatch.setattr(ReadQuota, "charge", noted)
    with httpx.Client(base_url=small.base_url) as stranger:
        for _ in range(5):
            assert stranger.get("/healthz").status_code == 200
    assert charged.count(ANSWER_S) == 5
    charged.clear()
    with httpx.Client(base_url=small.base_url, headers=_headers(tenants[0])) as known:
        for _ in range(5):
            body = {"call_id": "c", "kind": "call", "function": "f"}
            assert known.post("/gate", json=body).status_code == 200
    assert charged.count(ANSWER_S) <= 1, "the first, if it had all come before the key was known"
    assert min(charged) < 0, "what was counted before the key was shown is given back"


@pytest.mark.parametrize("path", ["/gate", "/api/v1/events"])
def test_whoever_has_no_secret_of_a_signing_key_stays_a_stranger(small: Gateway, path: str) -> None:
    tenant = new_tenant(small, hmac_secret=SECRET)
    assert small._server is not None
    known = small._server._connections.known
    body = BODY if path == "/gate" else b'{"events": []}'
    with httpx.Client(base_url=small.base_url, trust_env=False) as http:
        bare = {**_headers(tenant), "Content-Type": "application/json"}
        assert http.post(path, content=body, headers=bare).status_code == 401
        assert tenant.organisation_id not in known
        headers = signed(small.base_url, tenant.api_key, "POST", path, body)
        assert http.post(path, content=body, headers=headers).status_code != 401
        assert len(known[tenant.organisation_id]) == 1
    tenant.http.close()
    tenant.admin.close()


def test_streams_of_open_pages_leave_room() -> None:
    """At most a tenth of the connections, and of those no organisation has all."""
    watcher = ChangeWatcher(SqliteStorage(Path("unused")), 200)
    for _ in range(16):
        assert not watcher.is_full("loud")
        watcher.subscribe("loud")
    assert watcher.is_full("loud")
    for _ in range(4):
        assert not watcher.is_full("quiet")
        watcher.subscribe("quiet")
    assert watcher.is_full("quiet")
