"""What goes on with an earlier response is held by what that one reported, where it is known."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest

import guard
from guard.breaker.exceptions import GuardBudgetError
from guard.runtime.runtime import GuardRuntime
from tests.guard.conftest import Tenant
from tests.support.vendor_transport import VendorTransport
from tests.support.waiting import WAIT_S

_names = itertools.count(1)
LIMIT: Final = 100_000_000
"""A third of what the whole context of the model costs."""

URL: Final = "https://api.openai.com/v1/responses"
USAGE: Final = {"input_tokens": 900, "output_tokens": 40, "total_tokens": 940}


def ask(url: str = URL, *, usage: dict[str, Any] = USAGE, **members: Any) -> str:
    """Ask for a response, and return its id."""
    answered = f"resp_{next(_names)}"

    def answer(request: httpx.Request) -> httpx.Response:
        model = json.loads(request.content)["model"]
        said = {"id": answered, "object": "response", "status": "completed", "model": model}
        return httpx.Response(200, json={**said, "output": [], "usage": usage})

    body = {"model": "gpt-4o", "max_output_tokens": 100, "input": "hello", **members}
    with httpx.Client(transport=VendorTransport(answer)) as client:
        client.post(url, json=body)
    return answered


@pytest.fixture
def limited(tenant: Tenant, start: Callable[..., GuardRuntime]) -> tuple[str, GuardRuntime]:
    workflow = f"conversation-{next(_names)}"
    tenant.admin.set_budget(scope_kind="workflow", scope_id=workflow, limit_nanousd=LIMIT)
    return workflow, start(wait_for_room_ms=0)


def test_a_conversation_that_was_seen_is_held_by_its_size(
    limited: tuple[str, GuardRuntime], tenant: Tenant
) -> None:
    workflow, runtime = limited
    with guard.context.workflow(workflow):
        last = ask()
        for _ in range(4):
            last = ask(previous_response_id=last)
    runtime.flush(timeout=WAIT_S)
    each = 900 * 2_500 + 40 * 10_000
    assert tenant.spent_nanousd(workflow) == 5 * each


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"previous_response_id": "resp_of_another"}),
        ({}, {"previous_response_id": "resp_{}", "url": "https://eu.api.openai.com/v1/responses"}),
        ({"url": "https://llm.example/v1/responses"}, {"previous_response_id": "resp_{}"}),
        ({"usage": USAGE | {"orbit_tokens": 9}}, {"previous_response_id": "resp_{}"}),
        ({}, {"previous_response_id": "resp_{}", "conversation": "conv_1"}),
        ({"usage": {**USAGE, "input_tokens": 30_000}}, {"previous_response_id": "resp_{}"}),
    ],
    ids=["unseen", "another host", "a server's own", "not exact", "others append", "too long"],
)
def test_else_it_is_held_by_the_context(
    first: dict[str, Any], second: dict[str, Any], limited: tuple[str, GuardRuntime]
) -> None:
    with guard.context.workflow(limited[0]):
        last = ask(**first)
    named = second["previous_response_id"].replace("resp_{}", last)
    with pytest.raises(GuardBudgetError), guard.context.workflow(limited[0]):
        ask(**{**second, "previous_response_id": named})
