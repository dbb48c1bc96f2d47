"""Spec part 1: what the service does."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import guard
from guard.runtime.runtime import GuardRuntime
from guard.version import DISTRIBUTION
from tests.support.waiting import until

COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o-mini",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "hello"},
        }
    ],
    "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
}


def _with_httpx(url: str) -> str:
    reply = httpx.post(f"{url}/v1/chat/completions", json={"model": "gpt-4o-mini", "messages": []})
    return str(reply.json()["choices"][0]["message"]["content"])


def _with_vendor_client(url: str) -> str:
    import openai

    with openai.OpenAI(api_key="none", base_url=f"{url}/v1") as client:
        reply = client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}]
        )
    return str(reply.choices[0].message.content)


class TestPackage:
    def test_is_a_python_package_named_guard_with_the_three_extras(self) -> None:
        """Part 1: installed as a package named ``guard``; extras langgraph, agents, all.

        On an index the distribution has another name (docs/decisions/0046).
        """
        metadata = importlib.metadata.metadata(DISTRIBUTION)
        assert guard.__name__ == "guard"
        assert {"langgraph", "agents", "all"} <= set(metadata.get_all("Provides-Extra") or ())

    def test_the_framework_extras_bring_the_frameworks_and_all_brings_both(self) -> None:
        """Part 1: ``guard[langgraph]``, ``guard[agents]`` (agents framework), ``guard[all]``."""
        required = importlib.metadata.requires(DISTRIBUTION) or []

        def brought(extra: str) -> str:
            return " ".join(r for r in required if f'"{extra}"' in r.replace("'", '"'))

        assert "langgraph" in brought("langgraph")
        assert "openai-agents" in brought("agents")
        assert "langgraph" in brought("all")
        assert "agents" in brought("all")


class TestAutoInstrumentation:
    @pytest.mark.parametrize("ask", [_with_httpx, _with_vendor_client])
    def test_is_on_by_default_and_reports_the_usage_in_the_response(
        self, tenant: Any, scripted: Any, ask: Callable[[str], str]
    ) -> None:
        """Part 1: after ``init()``, usage is read from LLM response bodies and reported."""
        scripted.answer("/v1/chat/completions", body=COMPLETION)
        runtime = guard.init(tenant.key, tenant.url)
        with guard.workflow("auto"):
            assert ask(scripted.url) == "hello"
        runtime.flush()
        (event,) = tenant.llm_events("auto")
        assert event["data"]["model"] == "gpt-4o-mini"
        assert event["data"]["input_tokens"] == 11
        assert event["data"]["output_tokens"] == 5

    def test_can_be_switched_off(
        self, tenant: Any, scripted: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        """Part 1: on "by default" implies that it can be off."""
        scripted.answer("/v1/chat/completions", body=COMPLETION)
        runtime = start(auto_instrument=False)
        with guard.workflow("off"):
            assert _with_httpx(scripted.url) == "hello"
        runtime.flush()
        assert tenant.llm_events("off") == []


@pytest.mark.usefixtures("runtime")
class TestGateBeforeTheCall:
    def test_the_check_comes_before_the_call_and_a_block_is_a_structured_exception(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Part 1: a gate check before the call, then structured exceptions on block."""
        ran: list[str] = []

        @guard.protect
        def tool() -> None:
            ran.append("tool")

        tool()
        tenant.admin.set_policy("p", tools_block=["tool"])
        # A lease may cover calls until the rule has come over the socket.
        until(lambda: runtime.enforcement.control.tools)
        with pytest.raises(guard.GuardToolBlockedError) as refused:
            tool()
        assert ran == ["tool"]
        assert refused.value.error_code == "GD-T001"
        assert refused.value.tool_name == "tool"
        assert refused.value.status_code == 403

    def test_decorators_and_context_managers_wrap_the_users_functions(self, tenant: Any) -> None:
        """Part 1: decorators and context managers wrap user functions."""

        @guard.workflow("outer")
        @guard.agent("a")
        @guard.protect
        def tool() -> str:
            with guard.span("inside"):
                return "done"

        assert tool() == "done"
        guard.init(tenant.key, tenant.url).flush()
        names = {event["agent"] for event in tenant.admin.events(workflow_id="outer")}
        assert "a" in names


class TestUsageAndBudget:
    def test_a_call_that_is_not_reported_credits_nothing(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Part 1: without reported usage, the budget counter is not credited."""
        tenant.admin.set_budget(limit_cents=100, scope_kind="workflow", scope_id="w")

        @guard.protect
        def call() -> None: ...

        with guard.workflow("w"):
            call()
            call()
        runtime.flush()
        assert tenant.spent_nanousd("w") == 0

    def test_the_gate_decides_on_what_was_reported(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Part 1: the next gate call rejects on the spend that it knows of."""
        tenant.admin.set_price("m", input_per_mtok=10**12, output_per_mtok=0)
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")

        @guard.protect
        def call() -> str:
            return "ran"

        with guard.workflow("w"):
            assert call() == "ran"  # a real call that nobody reported: still allowed
            assert call() == "ran"
            guard.track_llm(100, model="m")
            with pytest.raises(guard.GuardBudgetError):
                call()

    def test_each_report_is_charged_once(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 1: report once per real LLM call; each report is a charge."""
        tenant.admin.set_price("m", input_per_mtok=1_000_000, output_per_mtok=0)
        with guard.workflow("w"):
            guard.track_llm(10, model="m")
            guard.track_llm(10, model="m")
        runtime.flush()
        until(lambda: tenant.spent_nanousd("w"))
        assert tenant.spent_nanousd("w") == 20
        assert len(tenant.llm_events("w")) == 2
