"""Agents of frameworks without an adapter, and a vendor's stand-in (``nox -s frameworks``)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest

import guard
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support import garbage
from tests.support.tool_answers import ARGUMENT
from tests.support.tool_asker import ToolAsker
from tests.support.waiting import WAIT_S, until_async

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
    garbage.collect()


def delete_files(path: str) -> str:
    """Delete the files below a path.

    Args:
        path: where they are.
    """
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
    async with asyncio.timeout(WAIT_S):
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


# -- tools that a model names in words -------------------------------------------------------------


class Teller(StandIn):
    """A model that answers chat completions with the next of these texts.

    Attributes:
        texts: what it says.
    """

    texts: tuple[str, ...] = ()

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        text = self.texts[min(len(self.bodies), len(self.texts)) - 1]
        message = {"role": "assistant", "content": text}
        return Reply(None, encoded({
            "id": f"chatcmpl-{len(self.bodies)}", "object": "chat.completion", "created": 1,
            "model": "gpt-4o", "choices": [{"index": 0, "message": message,
                                            "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59},
        }))  # fmt: skip


@pytest.fixture(scope="module")
def teller() -> Iterator[Teller]:
    server = Teller()
    yield server
    server.close()


@attrs.frozen
class InWords:
    """An agent whose model names its tools in words.

    Attributes:
        package: what has to be installed.
        texts: what its model says.
        run: runs it.
    """

    package: str
    texts: tuple[str, ...]
    run: Callable[[str], Awaitable[Any]]


def _dspy(url: str) -> Any:
    import dspy

    model = dspy.LM("openai/gpt-4o", api_base=f"{url}/v1", api_key="sk-test", cache=False)
    return dspy.context(lm=model), dspy.ReAct("question -> answer", tools=[delete_files])


async def dspy_react(url: str) -> None:
    def work() -> None:
        context, agent = _dspy(url)
        with context:
            agent(question=PROMPT)

    await asyncio.to_thread(work)


async def dspy_react_async(url: str) -> None:
    context, agent = _dspy(url)
    with context:
        await agent.acall(question=PROMPT)


async def smolagents_code(url: str) -> None:
    from smolagents import CodeAgent, OpenAIModel, tool

    model = OpenAIModel("gpt-4o", api_base=f"{url}/v1", api_key="sk-test")
    agent = CodeAgent([tool(delete_files)], model, max_steps=3, verbosity_level=0)
    await asyncio.to_thread(agent.run, PROMPT)


async def llama_index_react(url: str) -> None:
    from llama_index.core.agent.workflow import ReActAgent
    from llama_index.llms.openai import OpenAI

    llm = OpenAI(model="gpt-4o", api_base=f"{url}/v1", api_key="sk-test", max_retries=2)
    await ReActAgent(tools=[delete_files], llm=llm, streaming=False).run(PROMPT)


def fields(**values: str) -> str:
    """Return an answer as dspy has its models write it."""
    return "".join(f"[[ ## {name} ## ]]\n{text}\n" for name, text in values.items())


_DSPY = (
    fields(next_thought="-", next_tool_name="delete_files",
           next_tool_args=json.dumps({"path": ARGUMENT})),
    fields(next_thought="-", next_tool_name="finish", next_tool_args="{}"),
    fields(reasoning="-", answer="gone"),
)  # fmt: skip
IN_WORDS = {
    "dspy": InWords("dspy", _DSPY, dspy_react),
    "dspy, awaited": InWords("dspy", _DSPY, dspy_react_async),
    "smolagents": InWords(
        "smolagents",
        (f'<code>\nprint(delete_files("{ARGUMENT}"))\n</code>',
         '<code>\nfinal_answer("gone")\n</code>'),
        smolagents_code,
    ),
    "llama_index": InWords(
        "llama_index",
        (f'Thought: I delete.\nAction: delete_files\nAction Input: {{"path": "{ARGUMENT}"}}',
         "Thought: I can answer without using any more tools.\nAnswer: gone"),
        llama_index_react,
    ),
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("blocked", [True, False], ids=["blocked", "allowed"])
@pytest.mark.parametrize("name", IN_WORDS)
async def test_a_tool_that_is_named_in_words(
    name: str, blocked: bool, teller: Teller, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    agent = IN_WORDS[name]
    if importlib.util.find_spec(agent.package) is None:
        pytest.skip(f"{agent.package} is not installed")
    teller.reset()
    teller.texts = agent.texts
    block = ["delete_*"] if blocked else ["drop_*"]
    await asyncio.to_thread(tenant.admin.set_policy, "p", tools_block=block)
    await until_async(lambda: runtime.enforcement.control.tools)
    with pytest.raises(guard.GuardToolBlockedError) if blocked else contextlib.nullcontext():
        async with guard.workflow("support"), asyncio.timeout(WAIT_S):
            await agent.run(teller.url)
    assert ran == ([] if blocked else ["delete_files"])
    assert len(teller.bodies) == (1 if blocked else len(agent.texts))
