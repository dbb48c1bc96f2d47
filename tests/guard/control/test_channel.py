"""The control channel under faults: whatever the network does, a kill is seen."""

from __future__ import annotations

import asyncio
import functools
import selectors
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.breaker.exceptions import WorkflowPausedException
from guard.control import control_socket, subscriber
from guard.core import wire
from guard.core.control import ControlState
from guard.gateway.embedded import run_gateway
from guard.gateway.services.fanout import Hub
from guard.runtime.runtime import GuardRuntime
from tests.guard.delivery.conftest import Answer, Scripted
from tests.support.asker import asker
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S, until

Start = Callable[..., GuardRuntime]


def channel(runtime: GuardRuntime) -> str:
    return runtime.status().control_channel


def killed(runtime: GuardRuntime, workflow_id: str = "w") -> bool:
    return runtime.enforcement.control.kills.find(workflow_id, None, 0) is not None


def paused(runtime: GuardRuntime, workflow_id: str = "w") -> bool:
    return runtime.enforcement.control.pauses.find(workflow_id, None, 0) is not None


@pytest.mark.parametrize("mode", ["auto", "websocket", "http"])
class TestModes:
    def test_a_kill_while_nothing_was_connected(self, start: Start, tenant: Any, mode: str) -> None:
        """It is seen on the first contact, without any call to the gate."""
        tenant.admin.kill("w")
        runtime = start(transport_mode=mode)
        until(lambda: killed(runtime), WAIT_S)
        expected = ["poller"] if mode == "http" else ["websocket"]
        until(lambda: channel(runtime) in expected, WAIT_S)
        with pytest.raises(WorkflowKilledInterrupt), guard.workflow("w"):
            runtime.enforcement.check_request(guard.scope.scope.current_scope.get())

    def test_a_body_that_runs_is_stopped(self, start: Start, operator: Any, mode: str) -> None:
        runtime = start(transport_mode=mode)
        entered = threading.Event()

        @guard.protect
        def body() -> None:
            entered.set()
            ends = time.monotonic() + WAIT_S
            while time.monotonic() < ends:
                pass

        until(lambda: channel(runtime) != "none", WAIT_S)
        operator(entered)
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()

    def test_a_kill_during_an_outage_stops_what_runs(
        self, start: Start, tenant: Any, proxy: ChaosProxy, mode: str
    ) -> None:
        runtime = start(api_url=proxy.url, transport_mode=mode)
        until(lambda: channel(runtime) != "none", WAIT_S)
        entered = threading.Event()
        outcome: list[BaseException] = []

        @guard.protect
        def body() -> None:
            entered.set()
            ends = time.monotonic() + WAIT_S
            while time.monotonic() < ends:
                pass

        def run() -> None:
            with guard.workflow("w"):
                try:
                    body()
                except BaseException as exc:
                    outcome.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        entered.wait(WAIT_S)
        proxy.fault = "refuse"
        proxy.cut()
        tenant.admin.kill("w", reason="during the outage")
        until(lambda: channel(runtime) == "none", WAIT_S)
        assert not outcome
        proxy.fault = "none"
        thread.join(WAIT_S)
        assert isinstance(outcome[0], WorkflowKilledInterrupt)
        assert outcome[0].reason == "during the outage"


def test_the_poller_takes_over_and_hands_back(
    start: Start, tenant: Any, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_socket = control_socket.open_socket
    away = threading.Event()

    def sometimes(*args: Any) -> Any:
        if away.is_set():
            raise OSError("no WebSocket gets through here")
        return open_socket(*args)

    monkeypatch.setattr(control_socket, "open_socket", sometimes)
    runtime = start(api_url=proxy.url)
    until(lambda: channel(runtime) == "websocket", WAIT_S)
    away.set()
    proxy.cut()
    until(lambda: channel(runtime) == "poller", WAIT_S)
    until(lambda: runtime.status().state == "degraded", WAIT_S)
    tenant.admin.kill("by-poll")
    until(lambda: killed(runtime, "by-poll"), WAIT_S)
    away.clear()
    until(lambda: channel(runtime) == "websocket", WAIT_S)
    tenant.admin.kill("by-socket")
    until(lambda: killed(runtime, "by-socket"), WAIT_S)
    until(lambda: runtime.status().state == "ok", WAIT_S)


def test_a_kill_is_seen_without_room_to_wait(start: Start) -> None:
    """Polls beyond the organisation's share are told at their next question."""
    with run_gateway(connections_max=10) as gateway:
        assert gateway._server is not None
        hub = gateway._server.app.hub
        others = [hub.subscribe(gateway.organisation_id, "k") for _ in range(8)]
        runtime = start(api_url=gateway.base_url, api_key=gateway.api_key, transport_mode="http")
        until(lambda: channel(runtime) == "poller", WAIT_S)
        time.sleep(0.5)
        assert hub.count() == len(others), "none waits"
        for number in range(3):
            workflow = f"w-{number}"
            gateway.admin.kill(workflow)
            until(functools.partial(killed, runtime, workflow), WAIT_S)
            assert channel(runtime) == "poller"
        runtime.shutdown(flush=False)


def test_no_exception_ends_the_poller(start: Start, tenant: Any) -> None:
    """Without a socket it is the only way for a kill to arrive."""
    runtime = start(transport_mode="http")
    until(lambda: channel(runtime) == "poller", WAIT_S)
    assert runtime.link.session is not None
    directives: Any = runtime.link.session.subscriber._directives
    failed = threading.Event()

    def mistaken() -> tuple[int, str]:
        del directives.position  # from the next call on, the class's
        failed.set()
        raise RuntimeError("a mistake")

    directives.position = mistaken
    tenant.admin.kill("earlier")  # ends the poll that waits
    assert failed.wait(WAIT_S)
    tenant.admin.kill("w")
    until(lambda: killed(runtime), WAIT_S)
    until(lambda: channel(runtime) == "poller", WAIT_S)


def test_a_half_open_connection_is_noticed(
    start: Start, tenant: Any, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer is gone and says nothing: no reset, no close, only silence."""
    monkeypatch.setattr(control_socket, "PING_INTERVAL_S", 0.3)
    monkeypatch.setattr(control_socket, "PING_TIMEOUT_S", 0.3)
    monkeypatch.setattr(control_socket, "_OPEN_TIMEOUT_S", 1.0)
    runtime = start(api_url=proxy.url, timeout_ms=500)
    until(lambda: channel(runtime) == "websocket", WAIT_S)
    proxy.fault = "hang"
    tenant.admin.kill("w")
    until(lambda: channel(runtime) == "none", WAIT_S)
    assert not killed(runtime)
    connections = proxy.connections
    proxy.fault = "none"
    until(lambda: killed(runtime), WAIT_S)
    assert proxy.connections > connections - 1


def test_a_flapping_socket_loses_nothing(start: Start, tenant: Any, proxy: ChaosProxy) -> None:
    runtime = start(api_url=proxy.url)
    for number in range(10):
        tenant.admin.kill(f"w{number}")
        proxy.cut()
    until(lambda: all(killed(runtime, f"w{number}") for number in range(10)), WAIT_S)
    for number in range(0, 10, 2):
        tenant.admin.revive(f"w{number}")
        proxy.cut()
    until(
        lambda: all(killed(runtime, f"w{number}") == bool(number % 2) for number in range(10)),
        WAIT_S,
    )


def test_an_unsigned_or_forged_frame_is_refused(start: Start, tenant: Any) -> None:
    """With a secret configured, nobody in between can kill, and nobody can revive."""
    made = tenant.admin.create_key_full("signed", signed=True)
    runtime = start(api_key=made["api_key"], hmac_secret=made["hmac_secret"])
    until(lambda: channel(runtime) == "websocket", WAIT_S)
    session = runtime.link.session
    assert session is not None
    assert session.subscriber._greeted_here
    forged = wire.encode(wire.ControlMessage(seq=7, type="kill", workflow_id="w"))
    signed = b'{"payload":"{\\"seq\\":7,\\"type\\":\\"kill\\"}","signature":"00"}'
    for frame in (forged, signed):
        with pytest.raises(subscriber.ChannelError):
            session.subscriber._open_frame(frame, "nonce")
        session.subscriber._apply_eagerly("nonce", [frame])
    assert not killed(runtime)
    tenant.admin.kill("w")
    until(lambda: killed(runtime), WAIT_S)


def test_duplicates_and_late_messages(runtime: GuardRuntime) -> None:
    """Newest wins, whatever order they come in; what is told twice is told once."""
    interrupted = []
    runtime.enforcement.bodies.interrupt = interrupted.append  # type: ignore[method-assign,assignment]
    messages = [
        wire.ControlMessage(seq=1, type="kill", workflow_id="w"),
        wire.ControlMessage(seq=2, type="revive", workflow_id="w"),
        wire.ControlMessage(seq=3, type="pause", workflow_id="w"),
    ]
    for message in (messages[2], messages[1], messages[0], *messages):
        runtime.enforcement.apply(message)
    assert not killed(runtime)
    assert paused(runtime)
    assert interrupted


def copy_store(database: Path, copy: Path) -> None:
    """Copy a database that no gateway has open, with all of its files."""
    copy.parent.mkdir()
    for part in database.parent.glob(f"{database.name}*"):
        shutil.copy(part, copy.parent / part.name)


class TestRestarts:
    @pytest.mark.parametrize("mode", ["websocket", "http"])
    def test_on_the_same_database_and_on_an_older_copy(
        self, tmp_path: Path, start: Start, mode: str
    ) -> None:
        """A kill is kept when the gateway has forgotten it; what it says anew is heard."""
        database, copy = tmp_path / "a.sqlite3", tmp_path / "copy" / "a.sqlite3"
        with run_gateway(database) as gateway:
            key = gateway.admin.create_key("test")
        copy_store(database, copy)
        with run_gateway(database) as gateway:
            proxy = ChaosProxy(gateway.base_url)
            runtime = start(api_key=key, api_url=proxy.url, transport_mode=mode)
            for name in ("one", "two", "three", "four"):
                gateway.admin.kill(name)
            until(lambda: killed(runtime, "four"), WAIT_S)
            proxy.fault = "refuse"
            proxy.cut()
        with run_gateway(database) as gateway:
            proxy.retarget(gateway.base_url)
            proxy.fault = "none"
            gateway.admin.kill("five")
            until(lambda: killed(runtime, "five"), WAIT_S)
            proxy.fault = "refuse"
            proxy.cut()
        with run_gateway(copy) as gateway:
            proxy.retarget(gateway.base_url)
            proxy.fault = "none"
            gateway.admin.kill("six")  # number 1 again
            until(lambda: killed(runtime, "six"), WAIT_S)
            assert killed(runtime, "one")
            gateway.admin.kill("one")
            gateway.admin.revive("one")
            until(lambda: not killed(runtime, "one"), WAIT_S)
            assert killed(runtime, "two")
            runtime.shutdown(flush=False)
        proxy.close()

    @pytest.mark.parametrize("mode", ["websocket", "http"])
    def test_on_an_older_copy_that_has_passed_the_number(
        self, tmp_path: Path, start: Start, mode: str
    ) -> None:
        """Its numbers have been given twice; nothing that it says is taken for known."""
        database, copy = tmp_path / "a.sqlite3", tmp_path / "copy" / "a.sqlite3"
        with run_gateway(database) as gateway:
            key = gateway.admin.create_key("test")
            gateway.admin.kill("before")
        copy_store(database, copy)
        with run_gateway(database) as gateway:
            proxy = ChaosProxy(gateway.base_url)
            runtime = start(api_key=key, api_url=proxy.url, transport_mode=mode)
            for name in ("one", "two", "three"):
                gateway.admin.kill(name)
            until(lambda: killed(runtime, "three"), WAIT_S)
            proxy.fault = "refuse"
            proxy.cut()
        with run_gateway(copy) as gateway:
            for name in ("four", "five", "six", "seven"):
                gateway.admin.kill(name)
            gateway.admin.revive("before")
            proxy.retarget(gateway.base_url)
            proxy.fault = "none"
            for name in ("four", "five", "six", "seven"):
                until(lambda name=name: killed(runtime, name), WAIT_S)  # type: ignore[misc]
            until(lambda: not killed(runtime, "before"), WAIT_S)
            assert killed(runtime, "one")  # forgotten there, and kept here until it is revived
            seq = runtime.enforcement.control.seq
            gateway.admin.revive("one")
            until(lambda: not killed(runtime, "one"), WAIT_S)
            assert runtime.enforcement.control.seq > seq
            runtime.shutdown(flush=False)
        proxy.close()

    def test_on_the_same_record_nothing_is_read_again(
        self, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database = tmp_path / "a.sqlite3"
        with run_gateway(database) as gateway:
            key = gateway.admin.create_key("test")
            proxy = ChaosProxy(gateway.base_url)
            runtime = start(api_key=key, api_url=proxy.url)
            gateway.admin.kill("one")
            until(lambda: killed(runtime, "one"), WAIT_S)
            proxy.fault = "refuse"
            proxy.cut()
        numbers: list[int] = []
        controlled = runtime.link.session.subscriber._apply  # type: ignore[union-attr]

        def noted(*messages: wire.ControlMessage) -> None:
            numbers.extend(m.seq for m in messages if m.type not in ("hello", "ping"))
            controlled(*messages)

        monkeypatch.setattr(runtime.link.session.subscriber, "_apply", noted)  # type: ignore[union-attr]
        with run_gateway(database) as gateway:
            proxy.retarget(gateway.base_url)
            proxy.fault = "none"
            until(lambda: channel(runtime) == "websocket", WAIT_S)
            gateway.admin.kill("two")
            until(lambda: killed(runtime, "two"), WAIT_S)
            assert set(numbers) == {2}
            runtime.shutdown(flush=False)
        proxy.close()


class TestReplay:
    def test_a_long_one_is_applied_in_batches(
        self, start: Start, gateway: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not message by message: each application copies the state."""
        count = 600
        for number in range(count):
            tenant.admin.pause(f"w{number}")
        batches: list[int] = []
        apply = ControlState.apply

        def counting(self: ControlState, *messages: wire.ControlMessage) -> ControlState:
            batches.append(len(messages))
            return apply(self, *messages)

        monkeypatch.setattr(ControlState, "apply", counting)
        runtime = start(transport_mode="websocket")
        until(lambda: paused(runtime, f"w{count - 1}"), WAIT_S)
        assert all(paused(runtime, f"w{number}") for number in range(count))
        assert len(batches) < count / 4

    @pytest.mark.asyncio
    async def test_what_came_before_the_end_of_the_connection_is_applied(
        self, start: Start, tenant: Any, proxy: ChaosProxy
    ) -> None:
        """The last words of a gateway that goes away are heard."""
        runtime = await asyncio.to_thread(start)
        session = runtime.link.session
        assert session is not None

        class Ends:
            def __init__(self) -> None:
                self.frames = [
                    wire.encode(wire.ControlMessage(seq=1, type="pause", workflow_id="w")),
                    wire.encode(wire.ControlMessage(seq=2, type="pause", workflow_id="v")),
                ]

            async def recv(self) -> bytes:
                if not self.frames:
                    raise OSError("gone")
                return self.frames.pop(0)

        with pytest.raises(OSError, match="gone"):
            await session.subscriber._take_what_came(Ends(), "")  # type: ignore[arg-type]
        assert paused(runtime, "w")
        assert paused(runtime, "v")


class TestBetweenGateAndBody:
    """A kill that arrives after the gate's answer and before the body is known."""

    def test_sync(self, runtime: GuardRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kill_on_entry(runtime, monkeypatch)

        @guard.protect
        def body() -> None:
            raise AssertionError("entered")

        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()
        assert len(runtime.enforcement.bodies) == 0

    @pytest.mark.asyncio
    async def test_async(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = await asyncio.to_thread(start)
        self._kill_on_entry(runtime, monkeypatch)

        @guard.protect
        async def body() -> None:
            raise AssertionError("entered")

        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            await body()
        assert len(runtime.enforcement.bodies) == 0

    def _kill_on_entry(self, runtime: GuardRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        enter = runtime.enforcement.bodies.enter
        message = wire.ControlMessage(seq=1, type="kill", workflow_id="w")

        def enter_late(body: Any) -> None:
            if body.scope.call is not None:
                runtime._background.submit(apply).result(WAIT_S)
            enter(body)

        async def apply() -> None:
            runtime.enforcement.apply(message)

        monkeypatch.setattr(runtime.enforcement.bodies, "enter", enter_late)


class TestPause:
    def test_it_holds_the_next_call_and_not_the_running_one(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        calls = []

        @guard.protect
        def body(then: Callable[[], object] = lambda: None) -> str:
            calls.append(True)
            then()
            return "finished"

        def pause() -> None:
            tenant.admin.pause("w", reason="lunch")
            until(lambda: paused(runtime), WAIT_S)

        with guard.workflow("w"):
            assert body(pause) == "finished"
            with pytest.raises(WorkflowPausedException) as held:
                body()
            assert held.value.resume_after is None
            assert held.value.reason == "lunch"
            tenant.admin.resume("w")
            until(lambda: not paused(runtime), WAIT_S)
            assert body() == "finished"
        assert len(calls) == 2

    def test_resume_after_lifts_it(self, runtime: GuardRuntime, tenant: Any) -> None:
        @guard.protect
        def body() -> str:
            return "ran"

        def ran() -> bool:
            with guard.workflow("w"):
                try:
                    return body() == "ran"
                except WorkflowPausedException as exc:
                    held.append(exc.resume_after)
                    return False

        def was_held(resume_after_ms: int) -> bool:
            tenant.admin.pause("w", resume_after_ms=resume_after_ms)
            return not ran()

        held: list[object] = []
        # On a machine that stalls a short pause may be over before the call.
        assert any(map(was_held, (700, 7_000, 70_000)))
        assert held[0] is not None
        until(ran, WAIT_S)

    def test_the_local_time_of_a_pause_follows_the_gateways_clock(
        self, runtime: GuardRuntime
    ) -> None:
        """A gateway whose clock is ten minutes behind still pauses for a minute."""
        session = runtime.link.session
        assert session is not None
        now_ms = wire_now_ms()
        behind_ms = 600_000
        subscribed = session.subscriber

        async def take() -> None:
            """Not in this thread: a hello of the real gateway might come between the two."""
            subscribed._take(wire.ControlMessage(seq=0, type="ping", at_ms=now_ms - behind_ms))
            subscribed._take(
                wire.ControlMessage(
                    seq=1, type="pause", workflow_id="w", resume_after_ms=60_000,
                    at_ms=now_ms - behind_ms,
                )
            )  # fmt: skip

        runtime._background.submit(take).result(WAIT_S)
        lane = runtime.enforcement.control.timed_pauses
        assert lane.find("w", None, now_ms + 30_000) is not None
        assert lane.find("w", None, now_ms + 70_000) is None

    def test_a_paused_run(self, runtime: GuardRuntime, tenant: Any) -> None:
        @guard.protect
        def body() -> str:
            return "ran"

        with guard.workflow("w") as first:
            tenant.admin.pause(run_id=first.run_id)
            until(lambda: runtime.enforcement.control.pauses.runs, WAIT_S)
            with pytest.raises(WorkflowPausedException):
                body()
            with guard.workflow("w"):
                assert body() == "ran"


def wire_now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_control_socket_follows_no_redirect(status: int) -> None:
    """The handshake carries the key, which belongs to the gateway and to nobody else."""
    asked, elsewhere = Scripted(), Scripted()
    try:
        location = f"{elsewhere.url.replace('http', 'ws')}{wire.CONTROL_WS_PATH}"
        asked.answer = lambda path, body: (
            Answer(status, {"Location": location}) if path == wire.CONTROL_WS_PATH else None
        )
        guard.GuardRuntime("k" * 24, asked.url, transport_mode="websocket").open()
        until(lambda: asked.count(wire.CONTROL_WS_PATH) >= 2, WAIT_S)  # it failed, and tries again
        assert not elsewhere.requests
    finally:
        asked.close()
        elsewhere.close()


@pytest.mark.parametrize("mode", ["auto", "http", "websocket"])
def test_init_returns_with_what_stands(start: Start, tenant: Any, mode: str) -> None:
    """A workflow that was killed before cannot send a single request after ``init``."""
    tenant.admin.kill("w")
    tenant.admin.pause("p")
    runtime = start(transport_mode=mode)
    assert killed(runtime, "w")
    assert paused(runtime, "p")


class IdleLoop(asyncio.SelectorEventLoop):
    """Its time passes at once when nothing is left to do, so a busy machine is never late."""

    def __init__(self) -> None:
        self._now_s = 0.0
        selector = selectors.DefaultSelector()
        select = selector.select

        def pass_time(timeout: float | None = None) -> Any:
            self._now_s += timeout or 0.0
            return select(0)

        selector.select = pass_time  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        """Return the time that has passed."""
        return self._now_s


class Herd:
    """Subscribers on one loop that have just lost their sockets, and when each comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spread_s: float, told: bool) -> None:
        self._spread_s = spread_s
        self._told = told
        self.sockets: dict[subscriber.Subscriber, float] = {}
        self.polls: list[float] = []

        async def listen(each: subscriber.Subscriber) -> None:
            if each not in self.sockets:
                self.sockets[each] = 0.0
                each._stop_fallback_poll()  # as a greeting does
                each._spread_s, each._restarts = self._spread_s, self._told
                raise subscriber.ChannelError("cut")
            self.sockets[each] = asyncio.get_running_loop().time() - self._began_s
            await asyncio.Event().wait()

        monkeypatch.setattr(subscriber.Subscriber, "_listen", listen)
        monkeypatch.setattr(subscriber, "_FIRST_POLL_S", 0.0)
        monkeypatch.setattr(subscriber, "_FIRST_PAUSE_S", 0.0)
        monkeypatch.setattr(subscriber.Subscriber, "_poll_forever", self._poll)

    async def _poll(self, after_s: float = 0.0) -> None:
        if after_s:  # not the first one, before there was a socket
            self.polls.append(after_s)
        await asyncio.Event().wait()

    async def run(self, count: int, seconds: float) -> None:
        nothing: Any = None
        settings: Any = type("Settings", (), {"transport_mode": "auto"})
        self._began_s = asyncio.get_running_loop().time()
        tasks = []
        for _ in range(count):
            each = subscriber.Subscriber(
                settings, nothing, nothing, asks=nothing,
                apply=lambda *_: None, switched=lambda _: None, recalled=lambda *_: None,
                room=lambda _: None,
            )  # fmt: skip
            tasks.append(asyncio.create_task(each.run()))
        try:
            await asyncio.sleep(seconds)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def most_within(width_s: float, times: list[float]) -> int:
    return max(sum(at <= each < at + width_s for each in times) for at in times)


def test_thousands_come_back_over_the_time_that_the_gateway_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = Herd(monkeypatch, 2.0, told=False)
    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        runner.run(herd.run(300, 3.0))
    times = list(herd.sockets.values())
    assert max(times) > 1.5
    assert most_within(0.2, times) < 300 * 0.25
    assert len(herd.polls) == 300
    assert min(herd.polls) >= 0.5, "the socket alone has the first turn"
    assert most_within(0.2, herd.polls) < 300 * 0.25


def test_a_restart_is_not_spread_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    herd = Herd(monkeypatch, 10.0, told=True)
    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        runner.run(herd.run(100, 2.0))
    assert all(herd.sockets.values())


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("greeted", "told", "attempts"),
    [(True, True, {0}), (True, False, {0, 1, 2, 3}), (False, True, {0, 1, 2, 3})],
    ids=["drained", "dropped", "refused"],
)
async def test_a_socket_that_moves_early_does_not_flap(
    monkeypatch: pytest.MonkeyPatch, greeted: bool, told: bool, attempts: set[int]
) -> None:
    """Replicas that drain one after another say goodbye; one that drops its sockets is spared."""
    asked: list[int] = []
    moved = asyncio.Event()

    class Delays:
        cap_s = 10.0

        def delay_s(self, attempt: int, _: float) -> float:
            asked.append(attempt)
            if len(asked) == 4:
                moved.set()
            return 0.001

    async def listen(each: subscriber.Subscriber) -> None:
        each._up_since_s = time.monotonic() if greeted else None
        each._restarts = told
        raise subscriber.ChannelError("closed")

    herd = Herd(monkeypatch, 0.0, told)
    monkeypatch.setattr(subscriber, "RECONNECT", Delays())
    monkeypatch.setattr(subscriber, "_STABLE_S", WAIT_S)  # a stall is not a stable socket
    monkeypatch.setattr(subscriber.Subscriber, "_listen", listen)
    running = asyncio.create_task(herd.run(1, WAIT_S))
    async with asyncio.timeout(WAIT_S):
        await moved.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert set(asked[:4]) == attempts


def test_a_gateway_asks_for_a_millisecond_for_each_socket(tenant: Any) -> None:
    hub = Hub()
    for _ in range(1234):
        hub.subscribe("o", "k")
    hub.subscribe("o", "k", pushes=False)
    assert hub.spread_s() == pytest.approx(1.234)
    with asyncio.Runner() as runner:
        runner.run(_greeted(tenant))


async def _greeted(tenant: Any) -> None:
    async with asker(tenant.url, tenant.key) as client:
        await client.read()
        assert client.pushed[0]["spread_ms"] == 100
