"""Agents that finish with a summary, from what their budget keeps for that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

import anthropic
import httpx
import langgraph.prebuilt
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, SQLiteSession
from agents import function_tool as agents_tool
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import guard
from guard.core.bounds.last_answer import SENTENCE
from guard.core.usage import Usage
from guard.hooks import WindDown, on_wind_down
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.integrations.test_hard_stop import COST, INPUT, LIMIT, OUTPUT, TURNS, Insatiable
from tests.support import garbage
from tests.support.waiting import until

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.filterwarnings("ignore")]

SUMMARY = "It is all in order."
S = TypeVar("S", bound=Insatiable)


class Summing(Insatiable):
    """It asks for its tool again and again, unless it is asked to sum up."""

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        if "Sum up" not in str(json.loads(body)["messages"][-1]["content"]):
            return super()._reply(method, path, query, body)
        return _summary(f"chatcmpl-s{next(self._numbers)}")


class Obedient(Insatiable):
    """It asks for its tool as long as it may, and answers once it is told to."""

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        asked = json.loads(body)
        if asked.get("tool_choice") not in ("none", {"type": "none"}):
            return super()._reply(method, path, query, body)
        assert SENTENCE.encode() in body
        used = Usage(input_tokens=INPUT, output_tokens=OUTPUT)
        if path.endswith("/v1/messages"):
            return Reply(used, encoded({
                "id": "msg_l", "type": "message", "role": "assistant", "model": "claude-x",
                "content": [{"type": "text", "text": SUMMARY}], "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": INPUT, "output_tokens": OUTPUT},
            }))  # fmt: skip
        return _summary("chatcmpl-l")


def _summary(identity: str) -> Reply:
    usage = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT,
             "total_tokens": INPUT + OUTPUT}  # fmt: skip
    message = {"role": "assistant", "content": SUMMARY}
    return Reply(Usage(input_tokens=INPUT, output_tokens=OUTPUT), encoded({
        "id": identity, "object": "chat.completion", "created": 1, "model": "gpt-x",
        "usage": usage, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }))  # fmt: skip


@pytest.fixture
def obedient(tenant: Any) -> Iterator[Obedient]:
    yield from _running(Obedient(), tenant, 4 * LIMIT)


@pytest.fixture
def vendor(tenant: Any) -> Iterator[Summing]:
    yield from _running(Summing(), tenant, LIMIT)


def _running(running: S, tenant: Any, limit: int) -> Iterator[S]:
    tenant.admin.set_price("*", input_per_mtok=10**9, output_per_mtok=4 * 10**9)
    tenant.admin.set_budget(
        scope_kind="workflow", scope_id="research", limit_nanousd=limit, wind_down_percent=30
    )
    tenant.admin.update_settings(unbounded_output="learned")
    yield running
    garbage.collect()  # connections that the frameworks leave open end here
    running.close()


@pytest.fixture
def told() -> Iterator[list[WindDown]]:
    found: list[WindDown] = []
    unregister = on_wind_down(found.append)
    yield found
    unregister()


def test_a_graph_ends_with_a_summary(vendor: Summing, told: list[WindDown]) -> None:
    @langchain_tool
    def look() -> str:
        """Look around."""
        return "nothing"

    with httpx.Client() as client:
        model = ChatOpenAI(
            model="gpt-x", base_url=f"{vendor.url}/v1", api_key=SecretStr("k"), http_client=client
        )
        graph = langgraph.prebuilt.create_react_agent(model, [look])
        seen: list[Any] = [("user", "Look.")]
        answer = ""
        with guard.workflow("research"):
            try:
                with guard.context.options():
                    for state in graph.stream(
                        {"messages": seen}, {"recursion_limit": 2 * TURNS}, stream_mode="values"
                    ):
                        seen = state["messages"]
            except guard.GuardBudgetError:
                assert guard.spend().winding_down
                with guard.context.winding_down():
                    last = model.invoke([*seen, ("user", "Sum up what you have found.")])
                    answer = str(last.content)
    assert answer == SUMMARY
    assert len(seen) > 4
    until(lambda: [each.workflow_id for each in told] == ["research"])


@pytest.mark.asyncio
async def test_an_agent_ends_with_a_summary(vendor: Summing, told: list[WindDown]) -> None:
    @agents_tool
    def look() -> str:
        """Look around."""
        return "nothing"

    config = RunConfig(tracing_disabled=True)
    async with openai.AsyncOpenAI(base_url=f"{vendor.url}/v1", api_key="k") as client:
        model = OpenAIChatCompletionsModel(model="gpt-x", openai_client=client)
        looker, writer = Agent("looker", model=model, tools=[look]), Agent("writer", model=model)
        session = SQLiteSession("research")
        answer = ""
        async with guard.workflow("research"):
            try:
                async with guard.context.options():
                    await Runner.run(
                        looker, "Look.", session=session, max_turns=TURNS, run_config=config
                    )
            except guard.GuardBudgetError:
                async with guard.context.winding_down():
                    result = await Runner.run(
                        writer, "Sum up what was found.", session=session, run_config=config
                    )
                    answer = result.final_output
    assert answer == SUMMARY
    assert [each.is_last for each in told] in ([], [False])


@pytest.fixture
def last_request(runtime: guard.GuardRuntime, start: Any) -> None:
    """The process takes a last request, as under ``guard run --keep``."""
    runtime.shutdown()
    start(last_request=True)


@pytest.mark.usefixtures("last_request")
def test_an_agent_that_does_not_look_ends_with_a_text(
    obedient: Obedient, told: list[WindDown]
) -> None:
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {}}}
    messages: list[Any] = [{"role": "user", "content": "Look."}]
    with (
        guard.workflow("research"),
        openai.OpenAI(base_url=f"{obedient.url}/v1", api_key="k") as client,
    ):
        for _ in range(TURNS):
            said: Any = client.chat.completions.create(
                model="gpt-x", max_tokens=1000, messages=messages, tools=[tool]
            )
            message = said.choices[0].message
            if not message.tool_calls:
                break
            messages.append(message)
            messages.append(
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "nothing"}
            )
        else:
            pytest.fail("nothing has told it to end")
    assert (message.content, len(messages) > 6) == (SUMMARY, True)
    _ended_with_its_last_request(told)


@pytest.mark.usefixtures("last_request")
@pytest.mark.asyncio
async def test_an_async_agent_that_does_not_look_ends_with_a_text(
    obedient: Obedient, told: list[WindDown]
) -> None:
    tool: Any = {"name": "look", "input_schema": {"type": "object"}}
    messages: list[Any] = [{"role": "user", "content": "Look."}]
    async with (
        guard.workflow("research"),
        anthropic.AsyncAnthropic(base_url=obedient.url, api_key="k") as client,
    ):
        for _ in range(TURNS):
            said: Any = await client.messages.create(
                model="claude-x", max_tokens=1000, messages=messages, tools=[tool]
            )
            if said.stop_reason != "tool_use":
                break
            result = {"type": "tool_result", "tool_use_id": said.content[0].id, "content": "none"}
            messages += [
                {"role": "assistant", "content": said.content},
                {"role": "user", "content": [result]},
            ]
        else:
            pytest.fail("nothing has told it to end")
    assert (said.content[0].text, len(messages) > 6) == (SUMMARY, True)
    _ended_with_its_last_request(told)


def _ended_with_its_last_request(told: list[WindDown]) -> None:
    until(lambda: [each.is_last for each in told] == [True])
    assert 3 * COST <= guard.spend("research").spent_nanousd <= 4 * LIMIT
