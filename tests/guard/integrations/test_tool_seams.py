"""The frameworks' own calls of their tools: every framework, every decision.

``nox -s frameworks`` installs them all; what is not installed is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

import guard
from tests.support.operators import Operator
from tests.support.tool_frameworks import ARGUMENT, WAYS, ran
from tests.support.waiting import until

pytestmark = [pytest.mark.filterwarnings("ignore")]

OUTCOMES = {
    "allowed": None,
    "blocked": guard.GuardToolBlockedError,
    "approved": None,
    "refused by a person": guard.breaker.exceptions.GuardBlockedException,
    "killed": guard.WorkflowKilledInterrupt,
    "paused": guard.WorkflowPausedException,
    "budget exhausted": guard.GuardBudgetError,
}
cells: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _counted() -> Iterator[None]:
    yield
    print(f"\n{len(cells)} calls of tools, {len(set(cells))} ways, as their gateway decided")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CREWAI_DISABLE_TELEMETRY", "OTEL_SDK_DISABLED"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("CREWAI_TRACING_ENABLED", "false")
    ran.clear()


def arrange(outcome: str, tenant: Any, runtime: guard.GuardRuntime) -> None:
    """Have the gateway decide so, inside of a workflow that has begun."""
    if outcome == "blocked":
        tenant.admin.set_policy("p", tools_block=["delete_*"])
    elif outcome in ("approved", "refused by a person"):
        tenant.admin.set_policy("p", approval_tools=["delete_files"])
    elif outcome in ("killed", "paused"):
        getattr(tenant.admin, {"killed": "kill", "paused": "pause"}[outcome])("support")
        until(lambda: runtime.enforcement.halts)
        return
    elif outcome == "budget exhausted":
        tenant.admin.set_budget(0.001, scope_kind="workflow", scope_id="support")
        guard.track_llm(1_000_000, 1_000_000, model="gpt-5")
        runtime.flush(10)
        return
    else:
        tenant.admin.set_policy("p", tools_block=["drop_*"])
    until(lambda: runtime.enforcement.control.tools)


def run(name: str) -> None:
    way = WAYS[name]
    asyncio.run(way.run()) if way.is_async else way.run()


def require(name: str) -> None:
    package = WAYS[name].package
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("name", WAYS)
def test_a_tool_runs_as_was_decided(
    name: str, outcome: str, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    require(name)
    error = OUTCOMES[outcome]
    with Operator(tenant, approves=outcome == "approved") as operator:
        expected = contextlib.nullcontext() if error is None else pytest.raises(error)
        with expected, guard.workflow("support"):
            arrange(outcome, tenant, runtime)
            run(name)
    assert ran == ([ARGUMENT] if error is None else [])
    assert len(operator.asked) == (1 if outcome in ("approved", "refused by a person") else 0)
    runtime.flush(10)
    events = tenant.admin.events(workflow_id="support")
    tools = [e["data"]["tool_name"] for e in events if e["type"] == "tool"]
    calls = [e for e in events if e["type"] == "span" and e["data"].get("final")]
    assert tools == ["delete_files"] * len(ran)
    assert len(calls) == len(ran)
    cells.append(name)
