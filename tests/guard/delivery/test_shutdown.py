"""``shutdown`` and ``flush``: total deadlines in every phase, exact accounting, one end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

import guard
from guard.breaker.exceptions import BreakerTransportError, GuardTransportError
from guard.core.buffer import EventBuffer, Record
from guard.runtime.runtime import GuardRuntime
from guard.serverless import flush_on_return
from tests.guard.delivery.conftest import EVENTS, Answer, Scripted, problem
from tests.support.waiting import WAIT_S, until

E = TypeVar("E", bound=Exception)
Against = Callable[..., GuardRuntime]
HANG = Answer(hang=True)
FOR_EVER_MS = 600_000
"""An end that waited for the gateway's answer instead of its own deadline would not end in here."""


def track(count: int) -> None:
    for number in range(count):
        guard.track_llm(number, 1, model="m")


@contextlib.contextmanager
def in_a_thread(work: Callable[[], object], kind: type[E]) -> Iterator[list[E]]:
    """Run something meanwhile, to its end; gives the errors of that kind that it raises."""
    raised: list[E] = []

    def run() -> None:
        try:
            work()
        except kind as exc:
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    yield raised
    thread.join(120)


class TestAgainstAGatewayThatHangs:
    def test_with_a_batch_in_flight(self, against: Against, scripted: Scripted) -> None:
        scripted.answer = lambda path, body: HANG if path == EVENTS else None
        runtime = against(timeout_ms=FOR_EVER_MS)
        track(250)
        until(lambda: scripted.count() == 1)
        track(50)
        with pytest.raises(BreakerTransportError) as caught:
            runtime.shutdown(timeout=2.0)
        assert caught.value.events_lost == 300
        status = runtime.status()
        assert (status.events_lost, status.buffered, status.state) == (300, 0, "offline")

    def test_while_a_protected_call_waits_for_the_gate(
        self, against: Against, scripted: Scripted
    ) -> None:
        scripted.answer = lambda path, body: HANG if path == "/gate" else None
        runtime = against(timeout_ms=FOR_EVER_MS)

        @guard.protect
        def work() -> None: ...

        def call() -> None:
            with guard.workflow("w"):
                guard.track_llm(1, 1)  # travels with the gate request
                work()

        with in_a_thread(call, GuardTransportError) as failed:
            until(lambda: scripted.count("/gate") == 1)
            with contextlib.suppress(BreakerTransportError):
                runtime.shutdown(timeout=2.0)
        assert [error.source for error in failed] == ["BREAKER_OPEN"]
        status = runtime.status()
        # The call's own closing events came after the end: counted, like everything else.
        assert status.events_sent + status.events_lost >= 1

    def test_what_goes_along_with_an_unanswered_question_is_delivered_by_itself(
        self, against: Against, scripted: Scripted
    ) -> None:
        scripted.answer = lambda path, body: HANG if path == "/gate" else None
        runtime = against(timeout_ms=FOR_EVER_MS, flush_interval_ms=3_600_000)
        work = guard.protect(lambda: None)
        ids: list[str] = []

        def call() -> None:
            with guard.workflow("w"):
                ids.append(guard.track_llm(1, 1)["event_id"])
                work()

        with in_a_thread(call, GuardTransportError):
            until(lambda: scripted.count("/gate") == 1)
            assert runtime.events.waiting
            with contextlib.suppress(BreakerTransportError):  # the events of the call's own end
                runtime.shutdown(timeout=60.0)
        assert scripted.events.get(ids[0]) == 1

    def test_while_another_thread_flushes(
        self, against: Against, scripted: Scripted, caplog: pytest.LogCaptureFixture
    ) -> None:
        scripted.answer = lambda path, body: HANG if path == EVENTS else None
        runtime = against(timeout_ms=FOR_EVER_MS)
        track(10)
        with in_a_thread(runtime.flush, BreakerTransportError) as failed:
            until(lambda: scripted.count() == 1)
            with contextlib.suppress(BreakerTransportError):
                runtime.shutdown(timeout=1.0)
        assert len(failed) == 1
        assert runtime.status().events_lost == 10
        assert "they wait" not in caplog.text  # they do not: nothing sends them any more

    def test_while_init_is_probing(self, scripted: Scripted) -> None:
        scripted.answer = lambda path, body: HANG
        runtime = GuardRuntime("k" * 24, scripted.url, timeout_ms=FOR_EVER_MS)
        with in_a_thread(runtime.open, GuardTransportError) as failed:
            until(lambda: scripted.count("/api/v1/capabilities") >= 1)
            runtime.shutdown(timeout=2.0)
        assert len(failed) == 1

    def test_from_several_threads(self, against: Against, scripted: Scripted) -> None:
        scripted.answer = lambda path, body: HANG if path == EVENTS else None
        runtime = against(timeout_ms=FOR_EVER_MS)
        track(10)
        raised: list[BaseException] = []

        def end() -> None:
            try:
                runtime.shutdown(timeout=1.0)
            except BreakerTransportError as exc:
                raised.append(exc)

        threads = [threading.Thread(target=end) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(raised) == 1  # the loss is told to one of them
        assert runtime.status().events_lost == 10

    @pytest.mark.asyncio
    async def test_inside_a_running_loop(self, against: Against, scripted: Scripted) -> None:
        scripted.answer = lambda path, body: HANG if path == EVENTS else None
        runtime = against(timeout_ms=FOR_EVER_MS)
        track(10)
        with pytest.raises(BreakerTransportError):
            runtime.shutdown(timeout=1.0)

    def test_no_time_at_all(self, against: Against, scripted: Scripted) -> None:
        scripted.answer = lambda path, body: HANG if path == EVENTS else None
        runtime = against(timeout_ms=FOR_EVER_MS)
        track(10)
        with pytest.raises(BreakerTransportError):
            runtime.shutdown(timeout=0)
        assert runtime.status().events_lost == 10

    def test_a_task_that_swallows_its_cancellation_does_not_hold_up_the_end(
        self, against: Against
    ) -> None:
        runtime = against()

        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue

        runtime._background.submit(stubborn)
        runtime.shutdown(timeout=1.0)
        assert not runtime._background.is_running

    def test_a_loop_that_is_blocked_does_not_hold_up_the_end(self, against: Against) -> None:
        runtime = against(flush_interval_ms=3_600_000)
        track(3)
        free = threading.Event()
        runtime._background.call_soon(free.wait, WAIT_S)
        with pytest.raises(BreakerTransportError):
            runtime.shutdown(timeout=1.0)
        assert runtime.status().events_lost == 3
        free.set()
        until(lambda: not runtime._background._thread.is_alive())  # type: ignore[union-attr]


class TestAccounting:
    @pytest.mark.parametrize("take", ["take", "take_if"])
    def test_what_leaves_the_buffer_is_counted_all_the_while(
        self, against: Against, monkeypatch: pytest.MonkeyPatch, take: str
    ) -> None:
        """Another thread that saw nothing waiting would let the process end."""
        runtime = against(flush_interval_ms=3_600_000)
        original = getattr(EventBuffer, take)
        seen: list[int] = []

        def taken(buffer: EventBuffer, *args: Any) -> list[Record]:
            records: list[Record] = original(buffer, *args)
            if records:
                seen.append(runtime.events.waiting)
            return records

        monkeypatch.setattr(EventBuffer, take, taken)
        with guard.workflow("w"):
            track(5)
            if take == "take_if":
                guard.protect(lambda: None)()  # its question takes them along
            else:
                runtime.flush()
        assert seen[0] >= 5
        runtime.flush()
        status = runtime.status()
        assert (status.buffered, status.events_lost) == (0, 0)

    def test_without_flush_the_events_are_counted_not_raised(self, against: Against) -> None:
        runtime = against(flush_interval_ms=3_600_000)
        track(20)
        runtime.shutdown(flush=False)
        assert runtime.status().events_lost == 20

    def test_without_flush_and_with_a_spool_they_are_on_disk(
        self, against: Against, tmp_path: Any
    ) -> None:
        runtime = against(flush_interval_ms=3_600_000, spool_dir=tmp_path / "s")
        track(20)
        runtime.shutdown(flush=False)
        assert (runtime.status().events_lost, runtime.status().spooled) == (0, 20)

    def test_after_the_end_events_are_counted(self, against: Against) -> None:
        runtime = against()
        runtime.shutdown(WAIT_S)
        track(5)
        guard.track_event("late")
        assert runtime.status().events_lost == 6
        assert runtime.status().buffered == 0

    def test_a_gateway_that_is_back_gets_everything_though_the_circuit_is_open(
        self, against: Against, scripted: Scripted
    ) -> None:
        runtime = against(flush_interval_ms=3_600_000)
        scripted.answer = lambda path, body: Answer(503) if path == EVENTS else None
        track(20)
        session = runtime.link.session
        assert session is not None
        while session.client.circuit.state != "open":
            with pytest.raises(BreakerTransportError):
                runtime.flush()
        scripted.answer = lambda path, body: None
        runtime.shutdown(timeout=120)
        assert len(scripted.events) == 20
        assert runtime.status().events_lost == 0

    def test_a_refused_key_is_not_tried_again(self, against: Against, scripted: Scripted) -> None:
        runtime = against(flush_interval_ms=3_600_000)
        scripted.answer = lambda path, body: problem(401, "GD-A003") if path == EVENTS else None
        track(5)
        with pytest.raises(BreakerTransportError, match="GD-A003"):
            runtime.shutdown(timeout=100_000)
        assert scripted.count() == 1

    def test_a_gateway_that_wants_to_be_left_alone_for_longer_is(
        self, against: Against, scripted: Scripted
    ) -> None:
        runtime = against(flush_interval_ms=3_600_000)
        answer = Answer(429, {"Retry-After": "300"}, b"{}")
        scripted.answer = lambda path, body: answer if path == EVENTS else None
        track(5)
        with pytest.raises(BreakerTransportError):
            runtime.shutdown(timeout=10.0)
        assert scripted.count() == 1
        assert runtime.status().events_lost == 5

    def test_twice_is_once(self, against: Against, scripted: Scripted) -> None:
        runtime = against(flush_interval_ms=3_600_000)
        track(5)
        runtime.shutdown(WAIT_S)
        runtime.shutdown(WAIT_S)
        guard.shutdown(WAIT_S)
        assert len(scripted.events) == 5

    def test_no_thread_is_left(self, against: Against) -> None:
        runtime = against()
        ours = runtime._background._thread
        assert ours in threading.enumerate()
        runtime.shutdown(WAIT_S)
        assert ours not in threading.enumerate()

    def test_a_spool_that_cannot_be_used_is_said_once_and_memory_serves(
        self, against: Against, scripted: Scripted, tmp_path: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "s").write_text("in the way")
        caplog.set_level(logging.WARNING, logger="guard.events")
        runtime = against(spool_dir=tmp_path / "s", flush_interval_ms=20)
        scripted.answer = lambda path, body: Answer(500) if path == EVENTS else None
        track(5)
        until(lambda: scripted.count() >= 2)
        with pytest.raises(BreakerTransportError):
            runtime.flush()
        assert runtime.status().buffered == 5
        said = [line for line in caplog.messages if "spool cannot be used" in line]
        assert len(said) == 1
        (tmp_path / "s").unlink()
        until(lambda: runtime.status().spooled == 5)
        assert runtime.status().state in ("degraded", "offline")
        until(lambda: any("spool can be used again" in line for line in caplog.messages))


class TestInAHook:
    def test_flush_and_shutdown_work_as_anywhere_else(
        self, against: Against, scripted: Scripted
    ) -> None:
        outcomes: list[BaseException | None] = []

        def hook(error: Any, context: Any) -> None:
            scripted.answer = lambda path, body: None
            for act in (runtime.flush, lambda: guard.shutdown(WAIT_S)):
                try:
                    act()
                    outcomes.append(None)
                except Exception as exc:
                    outcomes.append(exc)

        runtime = against(flush_interval_ms=20)
        guard.on_error(hook)
        scripted.answer = lambda path, body: Answer(500) if path == EVENTS else None
        track(1)
        until(lambda: len(outcomes) == 2)
        assert outcomes == [None, None]
        assert runtime.status().events_sent == 1


class TestFlushOnReturn:
    def test_function(self, against: Against, scripted: Scripted) -> None:
        against(flush_interval_ms=3_600_000)

        @flush_on_return
        def handler(count: int) -> int:
            track(count)
            return count

        assert handler(3) == 3
        assert len(scripted.events) == 3

    def test_it_delivers_after_an_exception_too(self, against: Against, scripted: Scripted) -> None:
        against(flush_interval_ms=3_600_000)

        @flush_on_return(timeout=WAIT_S)
        def handler() -> None:
            track(2)
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            handler()
        assert len(scripted.events) == 2

    @pytest.mark.asyncio
    async def test_coroutine_function(self, against: Against, scripted: Scripted) -> None:
        against(flush_interval_ms=3_600_000)

        @flush_on_return
        async def handler() -> str:
            track(4)
            return "done"

        assert await handler() == "done"
        assert len(scripted.events) == 4

    def test_a_dead_gateway_changes_nothing_about_the_call(
        self, against: Against, scripted: Scripted
    ) -> None:
        runtime = against(flush_interval_ms=3_600_000)
        scripted.answer = lambda path, body: Answer(500) if path == EVENTS else None

        @flush_on_return(timeout=1.0)
        def handler() -> str:
            track(1)
            return "done"

        assert handler() == "done"
        assert runtime.status().buffered == 1
