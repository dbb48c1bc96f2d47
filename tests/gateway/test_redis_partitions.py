"""Replicas that cannot reach their Redis, or whose Redis dies with its data kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard.gateway.cli.admin_client import AdminClient
from tests.gateway.conftest import Served, cases
from tests.gateway.test_metrics import scraped
from tests.support import postgres
from tests.support.proxy import ChaosProxy
from tests.support.redis_server import RedisServer, kept_redis, redis_server  # noqa: F401
from tests.support.waiting import until

BUSY_S = 8.0
"""A refusal comes after a second at most; the rest is for a busy machine."""


class Caps:
    """Two replicas and an organisation that caps one tool."""

    def __init__(self, replicas: list[Served], calls: int, per_ms: int = 60_000) -> None:
        self.replicas = replicas
        self.admin = AdminClient(replicas[0].base_url, replicas[0].admin_key)
        self._numbers = iter(range(10**9))
        self.admin.set_budget(10**6)
        cap = {"calls": calls, "per_ms": per_ms, "tools": ["pay"]}
        self.admin.set_policy(rate_caps=[cap], tools_block=["blocked"])
        for each in replicas:  # each hears of the policy by itself
            until(lambda each=each: self._is_known(each))  # type: ignore[misc]

    def _is_known(self, served: Served) -> bool:
        """Tell whether a replica knows the policy: it also blocks a tool."""
        return self.ask(served, tool_name="blocked")[0] == 403

    def ask(self, served: Served, key: str = "", **fields: Any) -> tuple[int, str, float, Any]:
        """Ask for a call; return status, error code, how long it took, and the answer."""
        headers = {"X-API-Key": served.api_key, "X-Guard-Protocol": "3"}
        if key:
            headers["Idempotency-Key"] = key
        body = {"call_id": key or f"c{next(self._numbers)}", "kind": "call", "function": "f"}
        started = time.monotonic()
        reply = httpx.post(
            f"{served.base_url}/gate", json={**body, **fields}, headers=headers, timeout=60
        )
        answer = reply.json()
        took_s = time.monotonic() - started
        return reply.status_code, answer.get("error_code", ""), took_s, answer


@pytest.fixture
def database(tmp_path: Path) -> str:
    return postgres.url_of(tmp_path)


@pytest.fixture
def lines(redis_server: RedisServer) -> Iterator[list[ChaosProxy]]:  # noqa: F811
    """What stands between each of two replicas and Redis."""
    made = [ChaosProxy(redis_server.url) for _ in range(2)]
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("kind", "whom"),
    cases(
        [("partition", "both"), ("hang", "one"), ("refuse", "both")],
        [("partition", "one"), ("hang", "both"), ("refuse", "one")],
    ),
)
def test_capped_calls_are_refused_and_the_rest_goes_on(
    serve: Any, lines: list[ChaosProxy], kind: str, whom: str
) -> None:
    replicas = [serve("--redis", line.url.replace("http", "redis") + "/0") for line in lines]
    caps = Caps(replicas, calls=100_000)
    away = {"one": 1, "both": 2}[whom]
    for line in lines[:away]:
        line.part(kind)
    for _ in range(3):
        for each in replicas[:away]:
            status, error_code, took_s, answer = caps.ask(each, tool_name="pay")
            assert (status, error_code) == (503, "GD-R002"), answer
            assert answer["reason"] == "RATE_LIMIT_STORE"
            assert took_s < BUSY_S
            status, _, took_s, answer = caps.ask(each)
            assert status == 200, answer
            assert took_s < BUSY_S
            assert httpx.get(f"{each.base_url}/readyz", timeout=60).status_code == 200
    for each in replicas[away:]:
        assert caps.ask(each, tool_name="pay")[0] == 200
    for line in lines[:away]:
        line.strand()  # connections that were open stay silent for ever
        line.fault = "none"
    for each in replicas[:away]:
        until(lambda each=each: caps.ask(each, tool_name="pay")[0] == 200)  # type: ignore[misc]
        found = scraped(each.base_url)
        assert found["guard_gateway_redis_up"] == 1
        assert found["guard_gateway_redis_failures_total"] == 1
    assert caps.admin.verify_ledger()["problems"] == []
    caps.admin.close()


CALLS = 20


def statuses(caps: Caps, times: int) -> list[int]:
    return [caps.ask(caps.replicas[n % 2], tool_name="pay")[0] for n in range(times)]


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "lost"])
def test_killed_with_and_without_its_data(serve: Any, keeps: bool) -> None:
    """What is counted stays counted if Redis keeps it; else one window more, and no hold twice."""
    with kept_redis(keeps=keeps) as redis, contextlib.ExitStack() as ending:
        caps = Caps([serve("--redis", redis.url) for _ in range(2)], CALLS, per_ms=3_600_000)
        ending.callback(caps.admin.close)
        redis.flush()
        key = "asked-before-it-died"
        before = caps.ask(caps.replicas[0], key, tool_name="pay")[3]
        assert statuses(caps, CALLS - 6).count(200) == CALLS - 6
        held = [each["reserved_nanousd"] for each in caps.admin.ledger()]
        redis.kill()
        for each in caps.replicas:
            assert caps.ask(each, tool_name="pay")[:2] == (503, "GD-R002")
        assert [each["reserved_nanousd"] for each in caps.admin.ledger()] == held
        redis.start()
        for each in caps.replicas:
            until(lambda each=each: scraped(each.base_url)["guard_gateway_redis_up"] == 1)  # type: ignore[misc]
        again = caps.ask(caps.replicas[1], key, tool_name="pay")[3]
        assert again == before, "the answer that was given, and no second hold"
        assert [each["reserved_nanousd"] for each in caps.admin.ledger()] == held
        granted = statuses(caps, 2 * CALLS).count(200)
        if keeps:
            assert granted == 4, "5 were left, and the repeat was counted once more"
        else:
            assert granted == CALLS - 1
        assert caps.admin.verify_ledger()["problems"] == []
