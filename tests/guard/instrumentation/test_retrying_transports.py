"""Transports of httpx that try again by themselves: each try is held, and charged if it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import httpx
import httpx2
import pytest

from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.gated_clients import CHAT
from tests.guard.instrumentation.test_ends import PricedGate, charged
from tests.support.waiting import WAIT_S, until

Behaviour = Literal["ok", "reset", "hang", "502", "503", "429", "307"]
OUTPUT = 20
PROMPT = 4
TRIES = 4
FREE = ("503", "429", "307")


class Unreliable(ThreadingHTTPServer):
    """Bills each request that it does not refuse, and answers by a list of behaviours."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.behaviours: list[Behaviour] = []
        self.billed = 0
        self.over = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Unreliable

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        behaviour = self.server.behaviours.pop(0)
        if behaviour not in FREE:
            self.server.billed += PROMPT + OUTPUT
        if behaviour in ("reset", "hang"):
            if behaviour == "hang":
                self.server.over.wait(WAIT_S)
            self.close_connection = True
            return
        status = 200 if behaviour == "ok" else int(behaviour)
        usage = {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT}
        body = json.dumps({"id": "c", "model": "gpt-4o", "choices": [], "usage": usage}).encode()
        self.send_response(status)
        if status == 307:
            self.send_header("Location", CHAT)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def unreliable() -> Iterator[Unreliable]:
    server = Unreliable()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join(WAIT_S)


@pytest.fixture
def gate() -> FakeGate:
    return PricedGate()


def _classes(module: Any, server: Unreliable) -> dict[str, Callable[[], Any]]:
    failures = module.TransportError

    class Inside(module.HTTPTransport):  # type: ignore[misc, name-defined]
        def handle_request(self, request: Any) -> Any:
            return tried(super().handle_request, request)

    class Around(module.BaseTransport):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._inner = module.HTTPTransport()

        def handle_request(self, request: Any) -> Any:
            return tried(self._inner.handle_request, request)

        def close(self) -> None:
            self._inner.close()

    class AsyncInside(module.AsyncHTTPTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            return await tried_async(super().handle_async_request, request)

    class AsyncAround(module.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._inner = module.AsyncHTTPTransport()

        async def handle_async_request(self, request: Any) -> Any:
            return await tried_async(self._inner.handle_async_request, request)

        async def aclose(self) -> None:
            await self._inner.aclose()

    def failed(request: Any, left: int) -> None:
        """Have the server take the next behaviour for the next try, which waits as long as it has
        to: a busy machine may be late with either."""
        until(lambda: len(server.behaviours) < left)
        request.extensions["timeout"]["read"] = WAIT_S

    def tried(handle: Any, request: Any) -> Any:
        for number in range(TRIES):
            is_last, left = number == TRIES - 1, len(server.behaviours)
            try:
                response = handle(request)
            except failures:
                failed(request, left)
                if is_last:
                    raise
                continue
            if is_last or response.status_code not in (502, 503, 429):
                return response
            response.read()
            response.close()
        raise AssertionError

    async def tried_async(handle: Any, request: Any) -> Any:
        for number in range(TRIES):
            is_last, left = number == TRIES - 1, len(server.behaviours)
            try:
                response = await handle(request)
            except failures:
                failed(request, left)
                if is_last:
                    raise
                continue
            if is_last or response.status_code not in (502, 503, 429):
                return response
            await response.aread()
            await response.aclose()
        raise AssertionError

    return {"inside": Inside, "around": Around, "async inside": AsyncInside,
            "async around": AsyncAround}  # fmt: skip


KINDS = ["inside", "around", "async inside", "async around"]
ASK = {"model": "gpt-4o", "max_tokens": OUTPUT, "messages": [{"role": "user", "content": "hi"}]}


def send(module: Any, kind: str, server: Unreliable) -> None:
    """Send one request through a retrying transport; what comes of it is of no interest."""
    transport = _classes(module, server)[kind]()
    # Nothing but an answer that never comes is given up.
    timeout = module.Timeout(WAIT_S, read=0.3 if server.behaviours[0] == "hang" else WAIT_S)
    settings: dict[str, Any] = {"transport": transport, "timeout": timeout}
    url = server.url
    with contextlib.suppress(module.TransportError):
        if not kind.startswith("async"):
            with module.Client(follow_redirects=True, **settings) as client:
                client.post(url + CHAT, json=ASK)
            return

        async def main() -> None:
            async with module.AsyncClient(follow_redirects=True, **settings) as client:
                await client.post(url + CHAT, json=ASK)

        asyncio.run(main())


@pytest.mark.parametrize("module", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("covered", [True, False])
def test_each_try_is_held_and_charged(
    unreliable: Unreliable,
    gate: PricedGate,
    gated: Observed,
    module: Any,
    kind: str,
    covered: bool,
) -> None:
    gate.covered = covered
    rng = random.Random(f"{module.__name__} {kind} {covered}")
    faults: list[Behaviour] = ["reset", "502", "503", "429", "307"]
    rounds: list[list[Behaviour]] = [["ok"], ["hang", "ok"], ["reset"] * TRIES, ["503"] * TRIES,
                                     ["307", "reset", "ok"]]  # fmt: skip
    rounds += [[*rng.choices(faults, k=rng.randrange(1, TRIES)), "ok"] for _ in range(6)]
    for behaviours in rounds:
        unreliable.billed = 0
        gated.calls.clear()
        gate.holds.clear()
        unreliable.behaviours = list(behaviours)
        send(module, kind, unreliable)
        served = behaviours[: len(behaviours) - len(unreliable.behaviours)]
        total = charged(gated)
        assert total >= unreliable.billed, behaviours
        lost = [each for each in served if each not in FREE and each != "ok"]
        assert len(gated.events) == len(lost) + ("ok" in served), behaviours
        assert len(gate.ends) == len(gate.holds), "each hold has ended once"
    assert gated.instrumentation.failures == 0
