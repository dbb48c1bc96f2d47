"""Spec part 4: ``init``, ``init_or_die``, ``shutdown``, ``status``."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import websockets.sync.server

import guard
from guard import GuardRuntime
from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardAuthenticationError,
    GuardAuthError,
    GuardConfigError,
)
from tests.guard.conftest import settled
from tests.support.waiting import WAIT_S, until


@guard.protect
def step() -> str:
    return "ran"


class TestInit:
    def test_returns_the_runtime(self, tenant: Any) -> None:
        """Part 4, init: initialises the singleton and returns the runtime."""
        assert isinstance(guard.init(tenant.key, tenant.url), GuardRuntime)

    def test_a_missing_key_is_gd_c001(self) -> None:
        """Part 4, init: GD-C001 when the key is missing and the variable is unset."""
        with pytest.raises(GuardAuthenticationError) as refused:
            guard.init()
        assert refused.value.error_code == "GD-C001"
        assert "GUARD_API_KEY" in refused.value.user_action

    def test_an_empty_key_is_a_missing_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Part 4, init: an empty variable holds no key."""
        monkeypatch.setenv("GUARD_API_KEY", "")
        with pytest.raises(GuardAuthenticationError) as refused:
            guard.init("")
        assert refused.value.error_code == "GD-C001"

    def test_a_rejected_key_is_an_error_of_init(self, tenant: Any) -> None:
        """Semantics, init: key rejected is an error."""
        with pytest.raises(GuardAuthError) as refused:
            guard.init("gdk_unknown", tenant.url)
        assert refused.value.error_code == "GD-A003"
        assert guard.init(tenant.key, tenant.url) is not None  # nothing was left behind

    def test_debug_logs_to_standard_error(
        self, tenant: Any, run_python: Callable[..., Any]
    ) -> None:
        """Part 4, init: ``debug``; and the log never holds the key."""
        source = """
            import guard
            guard.init(debug={})
            guard.track_tool("search")
            guard.shutdown(60)
            """
        loud = run_python(source.format(True), GUARD_API_KEY=tenant.key, GUARD_API_URL=tenant.url)
        quiet = run_python(source.format(False), GUARD_API_KEY=tenant.key, GUARD_API_URL=tenant.url)
        assert loud.returncode == quiet.returncode == 0
        assert "guard" in loud.stderr
        assert tenant.key not in loud.stderr
        assert quiet.stderr == ""


class TestInitOrDie:
    def test_prints_the_catalogue_message_and_exits_with_1(
        self, run_python: Callable[..., Any]
    ) -> None:
        """Part 4, init_or_die: prints the user message to standard error, exits with code 1."""
        ran = run_python("import guard; guard.init_or_die(); print('went on')")
        assert ran.returncode == 1
        assert ran.stdout == ""
        assert ran.stderr == guard.get_user_message("GD-C001") + "\n"

    def test_returns_the_runtime_otherwise(self, tenant: Any) -> None:
        """Part 4, init_or_die: as ``init``."""
        assert isinstance(guard.init_or_die(tenant.key, tenant.url, False), GuardRuntime)

    def test_catches_gd_c001_alone(self, tenant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Part 4, init_or_die: catches the GD-C001 exception, and nothing else."""
        with pytest.raises(GuardAuthError):
            guard.init_or_die("gdk_unknown", tenant.url)
        monkeypatch.setenv("GUARD_BATCH_SIZE", "x")
        with pytest.raises(GuardConfigError):
            guard.init_or_die(tenant.key, tenant.url)


class ControlServer:
    """A gateway of one WebSocket, which remembers how it was closed."""

    def __init__(self) -> None:
        self.closed_with: list[int | None] = []
        self.opened = threading.Event()
        self._server = websockets.sync.server.serve(
            self._serve, "127.0.0.1", 0, subprotocols=[websockets.Subprotocol("guard.v3")]
        )
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _serve(self, connection: websockets.sync.server.ServerConnection) -> None:
        connection.send('{"seq":0,"type":"hello"}')
        self.opened.set()
        for _ in connection:
            pass
        frame = connection.protocol.close_rcvd
        self.closed_with.append(None if frame is None else int(frame.code))

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(120)


class TestShutdown:
    def test_sends_a_clean_websocket_close_frame(self, start: Callable[..., GuardRuntime]) -> None:
        """Part 4, shutdown: sends a clean WebSocket close frame."""
        server = ControlServer()
        try:
            start(api_url=server.url, transport_mode="websocket")
            assert server.opened.wait(120)
            until(lambda: guard.status().control_channel == "websocket")
            guard.shutdown(WAIT_S)
            until(lambda: server.closed_with)
            received = server.closed_with
        finally:
            server.close()
        assert received == [1000]

    def test_drains_the_events_in_flight(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4, shutdown: drains in-flight events."""
        for number in range(250):
            guard.track_event("custom", number=number)
        guard.shutdown(WAIT_S)
        assert len(tenant.admin.events(type="custom")) == 250
        assert guard.status().buffered == 0

    def test_flush_false_does_not(self, start: Callable[..., GuardRuntime], tenant: Any) -> None:
        """Part 4, shutdown: ``flush``."""
        settled(start(flush_interval_ms=3_600_000))
        guard.track_event("custom")
        guard.shutdown(flush=False)
        assert tenant.admin.events(type="custom") == []

    def test_stops_the_background_threads(self, start: Callable[..., GuardRuntime]) -> None:
        """Part 4, shutdown: stops background threads."""
        before = set(threading.enumerate())
        start()
        step()
        # The gateway has threads too, in this process, and starts some when it is asked.
        own = {thread for thread in threading.enumerate() if thread.name == "guard-loop"}
        started = own - before
        assert started
        guard.shutdown(WAIT_S)
        until(lambda: not any(thread.is_alive() for thread in started))

    def test_takes_the_instrumentation_back(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4, shutdown: after it nothing of the runtime is at work."""
        import httpx

        guard.shutdown()
        assert httpx.get(f"{tenant.url}/healthz").status_code == 200
        guard.track_tool("late")  # does not raise, and does not start anything
        assert guard.status().events_lost == 1

    def test_is_idempotent_and_safe_to_register_with_atexit(
        self, tenant: Any, run_python: Callable[..., Any]
    ) -> None:
        """Part 4, shutdown: safe to register with atexit."""
        ran = run_python(
            """
            import atexit, guard
            guard.init()
            atexit.register(guard.shutdown, 60)
            guard.track_event("at.exit")
            """,
            GUARD_API_KEY=tenant.key,
            GUARD_API_URL=tenant.url,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert len(tenant.admin.events(type="at.exit")) == 1
        atexit.unregister(guard.shutdown)
        guard.shutdown()
        guard.shutdown()

    def test_without_a_runtime_it_does_nothing(self, run_python: Callable[..., Any]) -> None:
        """Part 4, shutdown: safe."""
        ran = run_python("import guard; guard.shutdown(); guard.shutdown(0.1, False)")
        assert (ran.returncode, ran.stderr) == (0, "")

    def test_events_that_cannot_be_delivered_are_a_breaker_transport_error(
        self, start: Callable[..., GuardRuntime]
    ) -> None:
        """Part 6 and 7 (semantics, delivery): raised by ``shutdown(flush=True)``."""
        start(api_url="http://127.0.0.1:1", timeout_ms=200)
        guard.track_tool("a")
        with pytest.raises(BreakerTransportError) as lost:
            guard.shutdown(timeout=1.0)
        assert lost.value.events_lost + lost.value.buffer_size >= 1


class TestStatus:
    def test_not_initialised_is_the_config_error(self, run_python: Callable[..., Any]) -> None:
        """Part 4, status: raises the config error if the runtime is not initialised."""
        ran = run_python(
            """
            import guard
            try:
                guard.status()
            except guard.GuardConfigError as exc:
                print(exc.error_code, exc.retryable)
            """
        )
        assert (ran.returncode, ran.stdout.split()) == (0, ["GD-C002", "False"])

    def test_is_thread_safe(self, runtime: GuardRuntime) -> None:
        """Part 4, status: thread-safe."""
        with ThreadPoolExecutor(8) as pool:
            states = list(pool.map(lambda _: guard.status().state, range(200)))
        assert set(states) <= {"ok", "degraded", "offline"}

    def test_has_no_side_effects(self, scripted: Any, scripted_runtime: GuardRuntime) -> None:
        """Part 4, status: side-effect-free."""
        guard.track_tool("search")
        asked = len([a for a in scripted.asked if a.path != "/api/v1/control"])
        first, second = guard.status(), guard.status()
        assert first.buffered == second.buffered == 1
        assert first.events_sent == second.events_sent == 0
        assert len([a for a in scripted.asked if a.path != "/api/v1/control"]) == asked

    def test_is_a_snapshot(self, runtime: GuardRuntime) -> None:
        """Part 4, status: a snapshot of the runtime's state."""
        before = guard.status()
        guard.track_tool("search")
        runtime.flush()
        after = guard.status()
        assert before.events_sent == 0
        assert after.events_sent == 1
