"""Whatever way a model is asked, its bill is charged, or the request is refused and does not leave.

The server bills by rules of its own: it reads a path in any case, with parameters, backslashes and
escapes, takes bodies in pieces and packed, and sends a moved request on to the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import http.server
import io
import json
import os
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import aiohttp
import httpcore
import httpx
import pytest
import requests
import urllib3

from guard.breaker.exceptions import GuardBlockedException
from guard.breaker.refusals import Refusal
from guard.running.child import refuse_unseen
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.test_ends import PricedGate, charged

SEED: Final = os.environ.get("GUARD_TEST_DRAW", "")
CASES: Final = 600
TOKENS: Final = (90, 20)
CHAT: Final = "/v1/chat/completions"
MOVED: Final = "/v1/files"
UNKNOWN: Final = "/v1/evals/e/runs"
ASK: Final = {"model": "gpt-5", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}
PLAIN: Final = json.dumps(ASK).encode()


class Server(http.server.ThreadingHTTPServer):
    """Bills what reaches a model, by the path as the most lenient server reads it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = self.server_address[1]
        self.billed = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def _take(self) -> None:
        if self.headers.get("transfer-encoding"):
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                self.rfile.read(size + 2)
            is_whole = self.rfile.readline() != b""
        else:
            size = int(self.headers.get("content-length") or 0)
            is_whole = len(self.rfile.read(size)) == size
        if not is_whole:  # it was refused on its way
            self.close_connection = True
            return
        target = self.path if self.path[:1] == "/" else "/" + self.path.split("/", 3)[-1]
        path = re.split(r"[?#;\x00]", unquote(target))[0].replace("\\", "/").strip().lower()
        # A vendor does not send on from what is free to what costs; a server in front of one may.
        is_vendors = "openai" in self.headers["host"].lower()
        is_moved = path == MOVED and not is_vendors
        costly = (CHAT, UNKNOWN) if is_vendors else (CHAT,)
        if re.sub("/+", "/", path).rstrip("/") in costly:
            self.server.billed += sum(TOKENS)
        usage = dict(zip(("prompt_tokens", "completion_tokens"), TOKENS, strict=True))
        message = {"role": "assistant", "content": "ok"}
        body = json.dumps({
            "id": "c", "model": "gpt-5", "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }).encode()  # fmt: skip
        self.send_response(307 if is_moved else 200)
        if is_moved:
            self.send_header("location", CHAT)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self._take()

    def do_QUERY(self) -> None:
        self._take()

    def do_ASK(self) -> None:
        self._take()


Headers = dict[bytes | str, bytes | str]
Send = Callable[[str, str, int, str, Any, Headers], Any]


def by_httpx(method: str, host: str, port: int, path: str, body: Any, headers: Headers) -> None:
    with httpx.Client(follow_redirects=True) as client:
        client.request(method, f"http://{host}:{port}{path}", content=body, headers=headers)


async def by_httpx_async(
    method: str, host: str, port: int, path: str, body: Any, headers: Headers
) -> None:
    async with httpx.AsyncClient(follow_redirects=True) as client:
        content = body if isinstance(body, bytes) else b"".join(body)
        url = f"http://{host}:{port}{path}"
        await client.request(method, url, content=content, headers=headers)


def by_requests(method: str, host: str, port: int, path: str, body: Any, headers: Headers) -> None:
    url = f"http://{host}:{port}{path}"
    requests.request(method, url, data=body, headers=headers, timeout=60)


def by_urllib3(method: str, host: str, port: int, path: str, body: Any, headers: Headers) -> None:
    with urllib3.PoolManager() as pool:
        pool.request(method, f"http://{host}:{port}{path}", body=body, headers=headers)


async def by_aiohttp(
    method: str, host: str, port: int, path: str, body: Any, headers: Headers
) -> None:
    data = body if isinstance(body, bytes) else io.BytesIO(b"".join(body))
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, f"http://{host}:{port}{path}", data=data, headers=headers
        ) as answer,
    ):
        await answer.read()


async def by_tornado(
    method: str, host: str, port: int, path: str, body: Any, headers: Headers
) -> None:
    from tornado.httpclient import AsyncHTTPClient

    client = AsyncHTTPClient(force_instance=True)
    data = body if isinstance(body, bytes) else b"".join(body)
    url = f"http://{host}:{port}{path}"
    try:
        await client.fetch(url, method=method, body=data, headers=headers,
                           allow_nonstandard_methods=True)  # fmt: skip
    finally:
        client.close()


def by_http_client(
    method: str, host: str, port: int, path: str, body: Any, headers: Headers
) -> None:
    connection = http.client.HTTPConnection(host, port)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers, encode_chunked=True)
        connection.getresponse().read()


def by_httpcore(method: str, host: str, port: int, path: str, body: Any, headers: Headers) -> None:
    content = body if isinstance(body, bytes) else b"".join(body)
    with httpcore.ConnectionPool() as pool:
        pool.request(method, f"http://{host}:{port}/", content=content,
                     headers={**headers, "host": host},
                     extensions={"target": path.encode()})  # fmt: skip


def by_a_connection(
    method: str, host: str, port: int, path: str, body: Any, headers: Headers
) -> None:
    content = body if isinstance(body, bytes) else b"".join(body)
    with httpcore.HTTPConnection(httpcore.Origin(b"http", host.encode(), port)) as connection:
        connection.request(method, f"http://{host}:{port}{path}", content=content,
                           headers={**headers, "host": host})  # fmt: skip


SENDS: Final[tuple[Send, ...]] = (
    by_httpx, by_httpx_async, by_requests, by_urllib3, by_aiohttp, by_tornado, by_http_client,
    by_httpcore, by_a_connection,
)  # fmt: skip
HOSTS: Final = ("127.0.0.1", "localhost", "api.openai.com", "API.OpenAI.com", "api.openai.com.",
                "eu.api.openai.com", "llm.example.com")  # fmt: skip
METHODS: Final = ("POST", "POST", "POST", "QUERY", "ASK")
PATHS: Final = (
    CHAT, CHAT, f"{CHAT}/", "//v1//chat/completions", "/V1/Chat/Completions", f"{CHAT};a=b",
    f"{CHAT}?a=b", f"{CHAT}%20", "/v1/chat/%63ompletions", "/v1/chat%2Fcompletions",
    "/v1\\chat\\completions", f"{CHAT}%00", MOVED, MOVED, UNKNOWN,
)  # fmt: skip
BODIES: Final[dict[str, Callable[[], tuple[Any, Headers]]]] = {
    "plain": lambda: (PLAIN, {}),
    "gzip": lambda: (gzip.compress(PLAIN), {"content-encoding": "gzip"}),
    "packed by what nobody knows": lambda: (PLAIN, {"content-encoding": "tomorrow"}),
    "in pieces": lambda: (iter([PLAIN[:9], PLAIN[9:]]), {}),
    "a mark before it": lambda: (b"\xef\xbb\xbf" + PLAIN, {}),
    "in UTF-16": lambda: (json.dumps(ASK).encode("utf-16"), {}),
    "two models": lambda: (b'{"model": "free",' + PLAIN[1:], {}),
    "two bodies": lambda: (PLAIN + b"\n" + PLAIN, {}),
    "another type": lambda: (PLAIN, {"content-type": "text/plain"}),
    "a form": lambda: (b"model=gpt-5", {"content-type": "application/x-www-form-urlencoded"}),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, at every name."""
    find = socket.getaddrinfo

    def found(host: Any, *args: Any, **options: Any) -> Any:
        return find("127.0.0.1" if host else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    running = Server()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def gate() -> PricedGate:
    return PricedGate()


@pytest.mark.generator("ways to ask a model, each against a bill of the server's own")
def test_a_model_is_asked_with_a_charge_or_not_at_all(
    server: Server, gate: PricedGate, gated: Observed, count_cases: Callable[[int], None]
) -> None:
    gated.instrumentation.refuse_unseen = refuse_unseen
    rng, left = random.Random(f"ways {SEED}"), 0
    for _ in range(CASES):
        send, host = rng.choice(SENDS), rng.choice(HOSTS)
        method, path, name = rng.choice(METHODS), rng.choice(PATHS), rng.choice(list(BODIES))
        server.billed = 0
        gated.calls.clear()
        body, headers = BODIES[name]()
        headers.setdefault("content-type", "application/json")
        way = (send.__name__, method, host, path, name)
        try:
            waits = send(method, host, server.port, path, body, headers)
            if waits is not None:
                asyncio.run(waits)
        except (Refusal, GuardBlockedException):
            assert server.billed == 0, way
        except Exception:  # a client that does not send such a thing
            pass
        assert charged(gated) >= server.billed, way
        left += server.billed > 0
    assert left > CASES // 4, "else it asks next to nothing"
    count_cases(CASES)
