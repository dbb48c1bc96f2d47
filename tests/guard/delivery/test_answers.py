"""What the gateway may answer to a batch, and what becomes of the events."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardBudgetError,
    GuardConsumeOverbudgetError,
    GuardError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import current_scope
from tests.guard.delivery.conftest import EVENTS, Answer, Scripted, problem
from tests.support.waiting import WAIT_S, until

Against = Callable[..., GuardRuntime]


def track(count: int, **metadata: Any) -> list[str]:
    return [
        guard.track_llm(number, 1, model="m", metadata=metadata)["event_id"]
        for number in range(count)
    ]


class TestPartly:
    def test_rejected_events_are_counted_and_the_others_delivered(
        self, against: Against, scripted: Scripted
    ) -> None:
        def reject_one(path: str, body: Any) -> Answer | None:
            if path != EVENTS:
                return None
            bad = body["events"][0]["event_id"]
            for event in body["events"][1:]:
                scripted.take(event)
            reply = {
                "accepted": len(body["events"]) - 1,
                "rejected": [{"event_id": bad, "error_code": "GD-E001"}],
            }
            return Answer(202, body=json.dumps(reply).encode())

        scripted.answer = reject_one
        runtime = against(flush_interval_ms=60_000)
        track(5)
        runtime.flush(WAIT_S)
        status = runtime.status()
        assert (status.events_sent, status.events_lost, status.buffered) == (4, 1, 0)

    def test_413_splits_the_batch_until_it_fits(self, against: Against, scripted: Scripted) -> None:
        scripted.answer = lambda path, body: (
            problem(413, "GD-P003") if path == EVENTS and len(body["events"]) > 3 else None
        )
        runtime = against(flush_interval_ms=60_000)
        ids = track(20)
        runtime.flush(WAIT_S)
        assert sorted(scripted.events) == sorted(ids)
        assert set(scripted.events.values()) == {1}
        assert runtime.status().events_lost == 0

    def test_one_event_that_spoils_its_batch_is_lost_alone_and_reported(
        self, against: Against, scripted: Scripted
    ) -> None:
        def choke(path: str, body: Any) -> Answer | None:
            if path == EVENTS and any(
                event["data"].get("input_tokens") == 7 for event in body["events"]
            ):
                return problem(400, "GD-P002")
            return None

        scripted.answer = choke
        runtime = against(flush_interval_ms=60_000)
        ids = track(20)
        runtime.flush(WAIT_S)
        assert ids[7] not in scripted.events
        assert len([name for name in ids if name in scripted.events]) == 19
        assert runtime.status().events_lost == 1
        assert [b["data"] for b in scripted.bodies if b["type"] == "sdk.loss"] == [{"events": 1}]
        assert runtime.status().events_sent == 19  # the report is not one of the user's events

    def test_422_is_taken_and_told_to_the_hooks_once(
        self, against: Against, scripted: Scripted
    ) -> None:
        told: list[tuple[GuardError, str]] = []
        guard.on_error(lambda error, context: told.append((error, context.stage)))
        scripted.answer = lambda path, body: scripted.taken(body, 422) if path == EVENTS else None
        runtime = against(flush_interval_ms=60_000)
        ids = track(3)
        runtime.flush(WAIT_S)
        assert sorted(scripted.events) == sorted(ids)
        assert [(type(error), stage) for error, stage in told] == [
            (GuardConsumeOverbudgetError, "flush")
        ]
        assert runtime.status().events_sent == 3

    def test_an_event_that_cannot_be_encoded_does_not_hold_up_the_others(
        self, against: Against, scripted: Scripted
    ) -> None:
        runtime = against(flush_interval_ms=20)
        runtime.events.record("custom", {"object": object()})
        ids = track(3)
        until(lambda: all(name in scripted.events for name in ids))
        until(lambda: runtime.status().events_lost == 1)
        track(1)
        until(lambda: runtime.status().events_sent == 4)

    def test_a_bad_event_in_the_luggage_of_a_gate_is_no_reason_to_refuse_the_call(
        self, against: Against, scripted: Scripted
    ) -> None:
        scripted.answer = lambda path, body: (
            problem(400, "GD-P002") if path == "/gate" and body.get("events") else None
        )
        runtime = against(flush_interval_ms=60_000)

        @guard.protect
        def work() -> int:
            return 7

        with guard.workflow("w"):
            (event_id,) = track(1)
            assert work() == 7
        runtime.flush(WAIT_S)
        assert scripted.events[event_id] == 1


class TestWhatIsNoGateway:
    @pytest.mark.parametrize(
        "answer",
        [
            Answer(200, body=b"{}"),
            Answer(200, body=b"<html>welcome</html>"),
            Answer(404, body=b"<h1>not found</h1>"),
            Answer(403, body=b"forbidden"),
            Answer(405),
        ],
        ids=str,
    )
    def test_is_named_and_recovered_from(
        self,
        against: Against,
        scripted: Scripted,
        answer: Answer,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Not "offline", and not "blocked by policy": the address, or a proxy, is wrong."""
        scripted.answer = lambda path, body: answer
        with caplog.at_level(logging.WARNING):
            runtime = against()
        assert runtime.status().state == "misconfigured"
        assert "not as a guard gateway" in caplog.text
        scripted.answer = lambda path, body: None
        guard.protect(lambda: None)()
        assert runtime.status().state != "misconfigured"

    def test_413_says_what_is_too_large(self, against: Against, scripted: Scripted) -> None:
        against()
        scripted.answer = lambda path, body: Answer(413) if path == "/gate" else None
        with pytest.raises(GuardError, match="larger than") as caught:
            guard.protect(lambda: None)()
        assert str(caught.value).count("GD-B001") == 1


class TestCancelled:
    def test_a_batch_that_is_being_spooled_loses_none_of_its_parts(
        self, against: Against, scripted: Scripted, tmp_path: Path
    ) -> None:
        """The batch was halved before; what is cancelled is the flush that stores the halves."""

        def answer(path: str, body: Any) -> Answer | None:
            if path != EVENTS:
                return None
            return problem(413, "GD-P003") if len(body["events"]) > 5 else problem(503, "GD-B002")

        scripted.answer = answer
        runtime = against(spool_dir=tmp_path / "spool", flush_interval_ms=60_000)
        session = runtime.link.session
        assert session is not None
        spool = session.flusher._spooler._spool
        assert spool is not None
        ids = track(10)
        with spool._lock:  # the disk is slow
            flushing = runtime._background.submit(session.flusher._send_buffered)
            until(lambda: "guard-blocking" in [each.name for each in threading.enumerate()])
            flushing.cancel()
        until(lambda: not session.flusher._one_flush.locked())
        scripted.answer = lambda path, body: None
        session.client.circuit.succeeded()
        runtime.flush(WAIT_S)
        assert sorted(scripted.events) == sorted(ids)
        assert runtime.status().events_lost == 0


class TestRepliesDecide:
    """Where no control channel can be had, replies to events say what stands."""

    @pytest.fixture
    def silent(self, against: Against, scripted: Scripted) -> GuardRuntime:
        scripted.answer = lambda path, body: (
            Answer(404) if path.startswith("/api/v1/control") else None
        )
        runtime = against(transport_mode="websocket", flush_interval_ms=60_000)
        assert runtime.status().control_channel == "none"
        return runtime

    @staticmethod
    def decide(scripted: Scripted, **decisions: str) -> None:
        def answer(path: str, body: Any) -> Answer | None:
            if path.startswith("/api/v1/control"):
                return Answer(404)
            if path != EVENTS:
                return None
            assert len({event.get("workflow_id") for event in body["events"]}) == 1
            decision = decisions.get(body["events"][-1].get("workflow_id"), "allow")
            return Answer(202, body=json.dumps({"accepted": 1, "decision": decision}).encode())

        scripted.answer = answer

    def test_an_exhausted_budget_ends_the_requests_of_its_workflow(
        self, silent: GuardRuntime, scripted: Scripted
    ) -> None:
        self.decide(scripted, spent="exhausted")
        for name in ("spent", "rich", "spent", "rich"):
            with guard.workflow(name):
                guard.track_llm(1, 1)
        silent.flush(WAIT_S)
        with guard.workflow("rich"):
            silent.enforcement.check_request(current_scope.get())
            assert guard.track_llm(1, 1)["decision"] == "allow"
        with guard.workflow("spent"):
            assert guard.track_llm(1, 1)["decision"] == "block"
        with pytest.raises(GuardBudgetError), guard.workflow("spent"):
            silent.enforcement.check_request(current_scope.get())
        self.decide(scripted)  # the operator has raised the budget
        silent.flush(WAIT_S)
        with guard.workflow("spent"):
            silent.enforcement.check_request(current_scope.get())

    @pytest.mark.parametrize(
        ("decision", "error"),
        [("kill", WorkflowKilledInterrupt), ("pause", WorkflowPausedException)],
    )
    def test_a_kill_and_a_pause_hold_for_the_run(
        self,
        silent: GuardRuntime,
        scripted: Scripted,
        decision: str,
        error: type[BaseException],
    ) -> None:
        self.decide(scripted, w=decision)
        with guard.workflow("w"):
            scope = current_scope.get()
            guard.track_llm(1, 1)
            silent.flush(WAIT_S)
            with pytest.raises(error):
                silent.enforcement.check(scope)
        self.decide(scripted)
        with guard.workflow("another"):
            silent.enforcement.check(current_scope.get())
        silent.events.record("custom", {}, scope)
        silent.flush(WAIT_S)
        silent.enforcement.check(scope)

    def test_a_kill_is_read_from_a_batch_with_a_report_of_losses(
        self, silent: GuardRuntime, scripted: Scripted
    ) -> None:
        """A reply is about the last event's workflow, and a report has none."""

        def answer(path: str, body: Any) -> Answer | None:
            if path != EVENTS:
                return Answer(404)
            reply = scripted.taken(body)
            if body["events"][-1].get("workflow_id") != "w":
                return reply
            accepted = {"accepted": len(body["events"]), "decision": "kill"}
            return Answer(202, body=json.dumps(accepted).encode())

        scripted.answer = answer
        assert silent.link.session is not None
        with guard.workflow("w"):
            scope = current_scope.get()
            guard.track_llm(1, 1)
            silent.link.session.flusher._losses.lose(3, "the buffer sheds")
            silent.flush(WAIT_S)
        assert [body["type"] for body in scripted.bodies] == ["sdk.loss", "llm"]
        assert scripted.bodies[0]["data"] == {"events": 3}
        assert silent.status().events_sent == 1
        assert silent.link.session.flusher._losses.report() is None, "it is delivered"
        with pytest.raises(WorkflowKilledInterrupt):
            silent.enforcement.check(scope)

    def test_a_kill_in_a_reply_to_events_ends_no_service(
        self, against: Against, scripted: Scripted
    ) -> None:
        refusing = True
        scripted.answer = lambda path, body: (
            problem(403, "GD-W002") if refusing and path == EVENTS else None
        )
        runtime = against()
        track(1)
        until(lambda: scripted.count() >= 1)
        until(lambda: runtime.status().last_error_code)
        refusing = False
        track(1)
        until(lambda: len(scripted.events) == 2)
        assert runtime.status().events_lost == 0


class TestTrouble:
    @pytest.mark.parametrize(
        "answer",
        [
            Answer(500, body=b"no"),
            Answer(503, body=b"<html>"),
            Answer(202, body=b'{"accepted": '),
            Answer(202, body=b"<html>all good</html>"),
            Answer(202, body=b'{"accepted": "three"}'),
            Answer(202, body=b"[1]"),
            Answer(202, body=b" " * (5 << 20)),
            Answer(202, {"Content-Encoding": "gzip"}, gzip.compress(b" " * (64 << 20))),
            Answer(204),
            Answer(302, {"Location": "http://127.0.0.1:1/"}),
            Answer(404, body=b"{}"),
            problem(401, "GD-A003"),
        ],
        ids=[
            "500",
            "503",
            "cut",
            "html",
            "type",
            "list",
            "5MB",
            "bomb",
            "204",
            "302",
            "404",
            "401",
        ],
    )
    def test_the_events_are_kept_and_delivered_later(
        self, against: Against, scripted: Scripted, answer: Answer
    ) -> None:
        runtime = against(flush_interval_ms=60_000)
        scripted.answer = lambda path, body: answer if path == EVENTS else None
        ids = track(3)
        with pytest.raises(BreakerTransportError) as caught:
            runtime.flush()
        assert caught.value.buffer_size == 3
        assert caught.value.events_lost == 0
        assert runtime.status().buffered == 3
        scripted.answer = lambda path, body: None
        until(lambda: _flushed(runtime))
        assert sorted(scripted.events) == sorted(ids)
        assert runtime.status().events_lost == 0

    def test_one_line_in_the_log_for_each_transition(
        self, against: Against, scripted: Scripted, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="guard.events")
        runtime = against(flush_interval_ms=20)
        scripted.answer = lambda path, body: Answer(500) if path == EVENTS else None

        def told() -> list[str]:
            return [each.getMessage() for each in caplog.records if each.name == "guard.events"]

        track(1)
        for _ in range(5):
            with pytest.raises(BreakerTransportError):
                runtime.flush()
        scripted.answer = lambda path, body: None
        until(lambda: _flushed(runtime))
        until(lambda: len(told()) >= 2)
        lines = told()
        assert [line.partition(",")[0].partition(":")[0] for line in lines] == [
            "events are not delivered",
            "events are delivered again",
        ]

    def test_a_storm_sees_little_more_than_the_offered_load(
        self, against: Against, scripted: Scripted
    ) -> None:
        runtime = against(flush_interval_ms=3_600_000, timeout_ms=60_000)
        scripted.answer = lambda path, body: Answer(500) if path == EVENTS else None
        offered = 60
        for _ in range(offered):
            track(1)
            with pytest.raises(BreakerTransportError):
                runtime.flush()
        # The quota's ten tokens come on top once; the breaker keeps it far below that.
        assert scripted.count() <= 1.2 * offered + 10
        assert runtime.status().breaker in ("open", "half_open")
        assert runtime.status().buffered == offered


def _flushed(runtime: GuardRuntime) -> bool:
    try:
        runtime.flush(WAIT_S)
    except BreakerTransportError:
        return False
    return True


class TestRetryAfter:
    """That it is obeyed; which values it takes: ``tests/guard/transport/test_client.py``."""

    @pytest.mark.parametrize(
        "header",
        [pytest.param({"Retry-After": "2"}, id="seconds"), pytest.param({}, id="absent")],
    )
    def test_silence_until_then(
        self, against: Against, scripted: Scripted, header: dict[str, str]
    ) -> None:
        refused = Answer(429, header, b"{}")
        answers = iter([refused])
        scripted.answer = lambda path, body: next(answers, None) if path == EVENTS else None
        runtime = against(flush_interval_ms=20)
        ids = track(1)
        until(lambda: scripted.events)
        assert scripted.count() == 2
        assert list(scripted.events) == ids
        assert runtime.status().breaker == "closed"  # a gateway that paces is not one that fails

    def test_an_absurdly_long_wait_is_capped(self, against: Against, scripted: Scripted) -> None:
        scripted.answer = lambda path, body: (
            Answer(429, {"Retry-After": "1" + "0" * 30}, b"{}") if path == EVENTS else None
        )
        runtime = against(flush_interval_ms=3_600_000)
        track(1)
        for _ in range(2):
            with pytest.raises(BreakerTransportError, match="buffered") as caught:
                runtime.flush()
        cause = caught.value.__cause__
        assert isinstance(cause, guard.GuardError)
        assert 0 < cause.retry_after <= 300  # type: ignore[attr-defined]
        assert scripted.count() == 1

    def test_the_silence_of_one_endpoint_is_not_that_of_another(
        self, against: Against, scripted: Scripted
    ) -> None:
        scripted.answer = lambda path, body: (
            Answer(429, {"Retry-After": "300"}, b"{}") if path == EVENTS else None
        )
        runtime = against(flush_interval_ms=3_600_000)

        @guard.protect
        def work() -> int:
            return 7

        track(1)
        with pytest.raises(BreakerTransportError):
            runtime.flush()
        assert work() == 7


class TestBatches:
    def test_by_count_bytes_and_age(self, against: Against, scripted: Scripted) -> None:
        runtime = against(flush_interval_ms=3_600_000, batch_size=10)
        track(9)
        assert runtime.status().buffered == 9
        track(1)
        until(lambda: len(scripted.events) == 10)  # by count, long before the interval
        big = "x" * 50_000
        for number in range(60):
            guard.track_event("big", number=number, text=big)
        runtime.flush(WAIT_S)
        sizes = [
            len(json.dumps(body)) for path, _, body in list(scripted.requests) if path == EVENTS
        ]
        assert max(sizes) <= 1_048_576 + 200_000  # json.dumps writes blanks that the wire has not
        assert len(scripted.events) == 70

    def test_a_backlog_goes_in_larger_batches(self, against: Against, scripted: Scripted) -> None:
        runtime = against(flush_interval_ms=3_600_000, batch_size=10)
        scripted.answer = lambda path, body: Answer(500) if path == EVENTS else None
        track(600)
        with pytest.raises(BreakerTransportError):
            runtime.flush()
        scripted.answer = lambda path, body: None
        before = scripted.count()
        until(lambda: _flushed(runtime))
        assert len(scripted.events) == 600
        assert scripted.count() - before < 30

    def test_a_steady_flow_does_not_go_one_by_one(
        self, against: Against, scripted: Scripted
    ) -> None:
        runtime = against(flush_interval_ms=3_600_000, batch_size=10)
        for _ in range(300):
            track(1)
            time.sleep(0.002)
        runtime.flush(WAIT_S)
        assert len(scripted.events) == 300
        assert scripted.count() <= 70

    def test_a_dropped_event_is_counted_and_reported_even_if_the_report_fails_at_first(
        self, against: Against, scripted: Scripted
    ) -> None:
        runtime = against(flush_interval_ms=3_600_000, batch_size=1000, buffer_size=50)
        scripted.answer = lambda path, body: Answer(500) if path == EVENTS else None
        track(70)
        with pytest.raises(BreakerTransportError):
            runtime.flush()
        assert runtime.status().events_lost == 20
        track(5)
        scripted.answer = lambda path, body: None
        until(lambda: _flushed(runtime))
        reports = [b["data"]["events"] for b in scripted.bodies if b["type"] == "sdk.loss"]
        assert sum(reports) == 25
        assert runtime.status().events_lost == 25
        assert runtime.status().events_sent == 50
