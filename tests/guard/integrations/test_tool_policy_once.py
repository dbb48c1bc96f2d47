"""A tool that the gateway was asked about when a model named it is not asked about again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool

import guard
from guard.asking import tool_calls
from guard.breaker.exceptions import GuardTransportError
from guard.integrations.agents import GuardRunHooks
from tests.guard.instrumentation.standin.reply import Reply
from tests.support import garbage
from tests.support.operators import Operator
from tests.support.tool_answers import ARGUMENT, answer
from tests.support.tool_asker import ToolAsker
from tests.support.waiting import WAIT_S, until, until_async

pytestmark = [pytest.mark.filterwarnings("ignore")]

ASK: list[Any] = [{"role": "user", "content": "Clean up."}]


@pytest.fixture(scope="module")
def asker() -> Iterator[ToolAsker]:
    server = ToolAsker()
    yield server
    server.close()


@pytest.fixture
def model(asker: ToolAsker) -> Iterator[ToolAsker]:
    asker.reset()
    asker.tools = ("delete_files",)
    yield asker
    garbage.collect()


async def while_approving(tenant: Any, work: Callable[[], Any]) -> Any:
    """Run something blocking while an operator approves every call."""
    with Operator(tenant):
        async with asyncio.timeout(WAIT_S):
            return await asyncio.to_thread(work)


def ask_model(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0) as api:
        answer = api.chat.completions.create(model="gpt-5", messages=ASK)
    assert answer.choices[0].message.tool_calls


def approvals(tenant: Any) -> int:
    return len(tenant.admin.approvals(None))


def reservations(tenant: Any) -> int:
    return int(sum(balance["reserved"] for balance in tenant.admin.ledger()))


@guard.protect
def delete_files() -> str:
    """A protected function of the tool's name."""
    return "gone"


@guard.sensitive
@guard.protect
def delete_files_sensitive() -> str:
    """A sensitive function of the tool's name."""
    return "gone"


def test_the_next_protected_call_is_the_one(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)

    def work() -> None:
        with guard.workflow("support"):
            ask_model(model.url)
            assert approvals(tenant) == 1
            assert delete_files() == "gone"
            assert approvals(tenant) == 1
            assert delete_files() == "gone"  # one approval is good for one call
            assert approvals(tenant) == 2

    asyncio.run(while_approving(tenant, work))
    runtime.flush()
    spans = [e for e in tenant.admin.events(workflow_id="support") if e["type"] == "span"]
    closing = [e for e in spans if e["data"].get("final")]
    assert len({e["call_id"] for e in closing}) == 2
    until(lambda: reservations(tenant) == 0)


def test_another_run_and_another_tool_are_asked_about(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    tenant.admin.set_policy("p", approval_tools=["delete_files", "other"])
    until(lambda: runtime.enforcement.control.tools)

    @guard.protect
    def other() -> None:
        pass

    def work() -> None:
        with guard.workflow("support"):
            ask_model(model.url)
            other()
            assert approvals(tenant) == 2
        with guard.workflow("support"):
            delete_files()
            assert approvals(tenant) == 3

    asyncio.run(while_approving(tenant, work))


@pytest.mark.asyncio
async def test_an_adapter_does_not_ask_again(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["delete_files"])
    await until_async(lambda: runtime.enforcement.control.tools)
    ran: list[str] = []

    def delete_files(path: str) -> str:
        """Delete the files below a path."""
        ran.append(path)
        return "gone"

    api = openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="sk-test")
    with Operator(tenant):
        async with api as client:
            agent: Agent[Any] = Agent(
                name="cleaner",
                model=OpenAIChatCompletionsModel(model="gpt-5", openai_client=client),
                tools=[function_tool(delete_files)],
            )
            async with guard.workflow("support"), asyncio.timeout(WAIT_S):
                config = RunConfig(tracing_disabled=True)
                await Runner.run(agent, "Clean up.", hooks=GuardRunHooks(), run_config=config)
    assert ran == [ARGUMENT]
    assert await asyncio.to_thread(approvals, tenant) == 1
    await asyncio.to_thread(runtime.flush)
    events = await asyncio.to_thread(lambda: tenant.admin.events(workflow_id="support"))
    assert [e["data"]["tool_name"] for e in events if e["type"] == "tool"] == ["delete_files"]


@pytest.mark.parametrize(("action", "asked"), [("approve", 1), ("allow", 1), ("block", 1)])
def test_sensitive_calls(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime, action: str, asked: int
) -> None:
    """One approval is enough, but does not lift a rule against sensitive calls."""
    model.tools = ("delete_files_sensitive",)
    tenant.admin.set_policy("p", approval_tools=["delete_files_sensitive"], sensitive_action=action)
    until(lambda: runtime.enforcement.control.tools)

    def work() -> None:
        with guard.workflow("support"):
            ask_model(model.url)
            delete_files_sensitive()

    if action == "block":
        with pytest.raises(guard.GuardBlockedException) as refused:
            asyncio.run(while_approving(tenant, work))
        assert refused.value.action == "sensitive"
    else:
        asyncio.run(while_approving(tenant, work))
    assert approvals(tenant) == asked


def test_money_of_a_call_that_its_framework_makes_by_itself_comes_back(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_calls, "_IDLE_S", 0.3)
    tenant.admin.set_budget(1000, scope_kind="workflow", scope_id="support")
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)
    held: list[int] = []

    def work() -> None:
        with guard.workflow("support"):
            ask_model(model.url)
            held.append(reservations(tenant))
            until(lambda: runtime.tools.calls.open)
            until(lambda: reservations(tenant) < held[0] or not held[0])
            assert delete_files() == "gone"  # still not asked about, now without a reservation
            assert approvals(tenant) == 1

    asyncio.run(while_approving(tenant, work))
    runtime.flush()
    until(lambda: reservations(tenant) == 0)


def test_an_old_approval_is_good_for_nothing(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_calls, "_VALID_S", 0.2)
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)

    def work() -> None:
        with guard.workflow("support"):
            ask_model(model.url)
            time.sleep(0.3)
            delete_files()
            assert approvals(tenant) == 2

    asyncio.run(while_approving(tenant, work))


def test_the_rules_are_there_when_init_returns_over_http_too(
    model: ToolAsker, tenant: Any, start: Any
) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_files"])
    runtime = start(transport_mode="http")
    assert runtime.enforcement.control.tools is not None
    with pytest.raises(guard.GuardToolBlockedError), guard.workflow("support"):
        ask_model(model.url)
    tenant.admin.delete_policy("p")
    until(lambda: runtime.enforcement.control.tools is None)
    with guard.workflow("support"):
        ask_model(model.url)


def knows(runtime: guard.GuardRuntime, *policies: str) -> bool:
    """Tell whether the rules of these policies have arrived: each comes by itself."""
    tools = runtime.enforcement.control.tools
    return tools is not None and {each.rule.policy for each in tools._rules} == {*policies}


def test_rules_of_a_workflow_or_agent_bind_no_other(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    tenant.admin.set_policy("w", scope_kind="workflow", scope_id="sup*", tools_block=["delete_*"])
    tenant.admin.set_policy("a", scope_kind="agent", scope_id="cleaner", tools_allow=["read"])
    until(lambda: knows(runtime, "w", "a"))
    with guard.workflow("other"):
        ask_model(model.url)
    with (
        pytest.raises(guard.GuardToolBlockedError, match="allow list"),
        guard.workflow("other"),
        guard.agent("cleaner"),
    ):
        ask_model(model.url)
    with pytest.raises(guard.GuardToolBlockedError, match="blocked by"), guard.workflow("support"):
        ask_model(model.url)
    ask_model(model.url)  # outside of any workflow nothing is refused

    @guard.protect
    def work() -> None:
        ask_model(model.url)

    tenant.admin.set_policy("o", tools_block=["delete_files"])
    until(lambda: knows(runtime, "w", "a", "o"))
    with pytest.raises(guard.GuardToolBlockedError):
        work()


def test_one_blocked_tool_among_others_refuses_before_a_person_is_asked(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    model.tools = ("pay", "read", "delete_files")
    tenant.admin.set_policy("p", tools_block=["delete_*"], approval_tools=["pay"])
    until(lambda: runtime.enforcement.control.tools)
    with pytest.raises(guard.GuardToolBlockedError), guard.workflow("support"):
        ask_model(model.url)
    assert approvals(tenant) == 0


def test_a_gateway_that_is_away_approves_nothing(
    model: ToolAsker, tenant: Any, start: Any, proxy: Any
) -> None:
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    runtime = start(api_url=proxy.url, fallback_mode="open", timeout_ms=500)
    until(lambda: runtime.enforcement.control.tools)
    proxy.fault = "refuse"
    proxy.cut()
    with pytest.raises(GuardTransportError), guard.workflow("support"):
        ask_model(model.url)


def test_a_kill_ends_the_wait_for_a_person(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    tenant.admin.set_policy("p", approval_tools=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)

    async def work() -> None:
        def ask() -> None:
            with guard.workflow("support"):
                ask_model(model.url)

        asking = asyncio.create_task(asyncio.to_thread(ask))
        while not await asyncio.to_thread(approvals, tenant):
            await asyncio.sleep(0.02)
        await asyncio.to_thread(tenant.admin.kill, "support")
        async with asyncio.timeout(WAIT_S):
            await asking

    with pytest.raises(guard.WorkflowKilledInterrupt):
        asyncio.run(work())
    until(lambda: [a["status"] for a in tenant.admin.approvals(None)] == ["withdrawn"])


def test_in_the_workflow_of_a_process_the_error_is_public_at_once(
    model: ToolAsker, tenant: Any, start: Any
) -> None:
    tenant.admin.set_policy("p", tools_block=["delete_files"])
    start(workflow="batch")
    body = {"model": "gpt-5", "messages": ASK}
    with pytest.raises(guard.GuardToolBlockedError) as refused:
        httpx.post(f"{model.url}/v1/chat/completions", json=body)
    assert refused.value.workflow_id == "batch"


def test_hooks_hear_of_a_refused_tool_once(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime
) -> None:
    heard: list[tuple[str | None, str | None]] = []
    guard.hooks.on_error(lambda exc, context: heard.append((exc.error_code, context.workflow_id)))
    tenant.admin.set_policy("p", tools_block=["delete_files"])
    until(lambda: runtime.enforcement.control.tools)
    with pytest.raises(guard.GuardToolBlockedError), guard.workflow("support"):
        ask_model(model.url)
    until(lambda: heard)
    assert heard == [("GD-T001", "support")]
    assert runtime.status().last_error_code == "GD-T001"


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_what_came_with_a_refused_chunk_is_charged_exactly(
    model: ToolAsker, tenant: Any, runtime: guard.GuardRuntime, kind: str
) -> None:
    whole = answer("chat", ["delete_files"], stream=True)
    model.instead = Reply(None, events=(b"".join(whole.events),), content_type=whole.content_type)
    await asyncio.to_thread(tenant.admin.set_policy, "p", tools_block=["delete_files"])
    await until_async(lambda: runtime.enforcement.control.tools)
    url, body = f"{model.url}/v1/chat/completions", {"model": "gpt-5", "messages": ASK}
    got: list[bytes] = []

    def read() -> None:
        with httpx.Client() as client, client.stream("POST", url, json=body) as response:
            got.extend(response.iter_raw())

    async def read_async() -> None:
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", url, json=body) as response,
        ):
            got.extend([chunk async for chunk in response.aiter_raw()])

    with pytest.raises(guard.GuardToolBlockedError):
        async with guard.workflow("support"):
            await (asyncio.to_thread(read) if kind == "sync" else read_async())
    assert got == []
    await asyncio.to_thread(runtime.flush)
    (event,) = await asyncio.to_thread(tenant.llm_events, "support")
    used = event["data"]
    assert (used["input_tokens"], used["output_tokens"]) == (50, 9)
    assert not used.get("estimated")
