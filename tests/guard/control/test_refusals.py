"""Kill, pause and an empty budget stop the next LLM request inside a protected call.

The refusal has to cross the vendors' real clients, with their default retries, once and unwrapped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.breaker.exceptions import GuardBudgetError, WorkflowPausedException
from guard.core import wire
from guard.runtime.runtime import GuardRuntime
from tests.support.slow_server import SlowServer
from tests.support.waiting import WAIT_S, until

_CHAT = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": "hi"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}  # fmt: skip
_ANSWERS: dict[str, object] = {
    "/v1/messages": {
        "id": "m1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None,
        "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    },
    "generateContent": {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}}],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5},
    },
    "/chat/completions": _CHAT,
}  # fmt: skip
_MESSAGES: Any = [{"role": "user", "content": "hello"}]


def _openai(url: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    openai = pytest.importorskip("openai")
    sync = openai.OpenAI(api_key="k", base_url=f"{url}/v1")
    later = openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1")
    ask = {"model": "m", "messages": _MESSAGES}
    return (
        lambda: sync.chat.completions.create(**ask),
        lambda: later.chat.completions.create(**ask),
    )


def _anthropic(url: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    anthropic = pytest.importorskip("anthropic")
    sync = anthropic.Anthropic(api_key="k", base_url=url)
    later = anthropic.AsyncAnthropic(api_key="k", base_url=url)
    ask = {"model": "m", "messages": _MESSAGES, "max_tokens": 9}
    return lambda: sync.messages.create(**ask), lambda: later.messages.create(**ask)


def _groq(url: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    groq = pytest.importorskip("groq")
    sync = groq.Groq(api_key="k", base_url=url)
    later = groq.AsyncGroq(api_key="k", base_url=url)
    ask = {"model": "m", "messages": _MESSAGES}
    return (
        lambda: sync.chat.completions.create(**ask),
        lambda: later.chat.completions.create(**ask),
    )


def _mistral(url: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    pytest.importorskip("mistralai")
    try:
        from mistralai import Mistral
    except ImportError:
        from mistralai.client import Mistral
    client = Mistral(api_key="k", server_url=url)
    ask = {"model": "m", "messages": _MESSAGES}
    return lambda: client.chat.complete(**ask), lambda: client.chat.complete_async(**ask)


def _google(url: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    genai = pytest.importorskip("google.genai")
    client = genai.Client(api_key="k", http_options={"base_url": url})
    ask = {"model": "m", "contents": "hello"}
    return (
        lambda: client.models.generate_content(**ask),
        lambda: client.aio.models.generate_content(**ask),
    )


VENDORS = {
    "openai": _openai,
    "anthropic": _anthropic,
    "groq": _groq,
    "mistralai": _mistral,
    "google-genai": _google,
}
HALTS = {
    "kill": ("kill", WorkflowKilledInterrupt),
    "pause": ("pause", WorkflowPausedException),
    "budget": ("budget", GuardBudgetError),
}


def halt(runtime: GuardRuntime, kind: str) -> None:
    """Apply a message as if it had been pushed, without stopping the body that runs."""

    async def apply() -> None:  # where what is really pushed is applied: neither undoes the other
        control = runtime.enforcement.control
        message = wire.ControlMessage(
            seq=control.seq + 1, type=kind, workflow_id="w", exhausted=True, reason="enough"
        )
        runtime.enforcement.control = control.apply(message)

    runtime._background.submit(apply).result(WAIT_S)


# What vendors' clients leave open or deprecated is theirs.
pytestmark = [
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
    ),
]


@pytest.mark.parametrize("kind", HALTS)
@pytest.mark.parametrize("vendor", VENDORS)
class TestVendorClients:
    def test_sync(self, runtime: GuardRuntime, server: SlowServer, vendor: str, kind: str) -> None:
        server.answers.update(_ANSWERS)
        ask, _ = VENDORS[vendor](server.url)

        @guard.protect
        def body() -> None:
            ask()
            halt(runtime, HALTS[kind][0])
            ask()
            raise AssertionError("went on")

        with guard.workflow("w"), pytest.raises(HALTS[kind][1]) as refused:
            body()
        assert refused.value.workflow_id == "w"
        assert len(server.requests) == 1

    @pytest.mark.asyncio
    async def test_async(self, start: Any, server: SlowServer, vendor: str, kind: str) -> None:
        runtime = await asyncio.to_thread(start)
        server.answers.update(_ANSWERS)
        _, ask = VENDORS[vendor](server.url)

        @guard.protect
        async def body() -> None:
            await ask()
            halt(runtime, HALTS[kind][0])
            await ask()
            raise AssertionError("went on")

        with guard.workflow("w"), pytest.raises(HALTS[kind][1]) as refused:
            await body()
        assert refused.value.workflow_id == "w"
        assert len(server.requests) == 1


@pytest.mark.parametrize("vendor", ["openai", "anthropic", "groq", "mistralai"])
def test_a_kill_in_mid_request_is_not_retried(
    connected: GuardRuntime, server: SlowServer, operator: Any, vendor: str
) -> None:
    ask, _ = VENDORS[vendor](f"{server.url}/hang")

    @guard.protect
    def body() -> None:
        ask()

    operator(lambda: server.count("hang"))
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        body()
    assert len(server.requests) == 1


def test_a_workflow_without_protected_calls_is_held_too(
    runtime: GuardRuntime, server: SlowServer
) -> None:
    server.answers.update(_ANSWERS)
    ask, _ = _openai(server.url)

    def run() -> None:
        with guard.workflow("w"):
            ask()
            halt(runtime, "pause")
            ask()

    with pytest.raises(WorkflowPausedException):
        run()
    ask()  # outside of it nothing is refused
    assert len(server.requests) == 2


def test_a_swallowed_refusal_comes_again(runtime: GuardRuntime, server: SlowServer) -> None:
    server.answers.update(_ANSWERS)
    ask, _ = _openai(server.url)
    swallowed: list[str] = []

    @guard.protect
    def body() -> None:
        halt(runtime, "pause")
        for _ in range(2):
            try:
                ask()
            except BaseException as exc:
                swallowed.append(type(exc).__name__)
        ask()

    with guard.workflow("w"), pytest.raises(WorkflowPausedException):
        body()
    assert swallowed == ["Refusal", "Refusal"]
    assert server.requests == []


class TestTurnedIntoAnotherError:
    """A framework that gathers exceptions takes the carrier for a result."""

    @pytest.mark.asyncio
    @pytest.mark.parametrize("protects", [True, False])
    async def test_the_edge_raises_the_refusal_from_it(
        self, start: Any, server: SlowServer, protects: bool
    ) -> None:
        runtime = await asyncio.to_thread(start)
        server.answers.update(_ANSWERS)
        _, ask = _openai(server.url)

        async def body() -> str:
            halt(runtime, "pause")
            (answer,) = await asyncio.gather(ask(), return_exceptions=True)
            carrier: Any = answer
            assert isinstance(carrier.error, WorkflowPausedException)
            return str(carrier.choices[0])  # as LangChain's `agenerate` does

        with pytest.raises(WorkflowPausedException) as refused:
            async with guard.workflow("w"):
                await (guard.protect(body) if protects else body)()
        assert isinstance(refused.value.__cause__, AttributeError)
        assert server.requests == []

    @pytest.mark.usefixtures("runtime")
    def test_an_error_without_a_refusal_inside_stays(self) -> None:
        with pytest.raises(AttributeError), guard.workflow("w"):
            _ = object().choices  # type: ignore[attr-defined]

    def test_what_was_handled_inside_is_not_raised_outside(
        self, runtime: GuardRuntime, server: SlowServer
    ) -> None:
        server.answers.update(_ANSWERS)
        ask, _ = _openai(server.url)

        @guard.protect
        def body() -> None:
            halt(runtime, "pause")
            ask()

        def run() -> None:
            with guard.workflow("w"):
                with pytest.raises(WorkflowPausedException):
                    body()
                raise LookupError("mine")

        with pytest.raises(LookupError):
            run()


def test_what_a_killed_stream_had_used_is_settled(
    connected: GuardRuntime, tenant: Any, server: SlowServer, operator: Any
) -> None:
    """The vendor had not said how much it was, so the amount is an estimate and says so."""
    ask_url = f"{server.url}/drip/v1"
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(api_key="k", base_url=ask_url)
    chunk = (
        b'data: {"id":"s1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        b'[{"index":0,"delta":{"content":"word "}}]}\n\n'
    )
    server.chunk = chunk
    seen: list[object] = []

    @guard.protect
    def body() -> None:
        stream = client.chat.completions.create(model="m", messages=_MESSAGES, stream=True)
        seen.extend(stream)

    operator(lambda: len(seen) > 3)
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        body()
    connected.flush(WAIT_S)
    (event,) = until(lambda: tenant.llm_events("w"), WAIT_S)
    assert event["data"]["estimated"] is True
    assert event["data"]["output_tokens"] > 0
