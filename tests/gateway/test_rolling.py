"""Replicas in processes of their own, over PostgreSQL: caps and updates."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import guard
from guard.gateway.admin import AdminClient
from guard.runtime.runtime import GuardRuntime
from tests.gateway.conftest import Served
from tests.support import postgres
from tests.support.proxy import ChaosProxy
from tests.support.steady_worker import SteadyWorker
from tests.support.waiting import until

Serve = Callable[..., Served]


@pytest.fixture
def database(tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


def admin_of(replica: Served) -> AdminClient:
    return AdminClient(replica.base_url, replica.admin_key)


def test_a_rate_cap_counts_over_replicas(serve: Serve) -> None:
    replicas = [serve() for _ in range(2)]
    with contextlib.closing(admin_of(replicas[0])) as admin:
        admin.set_policy(
            rate_caps=[{"calls": 7, "per_ms": 3_600_000, "tools": ["pay"]}], tools_block=["told"]
        )
    headers = {"X-API-Key": replicas[0].api_key, "X-Guard-Protocol": "3"}

    def ask(replica: Served, number: int, tool_name: str = "pay") -> int:
        body = {"call_id": f"c{number}", "kind": "call", "function": "f", "tool_name": tool_name}
        return httpx.post(f"{replica.base_url}/gate", json=body, headers=headers).status_code

    until(lambda: all(ask(each, 0, "told") == 403 for each in replicas))
    found = [ask(replicas[number % 2], number) for number in range(20)]
    assert sorted(found) == [200] * 7 + [429] * 13


@pytest.fixture
def proxy() -> Iterator[Callable[[str], ChaosProxy]]:
    made: list[ChaosProxy] = []

    def make(url: str) -> ChaosProxy:
        made.append(ChaosProxy(url))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.fault
def test_replicas_are_replaced_under_load(serve: Serve, proxy: Callable[[str], ChaosProxy]) -> None:
    """No call fails, each is charged once, and a kill at the newest replica arrives."""
    options = ("--drain-delay-ms", "300", "--drain-timeout-ms", "60000")
    replica = serve(*options)
    front = proxy(replica.base_url)
    with contextlib.closing(admin_of(replica)) as admin:
        admin.set_budget(1_000_000)
    runtime = GuardRuntime(replica.api_key, front.url, timeout_ms=60_000).open()
    worker = SteadyWorker("steady")
    try:
        with worker:
            for _ in range(3):
                until(lambda: runtime.status().control_channel == "websocket")
                before = worker.done
                successor = serve(*options)
                front.retarget(successor.base_url)
                replica.process.send_signal(signal.SIGTERM)
                assert replica.process.wait(120) == 0
                replica = successor
                until(lambda before=before: worker.done > before + 20)  # type: ignore[misc]
            until(lambda: runtime.status().control_channel == "websocket")
        runtime.flush(60)
        assert worker.failures == []
        with contextlib.closing(admin_of(replica)) as admin:
            assert admin.verify_ledger()["problems"] == []
            [usage] = [each for each in admin.usage("workflow") if each["group"] == "steady"]
            assert usage["llm_calls"] == worker.done, "each once"
            admin.kill("steady")
        killed(runtime)
    finally:
        runtime.shutdown(2)


def killed(runtime: Any) -> None:
    """Wait until the workflow is stopped here."""

    @guard.protect
    def step() -> bool:
        return False

    with guard.workflow("steady"), pytest.raises(guard.WorkflowKilledInterrupt):
        until(step)
