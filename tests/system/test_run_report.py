"""``guard run``: what is not certain of a run's figures stands in its report."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import time
from typing import Any

import pytest

from tests.support.cutting_vendor import cutting_vendor
from tests.support.runs import Runs
from tests.support.waiting import until

ASK = """
import json, sys, httpx
url, path, count, *more = sys.argv[1:]
for _ in range(int(count)):
    body = {"messages": [{"role": "user", "content": "hi"}], **json.loads(more[0])}
    print(httpx.post(url + path, json=body, timeout=60).status_code, flush=True)
"""
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def ran(
    guard: Runs, vendor: str, path: str, body: dict[str, Any], *options: str, count: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run a program that asks ``count`` times."""
    program = ("python", "-c", ASK, vendor, path, str(count), json.dumps(body))
    return guard("run", *options, "--", *program)


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": "mistral-large-latest"}),
        (CHAT, {"model": "mistral-large-latest", "stream": True}),
        (MESSAGES, {"model": "claude-sonnet-4-5", "max_tokens": 8192}),
    ],
    ids=["no limit", "stream", "lowered"],
)
def test_an_answer_that_the_limit_cut_short_is_counted(
    path: str, body: dict[str, Any], guard: Runs, vendor: str
) -> None:
    done = ran(guard, vendor, path, body, "--json", "--limit", "$0.02")
    assert report_of(done)["cut_short"] == 1, done.stderr


def test_the_report_names_answers_that_were_cut_short(guard: Runs, vendor: str) -> None:
    body = {"model": "mistral-large-latest"}
    done = ran(guard, vendor, CHAT, body, "--limit", "$0.02", count=2)
    assert "2 answers were cut short by the limit" in done.stderr


@pytest.mark.parametrize(
    "body",
    [{"model": "mistral-large-latest", "max_tokens": 50}, {"model": "gpt-4o"}],
    ids=["by its own limit", "by itself"],
)
def test_an_answer_that_ends_otherwise_is_not(
    body: dict[str, Any], guard: Runs, vendor: str
) -> None:
    """The stand-in knows no ``max_completion_tokens``, so that the second ends by itself."""
    done = ran(guard, vendor, CHAT, body, "--json", "--limit", "$0.02")
    assert (report_of(done)["requests"], report_of(done)["cut_short"]) == (1, 0), done.stderr


def test_the_status_counts_answers_that_were_cut_short(guard: Runs, vendor: str) -> None:
    program = f"{ASK}\nimport guard\nprint(guard.status().cut_short)"
    body = json.dumps({"model": "mistral-large-latest"})
    arguments = ("python", "-c", program, vendor, CHAT, "1", body)
    done = guard("run", "--limit", "$0.02", "--", *arguments)
    assert done.stdout.split() == ["200", "1"], done.stderr


PRICED = {"GUARD_PRICE_LOCAL": "1"}
OWN_MODEL = {"model": "our-own-model", "max_tokens": 50}
STREAMED = {"model": "our-own-model", "stream": True}


def test_models_without_a_known_price_are_named(guard: Runs, vendor: str) -> None:
    guard.env |= PRICED
    done = ran(guard, vendor, CHAT, OWN_MODEL, "--json", "--limit", "$1", count=2)
    assert report_of(done)["unpriced_models"] == {"our-own-model": 2}, done.stderr
    assert report_of(done)["local_models"] == {}
    done = ran(guard, vendor, CHAT, OWN_MODEL, "--limit", "$1")
    assert "price not known, charged at fallback prices: our-own-model (1)" in done.stderr
    done = ran(guard, vendor, CHAT, {"model": "gpt-4o", "max_tokens": 50}, "--limit", "$1")
    assert "fallback" not in done.stderr


def test_the_status_names_models_without_a_known_price(guard: Runs, vendor: str) -> None:
    guard.env |= PRICED
    program = f"{ASK}\nimport guard\nprint(guard.status().unpriced_models)"
    arguments = ("python", "-c", program, vendor, CHAT, "2", json.dumps(OWN_MODEL))
    done = guard("run", "--limit", "$1", "--", *arguments)
    assert done.stdout.splitlines()[2:] == ["('our-own-model',)"], done.stderr


# -- local models ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "body"),
    [
        ("127.0.0.1", OWN_MODEL),
        ("localhost", STREAMED),
        pytest.param("localhost", OWN_MODEL, marks=pytest.mark.matrix),
        pytest.param("127.0.0.1", STREAMED, marks=pytest.mark.matrix),
    ],
)
def test_a_local_model_is_free_and_named(
    host: str, body: dict[str, Any], guard: Runs, vendor: str
) -> None:
    """A limit of one nano-dollar would not pay for a token."""
    address = vendor.replace("127.0.0.1", host)
    done = ran(guard, address, CHAT, body, "--json", "--limit", "0.000000001", count=5)
    report = report_of(done)
    assert (done.returncode, report["requests"], report["spent_nanousd"]) == (0, 5, 0), done.stderr
    assert (report["local_models"], report["unpriced_models"]) == ({"our-own-model": 5}, {})
    assert report["cut_short"] == 0
    done = ran(guard, address, CHAT, body)
    assert "not charged, at a local address: our-own-model (1)" in done.stderr


def test_a_known_model_at_a_local_address_is_charged(guard: Runs, vendor: str) -> None:
    """Something there passes it on to those who bill it."""
    done = ran(guard, vendor, CHAT, {"model": "gpt-4o", "max_tokens": 50}, "--json")
    assert report_of(done)["spent_nanousd"] > 0
    assert report_of(done)["local_models"] == {}


def test_a_model_with_a_price_of_ones_own_is_charged(guard: Runs, vendor: str) -> None:
    price = ("prices", "set", "priced-by-us", "--input", "1000000", "--output", "1000000")
    assert guard("gateway", *price, "--local").returncode == 0
    done = ran(guard, vendor, CHAT, {**OWN_MODEL, "model": "priced-by-us"}, "--limit", "$1")
    assert (done.returncode, done.stdout) == (77, ""), done.stderr


class Proxy(http.server.BaseHTTPRequestHandler):
    """Answers as a proxy in front of paid models does."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        usage = {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60}
        body = json.dumps({"id": str(time.time_ns()), "model": "fast", "usage": usage}).encode()
        self.send_response(200)
        self.send_header("x-litellm-version", "1.70.0")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_what_a_local_proxy_passes_on_is_charged_as_soon_as_it_shows(guard: Runs) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = ran(guard, url, CHAT, {**OWN_MODEL, "model": "fast"}, "--json", count=3)
        assert report_of(done)["unpriced_models"] == {"fast": 3}, done.stderr
        assert report_of(done)["spent_nanousd"] > 0
        # From the second on they are held too, so that a limit stops them.
        done = ran(guard, url, CHAT, {**OWN_MODEL, "model": "fast"}, "--limit", "0.0001", count=3)
        assert done.returncode == 77, done.stderr
        server.shutdown()


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_lost_answer_of_a_local_model_costs_nothing(guard: Runs, end: str) -> None:
    program = f"""
import os, sys, threading, httpx
body = {OWN_MODEL | {"messages": []}!r}
threading.Thread(target=httpx.post, args=(sys.argv[1],),
                 kwargs={{"json": body, "timeout": 60}}).start()
sys.stdin.readline()
{end}
"""
    with cutting_vendor("no answer", "hang") as vendor:
        process = guard.start(
            "run", "--json", "--limit", "$1", "--", "python", "-c", program, vendor.url + CHAT
        )
        until(lambda: vendor.reached)
        out, err = process.communicate("\n", timeout=120)
    report = json.loads(out.strip().splitlines()[-1])
    assert (report["requests"], report["uncertain_nanousd"]) == (1, 0), err
