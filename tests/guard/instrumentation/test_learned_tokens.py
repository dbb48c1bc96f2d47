"""A vendor with twice as many tokens as a text is bounded by: only one process overshoots."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import guard
from guard.core.bounds import InputRatios, bound_of
from guard.core.usage import find_endpoint
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.gated_clients import CHAT
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S, until

ASK: dict[str, Any] = {
    "model": "gpt-4o", "messages": [{"role": "user", "content": "word " * 3000}], "max_tokens": 9,
}  # fmt: skip
IN, OUT = 2_500, 10_000  # nano-dollars per token


def prompt_tokens() -> int:
    endpoint = find_endpoint("POST", "localhost", CHAT)
    assert endpoint is not None
    bound = bound_of(endpoint.format, CHAT, json.dumps(ASK).encode(), InputRatios())
    return 2 * bound.text_tokens


def reply(tokens: int) -> Reply:
    usage = {"prompt_tokens": tokens, "completion_tokens": 9, "total_tokens": tokens + 9}
    message = {"role": "assistant", "content": "ok"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return Reply(None, encoded({"object": "chat.completion", "model": "gpt-4o", "usage": usage,
                                "choices": choices}))  # fmt: skip


def test_the_next_process_knows_what_one_has_learned(
    tenant: Tenant, standin: StandIn, start: Callable[..., guard.GuardRuntime]
) -> None:
    tokens = prompt_tokens()
    standin.instead = reply(tokens)
    bill = tokens * IN + 9 * OUT
    limit = 2 * bill - 1  # pays for one, and for nearly all of a second one
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=limit)

    def once() -> None:
        runtime = start()
        until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
        try:
            with httpx.Client(timeout=WAIT_S) as client, guard.workflow("w"):
                client.post(standin.url + CHAT, json=ASK)
        finally:
            guard.shutdown(WAIT_S)

    once()
    with pytest.raises(guard.GuardBudgetError):
        once()
    (row,) = (row for row in tenant.admin.ledger() if row["scope_id"] == "w")
    assert (len(standin.bodies), row["committed"]) == (1, bill)
