"""What a program meets through the proxy when guard stops it, or something is out of reach."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors

from guard.gateway.embedded import Gateway, run_gateway
from tests.guard.instrumentation.standin.server import StandIn
from tests.support import tool_answers
from tests.support.llm_vendor import vendor_process
from tests.support.run_proxy import RunProxy, run_proxy
from tests.support.waiting import WAIT_S, until, until_async

CHAT = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
TINY = 1000
"""Nano-dollars that pay for no request."""

_NAMES = iter(range(1_000_000))


@pytest.fixture
def workflow() -> str:
    """Return a name of its own: a kill stays."""
    return f"run-{next(_NAMES)}"


def to(vendor: StandIn | str) -> dict[str, str]:
    url = vendor if isinstance(vendor, str) else vendor.url
    return dict.fromkeys(("openai", "anthropic", "gemini", "ollama", "custom/bedrock"), url)


@pytest.fixture
def poor(gateway: Gateway, vendor: StandIn, tmp_path: Path) -> Iterator[RunProxy]:
    with run_proxy(gateway, tmp_path, to(vendor), limit_nanousd=TINY) as proxy:
        yield proxy


def test_the_vendors_own_clients_read_a_refusal_as_final(poor: RunProxy, vendor: StandIn) -> None:
    words = "the limit of "
    with pytest.raises(openai.BadRequestError, match=words):
        openai.OpenAI(base_url=f"{poor.url}/openai/v1", api_key="k").chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "hi"}]
        )
    with pytest.raises(openai.BadRequestError, match=words):
        openai.OpenAI(base_url=f"{poor.url}/openai/v1", api_key="k").responses.create(
            model="gpt-4o", input="hi", stream=True
        )
    with pytest.raises(anthropic.BadRequestError, match=words):
        anthropic.Anthropic(base_url=f"{poor.url}/anthropic", api_key="k").messages.create(
            model="claude-opus-4-8", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
    client = genai.Client(api_key="k", http_options={"base_url": f"{poor.url}/gemini"})
    with pytest.raises(genai_errors.ClientError, match=words):
        client.models.generate_content(model="gemini-2.5-pro", contents="hi")
    assert vendor.bodies == []
    refusal = poor.refusal()
    assert refusal is not None
    assert refusal["error_code"] == "GD-B004"


def test_after_a_final_refusal_nothing_goes_upstream_any_more(
    poor: RunProxy, vendor: StandIn
) -> None:
    first = httpx.post(f"{poor.url}/openai/v1/chat/completions", json=CHAT)
    then = [
        httpx.post(f"{poor.url}/anthropic/v1/messages", json=CHAT),
        httpx.get(f"{poor.url}/openai/v1/models"),
    ]
    assert {each.status_code for each in (first, *then)} == {400}
    assert {each.headers["x-guard-code"] for each in (first, *then)} == {"GD-B004"}
    assert vendor.bodies == []


MESSAGES = CHAT["messages"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/openai/v1/chat/completions", b" 400 "),  # after the final refusal
        ("/nobody/v1/models", b" 400 "),
        ("/healthz", b" 200 "),
    ],
)
def test_an_answer_before_its_request_says_that_the_connection_ends(
    poor: RunProxy, path: str, status: bytes
) -> None:
    """What is left of the request is not read: another one behind it would get no answer."""
    httpx.post(f"{poor.url}/openai/v1/chat/completions", json=CHAT)
    host, _, port = poor.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{{"
        connection.sendall(head.encode())
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    head_of_it = answer.partition(b"\r\n\r\n")[0].lower()
    assert status in head_of_it
    assert b"\r\nconnection: close" in head_of_it


STREAMS: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "chat": ("/openai/v1/chat/completions", CHAT | {"stream": True}, b'data: {"error"'),
    "responses": (
        "/openai/v1/responses",
        {"model": "gpt-4o", "input": "hi", "stream": True},
        b"event: response.failed",
    ),
    "anthropic": (
        "/anthropic/v1/messages",
        CHAT | {"model": "claude-sonnet-5", "stream": True},
        b"event: error",
    ),
    "gemini": (
        "/gemini/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
        {"contents": [{"parts": [{"text": "hi"}]}]},
        b'data: {"error"',
    ),
    "ollama": (
        "/ollama/api/chat",
        {"model": "llama3.2", "stream": True, "messages": MESSAGES},
        b'{"error":"guard',
    ),
    "bedrock": (
        "/custom/bedrock/model/anthropic.claude-sonnet-4-5/converse-stream",
        {"messages": []},
        b"validationException",
    ),
}


@pytest.mark.parametrize(("path", "body", "event"), STREAMS.values(), ids=STREAMS)
def test_a_kill_ends_a_stream_in_mid_answer_with_the_vendors_own_error(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, workflow: str,
    path: str, body: dict[str, Any], event: bytes,
) -> None:  # fmt: skip
    vendor.hold = True
    with run_proxy(gateway, tmp_path, to(vendor), workflow=workflow) as proxy:
        with httpx.stream("POST", proxy.url + path, json=body) as response:
            chunks = response.iter_raw()
            said = next(chunks)
            gateway.admin.directive("kill", workflow, reason="runaway")
            rest = b"".join(chunks)  # by itself the stand-in would say nothing of an operator
        assert response.status_code == 200
        assert event in rest
        assert event not in said
        assert b"an operator has stopped this: runaway" in rest
        # A stream that was cut is charged, and what follows is refused without upstream.
        assert until(lambda: gateway.admin.events(workflow_id=workflow, type="llm"))
        before = len(vendor.bodies)
        assert httpx.post(proxy.url + path, json=body).status_code == 400
        assert len(vendor.bodies) == before
        refusal = proxy.refusal()
        assert refusal is not None
        assert refusal["error_code"] == "GD-W002"


def test_a_program_that_leaves_ends_its_request_upstream(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, workflow: str
) -> None:
    vendor.hold = True
    with run_proxy(gateway, tmp_path, to(vendor), workflow=workflow) as proxy:
        url = f"{proxy.url}/openai/v1/chat/completions"
        with httpx.stream("POST", url, json=CHAT | {"stream": True}) as response:
            next(response.iter_raw())
        until(lambda: gateway.admin.events(workflow_id=workflow, type="llm"))
        outcome = 'guard_proxy_requests_total{outcome="left",vendor="openai"} 1.0'
        until(lambda: outcome in httpx.get(f"{proxy.url}/metrics").text)
        none_open = "guard_proxy_open_requests 0.0"
        until(lambda: none_open in httpx.get(f"{proxy.url}/metrics").text)
        assert proxy.refusal() is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_program_that_leaves_before_the_first_byte_closes_its_connection_upstream(
    gateway: Gateway, tmp_path: Path, workflow: str, stream: bool
) -> None:
    """Vendors that stop then bill no more; it is charged, as it may have been worked on."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with run_proxy(gateway, tmp_path, to(url), workflow=workflow) as proxy:
            asked = f"{proxy.url}/openai/v1/chat/completions"
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(asked, json=CHAT | {"stream": stream}, timeout=1.0)
            upstream, _ = silent.accept()
            with upstream:
                upstream.settimeout(WAIT_S)
                while upstream.recv(1 << 16):
                    pass
            until(lambda: gateway.admin.events(workflow_id=workflow, type="llm"))
            assert proxy.refusal() is None


def test_a_program_that_leaves_while_it_waits_in_line_costs_nothing(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, workflow: str
) -> None:
    """The second request waits for what the first has set aside; its program goes away."""
    vendor.hold = True
    costs = 800_000  # somewhat more than one request may cost
    with run_proxy(
        gateway, tmp_path, to(vendor), workflow=workflow, limit_nanousd=costs,
        GUARD_WAIT_FOR_ROOM_MS="600000",
    ) as proxy:  # fmt: skip
        url = f"{proxy.url}/openai/v1/chat/completions"
        with httpx.stream("POST", url, json=CHAT | {"stream": True}) as response:
            chunks = response.iter_raw()  # kept: its end would be that of the connection
            next(chunks)
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url, json=CHAT, timeout=1.0)
            outcome = 'guard_proxy_requests_total{outcome="left",vendor="openai"} 1.0'
            until(lambda: outcome in httpx.get(f"{proxy.url}/metrics").text)
            assert len(vendor.bodies) == 1
        assert proxy.refusal() is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("shape", "path"),
    [
        ("chat", "/openai/v1/chat/completions"),
        ("responses", "/openai/v1/responses"),
        ("anthropic", "/anthropic/v1/messages"),
        ("gemini", "/gemini/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"),
        ("ollama", "/ollama/api/chat"),
    ],
)
def test_a_blocked_tool_is_withheld(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, workflow: str,
    shape: str, path: str, stream: bool,
) -> None:  # fmt: skip
    vendor.instead = tool_answers.answer(shape, ["look", "delete_all"], stream=stream)
    gateway.admin.set_policy("tools", tools_block=["delete_*"])
    with run_proxy(gateway, tmp_path, to(vendor), workflow=workflow) as proxy:
        if not stream:
            path = path.replace("streamGenerateContent?alt=sse", "generateContent")
        body = CHAT | {"stream": stream, "input": "hi", "contents": []}
        answer = httpx.post(proxy.url + path, json=body)
        assert answer.status_code == (200 if stream else 400)
        assert "the tool delete_all is blocked" in answer.text
        assert tool_answers.ARGUMENT not in answer.text.partition("delete_all")[2]


def test_out_of_reach_is_503_and_ends_no_run(
    gateway: Gateway, tmp_path: Path, workflow: str
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        upstream = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with run_proxy(gateway, tmp_path, to(upstream), workflow=workflow) as proxy:
            answer = httpx.post(f"{proxy.url}/anthropic/v1/messages", json=CHAT)
            assert answer.status_code == 503
            assert answer.headers["x-should-retry"] == "true"
            assert (
                answer.json()["error"]["message"] == "guard: 127.0.0.1 cannot be reached from here"
            )
            assert proxy.refusal() is None


def test_an_answer_that_upstream_breaks_off_breaks_off(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, workflow: str
) -> None:
    vendor.tear = True
    with run_proxy(gateway, tmp_path, to(vendor), workflow=workflow) as proxy:
        url = f"{proxy.url}/openai/v1/chat/completions"
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(url, json=CHAT | {"stream": True})
        until(lambda: gateway.admin.events(workflow_id=workflow, type="llm"))
        assert httpx.get(f"{proxy.url}/healthz").status_code == 200


def test_without_a_gateway_nothing_goes_out(vendor: StandIn, tmp_path: Path, workflow: str) -> None:
    with run_gateway(tmp_path / "gateway.sqlite3") as own:
        starting = run_proxy(own, tmp_path, to(vendor), workflow=workflow, GUARD_TIMEOUT_MS="500")
        with starting as proxy:
            own.stop()
            answer = httpx.post(f"{proxy.url}/openai/v1/chat/completions", json=CHAT)
            assert answer.status_code == 503
            assert vendor.bodies == []


def test_a_request_that_no_model_is_known_to_answer(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, workflow: str
) -> None:
    """Under a limit it is refused; without one it passes, and is named."""
    with run_proxy(gateway, tmp_path, to(vendor), workflow=workflow) as proxy:
        assert httpx.post(f"{proxy.url}/openai/v1/new-things", json={}).status_code == 200
    limited = run_proxy(gateway, tmp_path, to(vendor), workflow=workflow, GUARD_RUN_SEEN_ONLY="1")
    with limited as proxy:
        for path in ("/openai/v1/files", "/anthropic/v1/messages/count_tokens",
                     "/anthropic/api/event_logging/batch"):  # fmt: skip
            assert httpx.post(proxy.url + path, json={}).status_code == 200
        assert httpx.get(f"{proxy.url}/openai/v1/new-things").status_code == 200
        answer = httpx.post(f"{proxy.url}/openai/v1/new-things", json={})
        assert answer.status_code == 400
        assert "new-things" in answer.text
        assert "trust it with --trust path:" in answer.json()["error"]["message"]
        assert proxy.refusal() is None, "the run goes on"
        paths = {"/anthropic/v1/sessions/s/events", "/gemini/v1beta/cachedContents",
                 "/openai/v1/agents/sessions", "/codex/backend-api/wham/tasks"}  # fmt: skip
        for path in paths:
            answer = httpx.post(proxy.url + path, json={})
            assert answer.status_code == 400, path
            assert path.split("/", 2)[2] in answer.text
            shown = answer.json()
            if path.startswith("/anthropic"):
                assert shown["type"] == "error"
            if path.startswith("/gemini"):
                assert shown["error"]["status"] == "FAILED_PRECONDITION"
        assert (
            httpx.patch(f"{proxy.url}/gemini/v1beta/cachedContents/c", json={}).status_code == 400
        )
        assert len(vendor.bodies) == 5, "none of them was sent"
        chat = httpx.post(f"{proxy.url}/openai/v1/chat/completions", json=CHAT)
        assert chat.status_code == 200


def test_what_the_proxy_answers_by_itself(
    gateway: Gateway, vendor: StandIn, tmp_path: Path
) -> None:
    with run_proxy(gateway, tmp_path, to(vendor)) as proxy:
        assert httpx.get(f"{proxy.url}/healthz").json() == {"status": "ok"}
        assert "guard_proxy_open_requests 0.0" in httpx.get(f"{proxy.url}/metrics").text
        nowhere = httpx.get(f"{proxy.url}/nobody/v1/models")
        assert nowhere.status_code == 400
        assert "openai, anthropic" in nowhere.json()["error"]["message"]
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
                   "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
        assert httpx.get(f"{proxy.url}/openai/v1/responses", headers=upgrade).status_code == 426
        large = httpx.post(
            f"{proxy.url}/openai/v1/chat/completions", content=b"{" + b" " * (64 << 20)
        )
        assert large.status_code == 413
        assert vendor.bodies == []
        assert proxy.end() == 0


_ASK = """
import http.client, os, sys
os.setuid(int(sys.argv[2]))
connection = http.client.HTTPConnection(sys.argv[1])
connection.request("GET", "/healthz")
print(connection.getresponse().status)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_served(gateway: Gateway, vendor: StandIn, tmp_path: Path) -> None:
    with run_proxy(gateway, tmp_path, to(vendor)) as proxy:
        for user, served in ((0, True), (65534, False)):
            found = subprocess.run(
                [sys.executable, "-c", _ASK, proxy.url.removeprefix("http://"), str(user)],
                capture_output=True, text=True, check=False, timeout=WAIT_S,
            )  # fmt: skip
            assert (found.stdout == "200\n") is served, found.stderr


def test_money_is_exact_through_the_proxy(gateway: Gateway, tmp_path: Path, workflow: str) -> None:
    """Forty programs at once: the vendor bills what is charged, and at most the limit."""
    limit = 20_000_000
    with (
        vendor_process() as url,
        run_proxy(gateway, tmp_path, to(url), workflow=workflow, limit_nanousd=limit,
                  GUARD_WAIT_FOR_ROOM_MS="120000") as proxy,
    ):  # fmt: skip
        refused = threading.Event()

        def work(number: int) -> None:
            streams = number % 2 == 1
            while not refused.is_set():
                body = CHAT | ({"stream": True} if streams else {})
                answer = httpx.post(  # it may wait for room as long as the proxy lets it
                    f"{proxy.url}/openai/v1/chat/completions", json=body, timeout=2 * WAIT_S
                )
                if answer.status_code != 200:
                    assert answer.status_code == 400, answer.text
                    refused.set()

        with ThreadPoolExecutor(40) as pool:
            list(pool.map(work, range(40)))
        assert proxy.end() == 0
        stats = httpx.get(f"{url}/stats").json()
        billed = stats["input_tokens"] * 2500 + stats["output_tokens"] * 10_000
        rows = gateway.admin.usage("key")
        row = next(row for row in rows if row["group"] == proxy.key_id)
        assert row["cost_nanousd"] == billed
        assert row["llm_calls"] == stats["answered"]
        assert limit * 0.9 <= billed <= limit


def test_no_key_prompt_or_answer_is_written_anywhere(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret, prompt = "sk-canary-51c", "canary-prompt-88"
    body = CHAT | {"messages": [{"role": "user", "content": prompt}]}
    with run_proxy(gateway, tmp_path, to(vendor), GUARD_LOG_LEVEL="debug") as proxy:
        headers = {"authorization": f"Bearer {secret}"}
        for path in ("/openai/v1/chat/completions", "/openai/v1/odd", "/nobody/x"):
            httpx.post(f"{proxy.url}{path}?key={secret}", json=body, headers=headers)
        told = httpx.get(f"{proxy.url}/metrics").text
        assert proxy.end() == 0
    written = told + "".join(capfd.readouterr())
    written += "".join(p.read_text("utf-8", "replace") for p in tmp_path.rglob("*") if p.is_file())
    written += json.dumps(gateway.admin.events())
    assert secret not in written
    assert prompt not in written


@pytest.mark.parametrize(
    ("shape", "path", "pulse", "approved"),
    [
        ("anthropic", "/anthropic/v1/messages", b"event: ping", True),
        ("chat", "/openai/v1/chat/completions", b": keep-alive", True),
        ("responses", "/openai/v1/responses", b": keep-alive", False),
    ],
)
def test_a_stream_is_kept_alive_while_a_person_decides(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, workflow: str,
    shape: str, path: str, pulse: bytes, approved: bool,
) -> None:  # fmt: skip
    vendor.instead = tool_answers.answer(shape, ["pay"], stream=True)
    gateway.admin.set_policy("tools", approval_tools=["pay"])
    with run_proxy(gateway, tmp_path, to(vendor), workflow=workflow) as proxy:
        body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", proxy.url + path, json=body, timeout=WAIT_S) as response:
            chunks = response.iter_raw()
            said = b""
            while pulse not in said:
                said += next(chunks)
            assert tool_answers.ARGUMENT.encode() not in said
            (question,) = until(gateway.admin.approvals)
            gateway.admin.answer_approval(question["approval_id"], approved=approved)
            rest = b"".join(chunks)
    if approved:
        plain = (said + rest).replace(b": keep-alive\n\n", b"")  # more may come until the answer
        plain = plain.replace(b'event: ping\ndata: {"type": "ping"}\n\n', b"")
        assert plain == b"".join(vendor.instead.events)
    else:
        assert tool_answers.ARGUMENT.encode() not in rest
        assert b"an operator refused the call" in rest


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_person_may_answer_after_the_program_has_given_up(
    gateway: Gateway, vendor: StandIn, tmp_path: Path, workflow: str, stream: bool
) -> None:
    """What they said counts for the next request of the session that names the tool; once."""
    vendor.instead = tool_answers.answer("chat", ["pay"], stream=stream)
    body = CHAT | {"stream": stream}
    headers = {"x-session-id": "s-1"}

    def pending() -> list[Any]:
        return list(gateway.admin.approvals("pending"))

    async def give_up(url: str) -> None:
        """Ask, and leave once a person has been asked.

        Who leaves before the proxy itself knows of the question takes it along, and asks again.
        """
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            while not pending():
                asking = asyncio.create_task(client.post(url, json=body, headers=headers))
                await until_async(lambda: asking.done() or pending(), WAIT_S)  # noqa: B023
                if asking.done():  # on a busy machine the gateway may have been out of reach
                    assert asking.result().status_code == 503, asking.result().text
                    continue
                asking.cancel()
                await asyncio.wait([asking])
                await until_async(
                    lambda: all(each.get("present_until_ms") is None for each in pending()), WAIT_S
                )

    gateway.admin.set_policy("tools", approval_tools=["pay"])
    with run_proxy(gateway, tmp_path, to(vendor), workflow=workflow) as proxy:
        url = f"{proxy.url}/openai/v1/chat/completions"
        asyncio.run(give_up(url))
        (question,) = pending()
        gateway.admin.answer_approval(question["approval_id"], approved=True)
        repeated = httpx.post(url, json=body, headers=headers, timeout=WAIT_S)
        assert repeated.status_code == 200
        assert tool_answers.ARGUMENT in repeated.text
        asyncio.run(give_up(url))  # it is another call, so a person is asked again
        (question,) = pending()
        gateway.admin.answer_approval(question["approval_id"], approved=False)
        repeated = httpx.post(url, json=body, headers=headers, timeout=WAIT_S)
        assert tool_answers.ARGUMENT not in repeated.text
        assert "operator refused the call" in repeated.text
