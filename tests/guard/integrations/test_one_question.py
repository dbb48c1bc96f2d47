"""One tool call is one question to a person, whatever else watches the call."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import httpx2
import openai
import pytest
from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from agents import AgentHooks as AgentHooksBase
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from mcp import Client
from mcp.server.mcpserver import MCPServer

import guard
from guard.breaker.exceptions import GuardBlockedException
from guard.integrations import langgraph, mcp
from guard.integrations.agents import GuardRunHooks, guard_tool_input
from tests.support import garbage
from tests.support.operators import Operator
from tests.support.tool_asker import ToolAsker
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.filterwarnings("ignore")]

ran: list[str] = []


def plain(path: str) -> str:
    """Delete the files below a path."""
    ran.append(path)
    return "gone"


plain.__name__ = "delete_files"


def protected() -> Callable[[str], str]:
    return guard.protect(plain)


def sensitive() -> Callable[[str], str]:
    return guard.sensitive(guard.protect(plain))


def protected_async() -> Any:
    @guard.protect
    async def delete_files(path: str) -> str:
        """Delete the files below a path."""
        return plain(path)

    return delete_files


@pytest.fixture(scope="module")
def asker() -> Iterator[ToolAsker]:
    server = ToolAsker()
    yield server
    server.close()


@pytest.fixture
def model(asker: ToolAsker) -> Iterator[ToolAsker]:
    ran.clear()
    asker.reset()
    asker.tools = ("delete_files",)
    yield asker
    garbage.collect()


@attrs.frozen
class Watched:
    """One way to have a tool watched, often by more than one at once."""

    name: str
    function: Callable[[], Any] = lambda: plain
    installed: bool = False
    handlers: int = 0
    wrapped: bool = False
    hooks: bool = False
    agent_hooks: bool = False
    guardrail: bool = False
    over_mcp: bool = False


GRAPHS = [
    Watched("callbacks", installed=True),
    Watched("callbacks twice", installed=True, handlers=1),
    Watched("two handlers", handlers=2),
    Watched("callbacks and wrapper", installed=True, wrapped=True),
    Watched("callbacks and protect", protected, installed=True),
    Watched("callbacks and protected coroutine", protected_async, installed=True),
    Watched("wrapper and protect", protected, wrapped=True),
    Watched("wrapper and sensitive", sensitive, wrapped=True),
    Watched("all", sensitive, installed=True, handlers=1, wrapped=True),
    Watched("protect", protected),
    Watched("callbacks and MCP", installed=True, over_mcp=True),
    Watched("wrapper and MCP", wrapped=True, over_mcp=True),
]
AGENTS = [
    Watched("hooks", hooks=True),
    Watched("guardrail", guardrail=True),
    Watched("hooks and guardrail", hooks=True, guardrail=True),
    Watched("hooks of run and agent", hooks=True, agent_hooks=True),
    Watched("hooks and protect", protected, hooks=True),
    Watched("hooks and protected coroutine", protected_async, hooks=True),
    Watched("guardrail and sensitive", sensitive, guardrail=True),
    Watched("all", sensitive, hooks=True, agent_hooks=True, guardrail=True),
    Watched("hooks and MCP", hooks=True, over_mcp=True),
]


def tool_of(watched: Watched) -> Any:
    if watched.over_mcp:
        server = MCPServer("files")
        server.tool(name="delete_files")(plain)

        async def delete_files(path: str) -> str:
            """Delete the files below a path."""
            async with Client(server) as client:
                await client.session.call_tool("delete_files", {"path": path})
            return "gone"

        return delete_files
    return watched.function()


def graph(url: str, watched: Watched) -> Any:
    options: Any = {"base_url": f"{url}/v1", "api_key": "sk-test", "max_retries": 0}
    llm = ChatOpenAI(model="gpt-5", http_async_client=httpx2.AsyncClient(), **options)
    function = tool_of(watched)
    is_async = asyncio.iscoroutinefunction(function)
    tool = StructuredTool.from_function(
        None if is_async else function, coroutine=function if is_async else None,
        name="delete_files", description="Delete files.",
    )  # fmt: skip
    bound = llm.bind_tools([tool])

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    wrappers: Any = {"wrap_tool_call": langgraph.wrap_tool_call,
                     "awrap_tool_call": langgraph.awrap_tool_call}  # fmt: skip
    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode([tool], **(wrappers if watched.wrapped else {})))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_edge("tools", "think")
    return builder.compile()


def run_graph(url: str, watched: Watched, *, is_async: bool) -> None:
    callbacks = [langgraph.GuardCallbackHandler() for _ in range(watched.handlers)]
    ask: Any = {"messages": [HumanMessage("Clean up.")]}
    config: Any = {"callbacks": callbacks}
    if watched.installed:
        langgraph.install()
    try:
        with guard.workflow("support"):
            compiled = graph(url, watched)
            if is_async:
                asyncio.run(compiled.ainvoke(ask, config))
            else:
                compiled.invoke(ask, config)
    finally:
        langgraph.uninstall()


class AgentHooks(AgentHooksBase[Any]):
    """The run's hooks, for an agent."""

    def __init__(self) -> None:
        self._hooks = GuardRunHooks()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        await self._hooks.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        await self._hooks.on_tool_end(context, agent, tool, result)


async def run_agent(url: str, watched: Watched) -> None:
    guardrails: Any = [guard_tool_input] if watched.guardrail else None
    tool: FunctionTool = function_tool(
        tool_of(watched), name_override="delete_files", tool_input_guardrails=guardrails
    )
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test") as client:
        agent: Agent[Any] = Agent(
            name="cleaner",
            model=OpenAIChatCompletionsModel(model="gpt-5", openai_client=client),
            tools=[tool],
            hooks=AgentHooks() if watched.agent_hooks else None,
        )
        config = RunConfig(tracing_disabled=True)
        hooks = GuardRunHooks() if watched.hooks else None
        async with guard.workflow("support"), asyncio.timeout(WAIT_S):
            await Runner.run(agent, "Clean up.", hooks=hooks, run_config=config)


def name_of(watched: Watched) -> str:
    return watched.name


def check(tenant: Any, runtime: guard.GuardRuntime, calls: int, work: Callable[[], None]) -> None:
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)
    with Operator(tenant) as operator:
        work()
    assert len(ran) == calls
    assert len(operator.asked) == calls
    assert {each["status"] for each in tenant.admin.approvals(None)} == {"used"}
    runtime.flush()
    until(lambda: not sum(each["reserved"] for each in tenant.admin.ledger()))


LONG = pytest.mark.long
SEAM = pytest.mark.parametrize(
    "seam", [pytest.param(True, id="seam"), pytest.param(False, id="no seam", marks=LONG)]
)
CALLS = pytest.mark.parametrize(
    "calls", [pytest.param(1, id="one call", marks=LONG), pytest.param(2, id="two at once")]
)


@CALLS
@SEAM
@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("watched", GRAPHS, ids=name_of)
def test_langgraph(
    model: ToolAsker, tenant: Any, start: Any, watched: Watched, is_async: bool, seam: bool,
    calls: int,
) -> None:  # fmt: skip
    if not is_async and asyncio.iscoroutinefunction(tool_of(watched)):
        pytest.skip("the tool has no synchronous form")
    model.tools = ("delete_files",) * calls
    runtime = start(auto_instrument=seam)
    if watched.over_mcp:
        mcp.install()
    try:
        work = functools.partial(run_graph, model.url, watched, is_async=is_async)
        check(tenant, runtime, calls, work)
    finally:
        mcp.uninstall()


@CALLS
@SEAM
@pytest.mark.parametrize("watched", AGENTS, ids=name_of)
def test_openai_agents(
    model: ToolAsker, tenant: Any, start: Any, watched: Watched, seam: bool, calls: int
) -> None:
    model.tools = ("delete_files",) * calls
    runtime = start(auto_instrument=seam)
    if watched.over_mcp:
        mcp.install()
    try:
        check(tenant, runtime, calls, lambda: asyncio.run(run_agent(model.url, watched)))
    finally:
        mcp.uninstall()


# -- one approval admits one call ------------------------------------------------------------------


@pytest.fixture
def watching(tenant: Any, runtime: guard.GuardRuntime) -> Iterator[Operator]:
    """An operator who approves what is asked."""
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)
    ran.clear()
    with Operator(tenant) as operator:
        yield operator


CALL: Any = {"id": "call_1", "name": "delete_files", "args": {"path": "a"}, "type": "tool_call"}


@attrs.frozen
class Request:
    """What ``ToolNode`` gives to a wrapper."""

    tool_call: dict[str, Any] = CALL


def test_what_runs_twice_in_one_wrapper_is_asked_about_twice(watching: Operator) -> None:
    function = protected()

    def twice(_: Any) -> None:
        function("a")
        function("b")

    with guard.workflow("support"):
        langgraph.wrap_tool_call(Request(), twice)
    assert (len(ran), len(watching.asked)) == (2, 2)


def test_a_call_after_the_tool_has_ended_is_asked_about(watching: Operator) -> None:
    tool = StructuredTool.from_function(plain, name="delete_files")
    callbacks: Any = {"callbacks": [langgraph.GuardCallbackHandler()]}
    with guard.workflow("support"):
        tool.invoke(CALL, callbacks)
        assert len(watching.asked) == 1
        protected()("b")
        tool.invoke(CALL, callbacks)  # the model's id again: it is another run of the tool
    assert (len(ran), len(watching.asked)) == (3, 3)


def test_a_tool_that_failed_has_used_its_approval(watching: Operator) -> None:
    def failing(path: str) -> str:
        raise ValueError(path)

    tool = StructuredTool.from_function(failing, name="delete_files", description="Deletes.")
    callbacks: Any = {"callbacks": [langgraph.GuardCallbackHandler()]}
    with guard.workflow("support"):
        with pytest.raises(ValueError, match="a"):
            tool.invoke(CALL, callbacks)
        protected()("b")
    assert (len(ran), len(watching.asked)) == (1, 2)


def test_outside_of_a_workflow_the_context_tells_the_call(watching: Operator) -> None:
    tool = StructuredTool.from_function(protected(), name="delete_files", description="Deletes.")
    tool.invoke(CALL, {"callbacks": [langgraph.GuardCallbackHandler()]})
    assert (len(ran), len(watching.asked)) == (1, 1)


def test_the_one_that_ends_first_takes_no_approval_from_the_other(
    tenant: Any, watching: Operator
) -> None:
    """Two calls of one tool whose hooks keep no context: their functions take any approval."""
    first_may_run = asyncio.Event()

    async def call(number: int, hooks: GuardRunHooks) -> None:
        context: Any = attrs.make_class("Context", ["tool_call_id"])(f"call_{number}")
        tool: Any = attrs.make_class("Tool", ["name"])("delete_files")
        async with asyncio.TaskGroup() as group:
            group.create_task(hooks.on_tool_start(context, None, tool))
        if number == 1:
            await first_may_run.wait()
        await protected_async()(str(number))
        await hooks.on_tool_end(context, None, tool, "gone")
        first_may_run.set()

    async def main() -> None:
        hooks = GuardRunHooks()
        async with guard.workflow("support"), asyncio.TaskGroup() as group:
            for number in (1, 2):
                group.create_task(call(number, hooks))

    asyncio.run(main())
    assert (ran, len(watching.asked)) == (["2", "1"], 2)


def test_a_refusal_is_shared(model: ToolAsker, tenant: Any, start: Any) -> None:
    runtime = start(auto_instrument=False)
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)
    watched = Watched("", protected, hooks=True, agent_hooks=True, guardrail=True)
    with (
        Operator(tenant, approves=False) as operator,
        pytest.raises(GuardBlockedException, match="operator refused"),
    ):
        asyncio.run(run_agent(model.url, watched))
    assert (ran, len(operator.asked)) == ([], 1)
