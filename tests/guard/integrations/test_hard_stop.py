"""Real agents stop at the limit in the middle of a run, with their own retries on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, Final

import anthropic
import httpx
import langgraph.prebuilt
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from agents import function_tool as agents_tool
from google import genai
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import guard
from guard.core.usage import Usage
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support import garbage

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.filterwarnings("ignore")]

INPUT: Final = 300
OUTPUT: Final = 50
COST: Final = INPUT * 1_000 + OUTPUT * 4_000
LIMIT: Final = 10 * COST
TURNS: Final = 60
"""More than the limit pays for; an agent that is not stopped takes them all."""


class Insatiable(StandIn):
    """A model that asks for the tool ``look`` again and again."""

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        number = next(self._numbers)
        used = Usage(input_tokens=INPUT, output_tokens=OUTPUT)
        tokens = {"input_tokens": INPUT, "output_tokens": OUTPUT}
        if re.search(r"/models/[^/:]+:generateContent$", path):
            call: dict[str, Any] = {"functionCall": {"name": "look", "args": {}}}
            return Reply(used, encoded({
                "candidates": [{"content": {"role": "model", "parts": [call]}, "index": 0}],
                "usageMetadata": {"promptTokenCount": INPUT, "candidatesTokenCount": OUTPUT,
                                  "totalTokenCount": INPUT + OUTPUT},
                "modelVersion": "gemini-x", "responseId": f"g{number}",
            }))  # fmt: skip
        if path.endswith("/v1/messages"):
            call = {"type": "tool_use", "id": f"toolu_{number}", "name": "look", "input": {}}
            return Reply(used, encoded({
                "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-x",
                "content": [call], "stop_reason": "tool_use", "stop_sequence": None,
                "usage": tokens,
            }))  # fmt: skip
        if path.endswith("/responses"):
            call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}",
                    "name": "look", "arguments": "{}", "status": "completed"}  # fmt: skip
            usage = {**tokens, "total_tokens": INPUT + OUTPUT,
                     "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                     "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
            return Reply(used, encoded({
                "id": f"resp_{number}", "object": "response", "created_at": 1.0, "output": [call],
                "model": "gpt-x", "status": "completed", "usage": usage, "error": None,
                "incomplete_details": None, "instructions": None, "metadata": {}, "tools": [],
                "parallel_tool_calls": True, "tool_choice": "auto", "temperature": 1.0,
                "top_p": 1.0,
            }))  # fmt: skip
        call = {"id": f"call_{number}", "type": "function",
                "function": {"name": "look", "arguments": "{}"}}  # fmt: skip
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        usage = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT,
                 "total_tokens": INPUT + OUTPUT}  # fmt: skip
        return Reply(used, encoded({
            "id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1,
            "model": "gpt-x", "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        }))  # fmt: skip


@pytest.fixture(scope="module")
def insatiable() -> Iterator[Insatiable]:
    running = Insatiable()
    yield running
    running.close()


@pytest.fixture
def vendor(insatiable: Insatiable, tenant: Any) -> Iterator[Insatiable]:
    """The model, at a price, with a budget for ten of its answers."""
    insatiable.reset()
    tenant.admin.set_price("*", input_per_mtok=10**9, output_per_mtok=4 * 10**9)
    tenant.admin.set_budget(scope_kind="workflow", scope_id="agent", limit_nanousd=LIMIT)
    # Most of them set no limit, and ten answers do not pay for the least one that is put in.
    tenant.admin.update_settings(unbounded_output="learned")
    yield insatiable
    garbage.collect()  # connections that the frameworks leave open end here


async def agents_chat(url: str) -> None:
    await _agents(url, OpenAIChatCompletionsModel)


async def agents_responses(url: str) -> None:
    await _agents(url, OpenAIResponsesModel)


async def _agents(url: str, kind: Any) -> None:
    @agents_tool
    def look() -> str:
        """Look around."""
        return "nothing"

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
        agent = Agent(name="looker", model=kind(model="gpt-x", openai_client=client), tools=[look])
        await Runner.run(
            agent, "Look.", max_turns=TURNS, run_config=RunConfig(tracing_disabled=True)
        )


def _graph(url: str, **clients: Any) -> Any:
    @langchain_tool
    def look() -> str:
        """Look around."""
        return "nothing"

    address = f"{url}/v1"
    model = ChatOpenAI(
        model="gpt-x", base_url=address, api_key=SecretStr("k"), max_retries=2, **clients
    )
    return langgraph.prebuilt.create_react_agent(model, [look])


async def langgraph_async(url: str) -> None:
    async with httpx.AsyncClient() as client:  # the framework's own is shared between event loops
        await _graph(url, http_async_client=client).ainvoke(
            {"messages": [("user", "Look.")]}, {"recursion_limit": 2 * TURNS}
        )


def langgraph_sync(url: str) -> None:
    with httpx.Client() as client:
        _graph(url, http_client=client).invoke(
            {"messages": [("user", "Look.")]}, {"recursion_limit": 2 * TURNS}
        )


async def openai_gather(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
        message: Any = {"role": "user", "content": "Look. " * (INPUT // 2)}
        create = client.chat.completions.create
        sent = [create(model="gpt-x", messages=[message], max_tokens=OUTPUT) for _ in range(TURNS)]
        for result in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


def anthropic_tool_runner(url: str) -> None:
    @anthropic.beta_tool
    def look() -> str:
        """Look around."""
        return "nothing"

    message: Any = {"role": "user", "content": "Look."}
    with anthropic.Anthropic(base_url=url, api_key="k") as client:
        client.beta.messages.tool_runner(
            max_tokens=OUTPUT, messages=[message], model="claude-x", tools=[look],
            max_iterations=TURNS,
        ).until_done()  # fmt: skip


def _gemini(url: str) -> tuple[Any, Any]:
    def look() -> str:
        """Look around."""
        return "nothing"

    client = genai.Client(api_key="k", http_options=genai.types.HttpOptions(base_url=url))
    automatic = {"maximum_remote_calls": TURNS}
    return client, {"tools": [look], "automatic_function_calling": automatic}


def gemini_sync(url: str) -> None:
    client, config = _gemini(url)
    with client:
        client.models.generate_content(model="gemini-x", contents="Look.", config=config)


async def gemini_async(url: str) -> None:
    client, config = _gemini(url)
    async with client.aio as api:
        await api.models.generate_content(model="gemini-x", contents="Look.", config=config)


def pydantic_ai(url: str) -> None:
    """Runs where the package is installed."""
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{url}/v1", api_key="k")
    agent = ai.Agent(models.OpenAIChatModel("gpt-x", provider=provider))

    @agent.tool_plain  # type: ignore[untyped-decorator]  # the package is not installed here
    def look() -> str:
        """Look around."""
        return "nothing"

    agent.run_sync("Look.", usage_limits=ai.UsageLimits(request_limit=TURNS))


AGENTS: Final = [
    agents_chat, agents_responses, langgraph_async, langgraph_sync, openai_gather,
    anthropic_tool_runner, gemini_sync, gemini_async, pydantic_ai,
]  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.__name__)
@pytest.mark.parametrize("edge", ["workflow", "protect"])
def test_an_agent_stops_at_the_limit(
    vendor: Insatiable, tenant: Any, runtime: guard.GuardRuntime, agent: Any, edge: str
) -> None:
    is_async = asyncio.iscoroutinefunction(agent)
    run = guard.protect(agent) if edge == "protect" else agent
    with pytest.raises(guard.GuardBudgetError) as refused, guard.workflow("agent"):
        asyncio.run(run(vendor.url)) if is_async else run(vendor.url)
    runtime.flush()
    assert refused.value.workflow_id == "agent"
    (balance,) = [row for row in tenant.admin.ledger() if row["scope_id"] == "agent"]
    committed = balance["committed"]
    assert committed == COST * len(vendor.said) <= LIMIT
    # Nothing else was under way: it is refused only if its worst case does not fit what is left.
    # Most of them set no limit, so that depends on what is assumed of their answers.
    if agent is not openai_gather:
        assert LIMIT - committed < refused.value.details["requested_nanousd"]
    assert vendor.said
