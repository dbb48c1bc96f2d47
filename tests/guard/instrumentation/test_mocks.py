"""Requests that mocks answer in a user's tests: none leaves the process, so none costs anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from unittest import mock

import boto3  # type: ignore[import-untyped]
import botocore.stub  # type: ignore[import-untyped]
import httpx
import pytest
import requests
import requests.adapters
import respx

import guard
from guard.runtime.runtime import GuardRuntime
from tests.guard.conftest import Tenant

URL: Final = "https://api.openai.com/v1/chat/completions"
ASKED: Final = {"model": "gpt-4o", "max_tokens": 1000, "messages": []}
ANSWER: Final = {
    "id": "c", "object": "chat.completion", "model": "gpt-4o",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "hello"}}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000},
}  # fmt: skip


def _by_mock_transport(answer: Callable[[httpx.Request], httpx.Response]) -> None:
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        client.post(URL, json=ASKED)


def _lost(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("late", request=request)


def _by_respx(**answer: Any) -> None:
    with respx.mock(assert_all_called=False) as router:
        router.route(host="127.0.0.1").pass_through()  # guard's own requests
        router.post(URL).mock(**answer)
        httpx.post(URL, json=ASKED)


def _by_patched(target: str, answer: object) -> None:
    with mock.patch(target, side_effect=[answer]):
        httpx.post(URL, json=ASKED)


def _by_patched_adapter(answer: object) -> None:
    with mock.patch.object(requests.adapters.HTTPAdapter, "send", side_effect=[answer]):
        requests.post(URL, json=ASKED, timeout=60)


def _requests_answer() -> requests.Response:
    answer = requests.Response()
    answer.status_code = 200
    answer.headers["content-type"] = "application/json"
    answer._content = json.dumps(ANSWER).encode()
    return answer


def _by_stubber() -> None:
    client = boto3.client(
        "bedrock-runtime", region_name="us-east-1",
        aws_access_key_id="a", aws_secret_access_key="b",
    )  # fmt: skip
    answer = {
        "output": {"message": {"role": "assistant", "content": [{"text": "hello"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 1000, "outputTokens": 1000, "totalTokens": 2000},
        "metrics": {"latencyMs": 1},
    }
    with botocore.stub.Stubber(client) as stub:
        stub.add_response("converse", answer)
        client.converse(
            modelId="anthropic.claude-3-5-sonnet-20240620-v1:0",
            messages=[{"role": "user", "content": [{"text": "hello"}]}],
        )


MOCKS: Final[dict[str, Callable[[], None]]] = {
    "MockTransport": lambda: _by_mock_transport(lambda _: httpx.Response(200, json=ANSWER)),
    "MockTransport, no usage": lambda: _by_mock_transport(lambda _: httpx.Response(200, json={})),
    "MockTransport, lost": lambda: _by_mock_transport(_lost),
    "respx": lambda: _by_respx(return_value=httpx.Response(200, json=ANSWER)),
    "respx, lost": lambda: _by_respx(side_effect=httpx.ReadTimeout),
    "Client.send": lambda: _by_patched(
        "httpx.Client.send", httpx.Response(200, json=ANSWER, request=httpx.Request("POST", URL))
    ),
    "HTTPTransport.handle_request": lambda: _by_patched(
        "httpx.HTTPTransport.handle_request", httpx.Response(200, json=ANSWER)
    ),
    "HTTPAdapter.send": lambda: _by_patched_adapter(_requests_answer()),
    "HTTPAdapter.send, lost": lambda: _by_patched_adapter(requests.ReadTimeout()),
    "Stubber": _by_stubber,
}


@pytest.mark.parametrize("name", MOCKS)
def test_a_mock_costs_nothing_and_holds_nothing(
    name: str, tenant: Tenant, runtime: GuardRuntime
) -> None:
    """One of these requests may cost a cent: nine would not fit if each kept its hold."""
    tenant.admin.set_budget(5, scope_kind="workflow", scope_id="mocked")
    for _ in range(9):
        with guard.workflow("mocked"), suppress(httpx.ReadTimeout, requests.ReadTimeout):
            MOCKS[name]()
    runtime.flush()
    assert tenant.llm_events("mocked") == []
    # A workflow that has asked for nothing is not known.
    found = [each for each in tenant.admin.workflows() if each["workflow_id"] == "mocked"]
    assert [(each["spent_nanousd"], each["uncertain_nanousd"]) for each in found] in ([], [(0, 0)])
