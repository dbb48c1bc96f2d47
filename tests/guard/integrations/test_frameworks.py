"""Frameworks without an adapter: pydantic-ai, CrewAI, LlamaIndex (``nox -s frameworks``)."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import guard
from tests.support.tool_answers import ARGUMENT
from tests.support.tool_asker import ToolAsker
from tests.support.waiting import until_async

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.filterwarnings("ignore")]

ran: list[str] = []
PROMPT = "Clean up."


@pytest.fixture(scope="module")
def asker() -> Iterator[ToolAsker]:
    server = ToolAsker()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def model(asker: ToolAsker, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToolAsker]:
    """A model that wants to call ``delete_files``."""
    for name in ("CREWAI_DISABLE_TELEMETRY", "CREWAI_TRACING_ENABLED", "OTEL_SDK_DISABLED"):
        monkeypatch.setenv(name, "false" if "TRACING" in name else "true")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    ran.clear()
    asker.reset()
    yield asker
    gc.collect()


def delete_files(path: str) -> str:
    """Delete the files below a path."""
    assert path == ARGUMENT
    ran.append("delete_files")
    return "gone"


WAYS: dict[str, tuple[str, Callable[[str], Awaitable[Any]]]] = {}


def way(package: str) -> Any:
    def add(function: Any) -> Any:
        WAYS[function.__name__] = package, function
        return function

    return add


def pydantic_agent(url: str) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="sk-test")
    agent: Any = Agent(OpenAIChatModel("gpt-5", provider=provider), retries=2)
    agent.tool_plain(delete_files)
    return agent


@way("pydantic_ai")
async def pydantic_ai(url: str) -> None:
    await pydantic_agent(url).run(PROMPT)


@way("pydantic_ai")
async def pydantic_ai_sync(url: str) -> None:
    await asyncio.to_thread(lambda: pydantic_agent(url).run_sync(PROMPT))


@way("pydantic_ai")
async def pydantic_ai_stream(url: str) -> None:
    async with pydantic_agent(url).run_stream(PROMPT) as result:
        async for _ in result.stream_text():
            pass


@way("crewai")
async def crewai(url: str) -> None:
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    llm = LLM(model="gpt-5", base_url=f"{url}/v1", api_key="sk-test")
    tools = [tool("delete_files")(delete_files)]
    cleaner = Agent(
        role="cleaner", goal="clean up", backstory="tidy", tools=tools, llm=llm, max_retry_limit=2
    )
    task = Task(description=PROMPT, expected_output="words", agent=cleaner)
    await asyncio.to_thread(Crew(agents=[cleaner], tasks=[task], tracing=False).kickoff)


def llama_index_agent(url: str, *, streaming: bool) -> Any:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai import OpenAI

    llm = OpenAI(model="gpt-4o", api_base=f"{url}/v1", api_key="sk-test", max_retries=2)
    return FunctionAgent(tools=[delete_files], llm=llm, streaming=streaming)


@way("llama_index")
async def llama_index(url: str) -> None:
    await llama_index_agent(url, streaming=False).run(PROMPT)


@way("llama_index")
async def llama_index_stream(url: str) -> None:
    handler = llama_index_agent(url, streaming=True).run(PROMPT)
    async for _ in handler.stream_events():
        pass
    await handler


ways = pytest.mark.parametrize("name", WAYS)


async def run(name: str, url: str) -> None:
    package, function = WAYS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    async with asyncio.timeout(60):
        await function(url)


@pytest.mark.asyncio
@ways
async def test_a_blocked_tool_does_not_run(
    name: str, model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", tools_block=["delete_*"])
    await until_async(lambda: runtime.enforcement.control.tools)
    with pytest.raises(guard.GuardToolBlockedError) as refused:
        async with guard.workflow("support"):
            await run(name, model.url)
    assert refused.value.tool_name == "delete_files"
    assert ran == []
    assert len(model.bodies) == 1  # no retry, and no next turn


@pytest.mark.asyncio
@ways
async def test_other_tools_run(
    name: str, model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", tools_block=["drop_*"])
    await until_async(lambda: runtime.enforcement.control.tools)
    async with guard.workflow("support"):
        await run(name, model.url)
    assert ran == ["delete_files"]
    assert len(model.bodies) == 2
