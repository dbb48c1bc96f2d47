"""LangGraph and LangChain with the real packages, against a local model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import guard
from guard.integrations import langgraph
from tests.guard.integrations.conftest import ToolCaller
from tests.support.waiting import until

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.filterwarnings("ignore")]

ran: list[str] = []


def delete_files() -> str:
    """Delete all files."""
    ran.append("delete_files")
    return "gone"


async def delete_files_async() -> str:
    """Delete all files."""
    return delete_files()


@pytest.fixture(autouse=True)
def _everywhere() -> Iterator[None]:
    ran.clear()
    langgraph.install()
    yield
    langgraph.uninstall()


def graph(model: ToolCaller, **tool_options: Any) -> Any:
    options: Any = {"base_url": f"{model.url}/v1", "api_key": "sk-test", "max_retries": 0}
    # The default client is shared by the process, and so by the loops of different tests.
    llm = ChatOpenAI(model="gpt-5", http_async_client=httpx2.AsyncClient(), **options)
    tool = StructuredTool.from_function(
        delete_files, coroutine=delete_files_async, name="delete_files"
    )
    bound = llm.bind_tools([tool])

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    async def think_async(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    from langchain_core.runnables import RunnableLambda

    builder = StateGraph(MessagesState)
    builder.add_node("think", RunnableLambda(think, think_async))
    # `handle_tool_errors` turns every Exception into text: what stops the run has to get past it.
    builder.add_node("tools", ToolNode([tool], handle_tool_errors=True, **tool_options))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_edge("tools", "think")
    return builder.compile(checkpointer=InMemorySaver())


ASK: Any = {"messages": [HumanMessage("Clean up.")]}
CONFIG: Any = {"configurable": {"thread_id": "thread-1"}}
WRAPPED = {
    "wrap_tool_call": langgraph.wrap_tool_call, "awrap_tool_call": langgraph.awrap_tool_call,
}  # fmt: skip
WAYS = ("invoke", "stream", "ainvoke", "astream", "invoke in a loop")


def run(compiled: Any, way: str) -> None:
    async def main() -> None:
        if way == "ainvoke":
            await compiled.ainvoke(ASK, CONFIG)
        elif way == "astream":
            async for _ in compiled.astream(ASK, CONFIG):
                pass
        else:
            compiled.invoke(ASK, CONFIG)

    if way == "invoke":
        compiled.invoke(ASK, CONFIG)
    elif way == "stream":
        for _ in compiled.stream(ASK, CONFIG):
            pass
    else:
        asyncio.run(main())


@pytest.mark.parametrize("options", [{}, WRAPPED], ids=["callbacks", "wrapped"])
@pytest.mark.parametrize("way", WAYS)
def test_an_allowed_tool_runs_and_usage_is_counted_once(
    model: ToolCaller, tenant: Any, runtime: guard.GuardRuntime, way: str, options: dict[str, Any]
) -> None:
    with guard.workflow("support"):
        run(graph(model, **options), way)
    runtime.flush()
    assert ran == ["delete_files"]
    events = tenant.admin.events(workflow_id="support")
    used = [e["data"]["input_tokens"] for e in events if e["type"] == "llm"]
    assert used == [said.input_tokens for said in model.said if said]
    tools = [e["data"]["tool_name"] for e in events if e["type"] == "tool"]
    assert tools == ["delete_files"]
    spans = {e["data"]["name"] for e in events if e["type"] == "span"}
    assert {"think", "tools"} <= spans
    assert {e.get("chain_id") for e in events if e["type"] == "llm"} == {"thread-1"}


@pytest.mark.parametrize("options", [{}, WRAPPED], ids=["callbacks", "wrapped"])
@pytest.mark.parametrize("way", WAYS)
def test_a_blocked_tool_does_not_run_and_stops_the_run(
    model: ToolCaller, tenant: Any, way: str, options: dict[str, Any]
) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    with pytest.raises(guard.GuardToolBlockedError) as refused, guard.workflow("support"):
        run(graph(model, **options), way)
    assert refused.value.tool_name == "delete_files"
    assert ran == []
    assert len(model.said) == 1  # the model was not asked again


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_a_killed_workflow_asks_no_model(
    model: ToolCaller, tenant: Any, runtime: guard.GuardRuntime, way: str
) -> None:
    tenant.admin.kill("support")
    until(lambda: runtime.enforcement.halts)
    with pytest.raises(guard.WorkflowKilledInterrupt), guard.workflow("support"):
        run(graph(model), way)
    assert model.said == []


def test_outside_of_a_workflow_the_refusal_is_the_public_exception(
    model: ToolCaller, tenant: Any
) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    langgraph.uninstall()
    tool = StructuredTool.from_function(delete_files)
    handler = langgraph.GuardCallbackHandler()
    with pytest.raises(guard.GuardToolBlockedError):
        tool.invoke({}, {"callbacks": [handler]})
    assert ran == []


def test_install_twice_and_uninstall(tenant: Any) -> None:
    langgraph.install()
    tenant.admin.set_policy("p", tools_block=["delete_*"])
    tool = StructuredTool.from_function(delete_files)
    langgraph.uninstall()
    langgraph.uninstall()
    guard.uninstrument()  # the seam of LangChain's tools
    assert tool.invoke({}) == "gone"


@pytest.mark.asyncio
@pytest.mark.parametrize("directive", ["pause", "kill"])
async def test_a_refusal_that_agenerate_gathers_is_raised_at_the_edge(
    model: ToolCaller, runtime: guard.GuardRuntime, tenant: Any, directive: str
) -> None:
    """LangChain gathers the carrier as a result and fails with an AttributeError on it."""
    langgraph.uninstall()
    llm = ChatOpenAI(
        model="gpt-5", base_url=f"{model.url}/v1", api_key="sk-test", max_retries=0,
        http_async_client=httpx2.AsyncClient(),
    )  # fmt: skip
    expected = {
        "pause": guard.WorkflowPausedException,  # type: ignore[attr-defined]
        "kill": guard.WorkflowKilledInterrupt,
    }[directive]
    await asyncio.to_thread(getattr(tenant.admin, directive), "w")
    until(lambda: runtime.enforcement.halts)
    with pytest.raises(expected):
        async with guard.workflow("w"):
            await llm.agenerate([[HumanMessage("one")], [HumanMessage("two")]])
