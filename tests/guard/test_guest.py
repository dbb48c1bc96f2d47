"""guard is a guest in the user's process: its own doings are not the user's."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import guard
from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.core import wire
from guard.core.catalogue import FALLBACK_MESSAGE
from tests.guard.conftest import Tenant
from tests.support.programs import environment
from tests.support.waiting import WAIT_S


class Visited(http.server.BaseHTTPRequestHandler):
    """A gateway that sets a cookie with each answer, and notes those that come back."""

    protocol_version = "HTTP/1.1"
    cookies: list[str | None]

    def do_GET(self) -> None:
        if self.path.startswith(wire.CONTROL_PATH):
            time.sleep(0.02)  # As a gateway's long poll: a client asks again at once.
            self._answer({"messages": [], "seq": 0})
        else:
            self._answer({"protocol": 3, "min_sdk_version": "0.6.0", "server": "x"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"decision": "allow", "call_id": asked.get("call_id")}
        self._answer({"accepted": 1} if "batch_id" in asked else answer)

    def _answer(self, document: object) -> None:
        self.cookies.append(self.headers["cookie"])
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Set-Cookie", "visitor=1; Path=/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002  # its name there


@pytest.fixture
def visited() -> Iterator[tuple[str, list[str | None]]]:
    cookies: list[str | None] = []
    handler = type("Handler", (Visited,), {"cookies": cookies})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://HOST:{server.server_address[1]}", cookies
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_cookie_of_the_gateway_is_nobodys(
    host: str, visited: tuple[str, list[str | None]]
) -> None:
    url, cookies = visited
    runtime = guard.GuardRuntime("k" * 24, url.replace("HOST", host), transport_mode="http").open()
    for _ in range(3):
        guard.protect(lambda: None)()
        guard.track_llm(1)
        runtime.flush()
    assert len(cookies) > 4
    assert set(cookies) == {None}
    runtime.shutdown()


TRACED = """
import httpx
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans = InMemorySpanExporter()
provider = TracerProvider(); provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
send = httpx.AsyncHTTPTransport.handle_async_request
async def traced(self, request):  # as HTTPXClientInstrumentor does
    if context.get_value("suppress_instrumentation"):
        return await send(self, request)
    with trace.get_tracer("httpx").start_as_current_span(str(request.url.path)):
        return await send(self, request)
httpx.AsyncHTTPTransport.handle_async_request = traced
import asyncio, guard
async def main():
    runtime = await guard.GuardRuntime.start(transport_mode="http")
    await asyncio.to_thread(guard.protect(lambda: None))
    guard.track_llm(1)
    await asyncio.to_thread(runtime.flush)
    async with httpx.AsyncClient() as client:
        await client.get(runtime.settings.api_url + "/of-the-program")
    print([span.name for span in spans.get_finished_spans() if span.name.startswith("/")])
asyncio.run(main())
"""


def test_its_requests_are_no_spans_of_the_program(visited: tuple[str, list[str | None]]) -> None:
    assert output(TRACED, visited) == "['/of-the-program']\n"


HANDLER = """
import logging
class Handler(logging.Handler):
    def emit(self, record):
        work()
import guard
work = guard.protect(lambda: None)
log = logging.getLogger("asyncio"); log.setLevel(logging.DEBUG); log.addHandler(Handler())
guard.init()
print("begun")
log.handlers.clear()
"""


def test_a_log_handler_that_makes_protected_calls_does_not_stop_init(
    visited: tuple[str, list[str | None]],
) -> None:
    assert output(HANDLER, visited) == "begun\n"


DESCRIPTORS = """
import os, resource, sys
import guard
@guard.protect
def work(): ...
most = len(os.listdir("/proc/self/fd")) - 1 + FREE
resource.setrlimit(resource.RLIMIT_NOFILE, (most, 4096))
for act in (guard.init, work):
    try:
        act()
    except guard.GuardError:
        pass
print("documented", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
@pytest.mark.parametrize("free", range(1, 8))
def test_without_file_descriptors_the_error_is_a_documented_one(
    free: int, visited: tuple[str, list[str | None]]
) -> None:
    program = DESCRIPTORS.replace("FREE", str(free))
    assert output(program, visited) == "documented\n"


GREENLETS = """
import guard
guard.init()
guard.protect(lambda: None)()
try:
    from gevent import monkey; monkey.patch_all()
except ImportError:  # what it does to a thread that has begun: it has another identifier now
    import threading
    known, main = threading.get_ident, threading.get_ident()
    threading.get_ident = lambda: main if known() == main else -known()
print("done")
"""


def test_a_program_that_gevent_patches_ends_without_an_error_of_threading(
    visited: tuple[str, list[str | None]],
) -> None:
    ended = run(GREENLETS, visited)
    assert ended.stdout == "done\n"
    assert "KeyError" not in ended.stderr


def output(program: str, visited: tuple[str, list[str | None]]) -> str:
    """Return what a program prints that uses the gateway."""
    ended = run(program, visited)
    return ended.stdout or ended.stderr


def run(program: str, visited: tuple[str, list[str | None]]) -> subprocess.CompletedProcess[str]:
    """Run a program that uses the gateway."""
    address = visited[0].replace("HOST", "127.0.0.1")
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment({"GUARD_API_KEY": "k" * 24, "GUARD_API_URL": address}),
        capture_output=True, text=True, timeout=2 * WAIT_S, check=False,
    )  # fmt: skip


IDLE = """
import selectors, threading, time
select, waits = selectors.DefaultSelector.select, []
def counted(selector, timeout=None):
    if timeout != 0 and threading.current_thread() is not threading.main_thread():
        waits.append(timeout)
    return select(selector, timeout)
selectors.DefaultSelector.select = counted
import guard
guard.init()
guard.protect(lambda: None)()
time.sleep(4)  # a lease that covered the call is given back
before = len(waits)
time.sleep(8)
print(len(waits) - before)
"""


def test_an_idle_process_wakes_about_once_a_second(tenant: Tenant) -> None:
    variables = {"GUARD_API_KEY": tenant.key, "GUARD_API_URL": tenant.url}
    ended = subprocess.run(
        [sys.executable, "-c", IDLE], env=environment(variables),
        capture_output=True, text=True, timeout=2 * WAIT_S, check=True,
    )  # fmt: skip
    # Waits of the loop, and not switches of the thread, of which a busy machine makes more. Eight,
    # and some for the pings of its socket; it was woken 50 times.
    assert 4 <= int(ended.stdout) <= 16


class Own(KeyboardInterrupt): ...


class Raising:
    def __init__(self, raised: type[BaseException]) -> None:
        self._raised = raised

    @property
    def error_code(self) -> str:
        raise self._raised


@pytest.mark.parametrize("raised", [Own, ZeroDivisionError])
def test_no_property_breaks_a_message(raised: type[BaseException]) -> None:
    assert guard.format_user_message(Raising(raised)) == FALLBACK_MESSAGE


@pytest.mark.parametrize("raised", [KeyboardInterrupt, WorkflowKilledInterrupt])
def test_an_interrupt_from_outside_passes(raised: type[BaseException]) -> None:
    with pytest.raises(raised):
        guard.format_user_message(Raising(raised))
