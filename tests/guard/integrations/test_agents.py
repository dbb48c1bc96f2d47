"""The OpenAI Agents SDK with the real package, against a local model."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)

import guard
from guard.integrations.agents import GuardRunHooks, guard_tool_input
from tests.guard.integrations.conftest import ToolCaller
from tests.support.waiting import until_async

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.filterwarnings("ignore")]

ran: list[str] = []


def agent(client: openai.AsyncOpenAI, api: str, *, guarded_tool: bool) -> Agent[Any]:
    ran.clear()

    def delete_files() -> str:
        """Delete all files."""
        ran.append("delete_files")
        return "gone"

    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    guards = [guard_tool_input] if guarded_tool else None
    return Agent(
        name="cleaner",
        model=kind(model="gpt-5", openai_client=client),
        tools=[function_tool(delete_files, tool_input_guardrails=guards)],
    )


async def run(model: ToolCaller, api: str, way: str) -> None:
    hooks = GuardRunHooks() if way == "hooks" else None
    config = RunConfig(tracing_disabled=True)
    address = f"{model.url}/v1"
    async with openai.AsyncOpenAI(base_url=address, api_key="sk-test", max_retries=0) as client:
        cleaner = agent(client, api, guarded_tool=way == "guardrail")
        await Runner.run(cleaner, "Clean up.", hooks=hooks, run_config=config)


@pytest.mark.asyncio
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("way", ["hooks", "guardrail"])
async def test_an_allowed_tool_runs_and_usage_is_counted_once(
    model: ToolCaller, tenant: Any, runtime: guard.GuardRuntime, api: str, way: str
) -> None:
    with guard.workflow("support"):
        await run(model, api, way)
    runtime.flush()
    assert ran == ["delete_files"]
    events = tenant.admin.events(workflow_id="support")
    used = [e["data"]["input_tokens"] for e in events if e["type"] == "llm"]
    assert used == [said.input_tokens for said in model.said if said]
    assert len(used) == 2
    tools = [e["data"]["tool_name"] for e in events if e["type"] == "tool"]
    assert tools == (["delete_files"] if way == "hooks" else [])


@pytest.mark.asyncio
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("way", ["hooks", "guardrail"])
async def test_a_blocked_tool_does_not_run_and_stops_the_run(
    model: ToolCaller, tenant: Any, api: str, way: str
) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    with pytest.raises(guard.GuardToolBlockedError) as refused:
        async with guard.workflow("support"):
            await run(model, api, way)
    assert refused.value.tool_name == "delete_files"
    assert ran == []
    assert len(model.said) == 1


@pytest.mark.asyncio
async def test_a_killed_workflow_asks_no_model(
    model: ToolCaller, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    tenant.admin.kill("support")
    await until_async(lambda: runtime.enforcement.halts)
    with pytest.raises(guard.WorkflowKilledInterrupt):
        async with guard.workflow("support"):
            await run(model, "chat", "hooks")
    assert model.said == []
