"""An answer with a number that nobody has judged is charged its bound, and the number is named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest

import guard
from guard.runtime.runtime import GuardRuntime
from tests.guard.conftest import Tenant
from tests.support.vendor_transport import VendorTransport
from tests.support.waiting import WAIT_S

_names = itertools.count(1)
CHAT: Final = "https://api.openai.com/v1/chat/completions"
ROUTER: Final = "https://openrouter.ai/api/v1/chat/completions"
MESSAGES: Final = "https://api.anthropic.com/v1/messages"
OWN: Final = "https://llm.example/v1/chat/completions"


def ask(url: str, usage: dict[str, Any], *, streamed: bool = False) -> None:
    model = "claude-opus-4-1" if url == MESSAGES else "gpt-4o"
    said: dict[str, Any] = {"id": f"it-{next(_names)}", "model": model, "choices": []}
    said |= {"object": "chat.completion", "created": 1, "usage": usage}
    if url == MESSAGES:
        said |= {"type": "message", "role": "assistant", "content": []}

    def answer(_request: httpx.Request) -> httpx.Response:
        if not streamed:
            return httpx.Response(200, json=said)
        chunk = httpx.Response(200, json=said).content
        head = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=head, content=b"data: %s\n\ndata: [DONE]\n\n" % chunk)

    body = {"model": model, "max_tokens": 500, "messages": [{"role": "user", "content": "hi"}]}
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.Client(transport=VendorTransport(answer)) as client:
        client.post(url, json=body)


PLAIN: Final = {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}
ANTHROPIC: Final = {"input_tokens": 5, "output_tokens": 10}


@pytest.fixture
def spent(tenant: Tenant) -> Callable[..., int]:
    def spent_on(runtime: GuardRuntime, *args: Any, **options: Any) -> int:
        workflow = f"counted-{next(_names)}"
        tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=10**10)
        with guard.context.workflow(workflow):
            ask(*args, **options)
        runtime.flush(timeout=WAIT_S)
        return tenant.spent_nanousd(workflow)

    return spent_on


@pytest.mark.parametrize("streamed", [False, True])
def test_it_costs_its_bound_unless_it_is_trusted(
    streamed: bool, start: Callable[..., GuardRuntime], spent: Callable[..., int]
) -> None:
    runtime = start()
    plain = spent(runtime, CHAT, PLAIN, streamed=streamed)
    assert 0 < plain < 1_000_000
    dear = spent(runtime, CHAT, PLAIN | {"orbit_tokens": 3}, streamed=streamed)
    assert dear >= 500 * 10_000, "all 500 tokens of its limit"
    assert dict(runtime.instrumentation.unseen._all()) == {"dear:counter:orbit_tokens": 1}
    runtime.shutdown()
    trusting = start(trust=["counter:orbit_tokens"])
    assert spent(trusting, CHAT, PLAIN | {"orbit_tokens": 3}, streamed=streamed) == plain
    assert dict(trusting.instrumentation.unseen._all()) == {}


@pytest.mark.parametrize(
    ("url", "usage", "more", "is_dear"),
    [
        (CHAT, PLAIN, {"prompt_tokens_details": {"video_tokens": 3}}, True),
        (CHAT, PLAIN, {"prompt_tokens_details": {"video_tokens": 0, "image_tokens": 2}}, False),
        (CHAT, PLAIN, {"latency_ms": 12.5}, False),
        (MESSAGES, ANTHROPIC, {"server_tool_use": {"orbit_requests": 1}}, True),
        (MESSAGES, ANTHROPIC, {"server_tool_use": {"web_fetch_requests": 1}}, False),
        (MESSAGES, ANTHROPIC, {"iterations": [{"type": "message", "orbit_tokens": 9}]}, True),
        # The vendor's own word on the cost includes all of it.
        (ROUTER, PLAIN, {"cost": 0.00001, "orbit_tokens": 3}, False),
        (OWN, PLAIN, {"orbit_tokens": 3}, False),
    ],
)
def test_what_makes_an_answer_dear(
    url: str,
    usage: dict[str, Any],
    more: dict[str, Any],
    is_dear: bool,
    start: Callable[..., GuardRuntime],
    spent: Callable[..., int],
) -> None:
    cost = spent(start(), url, usage | more)
    assert cost > 0
    assert (cost >= 500 * 10_000) is is_dear
