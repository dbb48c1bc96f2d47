"""A limit of guard's that is above what a vendor takes: tried again below, and remembered."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from guard.core.bounds import lower_limit
from tests.guard.instrumentation.conftest import start_observing
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.test_include_usage import ASK, BLIND, CLIENTS, Client
from tests.support.waiting import WAIT_S

Says = Callable[[int, int, int], str]
PROMPT = 500

SAYS: dict[str, Says] = {
    # What vendors say, with the limit that was asked for, their maximum and the prompt's tokens.
    "OpenAI": lambda asked, most, _: (
        f"max_tokens is too large: {asked}. This model supports at most {most} completion tokens, "
        f"whereas you provided {asked}."
    ),
    "Anthropic": lambda asked, most, _: (
        f"max_tokens: {asked} > {most}, which is the maximum allowed number of output tokens for m"
    ),
    "Gemini": lambda asked, most, _: (
        f"Unable to submit request because it has a maxOutputTokens value of {asked} but the "
        f"supported range is from 1 (inclusive) to {most + 1} (exclusive)."
    ),
    "DeepSeek": lambda asked, most, _: (
        f"Invalid max_tokens value, the valid range of max_tokens is [1, {most}]"
    ),
    "Groq": lambda asked, most, _: (
        f"`max_tokens` must be less than or equal to `{most}`, the maximum value for `max_tokens` "
        "is less than the `context_window` for this model"
    ),
    "vLLM": lambda asked, most, prompt: (
        f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum "
        f"context length is {most + prompt} tokens and your request has {prompt} input tokens "
        f"({asked} > {most + prompt} - {prompt})."
    ),
    "a context": lambda asked, most, prompt: (
        f"This model's maximum context length is {most + prompt} tokens. However, you requested "
        f"{asked + prompt} tokens ({prompt} in the messages, {asked} in the completion)."
    ),
}


class Strict(ThreadingHTTPServer):
    """Refuses limits above its largest, and one name of it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.most, self.says, self.refuses = 0, SAYS["OpenAI"], ""
        self.asked: list[int] = []

    def refusal(self, body: dict[str, Any]) -> str | None:
        if self.refuses in body:
            return f"Unsupported parameter: '{self.refuses}' is not supported with this model."
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        self.asked.append(limit)
        return None if limit <= self.most else self.says(limit, self.most, PROMPT)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Strict

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        refusal = self.server.refusal(said)
        chunk = {"id": "c", "model": "m", "choices": [{"delta": {"content": "hi"}}]}
        body = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(chunk).encode()
        if refusal is not None:
            body = json.dumps({"error": {"message": refusal, "code": 400}}).encode()
        self.send_response(200 if refusal is None else 400)
        kind = "text/event-stream" if refusal is None else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def strict_server() -> Iterator[Strict]:
    server = Strict()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(WAIT_S)


@pytest.fixture
def strict(strict_server: Strict) -> Strict:
    strict_server.asked.clear()
    strict_server.refuses = ""
    return strict_server


@pytest.mark.parametrize("refuses", ["", "max_completion_tokens"], ids=["", "name"])
@pytest.mark.parametrize("vendor", SAYS)
@pytest.mark.parametrize("client", [each for each in CLIENTS if each not in BLIND])
def test_no_program_sees_a_refusal_that_guard_has_caused(
    strict: Strict, client: Client, vendor: str, refuses: str
) -> None:
    strict.most, strict.says, strict.refuses = 7_700, SAYS[vendor], refuses
    observing = start_observing(request_gate=FakeGate(), max_output_tokens=65_536)
    try:
        for number in range(2):
            assert client(strict.url, ASK).endswith(b"data: [DONE]\n\n")
            if not number:
                tries = len(strict.asked)
        assert strict.asked[0] == 65_536
        assert strict.asked[-1] == 4096
        assert len(strict.asked) == tries + 1, "remembered"
        assert len(observing.events) == 2
        assert observing.instrumentation.failures == 0
    finally:
        observing.instrumentation.uninstall()


@pytest.mark.parametrize("seed", range(50))
def test_what_is_tried_is_below_what_was_refused(seed: int) -> None:
    rng = random.Random(seed)
    for vendor, says in SAYS.items():
        most = rng.randrange(256, 100_000)
        asked = 1 << rng.randrange(most.bit_length(), 20)
        if asked <= most:
            continue
        found = lower_limit(says(asked, most, rng.randrange(1, 200_000)).encode(), asked)
        if found is not None:
            assert found < asked
            assert found & (found - 1) == 0
            if vendor != "a context":
                assert found <= most


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"Unsupported parameter: 'max_tokens' is not supported with this model o1-2024-12-17.",
        b"The model gpt-4-1106 does not exist", b"messages: at most 1000 images are allowed",
        b"Rate limit: at most 500 requests", b"\xff\xfe at most 4096",
    ],
)  # fmt: skip
def test_other_refusals_are_let_be(answer: bytes) -> None:
    assert lower_limit(answer, 65_536) is None
