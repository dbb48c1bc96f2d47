"""Each framework that calls tools, led to one call of ``delete_files`` without a vendor.

The models are the frameworks' own for tests, so that nothing but the framework's call of the tool
can be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import attrs

ARGUMENT: Final = "/tmp/x"

ran: list[str] = []
"""The arguments of the tool's calls."""


def delete_files(path: str) -> str:
    """Delete the files below a path.

    Args:
        path: where they are.
    """
    ran.append(path)
    return "gone"


async def delete_files_async(path: str) -> str:
    """Delete the files below a path."""
    return delete_files(path)


delete_files_async.__name__ = "delete_files"


@attrs.frozen
class Way:
    """A way in which a framework calls a tool.

    Attributes:
        package: what has to be installed.
        run: calls it; a coroutine function where the framework awaits.
    """

    package: str
    run: Callable[[], Any]

    @property
    def is_async(self) -> bool:
        """Whether the tool is awaited."""
        return asyncio.iscoroutinefunction(self.run)


WAYS: dict[str, Way] = {}


def way(package: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        WAYS[function.__name__] = Way(package, function)
        return function

    return add


# -- LangChain ------------------------------------------------------------------------------------


def _langchain(tool: Any = delete_files) -> Any:
    from langchain_core.tools import StructuredTool

    if asyncio.iscoroutinefunction(tool):
        return StructuredTool.from_function(coroutine=tool, name="delete_files")
    return StructuredTool.from_function(tool, name="delete_files")


@way("langchain_core")
def langchain_sync() -> None:
    _langchain().invoke({"path": ARGUMENT})


@way("langchain_core")
async def langchain_async() -> None:
    await _langchain(delete_files_async).ainvoke({"path": ARGUMENT})


@way("langchain_core")
async def langchain_in_a_thread() -> None:
    await _langchain().ainvoke({"path": ARGUMENT})


def _graph() -> tuple[Any, Any]:
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    builder: Any = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([_langchain()]))
    builder.add_edge(START, "tools")
    call: Any = {"id": "call_1", "name": "delete_files", "args": {"path": ARGUMENT}}
    return builder.compile(), {"messages": [AIMessage("", tool_calls=[call])]}


@way("langgraph")
def langgraph_sync() -> None:
    graph, ask = _graph()
    graph.invoke(ask)


@way("langgraph")
async def langgraph_async() -> None:
    graph, ask = _graph()
    await graph.ainvoke(ask)


# -- dspy -----------------------------------------------------------------------------------------


def _dspy() -> tuple[Any, Any]:
    import dspy
    from dspy.utils import DummyLM

    turns = [
        {"next_thought": "-", "next_tool_name": "delete_files",
         "next_tool_args": '{"path": "/tmp/x"}'},
        {"next_thought": "-", "next_tool_name": "finish", "next_tool_args": "{}"},
        {"reasoning": "-", "answer": "gone"},
    ]  # fmt: skip
    return dspy.ReAct("question -> answer", tools=[delete_files]), DummyLM(turns)


@way("dspy")
def dspy_sync() -> None:
    import dspy

    react, model = _dspy()
    with dspy.context(lm=model):
        react(question="Clean up.")


@way("dspy")
async def dspy_async() -> None:
    import dspy

    react, model = _dspy()
    with dspy.context(lm=model):
        await react.acall(question="Clean up.")


# -- smolagents -----------------------------------------------------------------------------------


def _smolagents_model(*texts: Any) -> Any:
    from smolagents import Model
    from smolagents.models import ChatMessage, MessageRole

    class Scripted(Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(model_id="scripted")
            self.turns = list(texts)

        def generate(self, *_: Any, **options: Any) -> Any:
            said = self.turns.pop(0)
            if isinstance(said, str):
                return ChatMessage(role=MessageRole.ASSISTANT, content=said)
            return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[said])

    return Scripted()


CODE: Final = 'said = delete_files("/tmp/x")\nprint(said)'


@way("smolagents")
def smolagents_code() -> None:
    from smolagents import CodeAgent, tool

    model = _smolagents_model(f"<code>\n{CODE}\n</code>", '<code>\nfinal_answer("gone")\n</code>')
    CodeAgent([tool(delete_files)], model, max_steps=3, verbosity_level=0).run("Clean up.")


@way("smolagents")
def smolagents_calls() -> None:
    from smolagents import ToolCallingAgent, tool
    from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

    def call(name: str, **arguments: str) -> Any:
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        return ChatMessageToolCall(function=function, id=f"call_{name}", type="function")

    model = _smolagents_model(
        call("delete_files", path=ARGUMENT), call("final_answer", answer="gone")
    )
    ToolCallingAgent([tool(delete_files)], model, max_steps=3, verbosity_level=0).run("Clean up.")


# -- CrewAI ---------------------------------------------------------------------------------------


def _crewai(function: Any = delete_files) -> Any:
    from crewai.tools import tool

    return tool("delete_files")(function)


@way("crewai")
def crewai_sync() -> None:
    _crewai().run(path=ARGUMENT)


@way("crewai")
async def crewai_async() -> None:
    await _crewai(delete_files_async).arun(path=ARGUMENT)


@way("crewai")
def crewai_structured_sync() -> None:
    _crewai().to_structured_tool().invoke({"path": ARGUMENT})


@way("crewai")
async def crewai_structured_async() -> None:
    await _crewai().to_structured_tool().ainvoke({"path": ARGUMENT})


# -- LlamaIndex -----------------------------------------------------------------------------------


def _llama_index() -> Any:
    from llama_index.core.tools import FunctionTool

    return FunctionTool.from_defaults(delete_files, async_fn=delete_files_async)


@way("llama_index.core")
def llama_index_sync() -> None:
    from llama_index.core.tools.calling import call_tool

    call_tool(_llama_index(), {"path": ARGUMENT})


@way("llama_index.core")
async def llama_index_async() -> None:
    from llama_index.core.tools.calling import acall_tool

    await acall_tool(_llama_index(), {"path": ARGUMENT})


# -- pydantic-ai ----------------------------------------------------------------------------------


def _pydantic_agent() -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def model(messages: list[Any], _: Any) -> Any:
        if len(messages) > 1:
            return ModelResponse([TextPart("gone")])
        return ModelResponse([ToolCallPart("delete_files", {"path": ARGUMENT})])

    agent: Any = Agent(FunctionModel(model))
    agent.tool_plain(delete_files)
    return agent


@way("pydantic_ai")
def pydantic_ai_sync() -> None:
    _pydantic_agent().run_sync("Clean up.")


@way("pydantic_ai")
async def pydantic_ai_async() -> None:
    await _pydantic_agent().run("Clean up.")


# -- AutoGen --------------------------------------------------------------------------------------


@way("autogen_agentchat")
async def autogen_async() -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core import FunctionCall
    from autogen_core.models import CreateResult, RequestUsage
    from autogen_ext.models.replay import ReplayChatCompletionClient

    call = FunctionCall(id="call_1", name="delete_files", arguments='{"path": "/tmp/x"}')
    turn = CreateResult(
        finish_reason="function_calls", content=[call], cached=False,
        usage=RequestUsage(prompt_tokens=1, completion_tokens=1),
    )  # fmt: skip
    about: Any = {"function_calling": True, "vision": False, "json_output": False,
                  "family": "unknown", "structured_output": False}  # fmt: skip
    client = ReplayChatCompletionClient([turn], model_info=about)
    await AssistantAgent("cleaner", client, tools=[delete_files]).run(task="Clean up.")


# -- Model Context Protocol -----------------------------------------------------------------------


@way("mcp")
async def mcp_async() -> None:
    await over_mcp()


async def over_mcp() -> None:
    """Have a session call the tool of a server in this process."""
    try:
        from mcp import Client
        from mcp.server.mcpserver import MCPServer
    except ImportError:  # before 2.0
        from mcp.server.fastmcp import FastMCP
        from mcp.shared.memory import create_connected_server_and_client_session as connected

        old = FastMCP("files")
        old.tool(name="delete_files")(delete_files)
        async with connected(old._mcp_server) as session:
            await session.call_tool("delete_files", {"path": ARGUMENT})
        return
    server = MCPServer("files")
    server.tool(name="delete_files")(delete_files)
    async with Client(server) as client:
        await client.session.call_tool("delete_files", {"path": ARGUMENT})
