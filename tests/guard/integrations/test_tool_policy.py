"""Tools that frameworks run by themselves: blocked and asked about where the model names them."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import anthropic
import boto3
import botocore.config
import cohere
import httpx
import httpx2
import ollama
import openai
import pytest
import requests
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from agents import function_tool as agents_tool
from google import genai
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI

import guard
from tests.support import garbage
from tests.support.tool_answers import ARGUMENT
from tests.support.tool_asker import ToolAsker
from tests.support.waiting import WAIT_S, until_async

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.filterwarnings("ignore")]

ran: list[str] = []
MODEL = "gpt-5"
ASK: list[Any] = [{"role": "user", "content": "Clean up."}]


@pytest.fixture(scope="module")
def asker() -> Iterator[ToolAsker]:
    server = ToolAsker()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def model(asker: ToolAsker, caplog: pytest.LogCaptureFixture) -> Iterator[ToolAsker]:
    """A model that wants to call ``delete_files``; the arguments are logged nowhere."""
    ran.clear()
    asker.reset()
    asker.tools = ("delete_files",)
    caplog.set_level(logging.DEBUG, "guard")
    yield asker
    assert ARGUMENT not in caplog.text
    garbage.collect()  # what clients of others leave to the collector is not the subject here


def delete_files(path: str) -> str:
    """Delete the files below a path.

    Args:
        path: where.
    """
    assert path == ARGUMENT
    ran.append("delete_files")
    return "gone"


async def delete_files_async(path: str) -> str:
    """Delete the files below a path.

    Args:
        path: where.
    """
    return delete_files(path)


delete_files_async.__name__ = "delete_files"

# -- frameworks that run tools by themselves, each as a way to make one run ------------------------

Run = Callable[[str], Any]
SYNC: dict[str, Run] = {}
ASYNC: dict[str, Callable[[str], Awaitable[Any]]] = {}


def way(function: Any) -> Any:
    table: dict[str, Any] = ASYNC if asyncio.iscoroutinefunction(function) else SYNC
    table[function.__name__] = function
    return function


def gemini(url: str) -> genai.Client:
    return genai.Client(api_key="test", http_options={"base_url": url})


def anthropic_options(url: str) -> dict[str, Any]:
    return {"base_url": url, "api_key": "sk-test", "max_retries": 2}


RUNNER: dict[str, Any] = {"model": "claude-sonnet-5", "max_tokens": 100, "messages": ASK}


@way
def google_genai(url: str) -> None:
    config: Any = {"tools": [delete_files]}
    with gemini(url) as api:
        api.models.generate_content(model="gemini-3-flash", contents="Clean up.", config=config)


@way
def google_genai_stream(url: str) -> None:
    config: Any = {"tools": [delete_files]}
    with gemini(url) as api:
        for _ in api.models.generate_content_stream(
            model="gemini-3-flash", contents="Clean up.", config=config
        ):
            pass


@way
async def google_genai_async(url: str) -> None:
    config: Any = {"tools": [delete_files_async]}
    async with gemini(url).aio as api:
        await api.models.generate_content(
            model="gemini-3-flash", contents="Clean up.", config=config
        )


@way
async def google_genai_stream_async(url: str) -> None:
    config: Any = {"tools": [delete_files_async]}
    async with gemini(url).aio as api:
        async for _ in await api.models.generate_content_stream(
            model="gemini-3-flash", contents="Clean up.", config=config
        ):
            pass


@way
def anthropic_tool_runner(url: str) -> None:
    with anthropic.Anthropic(**anthropic_options(url)) as api:
        tools = [anthropic.beta_tool(delete_files)]
        api.beta.messages.tool_runner(**RUNNER, tools=tools).until_done()


@way
def anthropic_tool_runner_stream(url: str) -> None:
    with anthropic.Anthropic(**anthropic_options(url)) as api:
        tools = [anthropic.beta_tool(delete_files)]
        for stream in api.beta.messages.tool_runner(**RUNNER, tools=tools, stream=True):
            for _ in stream:
                pass


@way
async def anthropic_tool_runner_async(url: str) -> None:
    async with anthropic.AsyncAnthropic(**anthropic_options(url)) as api:
        tools = [anthropic.beta_async_tool(delete_files_async)]
        await api.beta.messages.tool_runner(**RUNNER, tools=tools).until_done()


def langchain_model(url: str, **options: Any) -> Any:
    tool = langchain_tool(delete_files)
    # The default client is shared by the process, and so by the loops of different tests.
    options["http_async_client"] = httpx2.AsyncClient()
    llm = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="sk-test", **options)  # type: ignore[arg-type]
    return tool, llm.bind_tools([tool])


def run_calls(tool: Any, message: Any) -> None:
    """Do what LangChain's agents do with a message."""
    for call in message.tool_calls:
        tool.invoke(call)


@way
def langchain(url: str) -> None:
    tool, bound = langchain_model(url)
    run_calls(tool, bound.invoke([HumanMessage("Clean up.")]))


@way
def langchain_stream(url: str) -> None:
    tool, bound = langchain_model(url)
    whole: Any = None
    for chunk in bound.stream([HumanMessage("Clean up.")]):
        whole = chunk if whole is None else whole + chunk
    run_calls(tool, whole)


@way
async def langchain_async(url: str) -> None:
    tool, bound = langchain_model(url)
    run_calls(tool, await bound.ainvoke([HumanMessage("Clean up.")]))


@way
async def langchain_stream_async(url: str) -> None:
    tool, bound = langchain_model(url)
    whole: Any = None
    async for chunk in bound.astream([HumanMessage("Clean up.")]):
        whole = chunk if whole is None else whole + chunk
    run_calls(tool, whole)


async def agents_sdk(url: str, kind: Any, *, stream: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test") as client:
        agent: Agent[Any] = Agent(
            name="cleaner",
            model=kind(model=MODEL, openai_client=client),
            tools=[agents_tool(delete_files)],
        )
        config = RunConfig(tracing_disabled=True)
        if stream:
            result = Runner.run_streamed(agent, "Clean up.", run_config=config)
            async for _ in result.stream_events():
                pass
        else:
            await Runner.run(agent, "Clean up.", run_config=config)


@way
async def agents_chat(url: str) -> None:
    await agents_sdk(url, OpenAIChatCompletionsModel, stream=False)


@way
async def agents_chat_stream(url: str) -> None:
    await agents_sdk(url, OpenAIChatCompletionsModel, stream=True)


@way
async def agents_responses(url: str) -> None:
    await agents_sdk(url, OpenAIResponsesModel, stream=False)


@way
async def agents_responses_stream(url: str) -> None:
    await agents_sdk(url, OpenAIResponsesModel, stream=True)


def chat_body(stream: bool) -> dict[str, Any]:
    return {"model": MODEL, "messages": ASK, "stream": stream}


def dispatch(message: Any) -> None:
    """A loop of one's own: run what the message names."""
    for call in message["tool_calls"]:
        assert call["function"]["name"] == "delete_files"
        delete_files(ARGUMENT)


@way
def plain_requests(url: str) -> None:
    answer = requests.post(f"{url}/v1/chat/completions", json=chat_body(False), timeout=120)
    dispatch(answer.json()["choices"][0]["message"])


@way
def plain_requests_stream(url: str) -> None:
    path = f"{url}/v1/chat/completions"
    with requests.post(path, json=chat_body(True), timeout=120, stream=True) as answer:
        for line in answer.iter_lines():
            if b'"delete_files"' in line:
                delete_files(ARGUMENT)


@way
def plain_httpx(url: str) -> None:
    answer = httpx.post(f"{url}/v1/chat/completions", json=chat_body(False))
    dispatch(answer.json()["choices"][0]["message"])


@way
async def plain_aiohttp(url: str) -> None:
    path = f"{url}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(path, json=chat_body(False)) as got:
        dispatch((await got.json())["choices"][0]["message"])


@way
async def plain_aiohttp_stream(url: str) -> None:
    path = f"{url}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(path, json=chat_body(True)) as got:
        async for line in got.content:
            if b'"delete_files"' in line:
                delete_files(ARGUMENT)


def bedrock(url: str) -> Any:
    return boto3.client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=url,
        aws_access_key_id="k", aws_secret_access_key="s",
        config=botocore.config.Config(retries={"max_attempts": 2}),
    )  # fmt: skip


CONVERSE: dict[str, Any] = {
    "modelId": "amazon.nova-lite-v1:0",
    "messages": [{"role": "user", "content": [{"text": "Clean up."}]}],
}


@way
def bedrock_converse(url: str) -> None:
    answer = bedrock(url).converse(**CONVERSE)
    for block in answer["output"]["message"]["content"]:
        delete_files(block["toolUse"]["input"]["path"])


@way
def bedrock_converse_stream(url: str) -> None:
    for event in bedrock(url).converse_stream(**CONVERSE)["stream"]:
        if "toolUse" in event.get("contentBlockStart", {}).get("start", {}):
            delete_files(ARGUMENT)


TOOLS: list[Any] = [{"type": "function", "function": {"name": "delete_files", "parameters": {}}}]


@way
def ollama_client(url: str) -> None:
    answer = ollama.Client(host=url).chat("llama3", ASK, tools=[delete_files])
    for call in answer.message.tool_calls or []:
        delete_files(**call.function.arguments)


@way
async def ollama_stream_async(url: str) -> None:
    async for part in await ollama.AsyncClient(host=url).chat("llama3", ASK, stream=True):
        for call in part.message.tool_calls or []:
            delete_files(**call.function.arguments)


@way
def cohere_client(url: str) -> None:
    with httpx.Client() as http:
        api = cohere.ClientV2(api_key="k", base_url=url, httpx_client=http)
        for call in api.chat(model="command-a", messages=ASK, tools=TOOLS).message.tool_calls or []:
            delete_files(**json.loads(call.function.arguments))


@way
def cohere_stream(url: str) -> None:
    with httpx.Client() as http:
        api = cohere.ClientV2(api_key="k", base_url=url, httpx_client=http)
        for event in api.chat_stream(model="command-a", messages=ASK, tools=TOOLS):
            if event.type == "tool-call-start":
                delete_files(ARGUMENT)


@way
def openai_stream_helper(url: str) -> None:
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test") as api,
        api.chat.completions.stream(model=MODEL, messages=ASK) as stream,
    ):
        for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                delete_files(ARGUMENT)


@way
def openai_streaming_response(url: str) -> None:
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test") as api,
        api.chat.completions.with_streaming_response.create(model=MODEL, messages=ASK) as answer,
    ):
        for call in answer.parse().choices[0].message.tool_calls or []:
            delete_files(**json.loads(call.function.arguments))


async def run(name: str, url: str) -> None:
    """Make one run; a blocking one in a thread that has the caller's scope."""
    if name in ASYNC:
        await ASYNC[name](url)
    else:
        await asyncio.to_thread(SYNC[name], url)


ways = pytest.mark.parametrize("name", [*SYNC, *ASYNC])
LOOPS = ("google", "anthropic", "agents")
"""Ways that ask the model again with the tool's result."""


@pytest.mark.asyncio
@ways
async def test_a_blocked_tool_does_not_run(
    name: str, model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", tools_block=["Delete_*"])
    await until_async(lambda: runtime.enforcement.control.tools)
    with pytest.raises(guard.GuardToolBlockedError) as refused:
        async with guard.workflow("support"):
            await run(name, model.url)
    error = refused.value
    assert ran == []
    assert (error.tool_name, error.workflow_id, error.action) == (
        "delete_files", "support", "block"
    )  # fmt: skip
    assert error.error_code == "GD-T001"
    assert error.reason == "the tool is blocked by 'Delete_*'"
    assert error.details == {"policy": "p", "policy_version": 1}
    assert len(model.bodies) == 1  # no retry, and no next turn
    # The request was made, so it is recorded.
    await asyncio.to_thread(runtime.flush)
    events = await asyncio.to_thread(tenant.llm_events, "support")
    assert len(events) == 1
    assert events[0]["data"]["input_tokens"] > 0


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
    assert len(model.bodies) == (2 if name.startswith(LOOPS) else 1)


ASKED = (
    "anthropic_tool_runner", "google_genai_async", "agents_responses_stream", "langchain_stream",
    "plain_aiohttp", "plain_aiohttp_stream", "bedrock_converse", "plain_requests_stream",
)  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("approved", [True, False])
async def test_a_tool_that_needs_a_person_waits_for_the_answer(
    name: str, approved: bool, model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["delete_*"])
    await until_async(lambda: runtime.enforcement.control.tools)

    async def one_run() -> None:
        async with guard.workflow("support"):
            await run(name, model.url)

    longest_s = 0.0

    async def measure() -> None:
        nonlocal longest_s
        while True:
            start_s = time.monotonic()
            await asyncio.sleep(0.01)
            longest_s = max(longest_s, time.monotonic() - start_s)

    task, ticking = asyncio.create_task(one_run()), asyncio.create_task(measure())
    while not (pending := await asyncio.to_thread(tenant.admin.approvals, "pending")):
        assert not task.done(), task
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    assert ran == []
    assert [(a["tool_name"], a["workflow_id"]) for a in pending] == [("delete_files", "support")]
    answer = functools.partial(tenant.admin.answer_approval, approved=approved)
    await asyncio.to_thread(answer, pending[0]["approval_id"])
    if approved:
        await task
        assert ran == ["delete_files"]
    else:
        with pytest.raises(guard.GuardBlockedException) as refused:
            await task
        assert refused.value.tool_name == "delete_files"
        assert refused.value.action == "approval"
        assert ran == []
    ticking.cancel()
    assert len(await asyncio.to_thread(tenant.admin.approvals, None)) == 1
    assert longest_s < WAIT_S / 10  # the loop was never blocked for the wait
