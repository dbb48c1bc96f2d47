"""The hard stop with everything real but the vendor: clients, runtime, socket, gateway, ledger."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import attrs
import httpx
import openai
import pytest
import requests

import guard
from guard.breaker.exceptions import GuardBlockedException, GuardBudgetError
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.gated_clients import CHAT
from tests.guard.instrumentation.matrix.other_cases import bedrock_client
from tests.guard.instrumentation.standin.reply import Reply, encoded, sse
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.cutting_vendor import CuttingVendor, cutting_vendor
from tests.support.waiting import WAIT_S, until

INPUT_TOKENS, OUTPUT_TOKENS = 110, 100
INPUT_NANOUSD, OUTPUT_NANOUSD = 1_000, 4_000
COST = INPUT_TOKENS * INPUT_NANOUSD + OUTPUT_TOKENS * OUTPUT_NANOUSD
LIMIT = 11 * COST
"""For ten requests whose prompts are bounded at most 40 tokens too high."""

PROMPT = "word " * 80
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
ASK: dict[str, Any] = {"model": "gpt-5", "messages": MESSAGES, "max_tokens": OUTPUT_TOKENS}


def chat_reply() -> Reply:
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS}
    message = {"role": "assistant", "content": "ok"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    answer = {"object": "chat.completion", "created": 1, "model": "gpt-5", "choices": choices}
    return Reply(None, encoded({**answer, "usage": {**usage, "total_tokens": 210}}))


def messages_reply() -> Reply:
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    content = [{"type": "text", "text": "ok"}]
    answer = {"type": "message", "role": "assistant", "model": "gpt-5", "content": content}
    return Reply(None, encoded({**answer, "stop_reason": "end_turn", "usage": usage}))


def gemini_reply() -> Reply:
    usage = {"promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS}
    content = {"role": "model", "parts": [{"text": "ok"}]}
    candidates = [{"content": content, "finishReason": "STOP"}]
    return Reply(None, encoded({"candidates": candidates, "usageMetadata": usage}))


def converse_reply() -> Reply:
    usage = {"inputTokens": INPUT_TOKENS, "outputTokens": OUTPUT_TOKENS, "totalTokens": 210}
    message = {"role": "assistant", "content": [{"text": "ok"}]}
    answer = {"output": {"message": message}, "stopReason": "end_turn", "metrics": {"latencyMs": 1}}
    return Reply(None, encoded({**answer, "usage": usage}))


Send = Callable[[], Any]


def openai_async(url: str) -> Send:
    import openai

    create = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k").chat.completions.create
    return lambda: create(**ASK)


def openai_sync(url: str) -> Send:
    import openai

    create = openai.OpenAI(base_url=f"{url}/v1", api_key="k").chat.completions.create
    return lambda: create(**ASK)


def anthropic_async(url: str) -> Send:
    import anthropic

    create = anthropic.AsyncAnthropic(base_url=url, api_key="k").messages.create
    return lambda: create(**ASK)


def anthropic_sync(url: str) -> Send:
    import anthropic

    create = anthropic.Anthropic(base_url=url, api_key="k").messages.create
    return lambda: create(**ASK)


def genai_of(url: str) -> Any:
    from google import genai

    return genai.Client(api_key="test", http_options={"base_url": url})


def genai_async(url: str) -> Send:
    client = genai_of(url)
    config = {"max_output_tokens": OUTPUT_TOKENS}
    return lambda: client.aio.models.generate_content(model="gpt-5", contents=PROMPT, config=config)


def genai_sync(url: str) -> Send:
    client = genai_of(url)
    config = {"max_output_tokens": OUTPUT_TOKENS}
    return lambda: client.models.generate_content(model="gpt-5", contents=PROMPT, config=config)


def httpx_async(url: str) -> Send:
    client = httpx.AsyncClient(timeout=WAIT_S)
    return lambda: client.post(url + CHAT, json=ASK)


def aiohttp_async(url: str) -> Send:
    async def send() -> None:
        async with aiohttp.ClientSession() as session, session.post(url + CHAT, json=ASK) as answer:
            await answer.read()

    return send


def requests_sync(url: str) -> Send:
    return lambda: requests.post(url + CHAT, json=ASK, timeout=WAIT_S)


def boto3_sync(url: str) -> Send:
    client = bedrock_client(url)
    asked = {"modelId": "gpt-5", "messages": [{"role": "user", "content": [{"text": PROMPT}]}]}
    return lambda: client.converse(**asked, inferenceConfig={"maxTokens": OUTPUT_TOKENS})


ASYNC = [
    (openai_async, chat_reply), (anthropic_async, messages_reply), (genai_async, gemini_reply),
    (httpx_async, chat_reply), (aiohttp_async, chat_reply),
]  # fmt: skip
SYNC = [
    (openai_sync, chat_reply), (anthropic_sync, messages_reply), (genai_sync, gemini_reply),
    (requests_sync, chat_reply), (boto3_sync, converse_reply),
]  # fmt: skip


@attrs.define
class Limited:
    """A tenant whose workflow ``w`` has money for ten requests."""

    tenant: Tenant
    vendor: StandIn
    runtime: guard.GuardRuntime

    def balance(self) -> dict[str, Any]:
        (row,) = (row for row in self.tenant.admin.ledger() if row["scope_id"] == "w")
        return row

    def check(self, results: list[Any]) -> None:
        """At least eight ran, the rest were refused, and what was spent is within the limit."""
        ran = [result for result in results if not isinstance(result, BaseException)]
        refused = [result for result in results if isinstance(result, BaseException)]
        assert {type(getattr(each, "error", each)) for each in refused} == {GuardBudgetError}
        assert 8 <= len(ran) == len(self.vendor.bodies) <= 10
        assert len(ran) * COST <= LIMIT
        self.runtime.flush()
        balance = self.balance()
        assert balance["committed"] == len(ran) * COST
        assert balance["committed"] + balance["reserved"] <= LIMIT


@pytest.fixture
def limited(tenant: Tenant, standin: StandIn, start: Callable[..., guard.GuardRuntime]) -> Limited:
    standin.instead = chat_reply()
    rates = {"input_per_mtok": INPUT_NANOUSD * 10**6, "output_per_mtok": OUTPUT_NANOUSD * 10**6}
    tenant.admin.set_price("gpt-5", **rates)
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=LIMIT)
    runtime = start()
    until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
    return Limited(tenant, standin, runtime)


# What clients of others leave to the collector is not the subject here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class TestAHundredRequestsAndMoneyForTen:
    @pytest.mark.parametrize(("client", "reply"), ASYNC)
    def test_gathered(
        self, client: Callable[[str], Send], reply: Callable[[], Reply], limited: Limited
    ) -> None:
        limited.vendor.instead = reply()

        results: list[Any] = []

        @guard.protect
        async def agent() -> None:
            send = client(limited.vendor.url)
            sending = (send() for _ in range(100))
            results.extend(await asyncio.gather(*sending, return_exceptions=True))

        async def main() -> None:
            with guard.workflow("w"):
                await agent()

        with pytest.raises(GuardBudgetError):
            asyncio.run(main())
        limited.check(results)

    @pytest.mark.parametrize(("client", "reply"), SYNC)
    def test_in_threads(
        self, client: Callable[[str], Send], reply: Callable[[], Reply], limited: Limited
    ) -> None:
        limited.vendor.instead = reply()
        send = client(limited.vendor.url)

        def one() -> Any:
            try:
                return send()
            except BaseException as exc:
                return exc

        results: list[Any] = []

        def agent() -> None:
            with guard.workflow("w"), ThreadPoolExecutor(16) as pool:
                contexts = [contextvars.copy_context() for _ in range(100)]
                results.extend(pool.map(lambda context: context.run(one), contexts))

        with pytest.raises(GuardBudgetError):
            agent()
        limited.check(results)

    def test_in_a_loop_the_edge_raises_the_public_error(self, limited: Limited) -> None:
        ran = 0

        @guard.protect
        def agent() -> None:
            nonlocal ran
            send = openai_sync(limited.vendor.url)
            while True:
                send()
                ran += 1

        with pytest.raises(GuardBudgetError) as caught, guard.workflow("w"):
            agent()
        assert "gpt-5" in str(caught.value)
        limited.check([None] * ran + [caught.value])


class TestLostAnswers:
    def test_cost_their_bound_at_the_gateway(self, limited: Limited) -> None:
        """One task fails, and the client is closed while its neighbours wait for answers."""
        worst = (200 + OUTPUT_TOKENS) * OUTPUT_NANOUSD

        @guard.protect
        async def agent(url: str, vendor: CuttingVendor) -> None:
            async def fail() -> None:
                while vendor.received < 5:
                    await asyncio.sleep(0.005)
                raise ValueError

            async with httpx.AsyncClient(timeout=WAIT_S) as client:
                asked = (client.post(url + CHAT, json=ASK) for _ in range(5))
                await asyncio.gather(fail(), *asked)

        async def main(vendor: CuttingVendor) -> None:
            with guard.workflow("w"), contextlib.suppress(ValueError):
                await agent(vendor.url, vendor)

        with cutting_vendor("no answer", "hang") as vendor:
            asyncio.run(main(vendor))
        limited.runtime.flush()
        balance = limited.balance()
        assert 5 * COST <= balance["committed"] <= min(LIMIT, 5 * worst)
        for event in limited.tenant.admin.events(type="llm"):
            assert event["data"]["estimate"] == "bound"
            assert {"estimated", "in_doubt"} <= set(event["flags"])


class TestBudgetsOfUsers:
    @pytest.mark.parametrize("together", [True, False], ids=["gathered", "one by one"])
    def test_one_users_money_ends_inside_a_running_body(
        self, together: bool, limited: Limited, tenant: Tenant
    ) -> None:
        """What another one has left is untouched, in the same workflow at the same time."""
        tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=1000 * COST)
        tenant.admin.set_budget(scope_kind="user", scope_id="user-*", limit_nanousd=LIMIT)

        @guard.protect
        async def agent(found: list[Any], times: int) -> None:
            async with openai.AsyncOpenAI(
                base_url=f"{limited.vendor.url}/v1", api_key="k"
            ) as client:
                sending = (client.chat.completions.create(**ASK) for _ in range(times))
                if together:
                    found += await asyncio.gather(*sending, return_exceptions=True)
                    return
                for each in sending:
                    try:
                        found.append(await each)
                    except BaseException as exc:
                        found.append(exc)

        async def of(name: str, times: int) -> list[Any]:
            found: list[Any] = []
            async with guard.context.user(name):
                with contextlib.suppress(GuardBudgetError):
                    await agent(found, times)
            return found

        async def main() -> list[list[Any]]:
            async with guard.workflow("w"):
                return await asyncio.gather(of("user-1", 30), of("user-2", 3))

        many, few = asyncio.run(main())
        ran = [each for each in many if not isinstance(each, BaseException)]
        refused = [each for each in many if isinstance(each, BaseException)]
        assert 8 <= len(ran) <= 10
        assert {type(getattr(each, "error", each)) for each in refused} == {GuardBudgetError}
        assert not any(isinstance(each, BaseException) for each in few)
        limited.runtime.flush()
        spent = {row["scope_id"]: row["committed"] for row in tenant.admin.ledger()}
        assert spent == {"w": (len(ran) + 3) * COST, "user-1": len(ran) * COST, "user-2": 3 * COST}


class TestModels:
    def test_a_forbidden_one_is_refused_before_a_byte_leaves(
        self, limited: Limited, tenant: Tenant
    ) -> None:
        tenant.admin.set_policy("no", models_block=["gpt-5"])

        @guard.protect
        def agent() -> None:
            openai_sync(limited.vendor.url)()

        with pytest.raises(GuardBlockedException), guard.workflow("w"):
            agent()
        assert limited.vendor.bodies == []


def words(number: int) -> Reply:
    chunk = {"id": "c", "model": "gpt-5",
             "choices": [{"index": 0, "delta": {"content": "word"}}]}  # fmt: skip
    events = sse(*[chunk] * number, done=True)
    return Reply(None, events=events, content_type="text/event-stream")


class TestStreams:
    @pytest.mark.usefixtures("answered_at_once")
    def test_without_a_limit_one_is_cut_where_the_money_ends(self, limited: Limited) -> None:
        """It was assumed to be short, and goes on and on."""
        tenant = limited.tenant
        seen = 0
        tenant.admin.update_settings(unbounded_output="learned")
        assumed = 4096 * OUTPUT_NANOUSD + 200 * INPUT_NANOUSD
        tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=assumed)
        limited.vendor.instead = words(12_000)

        @guard.protect
        def agent() -> None:
            nonlocal seen
            ask = {"model": "gpt-5", "messages": MESSAGES, "stream": True}
            with (
                httpx.Client(timeout=WAIT_S) as client,
                client.stream("POST", limited.vendor.url + CHAT, json=ask) as response,
            ):
                for line in response.iter_lines():
                    seen += line.startswith("data: {")

        with pytest.raises(GuardBudgetError), guard.workflow("w"):
            agent()
        assert 3000 <= seen < 12_000
        limited.runtime.flush()
        (event,) = tenant.llm_events("w")
        assert event["data"]["estimated"]
        assert event["data"]["output_tokens"] >= seen - 1


class TestScopes:
    def test_a_process_of_its_own_workflow(
        self, tenant: Tenant, standin: StandIn, start: Callable[..., guard.GuardRuntime]
    ) -> None:
        """Outside of any edge the public error is raised where the request was made."""
        standin.instead = chat_reply()
        tenant.admin.set_budget(scope_kind="workflow", scope_id="whole", limit_nanousd=1)
        start(workflow="whole")
        with pytest.raises(GuardBudgetError):
            httpx.post(standin.url + CHAT, json=ASK)
        assert standin.bodies == []

    def test_switched_off_requests_go_out_as_they_are(
        self, tenant: Tenant, standin: StandIn, start: Callable[..., guard.GuardRuntime]
    ) -> None:
        standin.instead = chat_reply()
        tenant.admin.set_policy("no", models_block=["gpt-5"])
        start(gate_requests=False)
        with guard.workflow("w"):
            httpx.post(standin.url + CHAT, json=ASK)
        assert len(standin.bodies) == 1

    def test_a_limit_is_put_in(
        self, tenant: Tenant, standin: StandIn, start: Callable[..., guard.GuardRuntime]
    ) -> None:
        standin.instead = chat_reply()
        start(max_output_tokens=64)
        with guard.workflow("w"):
            httpx.post(standin.url + CHAT, json={"model": "gpt-5", "messages": MESSAGES})
        assert json.loads(standin.bodies[0])["max_completion_tokens"] == 64
