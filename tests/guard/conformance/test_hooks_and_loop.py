"""Hooks and guard's loop: a hook that blocks or exits delays no gate and no kill."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import GuardError
from guard.hooks import GatewayWarning, on_warning
from guard.runtime.runtime import GuardRuntime
from tests.support.waiting import WAIT_S, until


@guard.protect
def step() -> str:
    return "ran"


class TestOnTheLoop:
    def failing(self, scripted: Any, start: Callable[..., GuardRuntime]) -> GuardRuntime:
        runtime = start(api_url=scripted.url, transport_mode="http", flush_interval_ms=20)
        scripted.answer("/api/v1/events", 401, {"error_code": "GD-A003"})
        return runtime

    def test_one_that_exits_does_not_end_it(
        self, scripted: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        exited = threading.Event()

        def leaves(error: GuardError, context: guard.ErrorContext) -> None:
            exited.set()
            raise SystemExit(3)

        self.failing(scripted, start)
        guard.on_error(leaves)
        guard.track_tool("search")
        assert exited.wait(WAIT_S)
        assert step() == "ran"

    def test_one_that_blocks_delays_no_gate(
        self, scripted: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        called, release = threading.Event(), threading.Event()

        def blocks(error: GuardError, context: guard.ErrorContext) -> None:
            called.set()
            release.wait(WAIT_S)

        self.failing(scripted, start)
        guard.on_error(blocks)
        guard.track_tool("search")
        assert called.wait(WAIT_S)
        assert step() == "ran"
        assert not release.is_set()
        release.set()

    def test_one_may_shut_guard_down(
        self, scripted: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        runtime = self.failing(scripted, start)
        guard.on_error(lambda error, context: guard.shutdown(flush=False))
        guard.track_tool("search")
        until(lambda: runtime.is_shut_down, WAIT_S)
        guard.shutdown()


@pytest.mark.asyncio
async def test_one_that_blocks_does_not_hold_up_other_tasks(start: Any, tenant: Any) -> None:
    await asyncio.to_thread(start)
    await asyncio.to_thread(tenant.admin.set_policy, "p", tools_block=["blocked"])
    called, release = threading.Event(), threading.Event()

    def blocks(error: GuardError, context: guard.ErrorContext) -> None:
        called.set()
        release.wait(WAIT_S)

    @guard.protect
    async def blocked() -> None: ...

    @guard.protect
    async def allowed() -> str:
        return "ran"

    guard.on_error(blocks)
    refused = asyncio.create_task(blocked())
    assert await asyncio.to_thread(called.wait, WAIT_S)
    assert await allowed() == "ran"
    assert not refused.done(), "the error propagates after its hooks"
    release.set()
    with pytest.raises(guard.GuardToolBlockedError):
        await refused


class TestWarnings:
    """A soft budget that is passed is said in the log once, to the hooks and in the decision."""

    @pytest.fixture
    def warned(self, tenant: Any) -> list[GatewayWarning]:
        tenant.admin.set_price("m", input_per_mtok=10**12, output_per_mtok=0)
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w", mode="soft")
        told: list[GatewayWarning] = []
        on_warning(told.append)
        return told

    def test_each_way_out(
        self, runtime: GuardRuntime, warned: list[GatewayWarning], caplog: Any
    ) -> None:
        with caplog.at_level(logging.WARNING, "guard"), guard.workflow("w"):
            step()
            guard.track_llm(1000, model="m")
            for _ in range(3):
                assert step() == "ran"
            decision = guard.track_llm(0)
        (text,) = decision["warnings"]
        assert "soft budget" in text
        until(lambda: warned, WAIT_S)
        assert [(each.text, each.workflow_id, each.tool_name) for each in warned] == [
            (text, "w", "step")
        ]
        said = [record.message for record in caplog.records if record.name == "guard"]
        assert said == [f"workflow w: {text}"]
        with guard.workflow("another"):
            assert guard.track_llm(0)["warnings"] == ()

    def test_of_an_open_chain_whose_next_call_is_allowed(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        tenant.admin.set_price("m", input_per_mtok=10**12, output_per_mtok=0)
        tenant.admin.set_budget(limit_cents=100, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"), guard.chain("c"):
            step()
            guard.track_llm(1000, model="m")  # all of the budget
            runtime.flush(WAIT_S)
            until(lambda: runtime.enforcement.control.budgets, WAIT_S)
            assert step() == "ran"
            decision = guard.track_llm(0)
            assert decision["decision"] == "allow"
            assert any("chain allowance" in text for text in decision["warnings"])
        with guard.workflow("w"):
            assert guard.track_llm(0)["decision"] == "block"


def test_after_shutdown_the_decision_says_so(runtime: GuardRuntime) -> None:
    with guard.workflow("w"):
        before = guard.track_llm(0)
        runtime.shutdown(WAIT_S)
        after = guard.track_llm(0)
    assert (before["decision"], before["buffered"]) == ("allow", True)
    assert (after["decision"], after["buffered"]) == ("block", False)
