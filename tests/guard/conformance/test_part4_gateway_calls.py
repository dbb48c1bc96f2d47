"""Spec part 4: the calls that the SDK makes to the gateway; part 5: how they are authenticated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard import GuardRuntime
from guard.breaker.exceptions import GuardBudgetError, GuardToolBlockedError
from tests.support.waiting import until


@guard.protect
def step() -> str:
    return "ran"


class TestCapabilities:
    def test_probed_on_the_first_init(self, scripted: Any) -> None:
        """Part 4 and 9: GET /api/v1/capabilities on the first ``init`` call, and only then."""
        guard.init("gdk_key", scripted.url)
        guard.init("gdk_key", scripted.url)
        probes = scripted.calls("/api/v1/capabilities")
        assert [probe.method for probe in probes] == ["GET"]

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_validates_that_the_backend_speaks_the_v3_contract(
        self, scripted: Any, protocol: int
    ) -> None:
        """Part 4 and 9: probed to validate the v3 contract."""
        scripted.answer(
            "/api/v1/capabilities",
            body={"protocol": protocol, "min_sdk_version": "0.1.0", "server": "x"},
        )
        with pytest.raises(guard.GuardError) as refused:
            guard.init("gdk_key", scripted.url)
        assert refused.value.error_code == "GD-P001"


class TestGate:
    def test_the_check_is_a_post_with_the_model_and_the_tool_list(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 4: gate check receiving the real model and tool list from the call context."""
        with guard.workflow("w"):
            guard.set_call_context("gpt-4o", ["search"])
            assert step() == "ran"
        (asked,) = scripted.calls("/gate")
        assert asked.method == "POST"
        assert (asked.json["model"], asked.json["tools"]) == ("gpt-4o", ["search"])
        assert asked.json["tool_name"] == "step"
        assert asked.json["workflow_id"] == "w"

    @pytest.mark.usefixtures("runtime")
    def test_carries_budget_enforcement(self, tenant: Any) -> None:
        """Part 4: also carries budget enforcement."""
        tenant.admin.set_budget(limit_cents=0, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"), pytest.raises(GuardBudgetError):
            step()

    @pytest.mark.usefixtures("runtime")
    def test_carries_tool_block_enforcement_over_the_call_context(self, tenant: Any) -> None:
        """Part 4: also carries tool-block enforcement, over the tools of the call context."""
        tenant.admin.set_policy("p", tools_block=["sh*"])
        with guard.workflow("w"):
            assert step() == "ran"
            guard.set_call_context(tools=["search", "shell"])
            with pytest.raises(GuardToolBlockedError) as refused:
                step()
        assert refused.value.tool_name == "shell"


class TestKeyHeader:
    def test_every_call_carries_the_key(
        self, scripted: Any, scripted_runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Part 5.2: the key is sent to the gateway in the X-API-Key header."""
        step()
        guard.track_tool("search")
        scripted_runtime.flush()
        until(lambda: scripted.calls("/api/v1/control"))
        paths = {asked.path for asked in scripted.asked}
        assert {"/api/v1/capabilities", "/gate", "/api/v1/events", "/api/v1/control"} <= paths
        for asked in scripted.asked:
            assert asked.headers["x-api-key"] == tenant.key
            assert asked.headers["x-guard-protocol"] == "3"
            assert asked.headers["user-agent"].startswith("guard-python/")
            if asked.method == "POST":
                assert asked.headers["idempotency-key"]

    def test_a_retry_carries_the_same_idempotency_key(
        self, scripted: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        """Protocol, every request: the same Idempotency-Key on every retry of the same thing."""
        start(api_url=scripted.url, transport_mode="http", timeout_ms=10_000)
        scripted.answer("/gate", 500)
        with pytest.raises(guard.GuardBackendError):
            step()
        keys = [asked.headers["idempotency-key"] for asked in scripted.calls("/gate")]
        assert len(keys) > 1
        assert len(set(keys)) == 1
