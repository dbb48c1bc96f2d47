"""A gateway whose disk is full says so, whatever it is asked."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from guard.breaker.exceptions import GuardRateLimitRedisError
from guard.core import wire
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.unit.state import ALL_ORGANISATIONS
from guard.transport.replies import Reply, exception_for
from tests.support.prometheus import METRICS_KEY, metrics_of

PAGES_MAX: Final = 1_000_000
TRIES: Final = 2000
"""A small row may still find room in a page that exists."""

_numbers = itertools.count()


def limit_pages(gateway: Gateway, pages: int | None) -> None:
    """Let the database have no more pages than it has; None: as many as it wants."""
    server, loop = gateway._server, gateway._loop
    assert server is not None
    assert loop is not None
    storage = server.app.storage

    async def limit() -> None:
        await storage.write(
            ALL_ORGANISATIONS,
            lambda unit: unit.connection.execute(  # type: ignore[attr-defined]  # SQLite's
                f"PRAGMA max_page_count = {pages or PAGES_MAX}"
            ).fetchone(),
        )

    asyncio.run_coroutine_threadsafe(limit(), loop).result(60)


class Site:
    """The gateway, and every kind of request that writes."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.sdk = httpx.Client(
            base_url=gateway.base_url,
            headers={"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3"},
        )
        self.admin = httpx.Client(
            base_url=f"{gateway.base_url}/api/v1/admin",
            headers={"Authorization": f"Bearer {gateway.admin_key}"},
        )

    def gate(self) -> httpx.Response:
        number = next(_numbers)
        body = {"call_id": f"c{number}", "kind": "call", "function": "work" + "x" * 200,
                "workflow_id": f"w{number}" + "x" * 200, "run_id": f"r{number}"}  # fmt: skip
        return self.sdk.post("/gate", json=body)

    def events(self) -> httpx.Response:
        number = next(_numbers)
        event = {"event_id": f"e{number}", "type": "custom", "at_ms": 1,
                 "data": {"text": "x" * 4000}}  # fmt: skip
        body = {"batch_id": f"b{number}", "sent_at_ms": 1, "events": [event]}
        return self.sdk.post("/api/v1/events", json=body)

    def key(self) -> httpx.Response:
        return self.admin.post("/keys", json={"name": "k" * 80})

    def budget(self) -> httpx.Response:
        body = {"limit_cents": 1, "scope_kind": "user", "scope_id": f"{next(_numbers)}" + "x" * 200}
        return self.admin.put("/budgets", json=body)

    def kill(self) -> httpx.Response:
        return self.admin.post("/control", json={"action": "kill", "workflow_id": f"{'x' * 200}*"})

    def workflow(self) -> httpx.Response:
        return self.admin.put(f"/workflows/{next(_numbers)}{'x' * 200}")


WRITES: Final[dict[str, Callable[[Site], httpx.Response]]] = {
    name: getattr(Site, name) for name in ("gate", "events", "key", "budget", "kill", "workflow")
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("full")
    with run_gateway(
        folder / "gateway.sqlite3", sweep_interval_ms=3_600_000, metrics_key=METRICS_KEY
    ) as gateway:
        site = Site(gateway)
        limit_pages(gateway, 1)  # SQLite never goes below what there is
        refused(site.events)
        yield site
        site.sdk.close()
        site.admin.close()


def refused(write: Callable[[], httpx.Response]) -> dict[str, Any]:
    """Ask until there is no room for the answer."""
    for _ in range(TRIES):
        response = write()
        if response.status_code == 503:
            assert response.headers["retry-after"]
            problem: dict[str, Any] = response.json()
            return problem
        assert response.is_success, response.text
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_is_named(site: Site, name: str) -> None:
    problem = refused(lambda: WRITES[name](site))
    said = problem.get("reason") or problem["detail"]
    assert said == "the gateway's disk is full: free space for its database"
    assert "RATE_LIMIT_STORE" not in str(problem)
    assert problem["error_code"] == ("GD-R002" if name == "gate" else "GD-B002")


def test_a_full_disk_is_logged_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The log may be on the same disk."""
    refused(site.events)
    caplog.clear()
    for _ in range(5):
        assert site.events().status_code == 503
    assert "the store failed" not in caplog.text


@pytest.mark.parametrize(("name", "route"), [("gate", "/gate"), ("events", "/api/v1/events")])
def test_what_a_full_disk_refuses_is_counted(site: Site, name: str, route: str) -> None:
    def counted() -> int:
        text = metrics_of(site.gateway.base_url)
        found = re.search(rf'answers_total{{route="{route}",status="503"}} (\d+)', text)
        return int(found[1]) if found else 0

    before = counted()
    refused(lambda: WRITES[name](site))
    assert counted() == before + 1


def test_a_program_is_told_and_refused_whatever_its_fallback(site: Site) -> None:
    problem = wire.encode(refused(site.gate))
    reply = Reply(endpoint="/gate", status=503, body=problem, retry_after="1", now_s=time.time(),
                  nonce="", signature="")  # fmt: skip
    error = exception_for(reply)
    assert isinstance(error, GuardRateLimitRedisError), "fails closed"
    assert "the gateway's disk is full" in str(error)


def test_no_load_balancer_sends_calls_to_a_full_disk(site: Site) -> None:
    """Also after groups that had nothing to write, or little."""
    ready = f"{site.gateway.base_url}/readyz"
    refused(site.gate)
    for _ in range(3):
        assert httpx.get(ready).status_code == 503
        assert "guard_gateway_store_healthy 0.0" in metrics(site)
    limit_pages(site.gateway, None)
    assert httpx.get(ready).status_code == 200
    assert site.gate().is_success
    assert "guard_gateway_store_healthy 1.0" in metrics(site)
    limit_pages(site.gateway, 1)


def metrics(site: Site) -> str:
    return metrics_of(site.gateway.base_url)


def test_it_recovers_when_there_is_room(site: Site) -> None:
    limit_pages(site.gateway, None)
    for write in WRITES.values():
        assert write(site).is_success
    limit_pages(site.gateway, 1)
