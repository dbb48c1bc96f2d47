"""Replicas that cannot reach their Redis, or whose Redis dies with its data kept."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import attrs
import httpx
import pytest

from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.storage.redis.connection import RedisConnection
from tests.gateway.conftest import Tenant, cases, new_tenant
from tests.gateway.test_metrics import scraped
from tests.support import postgres
from tests.support.prometheus import METRICS_KEY
from tests.support.proxy import ChaosProxy
from tests.support.redis_server import RedisServer, kept_redis
from tests.support.waiting import until

HOUR_MS = 3_600_000
ANSWER_WAIT_S = 30.0
"""Longer than usual, so that a busy machine is no silent Redis."""
HANGS_S = 1.0
"""The same while it is silent in earnest."""


@attrs.frozen
class Replica:
    """A gateway, and what stands between it and Redis."""

    gateway: Gateway
    line: ChaosProxy

    def wait_for_redis(self, wait_s: float) -> None:
        """Have the replica wait for so long, from the next question on."""
        redis = self.gateway._server.app._redis  # type: ignore[union-attr]
        assert redis is not None
        redis._answer_wait_s = wait_s

    def redis_metric(self, name: str) -> float:
        return scraped(self.gateway.base_url)[f"guard_gateway_redis_{name}"]


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    """Two replicas, without a Redis yet."""
    database = postgres.url_of(tmp_path_factory.mktemp("replicas"))
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        defaults = RedisConnection.__init__.__kwdefaults__
        patch.setitem(defaults, "answer_wait_s", ANSWER_WAIT_S)
        found = []
        for _ in range(2):
            line = ChaosProxy("unix:///nowhere")
            stack.callback(line.close)
            redis = line.url.replace("http", "redis") + "/0"
            gateway = run_gateway(database, redis=redis, metrics_key=METRICS_KEY)
            found.append(Replica(stack.enter_context(gateway), line))
        yield found


class Caps:
    """Two replicas with a Redis of the test's own, and an organisation that caps one tool."""

    def __init__(self, replicas: list[Replica], redis: RedisServer, calls: int) -> None:
        self.replicas = replicas
        for each in replicas:
            each.line.retarget(redis.url)
            each.line.fault = "none"
            each.line.cut()
            each.wait_for_redis(ANSWER_WAIT_S)  # also after a test that failed
        self.tenant: Tenant = new_tenant(replicas[0].gateway)
        self._numbers = itertools.count()
        self.tenant.admin.set_budget(10**6)
        cap = {"calls": calls, "per_ms": HOUR_MS, "tools": ["pay"]}
        self.tenant.admin.set_policy(rate_caps=[cap], tools_block=["blocked"])
        for each in replicas:  # each hears of the policy by itself
            until(lambda each=each: self._is_ready(each))  # type: ignore[misc]

    def _is_ready(self, replica: Replica) -> bool:
        """Tell whether a replica knows the policy, which also blocks a tool, and has its Redis."""
        knows = self.ask(replica, tool_name="blocked")[0] == 403
        return knows and self.ask(replica, tool_name="pay")[0] == 200

    def ask(self, replica: Replica, key: str = "", **fields: Any) -> tuple[int, str, Any]:
        """Ask for a call; return status, error code and answer."""
        headers = {"X-API-Key": self.tenant.api_key, "X-Guard-Protocol": "3"}
        if key:
            headers["Idempotency-Key"] = key
        body = {"call_id": key or f"c{next(self._numbers)}", "kind": "call", "function": "f"}
        url = f"{replica.gateway.base_url}/gate"
        reply = httpx.post(url, json={**body, **fields}, headers=headers)
        answer = reply.json()
        return reply.status_code, answer.get("error_code", ""), answer

    def statuses(self, times: int) -> list[int]:
        return [self.ask(self.replicas[n % 2], tool_name="pay")[0] for n in range(times)]

    def held(self) -> list[int]:
        return [each["reserved_nanousd"] for each in self.tenant.admin.ledger()]

    def close(self) -> None:
        assert self.replicas[0].gateway.admin.verify_ledger()["problems"] == []
        self.tenant.http.close()
        self.tenant.admin.close()


@pytest.mark.parametrize(
    ("kind", "whom"),
    cases(
        [("partition", "both"), ("hang", "one"), ("refuse", "both")],
        [("partition", "one"), ("hang", "both"), ("refuse", "one")],
    ),
)
def test_capped_calls_are_refused_and_the_rest_goes_on(
    replicas: list[Replica], kind: str, whom: str
) -> None:
    with kept_redis(keeps=False) as redis:
        caps = Caps(replicas, redis, calls=100_000)
        failures = [each.redis_metric("failures_total") for each in replicas]
        away = {"one": 1, "both": 2}[whom]
        for each in replicas[:away]:
            each.line.part(kind)
            each.wait_for_redis(HANGS_S)
        for _ in range(3):
            for each in replicas[:away]:
                status, error_code, answer = caps.ask(each, tool_name="pay")
                assert (status, error_code) == (503, "GD-R002"), answer
                assert answer["reason"] == "RATE_LIMIT_STORE"
                status, _, answer = caps.ask(each)
                assert status == 200, answer
                until(lambda each=each: _is_ready(each.gateway))  # type: ignore[misc]
        for each in replicas[away:]:
            assert caps.ask(each, tool_name="pay")[0] == 200
        for each in replicas[:away]:
            each.line.strand()  # connections that were open stay silent for ever
            each.line.fault = "none"
            each.wait_for_redis(ANSWER_WAIT_S)
        for each, before in zip(replicas[:away], failures, strict=False):
            until(lambda each=each: caps.ask(each, tool_name="pay")[0] == 200)  # type: ignore[misc]
            assert each.redis_metric("up") == 1
            assert each.redis_metric("failures_total") == before + 1
        caps.close()


def _is_ready(gateway: Gateway) -> bool:
    return httpx.get(f"{gateway.base_url}/readyz").status_code == 200


CALLS = 20


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "lost"])
def test_killed_with_and_without_its_data(replicas: list[Replica], keeps: bool) -> None:
    """What is counted stays counted if Redis keeps it; else one window more, and no hold twice."""
    with kept_redis(keeps=keeps) as redis:
        caps = Caps(replicas, redis, CALLS)
        redis.flush()
        key = f"asked-before-it-died-{keeps}"
        before = caps.ask(replicas[0], key, tool_name="pay")[2]
        assert caps.statuses(CALLS - 6).count(200) == CALLS - 6
        held = caps.held()
        redis.kill()
        for each in replicas:
            assert caps.ask(each, tool_name="pay")[:2] == (503, "GD-R002")
        assert caps.held() == held
        redis.start()
        for each in replicas:
            until(lambda each=each: each.redis_metric("up") == 1)  # type: ignore[misc]
        again = caps.ask(replicas[1], key, tool_name="pay")[2]
        assert again == before, "the answer that was given, and no second hold"
        assert caps.held() == held
        granted = caps.statuses(2 * CALLS).count(200)
        if keeps:
            assert granted == 4, "5 were left, and the repeat was counted once more"
        else:
            assert granted == CALLS - 1
        caps.close()
