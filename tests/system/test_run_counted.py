"""``guard run`` under limits of tokens and of calls."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from guard.running.plan import read_calls, read_tokens
from tests.support.runs import Runs, facts_of

LOCAL_AGENT = """
import sys, httpx
for number in range(int(sys.argv[2])):
    body = {"model": "llama3.2:3b", "messages": [{"role": "user", "content": "hi"}]}
    if len(sys.argv) > 3:
        body["max_tokens"] = int(sys.argv[3])
    reply = httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60)
    print(reply.json()["usage"]["total_tokens"], flush=True)
"""
"""A model of one's own: it has no price."""

GATHER = """
import asyncio, sys, guard
done = []

@guard.protect
async def search(number):
    await asyncio.sleep(0.01)
    done.append(number)

@guard.protect
async def other(number):
    pass

async def main():
    with guard.workflow("gathered"):
        await asyncio.gather(*(other(n) for n in range(100)))
        found = await asyncio.gather(*(search(n) for n in range(100)), return_exceptions=True)
    print(len(done), sum(isinstance(each, guard.GuardBudgetError) for each in found), flush=True)

asyncio.run(main())
"""


NAMES = """
import sys, httpx
def search():  # what the agent runs itself, past guard's eyes
    print("searched", flush=True)
for number in range(5):
    body = {"model": "gpt-4o", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    reply = httpx.post(sys.argv[1] + "/v1/chat/completions", json=body, timeout=60)
    for call in reply.json()["choices"][0]["message"]["tool_calls"]:
        search()
"""


class ToolVendor(BaseHTTPRequestHandler):
    """Each of its answers asks for a search."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # its base names it
        self.rfile.read(int(self.headers["content-length"]))
        call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        answer = {
            "id": f"chatcmpl-{id(self)}-{time.monotonic_ns()}", "object": "chat.completion",
            "created": 1, "model": "gpt-4o",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9},
        }  # fmt: skip
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its base's name
        """Say nothing."""


@pytest.fixture
def tool_vendor() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ToolVendor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_local_model_stops_exactly_at_its_tokens(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(LOCAL_AGENT)
    before = httpx.get(f"{vendor}/stats").json()
    done = guard("run", "--limit-tokens", "20k", "--json", "--", str(script), vendor, "99", "4000")
    facts = facts_of(done)
    after = httpx.get(f"{vendor}/stats").json()
    used = sum(after[name] - before[name] for name in ("input_tokens", "output_tokens"))
    assert done.returncode == 77, done.stderr
    [tokens] = facts["counted"]
    assert (tokens["unit"], tokens["used"], tokens["limit"]) == ("tokens", used, 20_000)
    assert (tokens["set_aside"], tokens["uncertain"], tokens["left"]) == (0, 0, 20_000 - used)
    assert 20_000 - 1024 < used <= 20_000, "what is left is less than the smallest answer"
    assert facts["spent_nanousd"] == 0
    assert facts["refused"]["message"] == ("this run's --limit-tokens of 20,000 tokens is reached")
    assert facts["refused"]["advice"].endswith("guard run --limit-tokens 40000 -- ...")
    assert facts["cut_short"] > 0


def test_without_a_limit_of_its_own_an_answer_gets_what_is_left(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(LOCAL_AGENT)
    done = guard("run", "--limit-tokens", "2_000", "--", str(script), vendor, "99")
    assert done.returncode == 77, done.stderr
    tokens = [int(line) for line in done.stdout.split()]
    assert tokens == [1029, 517, 261], "the vendor uses all that it is let"
    said = re.search(r"([\d,]+) of 2,000 tokens", done.stderr)
    assert said is not None, done.stderr
    assert int(said[1].replace(",", "")) == sum(tokens) <= 2000
    assert "--limit-tokens: " in done.stderr


def test_gathered_calls_are_exactly_as_many_as_the_limit(guard: Runs, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(GATHER)
    run = ("run", "--max-calls", "search=20", "--json", "--", str(script))
    done = guard(*run, env={"GUARD_MODE": "enforce"})
    facts = facts_of(done)
    [calls] = facts["counted"]
    assert (calls["unit"], calls["of"], calls["used"], calls["limit"]) == (
        "calls",
        "search",
        20,
        20,
    )
    assert done.stdout.splitlines()[0] == "20 80"
    assert done.returncode == 0, "the program has dealt with its refusals"


def test_tools_are_counted_as_answers_name_them(
    guard: Runs, tool_vendor: str, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(NAMES)
    done = guard("run", "--max-calls", "search=3", "--", str(script), tool_vendor)
    assert (done.stdout, done.returncode) == ("searched\n" * 3, 77), done.stderr
    assert "3 of 3 calls of search" in done.stderr
    assert "this run's --max-calls of 3 calls of search is reached" in done.stderr


def test_all_calls_are_counted_without_a_name(guard: Runs, vendor: str, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(LOCAL_AGENT)
    done = guard(
        "run", "--max-calls", "3", "--max-calls", "llama*=9", "--", str(script), vendor, "9"
    )
    assert (len(done.stdout.split()), done.returncode) == (3, 77), done.stderr
    assert "3 of 3 calls" in done.stderr
    assert "3 of 9 calls of llama*" in done.stderr
    assert "raise it" not in done.stderr


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "0", "2X"])
def test_what_is_no_number_of_tokens(text: str) -> None:
    with pytest.raises(ValueError, match="20k"):
        read_tokens(text)


@pytest.mark.parametrize("text", ["", "x", "search=", "search=-1", "search=x"])
def test_what_is_no_limit_of_calls(text: str) -> None:
    with pytest.raises(ValueError, match="search=20"):
        read_calls(text)


def test_limits_of_calls_may_have_any_name() -> None:
    assert read_calls("20") == ("", 20)
    assert read_calls("a=b=1k") == ("a=b", 1000)
    assert read_calls("search = 0") == ("search", 0)


def test_a_wrong_limit_is_explained(guard: Runs) -> None:
    done = guard("run", "--max-calls", "search", "--", sys.executable, "-c", "")
    assert done.returncode == 2
    assert "--max-calls search=20" in done.stderr
