"""A gateway whose Redis dies, hangs, or forgets: capped calls are refused, the rest goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from guard.gateway.app import GatewayApp
from guard.gateway.domain.errors import StoreError
from guard.gateway.embedded import run_gateway
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.redis import connection
from guard.gateway.storage.redis.connection import RedisConnection
from tests.gateway.conftest import SERVE, Tenant, new_tenant
from tests.gateway.test_metrics import scraped
from tests.support.asker import ask, asker, call
from tests.support.ports import free_port
from tests.support.programs import killed_at_last
from tests.support.prometheus import METRICS_KEY
from tests.support.redis_server import RedisServer, redis_server  # noqa: F401  # a fixture
from tests.support.waiting import WAIT_S, until

CAP = {"calls": 1000, "tools": ["pay"]}
PATIENCE_S = 30.0
"""How long a gateway waits for its Redis, so that a busy machine is no silent one."""
NOWHERE = "redis://:hunter2@127.0.0.1:1/0"


@attrs.define
class Site:
    """A gateway, its Redis, and an organisation that caps one tool."""

    redis: RedisServer
    tenant: Tenant

    def capped(self) -> int:
        """Ask for a call that is capped; return the answer's status."""
        return self.tenant.gate(tool_name="pay").status_code

    def metric(self, name: str) -> float:
        return scraped(self.tenant.gateway.base_url)[f"guard_gateway_{name}"]


@pytest.fixture
def site(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:  # noqa: F811
    """A gateway and a Redis on a socket file."""
    monkeypatch.setitem(RedisConnection.__init__.__kwdefaults__, "answer_wait_s", PATIENCE_S)
    with run_gateway(
        redis=redis_server.url, sweep_interval_ms=50, metrics_key=METRICS_KEY
    ) as gateway:
        tenant = new_tenant(gateway)
        tenant.admin.set_policy(rate_caps=[CAP])
        tenant.admin.set_budget(1000)
        yield Site(redis_server, tenant)
        assert gateway.admin.verify_ledger()["problems"] == []
        tenant.http.close()
        tenant.admin.close()


def test_killed_and_back_without_its_data(site: Site) -> None:
    tenant = site.tenant
    assert site.capped() == 200
    assert (site.metric("redis_up"), site.metric("redis_failures_total")) == (1, 0)
    site.redis.kill()
    problem = tenant.refused(503, "GD-R002", tool_name="pay")
    assert problem["reason"] == "RATE_LIMIT_STORE"
    assert site.metric("redis_up") == 0
    # The rest goes on.
    reply = tenant.allowed(model="gpt-4o", max_input_tokens=10, max_output_tokens=10)
    assert tenant.send(tenant.llm(1000, reservation_id=reply["reservation_id"])).status_code == 202
    tenant.admin.kill("w")
    tenant.refused(403, "GD-W002", workflow_id="w")
    until(lambda: httpx.get(f"{tenant.gateway.base_url}/readyz").status_code == 200)
    site.redis.start()
    until(lambda: site.capped() == 200)
    assert (site.metric("redis_up"), site.metric("redis_failures_total")) == (1, 1)


def test_emptied(site: Site) -> None:
    assert site.capped() == 200
    site.redis.flush()
    assert site.capped() == 200, "its scripts are loaded again"
    assert site.metric("redis_failures_total") == 0


@pytest.mark.asyncio
async def test_a_connection_is_closed_at_any_moment(
    redis_server: RedisServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in the turn of the loop in which a ping has been sent."""
    monkeypatch.setattr(connection, "PING_S", 0.0)
    for number in range(200):
        redis = RedisConnection(redis_server.url, answer_wait_s=PATIENCE_S)
        await redis.open()
        for _ in range(number % 40):
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await redis.close()


def test_hanging(site: Site) -> None:
    assert site.capped() == 200
    used = site.tenant.gateway._server.app._redis  # type: ignore[union-attr]
    assert used is not None
    site.redis.signal(signal.SIGSTOP)
    used._answer_wait_s = 1.0
    try:
        site.tenant.refused(503, "GD-R002", tool_name="pay")
        site.tenant.allowed()
        for _ in range(20):
            site.tenant.refused(503, "GD-R002", tool_name="pay")
        assert site.metric("redis_failures_total") == 1, "later ones do not wait"
    finally:
        used._answer_wait_s = PATIENCE_S
        site.redis.signal(signal.SIGCONT)
    until(lambda: site.capped() == 200)


@pytest.fixture
def site_over_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Redis on a port, as in production; clients treat the end of such a connection differently."""
    monkeypatch.setitem(RedisConnection.__init__.__kwdefaults__, "answer_wait_s", PATIENCE_S)
    server = RedisServer(tmp_path, port=free_port())
    with run_gateway(redis=server.url, sweep_interval_ms=50, metrics_key=METRICS_KEY) as gateway:
        tenant = new_tenant(gateway)
        tenant.admin.set_policy(rate_caps=[CAP])
        yield Site(server, tenant)
        tenant.http.close()
        tenant.admin.close()
    server.kill()


def test_a_restart_between_two_calls_refuses_none(
    site_over_tcp: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are those of the server before; nobody has asked anything meanwhile."""
    monkeypatch.setattr(connection, "PING_S", 3600)
    site = site_over_tcp
    for _ in range(3):
        assert site.capped() == 200
        site.redis.kill()
        site.redis.start()
        assert site.capped() == 200


def test_a_loss_that_no_call_meets_is_shown(site_over_tcp: Site) -> None:
    site = site_over_tcp
    assert site.capped() == 200
    site.redis.kill()
    until(lambda: site.metric("redis_up") == 0)
    site.redis.start()
    until(lambda: site.metric("redis_up") == 1)
    assert site.capped() == 200


@pytest.mark.asyncio
async def test_a_lease_is_renewed_and_returned_meanwhile(site: Site) -> None:
    tenant = site.tenant
    await asyncio.to_thread(
        tenant.admin.set_policy, rate_caps=[{"calls": 100, "per_ms": 3_600_000}]
    )
    body = call(1, lease={"demand_nanousd": 2_000_000_000, "demand_calls": 4})
    async with asker(tenant.gateway.base_url, tenant.api_key) as client:
        [(status, reply)] = await client.ask(ask("a", body))
        assert (status, reply["lease"]["calls"]) == (200, 4)
        await asyncio.to_thread(site.redis.kill)
        renew = {"lease_id": reply["lease"]["lease_id"]}
        [(status, _)] = await client.ask(ask("b", renew, "gate/lease"))
        assert status == 200, "money does not depend on it"
        closing = {**renew, "unused_nanousd": 2_000_000_000, "calls_left": 3, "close": True}
        [(status, _)] = await client.ask(ask("c", closing, "gate/lease"))
        assert status == 200
        [(status, refused)] = await client.ask(ask("d", {**body, "call_id": "d"}))
        assert (status, refused["error_code"]) == (503, "GD-R002")


def test_a_gateway_starts_without_it(tmp_path: Path) -> None:
    with run_gateway(tmp_path / "g.sqlite3", redis=NOWHERE, metrics_key=METRICS_KEY) as gateway:
        tenant = new_tenant(gateway)
        tenant.allowed(tool_name="pay")
        tenant.admin.set_policy(rate_caps=[CAP])
        tenant.refused(503, "GD-R002", tool_name="pay")
        tenant.allowed()
        tenant.http.close()
        tenant.admin.close()


def test_its_password_is_nowhere(tmp_path: Path) -> None:
    assert "hunter2" not in repr(GatewaySettings(redis=NOWHERE))
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", "--port", "0", "--log-format", "json",
         "--log-level", "debug", "--database", str(tmp_path / "g.sqlite3")],
        env={**os.environ, "GUARD_GATEWAY_REDIS": NOWHERE},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with killed_at_last(process):
        url = process.stdout.readline().split()[-1]
        httpx.get(f"{url}/readyz")
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "hunter2" not in out + err
    told = [json.loads(line) for line in err.splitlines()]
    assert [each["level"] for each in told if "capped calls are refused" in each["message"]] == [
        "error"
    ]


def test_the_package_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("guard.gateway.storage.redis")]:
        monkeypatch.delitem(sys.modules, name)
    missing: Any = None
    for name in ("redis", "redis.asyncio"):
        monkeypatch.setitem(sys.modules, name, missing)
    with pytest.raises(StoreError, match=r"pip install 'agent-hard-stop\[redis\]'"):
        GatewayApp(GatewaySettings(redis=NOWHERE))
