"""The frameworks' own calls of their tools: every framework, every decision.

``nox -s frameworks`` installs them all; what is not installed is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import guard
from guard.instrumentation import patching
from tests.support.operators import Operator
from tests.support.tool_frameworks import ARGUMENT, WAYS, delete_files, over_mcp, ran
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
        runtime.flush()
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


@pytest.mark.generator("frameworks' calls of tools, by way and decision")
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
    runtime.flush()
    events = tenant.admin.events(workflow_id="support")
    tools = [e["data"]["tool_name"] for e in events if e["type"] == "tool"]
    calls = [e for e in events if e["type"] == "span" and e["data"].get("final")]
    assert tools == ["delete_files"] * len(ran)
    assert len(calls) == len(ran)
    assert runtime.status().unhooked_tools == ()


# -- once, whatever else sees the call -------------------------------------------------------------


def seen(tenant: Any, runtime: guard.GuardRuntime) -> tuple[list[str], list[str]]:
    """Return the tools and the calls that were reported."""
    runtime.flush()
    events = tenant.admin.events(workflow_id="support")
    calls = [e["data"]["name"] for e in events if e["type"] == "span" and e["data"].get("final")]
    return [e["data"]["tool_name"] for e in events if e["type"] == "tool"], calls


def test_a_tool_over_mcp_in_another_framework_is_one_call(
    tenant: Any, runtime: guard.GuardRuntime
) -> None:
    from langchain_core.tools import StructuredTool

    async def delete_files(path: str) -> None:
        """Delete the files below a path."""
        await over_mcp()

    require("mcp_async")
    tool = StructuredTool.from_function(coroutine=delete_files, name="delete_files")
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)

    async def twice() -> None:
        for _ in range(2):
            await tool.ainvoke({"path": ARGUMENT})

    with Operator(tenant) as operator, guard.workflow("support"):
        asyncio.run(twice())
    assert (len(ran), len(operator.asked)) == (2, 2)
    assert seen(tenant, runtime) == (["delete_files"] * 2, ["tools.delete_files"] * 2)


def test_a_tool_inside_another_is_a_call_of_its_own(
    tenant: Any, runtime: guard.GuardRuntime
) -> None:
    from langchain_core.tools import StructuredTool

    inner = StructuredTool.from_function(delete_files, name="delete_files")

    def clean_up(path: str) -> None:
        """Clean up."""
        inner.invoke({"path": path})

    outer = StructuredTool.from_function(clean_up, name="clean_up")
    again = StructuredTool.from_function(clean_up, name="delete_files")
    with guard.workflow("support"):
        outer.invoke({"path": ARGUMENT})
    assert sorted(seen(tenant, runtime)[0]) == ["clean_up", "delete_files"]
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)
    with Operator(tenant) as operator, guard.workflow("support"):
        again.invoke({"path": ARGUMENT})  # one of the name, and another one of it inside
    assert len(operator.asked) == 2


# -- the seams themselves --------------------------------------------------------------------------


def test_a_method_that_others_set_back_is_hooked_again(
    tenant: Any, runtime: guard.GuardRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_core.tools import BaseTool, StructuredTool

    tool = StructuredTool.from_function(delete_files, name="delete_files")
    guard.uninstrument()
    saved = BaseTool.run
    guard.instrument()
    monkeypatch.setattr(BaseTool, "run", saved)  # what a test tool restores
    runtime.instrumentation.rehook()
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    with pytest.raises(guard.GuardToolBlockedError), guard.workflow("support"):
        tool.invoke({"path": ARGUMENT})
    assert ran == []
    assert runtime.status().restored_hooks == ("langchain_core.tools.base.BaseTool.run",)
    monkeypatch.undo()
    guard.uninstrument()
    assert BaseTool.run is saved


def test_without_guard_a_tool_is_left_alone(runtime: guard.GuardRuntime) -> None:
    from langchain_core.tools import StructuredTool

    tool = StructuredTool.from_function(delete_files, name="delete_files")
    guard.uninstrument()
    assert tool.invoke({"path": ARGUMENT}) == "gone"


def test_another_version_is_named(
    runtime: guard.GuardRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One whose class has gone, and one whose module has."""
    for package, *files in (("autogen_core", "tools/_base.py"), ("crewai", "other.py")):
        if package in sys.modules or importlib.util.find_spec(package):
            pytest.skip(f"{package} is installed")
        for file in files:
            path = tmp_path / package / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("class Renamed: pass")
            (path.parent / "__init__.py").touch()
        (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    patching._exists.cache_clear()
    assert runtime.status().unhooked_tools == ()
    importlib.import_module("autogen_core.tools._base")
    importlib.import_module("crewai")
    try:
        status = runtime.status()
        assert status.unhooked_tools == ("crewai", "autogen_core")
        assert status.unhooked_clients == ()
    finally:
        for name in [n for n in sys.modules if n.startswith(("autogen_core", "crewai"))]:
            del sys.modules[name]  # `monkeypatch` would put it back
        patching._seams.pop("autogen_core.tools._base")
        patching._exists.cache_clear()
