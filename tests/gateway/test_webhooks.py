"""Webhooks: signed, to public addresses only, and no message of one tenant stops the others'."""

from __future__ import annotations

import http.server
import ipaddress
import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard.gateway.admin import AdminError
from guard.gateway.domain.notice_text import said
from guard.gateway.embedded import run_gateway
from guard.gateway.services import webhooks as sender
from guard.gateway.services.channels.message import signature
from guard.gateway.services.egress import address_of, check_url
from tests.gateway.conftest import Tenant, new_tenant
from tests.gateway.test_waiting_line import WORST, ask, end
from tests.support import postgres
from tests.support.waiting import until


@pytest.fixture(params=["sqlite", "postgres"])
def private(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tenant]:
    """A tenant of a gateway that lets webhooks go to loopback addresses, and waits for them."""
    monkeypatch.setattr(sender, "_TIMEOUT_S", 120.0)
    database = postgres.url_of(tmp_path) if request.param == "postgres" else None
    with run_gateway(database, sweep_interval_ms=50, private_webhooks=True) as gateway:
        tenant = new_tenant(gateway)
        yield tenant
        tenant.http.close()
        tenant.admin.close()


class _Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((dict(self.headers), body))  # type: ignore[attr-defined]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Any]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Receiver)
    server.received = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join(60)
    server.server_close()


def test_threshold_webhooks_are_signed(private: Any, receiver: Any) -> None:
    url = f"http://127.0.0.1:{receiver.server_port}/hook"
    wanted = {"url": url, "types": ["budget.threshold"]}
    first = private.admin.request("PUT", "/webhooks", wanted)
    made = private.admin.request("PUT", "/webhooks", wanted)  # the same again: another secret
    assert made["webhook"] == first["webhook"]
    assert made["secret"] != first["secret"]
    private.admin.set_budget(10, thresholds=[0.5, 1.0])
    private.send(private.llm(60_000_000))
    until(lambda: receiver.received)
    headers, body = receiver.received[0]
    notice = json.loads(body)
    assert (notice["type"], notice["data"]["threshold"]) == ("budget.threshold", 0.5)
    expected = signature(
        made["secret"], headers["webhook-id"], int(headers["webhook-timestamp"]), body
    )
    assert headers["webhook-signature"] == expected
    until(lambda: private.admin.request("GET", "/webhooks/deliveries")[0]["delivered_at_ms"])


def test_a_notice_of_a_keys_budget_has_the_keys_name(
    private: Any, receiver: Any, lasting_places: None
) -> None:
    url = f"http://127.0.0.1:{receiver.server_port}/hook"
    kinds = ["budget.threshold", "budget.asks"]
    private.admin.request("PUT", "/webhooks", {"url": url, "types": kinds})
    made = private.admin.create_key_full("laptop of alice")
    limit = {"limit_nanousd": WORST + 5000, "thresholds": [0.5], "on_exhausted": "ask"}
    private.admin.set_budget(scope_kind="key", scope_id="laptop of alice", **limit)
    private.http.headers["X-API-Key"] = made["api_key"]
    end(private, ask(private, "first"), cost=WORST)
    assert ask(private, "second")["decision"] == "waiting"
    until(lambda: len(receiver.received) == 2)
    sent = [json.loads(body) for _, body, *_ in receiver.received]
    found = {each["type"]: each["data"] for each in sent}
    for data in found.values():
        assert data["key_name"] == "laptop of alice"
        assert made["key"]["key_id"] in data["scope"], "by which programs go"
    titles = [said(kind, found[kind]).title for kind in kinds]
    assert titles[0] == "Budget at 50%: key laptop of alice (total)"
    assert titles[1].endswith(": key laptop of alice (total)")


@pytest.mark.parametrize(
    "url",
    ["http://example.com/", "ftp://example.com/", "https://u:p@example.com/", "https:///x",
     "http://localhost.example.com/", "http://169.254.169.254/", "https://xn--/", "https://[::1/",
     "https://127.0.0.1/", "https://localhost/", "https://x.localhost./", "https://[::1]/",
     "https://10.1.2.3/", "https://192.168.0.1:8443/", "https://169.254.169.254/", "https://0/", "https://0x7f.1/",
     "https://[::ffff:10.0.0.1]/", "https://[64:ff9b::7f00:1]/", "https://[fe80::1]/",
     "https://[2002:7f00:1::]/", "http://127.0.0.1/", "https://224.0.0.1/"],
)  # fmt: skip
def test_webhook_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|host is not public"):
        check_url(url)


INSIDE = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
    "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/96",
    "::ffff:127.0.0.0/104", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23",
    "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10",
    "ff00::/8",
)  # fmt: skip
"""Networks of the two IANA registries of special-purpose addresses, and deprecated ones."""


@pytest.mark.generator("addresses that lead inside")
@pytest.mark.parametrize("network", INSIDE)
def test_no_special_purpose_address_is_public(
    network: str, count_cases: Callable[[int], None]
) -> None:
    found = ipaddress.ip_network(network)
    last = found.num_addresses - 1
    numbers = {*(at * last // 99 for at in range(100)), min(1, last), max(0, last - 1)}
    for number in numbers:
        host = str(found[number])
        with pytest.raises(ValueError, match="host is not public"):
            check_url(f"https://[{host}]/" if ":" in host else f"https://{host}/")
    count_cases(len(numbers))


def test_public_addresses_are_taken() -> None:
    for host in ("1.1.1.1", "[2606:4700::1111]", "[2a00:1450:4001::1]", "[::ffff:8.8.8.8]"):
        check_url(f"https://{host}/")


def test_webhook_signature_vector() -> None:
    # The example of the Standard Webhooks specification.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    got = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert got == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_loopback_is_refused_unless_the_operator_allows_it(tenant: Any) -> None:
    with pytest.raises(AdminError, match="not public"):
        tenant.admin.request("PUT", "/webhooks", {"url": "https://127.0.0.1/"})
    check_url("https://127.0.0.1/", private=True)
    check_url("http://127.0.0.1:8080/", private=True)
    with pytest.raises(ValueError, match="https"):
        check_url("http://10.0.0.1/", private=True)


@pytest.mark.asyncio
async def test_a_name_that_resolves_to_a_private_address_is_not_connected_to() -> None:
    with pytest.raises(OSError, match="not public"):
        await address_of("localhost", 443)


def _plant(database: Any, organisation_id: str, url: str) -> None:
    """Store a webhook as an earlier version took it, with a message that is due."""
    store = sqlite3.connect(database, timeout=60)
    with store:
        store.execute(
            "INSERT INTO webhooks (webhook_id, organisation_id, url, types, secret, enabled,"
            " created_at_ms) VALUES (?,?,?,?,?,1,0)",
            ("w-" + organisation_id, organisation_id, url, "[]", "whsec_AAAA"),
        )
        store.execute(
            "INSERT INTO deliveries (delivery_id, webhook_id, organisation_id, type, body,"
            " created_at_ms, next_attempt_ms, attempts, failed) VALUES (?,?,?,?,?,0,0,0,0)",
            ("d-" + organisation_id, "w-" + organisation_id, organisation_id, "x", "{}"),
        )
    store.close()


def test_an_address_that_cannot_be_parsed_does_not_end_the_sender(
    tmp_path: Any, receiver: Any
) -> None:
    database = tmp_path / "gateway.sqlite3"
    with run_gateway(database, private_webhooks=True) as gateway:
        bad = new_tenant(gateway)
        bad.http.close()
        bad.admin.close()
    _plant(database, bad.organisation_id, "https://xn--/")
    with run_gateway(database, private_webhooks=True) as gateway:
        good = new_tenant(gateway)
        url = f"http://127.0.0.1:{receiver.server_port}/hook"
        good.admin.request("PUT", "/webhooks", {"url": url, "types": ["budget.threshold"]})
        good.admin.set_budget(10, thresholds=[0.5])
        good.send(good.llm(60_000_000))
        until(lambda: receiver.received)
        good.http.close()
        good.admin.close()


def test_a_tenant_whose_receivers_hang_does_not_hold_up_the_others(
    private: Any, receiver: Any
) -> None:
    silent = socket.create_server(("127.0.0.1", 0), backlog=512)
    try:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/hook"
        private.admin.request("PUT", "/webhooks", {"url": url, "types": ["budget.threshold"]})
        private.admin.set_budget(10, scope_kind="workflow", scope_id="w*", thresholds=[0.5])
        private.send(*(private.llm(60_000_000, workflow_id=f"w{n}") for n in range(120)))
        other = new_tenant(private.gateway)
        url = f"http://127.0.0.1:{receiver.server_port}/hook"
        other.admin.request("PUT", "/webhooks", {"url": url, "types": ["budget.threshold"]})
        other.admin.set_budget(10, thresholds=[0.5])
        other.send(other.llm(60_000_000))
        until(lambda: receiver.received)
        waiting = private.admin.request("GET", "/webhooks/deliveries")
        assert len(waiting) >= 100
        assert all(each["delivered_at_ms"] is None for each in waiting)
        assert sum(each["attempts"] for each in waiting) <= 8, "the hanging ones still hang"
        other.http.close()
        other.admin.close()
    finally:
        silent.close()


def test_an_organisation_has_so_many_webhooks_at_most(tenant: Any) -> None:
    def put(number: int) -> int:
        try:
            tenant.admin.request("PUT", "/webhooks", {"url": f"https://1.1.1.1/{number}"})
        except AdminError as exc:
            return exc.status
        return 200

    assert {put(number) for number in range(100)} == {200}
    assert (put(100), put(7)) == (409, 200)
