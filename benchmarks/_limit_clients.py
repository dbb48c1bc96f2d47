"""Vendors' clients and frameworks for ``_limit_agent.py``, as they are: with their own retries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol

Ask = Callable[[], Awaitable[object]]
KEY = "k"
BRANCHES = 4


class Agent(Protocol):
    """What is to be asked, and how often."""

    case: dict[str, Any]
    base: str
    body: dict[str, Any]


def play(agent: Agent) -> None:
    """Make the requests of a case with its client."""
    asyncio.run(_play(agent))


async def _play(agent: Agent) -> None:
    ask = CLIENTS[agent.case["client"]](agent)

    async def one() -> None:
        # What a vendor's fault makes of a request is for the program; a refusal is none of these.
        with contextlib.suppress(Exception):
            await ask()

    if agent.case["shape"] == "serial":
        for _ in range(agent.case["count"]):
            await one()
    else:
        await asyncio.gather(*(one() for _ in range(agent.case["count"])))


async def _read(chunks: AsyncIterator[object] | Iterable[object]) -> None:
    if isinstance(chunks, AsyncIterator):
        async for _ in chunks:
            pass


def _openai(agent: Agent) -> Ask:
    import openai

    create: Any = openai.AsyncOpenAI(base_url=f"{agent.base}/v1", api_key=KEY).chat.completions
    return lambda: _asked(create.create, agent.body)


def _openai_responses(agent: Agent) -> Ask:
    import openai

    responses: Any = openai.AsyncOpenAI(base_url=f"{agent.base}/v1", api_key=KEY).responses
    return lambda: _asked(responses.create, agent.body)


def _anthropic(agent: Agent) -> Ask:
    import anthropic

    messages: Any = anthropic.AsyncAnthropic(base_url=agent.base, api_key=KEY).messages
    return lambda: _asked(messages.create, agent.body)


async def _asked(create: Callable[..., Awaitable[Any]], body: dict[str, Any]) -> None:
    answer = await create(**body)
    if body["stream"]:
        await _read(aiter(answer))


def _genai(agent: Agent) -> Ask:
    from google import genai

    models = genai.Client(api_key=KEY, http_options={"base_url": agent.base}).aio.models
    case = agent.case
    prompt = agent.body["contents"][0]["parts"][0]["text"]
    config: Any = {"max_output_tokens": case["named"]} if case["named"] else None

    async def ask() -> None:
        said: dict[str, Any] = {"model": case["model"], "contents": prompt, "config": config}
        if case["stream"]:
            await _read(await models.generate_content_stream(**said))
        else:
            await models.generate_content(**said)

    return ask


def _chat_model(agent: Agent) -> Any:
    from langchain_openai import ChatOpenAI

    named: dict[str, Any] = {"max_tokens": agent.case["named"]} if agent.case["named"] else {}
    return ChatOpenAI(
        base_url=f"{agent.base}/v1", api_key=KEY, model=agent.case["model"],
        streaming=agent.case["stream"], **named,
    )  # fmt: skip


def _langchain(agent: Agent) -> Ask:
    model = _chat_model(agent)
    prompt = agent.body["messages"][0]["content"]
    return lambda: model.ainvoke(prompt)


def _langgraph(agent: Agent) -> Ask:
    """A graph of four branches that ask at the same time."""
    from langgraph.graph import END, START, StateGraph

    model = _chat_model(agent)
    prompt = agent.body["messages"][0]["content"]
    graph = StateGraph(dict)

    async def branch(state: Any) -> dict[str, Any]:
        await model.ainvoke(prompt)
        return {}

    for number in range(BRANCHES):
        graph.add_node(f"branch{number}", branch)
        graph.add_edge(START, f"branch{number}")
        graph.add_edge(f"branch{number}", END)
    compiled: Any = graph.compile()
    return lambda: compiled.ainvoke({})


def _agents(agent: Agent) -> Ask:
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{agent.base}/v1", api_key=KEY)
    settings = agents.ModelSettings(max_tokens=agent.case["named"])
    model = agents.OpenAIChatCompletionsModel(agent.case["model"], client)
    one = agents.Agent(name="one", model=model, model_settings=settings)
    prompt = agent.body["messages"][0]["content"]

    async def ask() -> None:
        if agent.case["stream"]:
            await _read(aiter(agents.Runner.run_streamed(one, prompt).stream_events()))
        else:
            await agents.Runner.run(one, prompt)

    return ask


CLIENTS: dict[str, Callable[[Agent], Ask]] = {
    "openai": _openai, "openai responses": _openai_responses, "anthropic": _anthropic,
    "google-genai": _genai, "langchain": _langchain, "langgraph": _langgraph,
    "openai-agents": _agents,
}  # fmt: skip
