"""Fees from end to end: real clients, a real gateway, a vendor that bills by its own prices."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import anthropic
import openai
import pytest

import guard
from guard.breaker.exceptions import GuardBlockedException, GuardBudgetError
from tests.guard.conftest import Tenant
from tests.support.waiting import WAIT_S, until

DOLLARS: Final = {"gpt-4o": ("2.5", "10"), "claude-haiku-4-5": ("1", "5")}  # a million tokens
SEARCH: Final = Fraction("0.01")
CONTAINER: Final = Fraction("0.03")
IMAGE: Final = Fraction("0.12")  # wide, in high definition
LIMIT: Final = 2 * 10**9


class BillingVendor(ThreadingHTTPServer):
    """Answers OpenAI's responses and Anthropic's messages; searches as often as it may.

    Attributes:
        billed: in dollars.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.billed = Fraction(0)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def bill(self, body: dict[str, Any], part: Fraction = Fraction(1)) -> dict[str, Any]:
        """Bill one request, or a part of the price of its tokens; return its answer."""
        if body["model"] == "dall-e-3":
            self.billed += IMAGE * body.get("n", 1)
            return {"created": 1, "data": [{"url": "https://x/y.png"}] * body.get("n", 1)}
        price_in, price_out = map(Fraction, DOLLARS[body["model"]])
        self.billed += part * (900 * price_in + 40 * price_out) / 10**6
        usage: dict[str, Any] = {"input_tokens": 900, "output_tokens": 40, "total_tokens": 940}
        answer = {"id": "r", "model": body["model"], "usage": usage}
        tools = body.get("tools", [])
        if "messages" in body:
            most = sum(tool["max_uses"] for tool in tools)
            self.billed += most * SEARCH
            usage["server_tool_use"] = {"web_search_requests": most}
            return {**answer, "type": "message", "role": "assistant", "stop_reason": "end_turn",
                    "stop_sequence": None, "content": [{"type": "text", "text": "ok"}]}  # fmt: skip
        output: list[Any] = []
        for tool in tools:
            if tool["type"] == "web_search":
                self.billed += body["max_tool_calls"] * SEARCH
                call = {"type": "web_search_call", "id": "w", "status": "completed",
                        "action": {"type": "search", "query": "q"}}  # fmt: skip
                output += [call] * body["max_tool_calls"]
            elif tool["type"] == "code_interpreter":
                self.billed += CONTAINER
                output.append({"type": "code_interpreter_call", "id": "c", "status": "completed",
                               "container_id": "cntr", "code": "1", "outputs": None})  # fmt: skip
        return {**answer, "object": "response", "created_at": 1, "status": "completed",
                "output": output, "tools": tools, "parallel_tool_calls": True,
                "tool_choice": "auto"}  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert isinstance(self.server, BillingVendor)
        if self.path.endswith("/batches"):
            for request in body["requests"]:
                self.server.bill(request["params"], Fraction(1, 2))
            made: Any = {"id": "b", "type": "message_batch", "processing_status": "in_progress",
                         "request_counts": {}, "created_at": "2026-11-01T00:00:00Z"}  # fmt: skip
        else:
            made = self.server.bill(body)
        answer = json.dumps(made).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
        """Say nothing."""


@pytest.fixture
def vendor() -> Iterator[BillingVendor]:
    server = BillingVendor()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def runtime(tenant: Tenant, start: Callable[..., guard.GuardRuntime]) -> guard.GuardRuntime:
    """Under a hard limit, with the socket open, so that requests may be covered by leases."""
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=LIMIT)
    started = start()
    until(lambda: started.status().control_channel == "websocket", WAIT_S)
    return started


def committed(tenant: Tenant) -> int:
    (row,) = (row for row in tenant.admin.ledger() if row["scope_id"] == "w")
    return int(row["committed"])


def until_refused(send: Callable[[], object]) -> int:
    """Send until the money is used up; return how often it was sent."""
    for number in range(1000):
        try:
            with guard.workflow("w"):
                send()
        except GuardBudgetError:
            return number
    raise AssertionError("never refused")


def test_searches_and_containers_end_at_the_limit(
    vendor: BillingVendor, tenant: Tenant, runtime: guard.GuardRuntime
) -> None:
    client = openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k", max_retries=0)
    tools: Any = [{"type": "web_search"},
                  {"type": "code_interpreter", "container": {"type": "auto"}}]  # fmt: skip
    ran = until_refused(
        lambda: client.responses.create(
            model="gpt-4o", input="go", tools=tools, max_tool_calls=5, max_output_tokens=100
        )
    )
    runtime.flush()
    billed = vendor.billed * 10**9
    assert ran > 0
    assert billed == committed(tenant) <= LIMIT
    assert billed > ran * (5 * SEARCH + CONTAINER) * 10**9


def test_anthropics_searches_end_at_the_limit(
    vendor: BillingVendor, tenant: Tenant, runtime: guard.GuardRuntime
) -> None:
    client = anthropic.Anthropic(base_url=vendor.url, api_key="k", max_retries=0)
    tools: Any = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 10}]
    message: Any = {"role": "user", "content": "go"}
    ran = until_refused(lambda: client.messages.create(
        model="claude-haiku-4-5", max_tokens=64, messages=[message], tools=tools))  # fmt: skip
    runtime.flush()
    assert ran >= 10
    assert vendor.billed * 10**9 == committed(tenant) <= LIMIT


def test_batches_are_charged_their_bound_when_they_are_made(
    vendor: BillingVendor, tenant: Tenant, runtime: guard.GuardRuntime
) -> None:
    client = anthropic.Anthropic(base_url=vendor.url, api_key="k", max_retries=0)
    message: Any = {"role": "user", "content": "go " * 900}
    params: Any = {"model": "claude-haiku-4-5", "max_tokens": 40, "messages": [message]}
    requests: Any = [{"custom_id": str(number), "params": params} for number in range(200)]
    ran = until_refused(lambda: client.messages.batches.create(requests=requests))
    runtime.flush()
    billed = vendor.billed * 10**9
    assert ran > 2
    assert billed <= committed(tenant) <= min(LIMIT, 4 * billed)
    for event in tenant.admin.events(type="llm"):
        assert event["data"]["estimate"] == "bound"
        assert "in_doubt" in event["flags"]


def test_images_by_the_piece_end_at_the_limit(
    vendor: BillingVendor, tenant: Tenant, runtime: guard.GuardRuntime
) -> None:
    client = openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k", max_retries=0)
    ran = until_refused(
        lambda: client.images.generate(
            model="dall-e-3", prompt="a cat", size="1792x1024", quality="hd"
        )
    )
    runtime.flush()
    assert ran == 2 // IMAGE == 16
    assert vendor.billed * 10**9 == committed(tenant) <= LIMIT
    [flags] = {tuple(event["flags"]) for event in tenant.admin.events(type="llm")}
    assert flags == (), "nothing is estimated, and nothing without a price"


def test_searches_without_a_number_are_refused_before_a_byte_leaves(
    vendor: BillingVendor, tenant: Tenant, runtime: guard.GuardRuntime
) -> None:
    client = openai.OpenAI(base_url=f"{vendor.url}/v1", api_key="k", max_retries=0)
    tools: Any = [{"type": "web_search"}]
    with pytest.raises(GuardBlockedException, match="set max_tool_calls"), guard.workflow("w"):
        client.responses.create(model="gpt-4o", input="go", tools=tools)
    with (
        pytest.raises(GuardBudgetError, match="set max_tool_calls"),
        guard.workflow("another"),
        guard.context.options(limit_cents=100),
    ):
        client.responses.create(model="gpt-4o", input="go", tools=tools)
    assert vendor.billed == 0
