"""A stream that broke off costs what its vendor says afterwards; else its bound, as without asking.

The vendor is a server on loopback that answers as OpenRouter does: a stream that goes on until its
reader leaves, and the look-up of a generation by its id.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import aiohttp
import httpx
import pytest
import requests
from msgspec import structs

import guard
from guard.core.usage.generations import usage_of_generation
from guard.core.vendors import VENDORS
from guard.instrumentation import vendors_word
from tests.guard.conftest import Tenant
from tests.support.waiting import until

KEY: Final = "Bearer sk-or-secret"
ASK: Final = {"model": "gpt-5", "stream": True, "max_tokens": 1000,
              "messages": [{"role": "user", "content": "hi"}]}  # fmt: skip
BILL: Final = 5_500_000
"""Nano-dollars: what the answer did cost; its bound is 4,000,000 and more by the prices below."""
TOLD: Final = {
    "id": "gen-1", "upstream_id": "chatcmpl-1", "total_cost": BILL / 1e9, "cache_discount": None,
    "upstream_inference_cost": 0, "created_at": "2026-11-15T23:33:19.433273+00:00",
    "model": "openai/gpt-5", "app_id": None, "streamed": True, "cancelled": True,
    "provider_name": "OpenAI", "latency": 1250, "moderation_latency": None,
    "generation_time": 1200, "finish_reason": None, "tokens_prompt": 10, "tokens_completion": 25,
    "native_tokens_prompt": 11, "native_tokens_completion": 27,
    "native_tokens_completion_images": 0, "native_tokens_reasoning": 5,
    "native_tokens_cached": 3, "num_media_prompt": None, "num_search_results": None,
    "origin": "", "usage": BILL / 1e9, "is_byok": False, "native_finish_reason": None,
}  # fmt: skip
"""As https://openrouter.ai/docs/api-reference/get-a-generation shows it (2026-11)."""


class Router(http.server.ThreadingHTTPServer):
    """Streams until its reader leaves, and says afterwards what that cost."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://openrouter.ai:{self.server_address[1]}"
        self.left = threading.Event()
        self.asked: list[tuple[str, str | None]] = []
        self.status, self.said = 200, json.dumps({"data": TOLD}).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Router
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        chunk = {"id": "gen-1", "model": "openai/gpt-5", "object": "chat.completion.chunk",
                 "choices": [{"index": 0, "delta": {"content": "word "}}]}  # fmt: skip
        with contextlib.suppress(OSError):
            while not self.server.left.wait(0.01):
                self.wfile.write(b"data: %s\n\n" % json.dumps(chunk).encode())

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["authorization"]))
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(self.server.said)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(self.server.said)


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    """The vendor, at its own name."""
    find = socket.getaddrinfo

    def found(host: Any, *args: Any, **options: Any) -> Any:
        is_its = host in ("openrouter.ai", b"openrouter.ai")
        return find("127.0.0.1" if is_its else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    server = Router()
    where = f"{server.url}/api/v1/generation?id={{}}"
    told = structs.replace(VENDORS["openrouter"], bill=where)
    monkeypatch.setitem(VENDORS, "openrouter", told)
    monkeypatch.setattr(vendors_word, "ASKS_AFTER_S", 0.1)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.left.set()
    server.shutdown()
    server.server_close()


def by_httpx(url: str) -> None:
    headers = {"Authorization": KEY}
    with httpx.stream("POST", url, json=ASK, headers=headers, timeout=60) as answer:
        next(answer.iter_lines())


def by_requests(url: str) -> None:
    headers = {"authorization": KEY}
    with requests.post(url, json=ASK, headers=headers, stream=True, timeout=60) as answer:
        next(answer.iter_lines())


async def by_aiohttp(url: str) -> None:
    async with (
        aiohttp.ClientSession(headers={"Authorization": KEY}) as session,
        session.post(url, json=ASK) as answer,
    ):
        await answer.content.readline()


@pytest.fixture
def balance(tenant: Tenant) -> Callable[[], dict[str, Any]]:
    rates = {"input_per_mtok": 10**9, "output_per_mtok": 10**10}
    tenant.admin.set_price("openai/gpt-5", **rates)
    tenant.admin.set_price("gpt-5", **rates)
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=10**9)

    def read() -> dict[str, Any]:
        (row,) = (row for row in tenant.admin.ledger() if row["scope_id"] == "w")
        return row

    return read


@pytest.mark.asyncio
@pytest.mark.parametrize("drop", [by_httpx, by_requests, by_aiohttp])
async def test_a_dropped_stream_costs_what_its_vendor_says(
    router: Router, balance: Callable[[], dict[str, Any]], runtime: guard.GuardRuntime,
    caplog: pytest.LogCaptureFixture, drop: Callable[[str], Any],
) -> None:  # fmt: skip
    with caplog.at_level(logging.DEBUG), guard.workflow("w"):
        waits = drop(f"{router.url}/api/v1/chat/completions")
        if waits is not None:
            await waits
    until(lambda: router.asked != [] and not runtime.instrumentation.later.works)
    runtime.flush()
    assert balance()["committed"] == BILL
    assert router.asked == [("/api/v1/generation?id=gen-1", KEY)], "once, with the caller's key"
    assert "sk-or-secret" not in caplog.text


TOO_LONG: Final = b'{"data": {"id": "%s"}}' % (b"x" * (1 << 21))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, b'{"error": {"message": "not found"}}'), (200, b"{"), (200, b"[]"), (302, b""),
        (200, json.dumps({"data": {**TOLD, "cancelled": False}}).encode()),
        (200, json.dumps({"data": {**TOLD, "total_cost": -1}}).encode()), (200, TOO_LONG),
    ],
)  # fmt: skip
def test_where_the_vendor_does_not_say_it_costs_its_bound(
    router: Router, balance: Callable[[], dict[str, Any]], runtime: guard.GuardRuntime,
    status: int, said: bytes,
) -> None:  # fmt: skip
    router.status, router.said = status, said
    with guard.workflow("w"):
        by_httpx(f"{router.url}/api/v1/chat/completions")
    until(lambda: router.asked != [] and not runtime.instrumentation.later.works)
    runtime.flush()
    assert balance()["committed"] >= 1000 * 10_000, "all of its output"
    assert len(router.asked) == 1


def test_a_process_that_ends_before_it_asks_pays_the_bound(
    router: Router, balance: Callable[[], dict[str, Any]], runtime: guard.GuardRuntime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(vendors_word, "ASKS_AFTER_S", 3600.0)
    with guard.workflow("w"):
        by_httpx(f"{router.url}/api/v1/chat/completions")
    runtime.shutdown()
    assert balance()["committed"] >= 1000 * 10_000
    assert router.asked == []


def test_ones_own_key_is_billed_beside() -> None:
    own = {**TOLD, "is_byok": True, "upstream_inference_cost": 0.01, "total_cost": 0.0005}
    found = usage_of_generation("openrouter", json.dumps({"data": own}).encode())
    assert found is not None
    assert (found.cost_nanousd, found.input_tokens, found.cache_read_tokens) == (10_500_000, 8, 3)
    assert (found.output_tokens, found.reasoning_tokens, found.estimated) == (22, 5, False)


def test_a_question_does_not_show_its_key() -> None:
    question = vendors_word.CostQuestion(0.0, ("openrouter", "gen-1"), "openrouter", "u", KEY)
    assert "secret" not in repr(question)
