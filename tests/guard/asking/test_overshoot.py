"""The first prompt with more tokens than its bound raises what the others hold."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import guard
from guard.asking.request_hold import RequestHold
from guard.core.leases import Grant, Hold, Lease, LeaseBook, worst_case
from guard.core.request_bound import RequestBound
from guard.scope.scope import Entry, Scope
from tests.guard.asking.test_stream_growth import RATES, Asked
from tests.support.waiting import WAIT_S, until

TEXT = "7f3a " * 1000


@example(free=0, texts=[73, 1], steps=[(0, 2.0, False), (1, 1.0, True), (0, 3.0, False)])
@given(
    free=st.integers(0, 10**8),
    texts=st.lists(st.integers(1, 50_000), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.integers(0, 5), st.floats(1, 4), st.booleans()), max_size=12),
)
def test_what_holds_have_grows_within_what_is_free(
    free: int, texts: list[int], steps: list[tuple[int, float, bool]]
) -> None:
    """Whatever the order of overshoots and ends, no money is made and none is lost."""
    book, lease = LeaseBook(), Lease("lease-1", ("w", None, None, None, "m"), 0.0)
    bounds = [RequestBound("openai", "m", text + 32, 256, text) for text in texts]
    worst = [(worst_case(RATES, bound) or (0, 0))[0] for bound in bounds]
    lease.free = free + sum(worst)
    holds: list[tuple[RequestHold, Hold]] = []
    asked = Asked()
    for amount, bound in zip(worst, bounds, strict=True):
        lease.take(amount, 0.0)
        scope = Scope(workflow_id="w", run_id="r", entry=Entry(Scope()))
        money = Hold(book, lease, amount)
        holds.append((RequestHold(asked, scope, bound, Grant(None, money, RATES, 256)), money))
    total, ended = lease.free + lease.held, set[int]()
    for which, ratio, ends in steps:
        at = which % len(holds)
        (hold, money), free_before = holds[at], lease.free
        before, known = hold.amount_nanousd or 0, worst_case(RATES, hold._bound)
        if ends:
            money.give_back()
            hold._end()
            ended.add(at)
            continue
        tokens = int(texts[at] * ratio) + 32
        hold.raise_input(tokens)
        raised = worst_case(RATES, msgspec.structs.replace(bounds[at], input_tokens=tokens))
        assert raised is not None
        assert known is not None
        after = hold.amount_nanousd or 0
        assert before <= after <= max(before, raised[0])
        assert lease.free >= 0
        if at in ended:
            assert after == before
        elif after < raised[0] and known[0] < raised[0]:  # else the rest was asked for before
            assert lease.free == 0 or free_before == 0, "only want of money ends the growth"
            assert asked.bounds, "the rest is asked for"
        assert lease.free + lease.held == total


class Vendor(BaseHTTPRequestHandler):
    """Counts two tokens for each byte; answers the slow request when it is told to."""

    go = threading.Event()
    arrived = threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if b"slow" in body:
            self.arrived.set()
            self.go.wait(WAIT_S)
        usage = {"prompt_tokens": 2 * len(body), "completion_tokens": 5}
        answer = json.dumps({"id": "x", "model": "gpt-4o", "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def vendor() -> Iterator[str]:
    Vendor.go.clear()
    Vendor.arrived.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/chat/completions"
    Vendor.go.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_open_request_of_the_model_holds_more(vendor: str, start: Any) -> None:
    runtime = start()

    def ask(text: str) -> None:
        body = {"model": "gpt-4o", "max_tokens": 50,
                "messages": [{"role": "user", "content": text}]}  # fmt: skip
        with guard.workflow("w"):
            httpx.post(vendor, json=body, timeout=WAIT_S)

    link = runtime.link
    until(lambda: link.session is not None and link.session.asks.can_lease, WAIT_S)
    ask("warm")  # brings a lease
    slow = threading.Thread(target=ask, args=(f"slow {TEXT}",))
    slow.start()
    assert Vendor.arrived.wait(WAIT_S)
    (call,) = runtime.instrumentation._open
    assert call.hold is not None
    before = call.hold.amount_nanousd
    ask(TEXT)
    until(lambda: call.hold.amount_nanousd > 2 * before, WAIT_S)
    Vendor.go.set()
    slow.join()
