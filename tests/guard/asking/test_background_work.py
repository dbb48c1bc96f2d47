"""Work that goes on after its answer: held until a poll says what it cost, and charged once.

The stand-in bills a piece of work when it is made: nobody needs to ask for the result.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

import guard
from guard.delivery.journal import left_behind
from guard.gateway.ledger import leases
from guard.runtime.runtime import GuardRuntime
from tests.guard.instrumentation.standin.reply import Reply, encoded, sse
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S, until

INPUT: Final = 30
OUTPUT: Final = 50
COST: Final = INPUT * 1_000 + OUTPUT * 4_000
LIMIT: Final = 10 * COST


class Queueing(StandIn):
    """Queues each response and run, and bills it at once.

    Attributes:
        billed: what it has billed, in nano-dollars.
        status: of what is polled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.billed = 0
        self.state = "completed"
        self._works = itertools.count(1)

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        kind, prefix = ("thread.run", "run") if "/threads/" in path else ("response", "resp")
        if method == "GET" or path.endswith("/cancel"):
            identity = path.removesuffix("/cancel").rsplit("/", 1)[-1]
            return Reply(None, encoded(self._work(kind, identity, self.state)))
        if not path.endswith("/submit_tool_outputs"):
            self.billed += COST
        identity = f"{prefix}_{next(self._works)}"
        if path.endswith("/submit_tool_outputs"):
            identity = path.split("/")[-2]
        begun = self._work(kind, identity, "queued")
        if b'"stream":true' not in body:
            return Reply(None, encoded(begun))
        created = {"type": "response.created", "response": begun}
        return Reply(None, events=sse(created), content_type="text/event-stream")

    def _work(self, kind: str, identity: str, state: str) -> dict[str, Any]:
        names = ("prompt", "completion") if kind == "thread.run" else ("input", "output")
        used = {f"{names[0]}_tokens": INPUT, f"{names[1]}_tokens": OUTPUT,
                "total_tokens": INPUT + OUTPUT}  # fmt: skip
        usage = used if state == "completed" else None
        return {"id": identity, "object": kind, "status": state, "model": "m",
                "background": True, "output": [], "usage": usage}  # fmt: skip


@pytest.fixture(scope="module")
def queueing() -> Iterator[Queueing]:
    running = Queueing()
    yield running
    running.close()


@pytest.fixture
def vendor(queueing: Queueing, tenant: Any) -> Queueing:
    """The vendor, at a price, with a budget for ten of its works."""
    queueing.reset()
    queueing.billed, queueing.state = 0, "completed"
    tenant.admin.set_price("*", input_per_mtok=10**9, output_per_mtok=4 * 10**9)
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=LIMIT)
    return queueing


def ask(vendor: Queueing, **more: Any) -> str:
    """Start a response in the background; returns its id."""
    body = {"model": "m", "input": "a", "max_output_tokens": OUTPUT, "background": True, **more}
    answer = httpx.post(f"{vendor.url}/v1/responses", json=body)
    return str(answer.json()["id"]) if not more.get("stream") else ""


def leave(vendor: Queueing) -> None:
    """Start one as a stream, and leave it before its end."""
    body = {"model": "m", "input": "a", "max_output_tokens": OUTPUT, "background": True,
            "stream": True}  # fmt: skip
    with httpx.stream("POST", f"{vendor.url}/v1/responses", json=body) as answer:
        next(answer.iter_bytes())


def poll(vendor: Queueing, identity: str) -> None:
    httpx.get(f"{vendor.url}/v1/responses/{identity}")


def spent(tenant: Any) -> int:
    return int(tenant.spent_nanousd("w"))


class TestTheLimitHoldsForIt:
    def test_many_that_nobody_polls(
        self,
        vendor: Queueing,
        tenant: Any,
        start: Callable[..., GuardRuntime],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(leases, "CLOSING_MS", 1)  # what a closed lease holds comes back soon
        runtime = start(wait_for_room_ms=400)
        refused = 0
        with guard.workflow("w"):
            for _ in range(50):
                try:
                    with guard.span("request"):
                        ask(vendor)
                except guard.GuardBudgetError:
                    refused += 1
                if refused == 3:
                    break
        assert refused == 3, "what is under way is not spent again"
        assert 5 * COST < vendor.billed <= LIMIT
        runtime.shutdown(WAIT_S)
        assert spent(tenant) >= vendor.billed

    @pytest.mark.parametrize("begin", [ask, leave], ids=["whole", "stream"])
    def test_a_process_that_never_polls_is_charged(
        self,
        vendor: Queueing,
        tenant: Any,
        start: Callable[..., GuardRuntime],
        begin: Callable[[Queueing], Any],
    ) -> None:
        runtime = start()
        with guard.workflow("w"):
            begin(vendor)
        runtime.shutdown(WAIT_S)
        (event,) = tenant.llm_events("w")
        assert event["data"]["estimate"] == "bound"
        assert spent(tenant) >= vendor.billed > 0

    def test_a_process_that_dies_has_written_it_down(
        self, vendor: Queueing, tenant: Any, tmp_path: Path
    ) -> None:
        program = f"""
import guard, httpx, os, signal
runtime = guard.init()
body = {{"model": "m", "input": "a", "max_output_tokens": {OUTPUT}, "background": True}}
with guard.workflow("w"):
    httpx.post("{vendor.url}/v1/responses", json=body)
runtime.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
        env = {"GUARD_API_KEY": tenant.key, "GUARD_API_URL": tenant.url,
               "GUARD_SPOOL_DIR": str(tmp_path / "spool")}  # fmt: skip
        subprocess.run([sys.executable, "-c", program], env=os.environ | env, check=False)
        (left,) = left_behind(tmp_path / "spool")
        (request,) = left.requests
        assert request.amount_nanousd >= vendor.billed > 0


class TestAPollSaysWhatItCost:
    def test_it_is_charged_that_once_in_its_own_workflow(
        self, vendor: Queueing, tenant: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        runtime = start()
        with guard.workflow("w"):
            works = [ask(vendor) for _ in range(3)]
        vendor.state = "in_progress"
        poll(vendor, works[0])
        vendor.state = "completed"
        with guard.workflow("another"):
            for work in works * 2:
                poll(vendor, work)
        until(lambda: runtime.status().leased_calls == 0)
        runtime.shutdown(WAIT_S)
        assert spent(tenant) == vendor.billed == 3 * COST
        assert {event["data"].get("estimated", False) for event in tenant.llm_events("w")} == {
            False
        }
        assert tenant.llm_events("another") == []

    def test_what_it_did_not_cost_pays_for_the_next(
        self, vendor: Queueing, tenant: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        tenant.admin.set_budget(
            scope_kind="workflow", scope_id="w", limit_nanousd=226 * COST // 100
        )
        runtime = start(wait_for_room_ms=0)
        with guard.workflow("w"):
            work = ask(vendor)
            poll(vendor, work)
            until(lambda: runtime.status().leased_calls == 0)  # its answer is read
            runtime.flush()  # and the gateway knows what it has cost
            ask(vendor)

    @pytest.mark.parametrize("state", ["cancelled", "incomplete", "expired"])
    def test_one_that_ended_without_usage_costs_its_bound(
        self, vendor: Queueing, tenant: Any, start: Callable[..., GuardRuntime], state: str
    ) -> None:
        runtime = start()
        with guard.workflow("w"):
            work = ask(vendor)
        vendor.state = state
        poll(vendor, work)
        until(lambda: runtime.status().leased_calls == 0)
        runtime.shutdown(WAIT_S)
        (event,) = tenant.llm_events("w")
        assert event["data"]["estimate"] == "bound"
        assert spent(tenant) >= vendor.billed

    def test_one_that_failed_before_any_output_costs_nothing(
        self, vendor: Queueing, tenant: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        runtime = start()
        with guard.workflow("w"):
            work = ask(vendor)
        vendor.state = "failed"
        poll(vendor, work)
        until(lambda: runtime.status().leased_calls == 0)
        runtime.shutdown(WAIT_S)
        assert spent(tenant) == 0

    def test_another_process_polls_it(
        self, vendor: Queueing, tenant: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        runtime = start()
        with guard.workflow("w"):
            work = ask(vendor)
        program = f"""
import guard, httpx
guard.init()
with guard.workflow("w"):
    httpx.get("{vendor.url}/v1/responses/{work}")
"""
        env = {"GUARD_API_KEY": tenant.key, "GUARD_API_URL": tenant.url}
        subprocess.run([sys.executable, "-c", program], env=os.environ | env, check=True)
        runtime.shutdown(WAIT_S)
        assert spent(tenant) == vendor.billed, "charged by the poll, not again by the bound"

    def test_what_is_too_old_is_charged_its_bound(
        self,
        vendor: Queueing,
        tenant: Any,
        start: Callable[..., GuardRuntime],
    ) -> None:
        runtime = start()
        with guard.workflow("w"):
            work = ask(vendor)
        until(lambda: runtime.instrumentation.later.works)
        runtime.instrumentation.later.expire(float("inf"))
        until(lambda: runtime.status().leased_calls == 0)
        poll(vendor, work)  # too late: it is charged
        runtime.shutdown(WAIT_S)
        (event,) = tenant.llm_events("w")
        assert event["data"]["estimate"] == "bound"

    def test_the_oldest_is_charged_when_there_are_too_many(
        self,
        vendor: Queueing,
        tenant: Any,
        start: Callable[..., GuardRuntime],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("guard.instrumentation.background_jobs.WORKS_MAX", 2)
        runtime = start()
        with guard.workflow("w"):
            for _ in range(4):
                ask(vendor)
        runtime.flush()
        until(lambda: len(tenant.llm_events("w")) == 2)
        assert len(runtime.instrumentation.later.works) == 2


def test_a_run_with_tools_is_charged_once(
    vendor: Queueing, tenant: Any, start: Callable[..., GuardRuntime], monkeypatch: Any
) -> None:
    """Each step of it is held; its usage is that of all of them."""
    from guard.core.usage import vendors

    monkeypatch.setitem(vendors.HOSTS, "127.0.0.1", "openai")
    vendors._known.clear()
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=100_000 * COST)
    tenant.admin.update_settings(unbounded_output="learned")
    runtime = start()
    until(lambda: runtime.status().control_channel == "websocket")
    body = {"model": "m", "assistant_id": "a", "max_completion_tokens": OUTPUT,
            "max_prompt_tokens": 1000}  # fmt: skip
    with guard.workflow("w"):
        url = f"{vendor.url}/v1/threads/t/runs"
        run = httpx.post(url, json=body).json()["id"]
        httpx.post(f"{url}/{run}/submit_tool_outputs", json={"tool_outputs": []})
        until(lambda: sum(map(len, runtime.instrumentation.later.works.values())) == 2)
        httpx.get(f"{url}/{run}")
    until(lambda: runtime.status().leased_calls == 0)
    runtime.shutdown(WAIT_S)
    vendors._known.clear()
    assert spent(tenant) == vendor.billed == COST
