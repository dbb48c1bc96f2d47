"""How far a question travels: functions and files of guard that each flow passes.

In the process that asks, and in the gateway's.

Run: ``python -m benchmarks.hops [--list]``

One process with a real gateway in a process of its own. A profile function notes each call of a
function of guard's, on the caller's thread and on the background loop, while one protected call or
one LLM request goes its way. ``functions`` and ``files`` count distinct ones, ``returns`` how often
a step goes back to a file that the flow had left already. ``--list`` prints each flow step by step.

Inside the gateway, in a process that holds one, the flows are a decision, three events, a budget
that is set and the page of budgets, on SQLite; all threads but the one that asks are one row.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from benchmarks.covered import ASKED, MODEL, URL, _answer

if TYPE_CHECKING:
    from guard.gateway.embedded import Gateway

STREAMED: Final = ASKED.replace(b"{", b'{"stream": true, ', 1)
EVENT: Final = (
    b'data: {"id": "c%d", "object": "chat.completion.chunk", "model": "bench-model", '
    b'"choices": [{"index": 0, "delta": {"content": "word"}}]}\n\n'
)
USED: Final = (
    b'data: {"id": "c%d", "object": "chat.completion.chunk", "model": "bench-model", '
    b'"choices": [], '
    b'"usage": {"prompt_tokens": 200, "completion_tokens": 10, "total_tokens": 210}}\n\n'
    b"data: [DONE]\n\n"
)

ROUNDS: Final = 5
_SETTLE_S: Final = 0.02
Step = tuple[str, str]


class Recorder:
    """Notes the functions of guard that run, thread by thread.

    Attributes:
        steps: file and function of each call, by thread.
    """

    def __init__(self) -> None:
        import guard

        self._root = str(Path(guard.__file__).parent)
        self._names: dict[CodeType, Step | None] = {}
        self._is_on = False
        self.steps: dict[str, list[Step]] = {}

    def install(self) -> None:
        """Watch the threads that start from now on, and this one."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    @contextmanager
    def recording(self) -> Iterator[dict[str, list[Step]]]:
        """Note what runs inside."""
        self.steps = {"caller": [], "loop": []}
        self._is_on = True
        try:
            yield self.steps
        finally:
            self._is_on = False

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = self._name(code)
        step = self._names[code]
        if step is not None:
            is_caller = threading.current_thread() is threading.main_thread()
            self.steps["caller" if is_caller else "loop"].append(step)

    def _name(self, code: CodeType) -> Step | None:
        if not code.co_filename.startswith(self._root) or code.co_name.startswith("<"):
            return None
        return os.path.relpath(code.co_filename, self._root), code.co_qualname


def counted(steps: list[Step]) -> tuple[int, int, int]:
    """Return how many functions and files there are, and how often a file is gone back to.

    Constructors and other special methods are not counted.
    """
    steps = [(file, name) for file, name in steps if not name.endswith("__")]
    returns, left, current = 0, set[str](), ""
    for file, _ in steps:
        if file != current:
            returns += file in left
            left.add(current)
            current = file
    return len(set(steps)), len({file for file, _ in steps}), returns


def _flows() -> dict[str, tuple[str, Callable[[], object]]]:
    """Return the workflow in which each flow is recorded, and the flow."""
    import httpx

    import guard

    @guard.protect
    def call() -> None: ...

    client = httpx.Client(transport=httpx.MockTransport(_answer))

    def request() -> None:
        client.post(URL, content=ASKED)

    numbers = itertools.count()

    def stream(request: httpx.Request) -> httpx.Response:
        number = next(numbers)
        events = (*[EVENT % number] * 10, USED % number)
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, content=iter(events), headers=headers)

    streaming = httpx.Client(transport=httpx.MockTransport(stream))

    def streamed() -> None:
        with streaming.stream("POST", URL, content=STREAMED) as answer:
            answer.read()

    return {
        "call, covered": ("hops", call),
        "call, asked": ("hops-call-{}", call),
        "request, covered": ("hops", request),
        "streamed, covered": ("hops", streamed),
        "request, asked": ("hops-request-{}", request),
    }


def _run(transport: str, *, lists: bool) -> None:
    os.environ["GUARD_TRANSPORT_MODE"] = transport
    recorder = Recorder()
    recorder.install()
    import guard
    from guard.runtime import active_runtime

    guard.init()
    runtime: Any = active_runtime()
    deadline_s = time.monotonic() + 10
    while transport == "auto" and runtime.status().control_channel != "websocket":
        assert time.monotonic() < deadline_s, "the control socket did not open"
        time.sleep(_SETTLE_S)
    time.sleep(10 * _SETTLE_S)
    over = "socket" if transport == "auto" else "HTTP"
    for name, (workflow, flow) in _flows().items():
        is_covered = "{}" not in workflow
        if is_covered and transport == "http":
            continue  # leases are granted over the socket
        best: dict[str, list[Step]] = {}
        for number in range(ROUNDS):  # the shortest: now and then a service's tick runs beside it
            with guard.workflow(workflow.format(number)):
                if is_covered:
                    flow()
                _settle(runtime)
                with recorder.recording() as steps:
                    flow()
                _settle(runtime)
            for thread, found in steps.items():
                if thread not in best or len(set(found)) < len(set(best[thread])):
                    best[thread] = found
        for thread, found in best.items():
            _show(name, over, thread, found, lists=lists)
    guard.shutdown()


def _settle(runtime: Any) -> None:
    """Wait until no answer is unread, which the next question would read on its way."""
    ends_s = time.monotonic() + 10
    time.sleep(_SETTLE_S)
    while runtime._keeper._unread.calls and time.monotonic() < ends_s:
        time.sleep(_SETTLE_S)


def _gateway_flows(gateway: Gateway) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Yield flows inside the gateway: the name, how it is asked, and what asks."""
    import httpx
    import msgspec
    from websockets.sync.client import connect

    from benchmarks.operator_pages import PASSWORD, signed_in
    from guard.core import wire

    headers = {
        wire.HEADER_API_KEY: gateway.api_key,
        wire.HEADER_PROTOCOL: str(wire.PROTOCOL_VERSION),
        "content-type": "application/json",
    }
    numbers = itertools.count()
    with (
        connect(gateway.base_url.replace("http", "ws") + wire.CONTROL_WS_PATH, proxy=None,
                additional_headers=headers, subprotocols=[wire.CONTROL_SUBPROTOCOL]) as socket,
        httpx.Client(base_url=gateway.base_url, headers=headers, trust_env=False) as http,
    ):  # fmt: skip

        def gate() -> None:
            call_id = f"call-{next(numbers)}"
            call = wire.GateRequest(
                call_id=call_id, function="f", kind="tool", workflow_id="w", model="gpt-4o"
            )
            asked = wire.Ask(id=call_id, op="gate", body=msgspec.Raw(wire.encode(call)))
            socket.send(wire.encode(wire.Asks([asked])), text=True)
            while '"answers"' not in str(socket.recv(timeout=10)):
                pass

        def events() -> None:
            made = [
                wire.Event(
                    f"e{next(numbers)}", "llm", round(time.time() * 1000), "w",
                    data={"model": "gpt-4o", "input_tokens": 10, "output_tokens": 5},
                )
                for _ in range(3)
            ]  # fmt: skip
            batch = wire.EventBatch(f"b{next(numbers)}", made[0].at_ms, made)
            http.post(wire.EVENTS_PATH, content=wire.encode(batch)).raise_for_status()

        def budget() -> None:
            cents = 700 + next(numbers)
            gateway.admin.set_budget(cents, scope_kind="workflow", scope_id="w")

        yield "a decision", "socket", gate
        yield "three events", "HTTP", events
        yield "a budget", "HTTP", budget
        gateway.admin.put_operator("bench", password=PASSWORD)
        with signed_in(gateway) as pages:
            yield "/budgets", "HTTP", lambda: pages.get("/budgets").raise_for_status()


def _run_gateway(*, lists: bool) -> None:
    recorder = Recorder()
    recorder.install()
    from guard.gateway.embedded import run_gateway

    with run_gateway(sweep_interval_ms=60_000) as gateway:
        gateway.admin.set_budget(50_000)
        for name, over, flow in _gateway_flows(gateway):
            best: list[Step] = []
            for _ in range(ROUNDS):
                flow()
                time.sleep(_SETTLE_S)
                with recorder.recording() as steps:
                    flow()
                    time.sleep(_SETTLE_S)
                if not best or len(set(steps["loop"])) < len(set(best)):
                    best = steps["loop"]
            _show(name, over, "gateway", best, lists=lists)


def _show(name: str, over: str, thread: str, found: list[Step], *, lists: bool) -> None:
    functions, files, returns = counted(found)
    print(f"{name:18} {over:7} {thread:7} {functions:9} {files:6} {returns:8}", flush=True)
    for file, function in found if lists else ():
        print(f"    {file}: {function}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print each step")
    parser.add_argument("--transport", choices=("auto", "http", "inside"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.transport == "inside":
        _run_gateway(lists=options.list)
        return
    if options.transport is not None:
        _run(options.transport, lists=options.list)
        return
    gateway = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hard_stop", "--gateway"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert gateway.stdout is not None
    url, key, admin_key = gateway.stdout.readline().split()
    from guard.gateway.admin import AdminClient

    admin = AdminClient(url, admin_key)
    admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=4 * 10**9)
    admin.set_budget(scope_kind="organisation", scope_id="", limit_nanousd=10**15)
    environment = {**os.environ, "GUARD_API_URL": url, "GUARD_API_KEY": key}
    print(
        f"{'flow':18} {'over':7} {'thread':7} {'functions':>9} {'files':>6} {'returns':>8}",
        flush=True,
    )
    try:
        for transport in ("auto", "http", "inside"):
            command = [sys.executable, "-m", "benchmarks.hops", "--transport", transport]
            subprocess.run(command + ["--list"] * options.list, env=environment, check=True)
    finally:
        gateway.terminate()


if __name__ == "__main__":
    main()
