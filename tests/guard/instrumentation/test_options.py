"""`guard.context.options`: what holds for one call, with real clients, runtime and gateway."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import guard
from guard.breaker.exceptions import GuardBudgetError, GuardConfigError, GuardTransportError
from guard.context import carry, options
from guard.core.call_options import Ceiling
from guard.core.wire import NANOUSD_PER_CENT, dollars
from guard.scope.scope import current_scope
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.gated_clients import CHAT
from tests.guard.instrumentation.standin.reply import Reply, encoded, sse
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S, until

INPUT_TOKENS, OUTPUT_TOKENS = 110, 100
INPUT_NANOUSD, OUTPUT_NANOUSD = 1_000, 4_000
COST = INPUT_TOKENS * INPUT_NANOUSD + OUTPUT_TOKENS * OUTPUT_NANOUSD
TEN = 11 * COST / NANOUSD_PER_CENT
"""In cents: for ten requests whose prompts are bounded at most 40 tokens too high."""

MESSAGES: Any = [{"role": "user", "content": "word " * 80}]
ASK: dict[str, Any] = {"model": "gpt-5", "messages": MESSAGES, "max_tokens": OUTPUT_TOKENS}
UNLIMITED: dict[str, Any] = {"model": "gpt-5", "messages": MESSAGES}

# What clients of others leave to the collector is not the subject here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def chat_reply(output_tokens: int = OUTPUT_TOKENS) -> Reply:
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": output_tokens}
    choices = [{"index": 0, "message": {"role": "assistant", "content": "ok"}}]
    return Reply(None, encoded({"model": "gpt-5", "choices": choices, "usage": usage}))


@pytest.fixture
def vendor(tenant: Tenant, standin: StandIn) -> StandIn:
    standin.instead = chat_reply()
    rates = {"input_per_mtok": INPUT_NANOUSD * 10**6, "output_per_mtok": OUTPUT_NANOUSD * 10**6}
    tenant.admin.set_price("gpt-5", **rates)
    return standin


@pytest.fixture
def gated(vendor: StandIn, start: Callable[..., guard.GuardRuntime]) -> guard.GuardRuntime:
    runtime = start()
    until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
    return runtime


def send(vendor: StandIn, ask: dict[str, Any] = ASK) -> httpx.Response:
    return httpx.post(vendor.url + CHAT, json=ask, timeout=WAIT_S)


async def send_async(client: httpx.AsyncClient, vendor: StandIn) -> httpx.Response:
    return await client.post(vendor.url + CHAT, json=ASK)


def until_refused(vendor: StandIn) -> int:
    """Send requests until one is refused; return how many went out."""
    for sent in range(1000):
        if not was_sent(vendor):
            return sent
    raise AssertionError("none was refused")


def was_sent(vendor: StandIn) -> bool:
    """Send a request; False where it is refused."""
    try:
        with guard.span("request"):  # an edge of its own makes the refusal public
            return send(vendor).status_code == 200
    except GuardBudgetError:
        return False


def send_for_ever(vendor: StandIn) -> None:
    while True:
        send(vendor)


@pytest.mark.usefixtures("gated")
def test_a_limit_is_written_in_dollars() -> None:
    for given in ("$0.05", "0.05", 0.05):
        with options(limit=given) as limits:
            assert (limits.left_dollars, limits.left_cents) == (0.05, 5)
            assert limits.spent_dollars == 0
    with options(limit=0) as limits:
        assert limits.left_dollars == 0
    for wrong in ("two", "", "-1", "nan"):
        with pytest.raises(ValueError, match="no amount of dollars"):
            options(limit=wrong)
    with pytest.raises(TypeError, match="limit is a text such as"):
        options(limit=True)
    with pytest.raises(TypeError, match="limit or limit_cents, not both"):
        options(limit="$1", limit_cents=100)


@pytest.mark.usefixtures("gated")
class TestLimitCents:
    def test_a_loop_ends_with_the_money(self, vendor: StandIn, tenant: Tenant) -> None:
        """What counts in the end is what the answers cost, not what they might have."""
        with (
            pytest.raises(GuardBudgetError) as caught,
            guard.workflow("w"),
            options(limit_cents=TEN) as limits,
        ):
            send_for_ever(vendor)
        assert len(vendor.bodies) == 10
        assert limits.spent_cents == pytest.approx(10 * COST / NANOUSD_PER_CENT)
        assert limits.left_cents == pytest.approx(TEN - 10 * COST / NANOUSD_PER_CENT)
        error = caught.value
        assert (error.error_code, error.details["option"]) == ("GD-B004", "limit_cents")
        assert "a request to openai for gpt-5 could cost $" in str(error)
        assert f"limit={dollars(round(TEN * NANOUSD_PER_CENT))} of guard.context.options" in str(
            error
        )
        assert tenant.admin.ledger() == [], "there is no other budget"

    def test_gathered_requests_share_it(self, vendor: StandIn) -> None:
        results: list[Any] = []

        async def main() -> None:
            async with (
                httpx.AsyncClient(timeout=WAIT_S) as client,
                guard.workflow("w"),
                options(limit_cents=TEN),
            ):
                sending = (send_async(client, vendor) for _ in range(100))
                results.extend(await asyncio.gather(*sending, return_exceptions=True))

        with pytest.raises(GuardBudgetError):
            asyncio.run(main())
        ran = [each for each in results if isinstance(each, httpx.Response)]
        assert 7 <= len(ran) == len(vendor.bodies) <= 10
        refused = {type(getattr(each, "error", each)) for each in results if each not in ran}
        assert refused == {GuardBudgetError}

    def test_threads_share_it(self, vendor: StandIn) -> None:
        with (
            guard.workflow("w"), options(limit_cents=TEN) as limits, ThreadPoolExecutor(8) as pool,
        ):  # fmt: skip
            ran = sum(pool.map(carry(lambda _: was_sent(vendor)), range(40)))
        assert 7 <= ran == len(vendor.bodies) <= 10
        assert limits.left_cents is not None
        assert limits.left_cents >= 0

    def test_each_call_of_a_decorated_function_has_its_own(self, vendor: StandIn) -> None:
        @options(limit_cents=TEN)
        @guard.protect
        def plain() -> int:
            return until_refused(vendor)

        @options(limit_cents=TEN)
        @guard.protect
        async def coroutine() -> int:
            return await asyncio.to_thread(until_refused, vendor)

        @options(limit_cents=TEN)
        @guard.protect
        def steps() -> Iterator[int]:
            send(vendor)
            yield 1
            yield until_refused(vendor)

        @options(limit_cents=TEN)
        async def stream() -> AsyncIterator[int]:
            yield await asyncio.to_thread(until_refused, vendor)

        async def drain() -> list[int]:
            return [each async for each in stream()]

        def counted(call: Callable[[], Any]) -> Any:
            """A refusal that code inside has swallowed still reaches nobody outside."""
            return call()

        with guard.workflow("w"):
            assert [counted(plain) for _ in range(2)] == [10, 10]
            assert asyncio.run(coroutine()) == 10
            assert list(steps()) == [1, 9]
            assert asyncio.run(drain()) == [10]

    def test_an_inner_limit_holds_beside_the_outer_one(self, vendor: StandIn) -> None:
        five = 6 * COST / NANOUSD_PER_CENT
        with guard.workflow("w"), options(limit_cents=TEN):
            with options(limit_cents=five) as inner:
                assert until_refused(vendor) == 5
            assert inner.left_cents is not None
            with options(limit_cents=100):
                assert until_refused(vendor) == 5  # what the outer one had left
        assert len(vendor.bodies) == 10

    def test_outside_of_any_workflow(self, vendor: StandIn) -> None:
        with pytest.raises(GuardBudgetError), options(limit_cents=TEN):
            send_for_ever(vendor)
        assert len(vendor.bodies) == 10

    def test_nothing_is_free(self, vendor: StandIn) -> None:
        with pytest.raises(GuardBudgetError), guard.workflow("w"), options(limit_cents=0):
            send(vendor)
        assert vendor.bodies == []

    def test_a_request_that_fails_costs_nothing(self, vendor: StandIn) -> None:
        with guard.workflow("w"), options(limit_cents=TEN) as limits:
            for _ in range(30):
                with pytest.raises(httpx.ConnectError):
                    httpx.post(f"http://127.0.0.1:9{CHAT}", json=ASK)
        assert limits.spent_cents == 0

    @pytest.mark.usefixtures("answered_at_once")
    def test_a_stream_is_cut_where_the_money_ends(self, vendor: StandIn, tenant: Tenant) -> None:
        tenant.admin.update_settings(unbounded_output="learned")
        chunk = {"id": "c", "model": "gpt-5",
                 "choices": [{"index": 0, "delta": {"content": "word"}}]}  # fmt: skip
        vendor.instead = Reply(
            None, events=sse(*[chunk] * 12_000, done=True), content_type="text/event-stream"
        )
        assumed = 4096 * OUTPUT_NANOUSD + 400 * INPUT_NANOUSD
        seen = 0

        @options(limit_cents=assumed / NANOUSD_PER_CENT)
        def read() -> None:
            nonlocal seen
            ask = {**UNLIMITED, "stream": True}
            with (
                httpx.Client(timeout=WAIT_S) as client,
                client.stream("POST", vendor.url + CHAT, json=ask) as found,
            ):
                for line in found.iter_lines():
                    seen += line.startswith("data: {")

        with pytest.raises(GuardBudgetError, match=r"limit=\$0\.0"), guard.workflow("w"):
            read()
        assert 3000 <= seen < 12_000


class TestWithoutCover:
    def test_requests_that_nothing_gates_are_no_place_for_a_limit(
        self, start: Callable[..., guard.GuardRuntime]
    ) -> None:
        start(gate_requests=False)
        with (
            pytest.raises(GuardConfigError, match=r"limit_cents cannot be kept: .*GATE_REQUESTS"),
            options(limit_cents=5),
        ):
            pytest.fail("entered")
        with options(max_output_tokens=5, model="m"):
            pass

    def test_without_the_gateway_a_limit_is_not_relaxed(
        self, vendor: StandIn, tenant: Tenant, proxy: ChaosProxy
    ) -> None:
        guard.GuardRuntime(
            api_key=tenant.key, api_url=proxy.url, fallback_mode="open", timeout_ms=300
        ).open()
        proxy.retarget("http://127.0.0.1:9")
        proxy.cut()
        with guard.workflow("w"):
            assert send(vendor).status_code == 200
            with pytest.raises(GuardTransportError), guard.span("s"), options(limit_cents=5):
                send(vendor)
        assert len(vendor.bodies) == 1

    def test_observing_refuses_nothing(
        self, vendor: StandIn, start: Callable[..., guard.GuardRuntime], tenant: Tenant
    ) -> None:
        runtime = start(mode="observe")
        with guard.workflow("w"), options(limit_cents=0):
            assert send(vendor).status_code == 200
        runtime.flush()
        observed = tenant.admin.events(type="sdk.observed")
        assert observed
        assert "over limit=$0 of guard.context.options" in json.dumps(observed[0]["data"])


@pytest.mark.usefixtures("gated")
class TestMaxOutputTokens:
    def test_it_is_put_in_where_none_is(self, vendor: StandIn) -> None:
        with guard.workflow("w"):
            with options(max_output_tokens=64):
                send(vendor, UNLIMITED)
                send(vendor, ASK)
                with options(max_output_tokens=32), guard.agent("a"):
                    send(vendor, UNLIMITED)
            send(vendor, UNLIMITED)
        sent = [json.loads(body) for body in vendor.bodies]
        assert [each.get("max_completion_tokens") for each in sent] == [64, None, 32, None]
        assert sent[1]["max_tokens"] == OUTPUT_TOKENS

    def test_with_it_a_limit_has_room_for_more(self, vendor: StandIn) -> None:
        limit = 1000 * OUTPUT_NANOUSD / NANOUSD_PER_CENT
        with guard.workflow("w"):
            with pytest.raises(GuardBudgetError), options(limit_cents=limit):
                send(vendor, UNLIMITED)
            with options(limit_cents=limit, max_output_tokens=100):
                assert send(vendor, UNLIMITED).status_code == 200


def test_the_option_comes_before_the_setting(
    vendor: StandIn, start: Callable[..., guard.GuardRuntime]
) -> None:
    start(max_output_tokens=500)
    with guard.workflow("w"), options(max_output_tokens=64):
        send(vendor, UNLIMITED)
    assert json.loads(vendor.bodies[0])["max_completion_tokens"] == 64


@pytest.mark.usefixtures("gated")
class TestNames:
    def test_a_tool_is_refused_by_the_name_that_it_is_given(self, tenant: Tenant) -> None:
        @guard.protect
        def inner() -> str:
            return "inner"

        @guard.protect
        def outer() -> str:
            return inner()

        tenant.admin.set_policy("p", tools_block=["refund"])
        with guard.workflow("before"):
            assert outer() == "inner"
            with pytest.raises(guard.GuardToolBlockedError), options(tool_name="refund"):
                outer()
        tenant.admin.set_policy("p", tools_block=["inner"])
        with (
            pytest.raises(guard.GuardToolBlockedError) as caught,
            guard.workflow("after"),
            options(tool_name="refund"),
        ):
            outer()
        assert caught.value.tool_name == "inner", "the name is that of the outer call alone"

    def test_a_model_is_told_to_the_gate(self, tenant: Tenant) -> None:
        @options(model="gpt-5")
        @guard.protect
        def work() -> str | None:
            return current_scope.get().model

        with guard.workflow("before"):
            assert work() == "gpt-5"
            assert current_scope.get().model is None
        tenant.admin.set_policy("p", models_block=["gpt-5"])
        with pytest.raises(guard.GuardError, match="the model is blocked"), guard.workflow("after"):
            work()


class TestArguments:
    @pytest.mark.parametrize(
        ("given", "error", "says"),
        [
            ({"limit_cents": "5"}, TypeError, "limit_cents is a number, not str"),
            ({"limit_cents": True}, TypeError, "limit_cents is a number, not bool"),
            ({"limit_cents": -1}, ValueError, "limit_cents is a number from 0 on"),
            ({"limit_cents": math.nan}, ValueError, "limit_cents is a number from 0 on"),
            ({"limit_cents": math.inf}, ValueError, "limit_cents is a number from 0 on"),
            ({"max_output_tokens": 1.5}, TypeError, "max_output_tokens is a whole number"),
            ({"max_output_tokens": 0}, ValueError, "max_output_tokens is a number from 1"),
            ({"tool_name": ""}, ValueError, "tool_name has 1 to 256 characters"),
            ({"tool_name": 1}, TypeError, "tool_name must be a string, not int"),
            ({"model": "m" * 257}, ValueError, "model has 1 to 256 characters"),
        ],
    )
    def test_bad_ones_are_named(
        self, given: dict[str, Any], error: type[Exception], says: str
    ) -> None:
        with pytest.raises(error, match=says):
            options(**given)

    def test_without_a_limit_nothing_is_counted(self) -> None:
        limits = options(max_output_tokens=5)
        assert (limits.spent_cents, limits.left_cents) == (None, None)


def test_a_ceiling_never_goes_over_and_adds_up() -> None:
    outer = Ceiling(1000)
    inner = Ceiling(700, outer)
    went_over: list[int] = []

    def work(ceiling: Ceiling) -> None:
        for number in range(2000):
            if ceiling.take(7):
                if outer.left_nanousd < 0 or inner.left_nanousd < 0:
                    went_over.append(number)
                ceiling.settle(7, 1 if number % 50 == 0 else 0)

    threads = [threading.Thread(target=work, args=(each,)) for each in (outer, inner) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert went_over == []
    assert outer.held_nanousd == inner.held_nanousd == 0
    assert 0 < inner.spent_nanousd < outer.spent_nanousd <= 1000
