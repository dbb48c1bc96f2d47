"""A commit whose answer is lost: what was decided is not decided again, and nobody misses it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from guard.gateway.embedded import run_gateway
from guard.gateway.storage.postgres.silence_watchdog import WatchedSocket
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres
from tests.support.proxy import ChaosProxy
from tests.support.waiting import until

ANSWER_WAIT_S = 3.0


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ChaosProxy]:
    """Stands between a gateway and the tests' PostgreSQL."""
    parts = psycopg.conninfo.conninfo_to_dict(postgres.dsn_of(tmp_path))
    made = ChaosProxy(f"http://{parts['host']}:{parts.get('port', 5432)}")
    yield made
    made.close()


@pytest.fixture
def tenant(proxy: ChaosProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenant]:
    """A tenant of a gateway that loses patience with a silent database sooner than usual."""
    expect = WatchedSocket.expect

    def impatient(line: WatchedSocket, within_s: float) -> None:
        # Only where an answer is to be lost: on a busy machine the others may take long.
        expect(line, ANSWER_WAIT_S if proxy.mute_after else 60.0)

    monkeypatch.setattr(WatchedSocket, "expect", impatient)
    parts = psycopg.conninfo.conninfo_to_dict(postgres.dsn_of(tmp_path))
    direct = f"@{parts['host']}:{parts.get('port', 5432)}/"
    url = postgres.url_of(tmp_path).replace(direct, f"@{proxy.url.removeprefix('http://')}/")
    with run_gateway(
        url, sweep_interval_ms=200, control_ping_interval_ms=200, poll_wait_max_ms=100_000
    ) as gateway:
        found = new_tenant(gateway)
        found.admin.set_budget(limit_nanousd=10**9)
        yield found
        proxy.mute_after = None
        until(lambda: found.gate().status_code == 200)
        assert gateway.admin.verify_ledger()["problems"] == []
        found.http.close()
        found.admin.close()


def test_a_repeated_question_gets_the_answer_that_was_given(
    tenant: Tenant, proxy: ChaosProxy
) -> None:
    proxy.mute_after = b"call-of-which-the-answer-is-lost"
    asked = {"call_id": "call-of-which-the-answer-is-lost", "headers": {"Idempotency-Key": "once"}}
    tenant.refused(503, "GD-R002", **{**asked, "headers": dict(asked["headers"])})  # type: ignore[call-overload]
    proxy.mute_after = None
    [held] = [each["reserved"] for each in tenant.admin.ledger()]
    assert held, "it was decided"
    reply = tenant.allowed(**asked)
    assert reply["reserved_nanousd"] == held
    assert tenant.balance()["reserved"] == held


def test_an_event_is_charged_once(tenant: Tenant, proxy: ChaosProxy) -> None:
    event = tenant.llm(500, data={"note": "event-of-which-the-answer-is-lost"})
    proxy.mute_after = b"event-of-which-the-answer-is-lost"
    assert tenant.send(event).status_code == 503
    proxy.mute_after = None
    assert tenant.balance()["committed"] == 500
    assert tenant.send(event).json()["duplicates"] == 1
    assert tenant.balance()["committed"] == 500


def test_an_order_arrives_although_nobody_was_told_that_it_is_given(
    tenant: Tenant, proxy: ChaosProxy
) -> None:
    heard: list[Any] = []

    def listen() -> None:
        query = {"after": newest, "wait_ms": 100_000}
        reply = tenant.http.get("/api/v1/control", params=query, timeout=120)
        heard.append(reply.json()["messages"])

    tenant.admin.pause("another")
    newest = tenant.http.get("/api/v1/control").json()["seq"]
    waiting = threading.Thread(target=listen)
    waiting.start()
    proxy.mute_after = f" control {tenant.organisation_id}".encode()  # the last before the commit
    with pytest.raises(Exception, match="503"):
        tenant.admin.kill("workflow-of-which-the-answer-is-lost")
    proxy.mute_after = None
    waiting.join(120)
    assert [each["type"] for each in heard[0]] == ["kill"]
    tenant.refused(403, "GD-W002", workflow_id="workflow-of-which-the-answer-is-lost")


def test_a_key_is_revoked_although_nobody_was_told(tenant: Tenant, proxy: ChaosProxy) -> None:
    other = tenant.admin.create_key_full("other")
    headers = {"X-API-Key": other["api_key"], "X-Guard-Protocol": "3"}

    def status() -> int:
        body = {"call_id": "c", "kind": "call", "function": "f"}
        url = f"{tenant.gateway.base_url}/gate"
        return httpx.post(url, json=body, headers=headers, timeout=60).status_code

    assert status() == 200
    proxy.mute_after = f" catalogue {tenant.organisation_id}".encode()
    with pytest.raises(Exception, match="503"):
        tenant.admin.revoke_key(other["key"]["key_id"])
    proxy.mute_after = None
    until(lambda: tenant.gate().status_code == 200)
    assert status() == 401
