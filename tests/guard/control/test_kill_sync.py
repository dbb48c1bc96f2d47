"""A kill stops plain functions, generators and threads in mid-call, and nothing else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import pickle
import queue
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import requests

import guard
from guard import WorkflowKilledInterrupt
from guard.runtime.runtime import GuardRuntime
from tests.support.slow_server import SlowServer
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.usefixtures("connected"), pytest.mark.interpreters]


def spin(entered: threading.Event, seconds: float = WAIT_S) -> None:
    """Compute for a while, in Python."""
    entered.set()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        sum(range(100))
    raise AssertionError("ran to its end")


class TestPython:
    def test_a_loop_is_stopped_and_cleans_up(self, operator: Any, connected: GuardRuntime) -> None:
        entered = threading.Event()
        inside: list[WorkflowKilledInterrupt] = []
        cleaned: list[str] = []

        @guard.protect
        def body() -> None:
            with contextlib.ExitStack() as stack:
                stack.callback(cleaned.append, "context manager")
                try:
                    spin(entered)
                except Exception as exc:
                    raise AssertionError("an Exception") from exc
                except WorkflowKilledInterrupt as exc:
                    inside.append(exc)
                    raise
                finally:
                    cleaned.append("finally")

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt) as killed:
            body()
        assert cleaned == ["finally", "context manager"]
        for exc in (inside[0], killed.value, pickle.loads(pickle.dumps(inside[0]))):
            assert exc.workflow_id == "w"
            assert exc.reason == "stop it"
        assert type(killed.value) is WorkflowKilledInterrupt
        assert type(pickle.loads(pickle.dumps(inside[0]))) is WorkflowKilledInterrupt
        assert len(connected.enforcement.bodies) == 0

    def test_nothing_arrives_after_the_body(self, operator: Any) -> None:
        entered = threading.Event()

        @guard.protect
        def body() -> None:
            spin(entered)

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()
        for _ in range(200_000):
            pass
        spins = threading.Event()
        with pytest.raises(AssertionError, match="ran to its end"):
            spin(spins, 0.2)

    def test_a_killed_workflow_stays_killed_and_its_body_is_not_entered(
        self, connected: GuardRuntime, tenant: Any
    ) -> None:
        ran: list[str | None] = []

        @guard.protect
        def body(name: str) -> None:
            ran.append(name)

        tenant.admin.kill("w")
        for _ in range(2):
            with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
                body("w")
        with guard.workflow("other"):
            body("other")
        tenant.admin.revive("w")

        def revived() -> bool:
            with guard.workflow("w"), contextlib.suppress(WorkflowKilledInterrupt):
                body("revived")
                return True
            return False

        until(revived, WAIT_S)
        assert ran == ["other", "revived"]

    def test_swallowing_it_does_not_help(self, operator: Any, connected: GuardRuntime) -> None:
        entered = threading.Event()
        refused: list[BaseException] = []

        @guard.protect
        def inner() -> None:
            raise AssertionError("entered")

        @guard.protect
        def body() -> str:
            try:
                spin(entered)
            except BaseException:
                try:
                    inner()
                except BaseException as exc:
                    refused.append(exc)
            return "a result"

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()
        assert isinstance(refused[0], WorkflowKilledInterrupt)

    @pytest.mark.parametrize("target", ["w", "w*", "*", "run"])
    def test_by_name_pattern_run_and_everything(self, operator: Any, target: str) -> None:
        """The other workflow and the other run go on, unless everything is killed."""
        entered = threading.Event()
        stop = threading.Event()
        results: dict[str, object] = {}

        @guard.protect
        def body(own: threading.Event) -> str:
            own.set()
            while not stop.is_set():
                time.sleep(0.001)
            return "finished"

        def run(label: str, name: str, own: threading.Event) -> None:
            with guard.workflow(name) as flow:
                run_ids[label] = flow.run_id
                try:
                    results[label] = body(own)
                except BaseException as exc:
                    results[label] = exc

        run_ids: dict[str, str | None] = {}
        events = {label: threading.Event() for label in ("one", "two", "other")}
        names = {"one": "w1" if target != "w" else "w", "two": "x", "other": "other"}
        if target == "run":
            names["two"] = names["one"]
        threads = [
            threading.Thread(target=run, args=(label, names[label], events[label]))
            for label in events
        ]
        for thread in threads:
            thread.start()
        until(lambda: all(event.is_set() for event in events.values()), WAIT_S)
        entered.set()
        if target == "run":
            operator(entered, run_id=run_ids["one"])
        else:
            operator(entered, target)
        until(lambda: len(results) == 3 if target == "*" else "one" in results, WAIT_S)
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert isinstance(results["one"], WorkflowKilledInterrupt)
        if target == "*":
            assert isinstance(results["other"], WorkflowKilledInterrupt)
        else:
            assert results["two"] == results["other"] == "finished"

    def test_a_finaliser_does_not_eat_it(self, operator: Any) -> None:
        """What is raised in ``__del__`` is only printed: so it is not raised there."""
        entered = threading.Event()

        class Finalised:
            def __del__(self) -> None:
                for _ in range(50):
                    pass

        @guard.protect
        def body() -> None:
            entered.set()
            ends = time.monotonic() + WAIT_S
            while time.monotonic() < ends:
                Finalised()
            raise AssertionError("ran to its end")

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()

    def test_c_calls_stop_at_their_return(self, operator: Any) -> None:
        entered = threading.Event()

        @guard.protect
        def body() -> None:
            entered.set()
            ends = time.monotonic() + WAIT_S
            while time.monotonic() < ends:
                time.sleep(0.2)  # the C call, in one of which the kill comes
            raise AssertionError("ran to its end")

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()


class TestLocks:
    @pytest.mark.parametrize("how", ["with", "acquire", "condition"])
    def test_a_lock_that_is_waited_for_is_not_left_held(self, operator: Any, how: str) -> None:
        lock = threading.Lock()
        condition = threading.Condition(lock)
        waiting = threading.Event()

        @guard.protect
        def body() -> None:
            waiting.set()
            if how == "with":
                with lock:
                    time.sleep(0.001)
            elif how == "condition":  # its `__enter__` is a function in Python
                with condition:
                    time.sleep(0.001)
            else:
                lock.acquire()
                try:
                    time.sleep(0.001)
                finally:
                    lock.release()
            spin(waiting)

        lock.acquire()
        threading.Timer(0.4, lock.release).start()
        operator(waiting)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()
        assert lock.acquire(timeout=WAIT_S)

    @pytest.mark.parametrize("how", ["event", "queue", "timed acquire"])
    def test_loops_of_short_waits_are_stopped(self, operator: Any, how: str) -> None:
        entered = threading.Event()
        never = threading.Event()
        empty: queue.Queue[int] = queue.Queue()
        held = threading.Lock()
        held.acquire()

        @guard.protect
        def body() -> None:
            entered.set()
            ends = time.monotonic() + WAIT_S
            while time.monotonic() < ends:
                if how == "event":
                    never.wait(0.05)
                elif how == "queue":
                    with contextlib.suppress(queue.Empty):
                        empty.get(timeout=0.05)
                else:
                    held.acquire(timeout=0.05)
            raise AssertionError("ran to its end")

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()


def _httpx(url: str, stream: bool, client: Any) -> None:
    if not stream:
        client.get(url)
        return
    with client.stream("GET", url) as response:
        for _ in response.iter_bytes():
            pass


def _requests(url: str, stream: bool, client: Any) -> None:
    with client.get(url, stream=stream, timeout=None) as response:
        for _ in response.iter_content(64):
            pass


def _urllib(url: str, stream: bool, client: Any) -> None:
    with urllib.request.urlopen(url) as response:
        while response.read(9):
            pass


CLIENTS: dict[str, tuple[Callable[[], Any], Callable[[str, bool, Any], None]]] = {
    "httpx": (lambda: httpx.Client(timeout=None, trust_env=False), _httpx),
    "httpx2": (lambda: httpx2.Client(timeout=None, trust_env=False), _httpx),
    "requests": (requests.Session, _requests),
    "urllib": (lambda: contextlib.nullcontext(), _urllib),
}


class TestHttp:
    @pytest.mark.parametrize("path", ["hang", "stall", "drip", "flood"])
    @pytest.mark.parametrize("library", sorted(CLIENTS))
    def test_a_call_is_aborted_and_the_pool_stays_whole(
        self, operator: Any, server: SlowServer, library: str, path: str
    ) -> None:
        make, call = CLIENTS[library]

        @guard.protect
        def body(client: Any) -> None:
            try:
                call(f"{server.url}/{path}", path != "hang", client)
            except Exception as exc:
                raise AssertionError("an Exception that clients retry") from exc

        with make() as client:
            call(f"{server.url}/ok", False, client)
            operator(lambda: server.count(path))
            with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
                body(client)
            assert server.count(path) == 1
            call(f"{server.url}/ok", False, client)
            if library.startswith("httpx"):
                pool = client._transport._pool
                assert not pool._requests
                assert all(connection.is_idle() for connection in pool.connections)
        # urllib3 leaves an idle connection open after any failed call, a plain timeout too.
        idle = 1 if library == "requests" else 0
        until(lambda: server.open_connections <= idle, WAIT_S)

    def test_only_the_protected_thread_loses_its_connection(
        self, operator: Any, server: SlowServer
    ) -> None:
        chunks: list[bytes] = []
        stop = threading.Event()

        def bystander(client: httpx.Client) -> None:
            with client.stream("GET", f"{server.url}/drip") as response:
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    if stop.is_set():
                        return

        @guard.protect
        def body(client: httpx.Client) -> None:
            client.get(f"{server.url}/hang")

        with httpx.Client(timeout=None, trust_env=False) as client:
            thread = threading.Thread(target=bystander, args=(client,))
            thread.start()
            operator(lambda: server.count("/hang") and chunks)
            with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
                body(client)
            seen = len(chunks)
            until(lambda: len(chunks) > seen + 3, WAIT_S)
            stop.set()
            thread.join(WAIT_S)

    @pytest.mark.usefixtures("collected")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_while_connecting(self, operator: Any) -> None:
        """A listener whose backlog is full leaves the next client waiting."""
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
            address = listener.getsockname()
            fillers = []
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(address)
                fillers.append(filler)
            time.sleep(0.2)  # the kernel fills its queue; earlier would block the client as well
            entered = threading.Event()

            @guard.protect
            def body() -> None:
                entered.set()
                with httpx.Client(timeout=None, trust_env=False) as client:
                    client.get(f"http://127.0.0.1:{address[1]}/")

            operator(entered)
            with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
                body()
            for filler in fillers:
                filler.close()

    @pytest.mark.usefixtures("collected")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("path", ["handshake", "hang", "drip"])
    def test_over_tls(self, operator: Any, tmp_path: Path, path: str) -> None:
        pem = tmp_path / "server.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", pem, "-out", tmp_path / "cert.pem", "-days", "2",
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        pem.write_bytes(pem.read_bytes() + (tmp_path / "cert.pem").read_bytes())
        silent = socket.create_server(("127.0.0.1", 0))
        server = SlowServer(pem)
        url = server.url
        accepted: list[socket.socket] = []
        if path == "handshake":
            url = f"https://127.0.0.1:{silent.getsockname()[1]}"
            threading.Thread(
                target=lambda: accepted.append(silent.accept()[0]), daemon=True
            ).start()

        @guard.protect
        def body() -> None:
            with (
                httpx.Client(timeout=None, trust_env=False, verify=trust) as client,
                client.stream("GET", f"{url}/{path}") as response,
            ):
                for _ in response.iter_bytes():
                    pass

        operator(lambda: accepted or server.count(path))
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()
        server.close()
        for sock in (*accepted, silent):
            sock.close()


class TestNesting:
    def test_the_innermost_is_stopped_and_the_others_unwind(
        self, operator: Any, connected: GuardRuntime, tenant: Any
    ) -> None:
        entered = threading.Event()
        left: list[str] = []

        @guard.protect
        def inner() -> None:
            try:
                spin(entered)
            finally:
                left.append("inner")

        @guard.protect
        def outer() -> None:
            try:
                inner()
            except WorkflowKilledInterrupt as exc:
                left.append(type(exc).__name__)
                raise
            finally:
                left.append("outer")

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            outer()
        assert left == ["inner", "WorkflowKilledInterrupt", "outer"]
        connected.flush(WAIT_S)
        spans = tenant.admin.events(workflow_id="w", type="span")
        outcomes = [event["data"]["outcome"] for event in spans if event["data"].get("final")]
        assert outcomes == ["killed", "killed"]

    def test_a_kill_of_the_outer_workflow_alone(self, operator: Any) -> None:
        entered = threading.Event()

        @guard.protect
        def inner() -> None:
            spin(entered)

        @guard.protect
        def outer() -> None:
            with guard.workflow("inner"):
                inner()

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt) as killed:
            outer()
        assert killed.value.workflow_id == "w"

    @pytest.mark.parametrize("which", ["own", "outer"])
    def test_a_wait_for_the_gate_is_cut_short(self, operator: Any, tenant: Any, which: str) -> None:
        tenant.admin.set_policy("p", approval_tools=["needs_a_person"])

        @guard.protect
        def needs_a_person() -> None:
            raise AssertionError("entered")

        @guard.protect
        def outer() -> None:
            with guard.workflow("inner"):
                needs_a_person()

        operator(lambda: tenant.admin.approvals())
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            (needs_a_person if which == "own" else outer)()

    def test_an_event_loop_inside_a_plain_function(self, operator: Any) -> None:
        entered = threading.Event()
        cleaned: list[bool] = []

        async def main() -> None:
            entered.set()
            try:
                await asyncio.sleep(WAIT_S)
            finally:
                await asyncio.sleep(0)
                cleaned.append(True)

        @guard.protect
        def body() -> None:
            asyncio.run(main())

        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()
        assert cleaned == [True]


class TestGenerators:
    def test_in_a_step(self, operator: Any) -> None:
        entered = threading.Event()
        closed: list[bool] = []

        @guard.protect
        def numbers() -> Iterator[int]:
            try:
                yield 1
                spin(entered)
            finally:
                closed.append(True)

        operator(entered)
        with guard.workflow("w"):
            stream = numbers()
            assert next(stream) == 1
            with pytest.raises(WorkflowKilledInterrupt):
                next(stream)
            with pytest.raises(StopIteration):
                next(stream)
        assert closed == [True]

    def test_between_steps_the_consumer_is_left_alone(
        self, connected: GuardRuntime, tenant: Any
    ) -> None:
        closed: list[bool] = []

        @guard.protect
        def numbers() -> Iterator[int]:
            try:
                yield 1
                raise AssertionError("went on")
            finally:
                closed.append(True)

        with guard.workflow("w"):
            stream = numbers()
            assert next(stream) == 1
            tenant.admin.kill("w")
            until(lambda: connected.enforcement.control.kills.exact, WAIT_S)
            time.sleep(0.05)
            with pytest.raises(WorkflowKilledInterrupt):
                next(stream)
        assert closed == [True]
        assert len(connected.enforcement.bodies) == 0


class TestThreads:
    def test_carried_functions(self, operator: Any, connected: GuardRuntime) -> None:
        entered = [threading.Event(), threading.Event()]

        def fail(event: threading.Event) -> None:
            try:
                spin(event)
            except BaseException as exc:
                failures.append(exc)
                raise

        @guard.protect
        def body() -> None:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                futures = [pool.submit(guard.context.carry(fail), event) for event in entered]
                for future in futures:
                    future.exception(WAIT_S)

        failures: list[BaseException] = []
        operator(lambda: all(event.is_set() for event in entered))
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()
        until(lambda: len(connected.enforcement.bodies) == 0, WAIT_S)
        assert len(failures) == 2
        assert all(isinstance(failure, WorkflowKilledInterrupt) for failure in failures)

    def test_carried_into_a_killed_workflow(self, connected: GuardRuntime, tenant: Any) -> None:
        with guard.workflow("w"):
            carried = guard.context.carry(lambda: "ran")
        assert carried() == "ran"
        tenant.admin.kill("w")
        until(lambda: connected.enforcement.control.kills.exact, WAIT_S)
        with pytest.raises(WorkflowKilledInterrupt):
            carried()

    def test_several_bodies_of_one_workflow(self, operator: Any) -> None:
        entered = [threading.Event() for _ in range(20)]
        results: list[BaseException] = []

        @guard.protect
        def body(event: threading.Event) -> None:
            event.set()
            while True:
                time.sleep(0.001)

        def run(event: threading.Event) -> None:
            with guard.workflow("w"):
                try:
                    body(event)
                except BaseException as exc:
                    results.append(exc)

        threads = [threading.Thread(target=run, args=(event,)) for event in entered]
        for thread in threads:
            thread.start()
        operator(lambda: all(event.is_set() for event in entered))
        for thread in threads:
            thread.join(WAIT_S)
        assert [type(result) for result in results] == [WorkflowKilledInterrupt] * 20
