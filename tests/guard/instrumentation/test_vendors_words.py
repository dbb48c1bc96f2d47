"""What a vendor calls things is made to fit: a model's odd name never costs an event."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import guard
from tests.guard.conftest import Tenant
from tests.guard.instrumentation.gated_clients import CHAT
from tests.guard.instrumentation.standin.reply import Reply
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S

ODD = ["a\0b", "a\ufdd0b", "\U0001f600" * 256, "x" * 300, "\ud800"]


@pytest.mark.parametrize("field", ["model", "id", "service_tier"])
@pytest.mark.parametrize("number", range(len(ODD)))
def test_an_answer_in_odd_words_is_charged(
    tenant: Tenant, standin: StandIn, start: Callable[..., guard.GuardRuntime], field: str,
    number: int,
) -> None:  # fmt: skip
    """Also where the request names such a model."""
    tenant.admin.set_price("*", input_per_mtok=1_000_000_000, output_per_mtok=1_000_000_000)
    odd = ODD[number]
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    message = {"role": "assistant", "content": "ok"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    answer = {"object": "chat.completion", "model": "m", "id": "c-1", "usage": usage,
              "choices": choices, field: odd}  # fmt: skip
    standin.instead = Reply(None, _json(answer))
    model = odd if field == "model" else "m"
    request = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
    start()
    try:
        with httpx.Client(timeout=WAIT_S) as client, guard.workflow("w"):
            headers = {"content-type": "application/json"}
            client.post(standin.url + CHAT, content=_json(request), headers=headers)
    finally:
        guard.shutdown(WAIT_S)
    (row,) = tenant.admin.usage("total")
    assert (row["llm_calls"], row["cost_nanousd"]) == (1, 11_000)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()  # with escapes, also of what is no UTF-8
