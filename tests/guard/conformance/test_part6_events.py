"""Spec part 6: events. What the track functions record is in ``test_part4_track``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard import GuardRuntime
from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardTransportError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from tests.guard.conftest import settled
from tests.support.waiting import until


@guard.protect
def step() -> str:
    return "ran"


def _flushed(runtime: GuardRuntime) -> bool:
    try:
        runtime.flush()
    except BreakerTransportError:
        return False
    return True


class TestBatches:
    def test_events_are_buffered_into_a_batch(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 6: the SDK buffers events into a batch and sends them to the gateway."""
        guard.track_llm(1)
        guard.track_tool("search")
        guard.track_event("custom")
        assert scripted.calls("/api/v1/events") == []
        scripted_runtime.flush()
        (batch,) = scripted.calls("/api/v1/events")
        assert batch.method == "POST"
        assert batch.json["batch_id"]
        assert {event["type"] for event in batch.json["events"]} == {"llm", "tool", "custom"}
        assert len({event["event_id"] for event in batch.json["events"]}) == 3

    def test_a_flush_happens_on_the_next_protected_call(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 6: on the next ``@protect`` call; its workflow's events travel in the gate call."""
        with guard.workflow("w"):
            guard.track_llm(3)
            step()
        (asked,) = scripted.calls("/gate")
        (event,) = asked.json["events"]
        assert (event["type"], event["workflow_id"]) == ("llm", "w")

    def test_the_rest_of_the_buffer_is_flushed_in_the_background(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 6 (semantics, protect): the rest of the buffer goes in the background."""
        with guard.workflow("other"):
            guard.track_llm(3)
        with guard.workflow("w"):
            step()
        until(lambda: scripted.calls("/api/v1/events"))
        events = [e for a in scripted.calls("/api/v1/events") for e in a.json["events"]]
        assert "other" in {event.get("workflow_id") for event in events}

    def test_a_retried_batch_is_charged_once(
        self, proxy: Any, start: Callable[..., GuardRuntime], tenant: Any
    ) -> None:
        """Semantics, delivery: at least once on the wire, once on the ledger."""
        tenant.admin.set_price("m", input_per_mtok=1_000_000, output_per_mtok=0)
        runtime = settled(start(api_url=proxy.url, flush_interval_ms=3_600_000))
        with guard.workflow("w"):
            guard.track_llm(10, model="m")
        proxy.fault = "reset"  # of the answers: what was asked arrives
        with pytest.raises(BreakerTransportError):
            runtime.flush()
        assert tenant.spent_nanousd("w") == 10
        proxy.fault = "none"
        until(lambda: _flushed(runtime))
        assert tenant.spent_nanousd("w") == 10


class TestControlMessages:
    @pytest.mark.parametrize(
        ("mode", "channel"), [("websocket", "websocket"), ("http", "poller"), ("auto", "websocket")]
    )
    def test_pause_and_kill_are_pushed(
        self, start: Callable[..., GuardRuntime], tenant: Any, mode: str, channel: str
    ) -> None:
        """Part 6: pushes pause and kill over a WebSocket; an HTTP poller also runs."""
        start(transport_mode=mode)
        until(lambda: guard.status().control_channel == channel)
        with guard.workflow("w"):
            tenant.admin.pause("w")
            until(lambda: guard.track_llm(0)["decision"] == "pause")
            with pytest.raises(WorkflowPausedException):
                step()
            tenant.admin.kill("w")
            until(lambda: guard.track_llm(0)["decision"] == "kill")
            with pytest.raises(WorkflowKilledInterrupt):
                step()

    def test_the_poller_takes_over_where_the_socket_cannot_be_had(
        self, scripted: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        """Part 6: an HTTP poller also runs."""
        kill = {"seq": 1, "type": "kill", "workflow_id": "w", "reason": "stop"}
        scripted.answer("/api/v1/control", body={"messages": [kill], "seq": 1})
        start(api_url=scripted.url)
        with guard.workflow("w"):
            until(lambda: guard.track_llm(0)["decision"] == "kill")
            with pytest.raises(WorkflowKilledInterrupt) as killed:
                step()
        assert killed.value.reason == "stop"
        assert scripted.calls("/gate") == []  # the local check was enough

    def test_a_kill_from_before_the_start_is_seen(
        self, start: Callable[..., GuardRuntime], tenant: Any
    ) -> None:
        """Part 6 (semantics): what was said while nobody listened is replayed."""
        tenant.admin.kill("w")
        start()
        with guard.workflow("w"):
            until(lambda: guard.track_llm(0)["decision"] == "kill")


class TestOverBudgetCommits:
    def test_lead_to_a_422_and_are_recorded(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 6: over-budget commit events lead to a 422; the cost is recorded all the same."""
        tenant.admin.set_price("m", input_per_mtok=10**12, output_per_mtok=0)
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"):
            guard.track_llm(100, model="m")
        runtime.flush()
        assert tenant.spent_nanousd("w") == 100_000_000
        assert guard.status().events_lost == 0
        assert guard.status().buffered == 0

    def test_the_error_hooks_hear_of_it(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 7: 422, actual cost above reservation plus epsilon: GuardConsumeOverbudgetError."""
        codes: list[str] = []
        guard.on_error(lambda error, _context: codes.append(error.error_code))
        tenant.admin.set_price("m", input_per_mtok=10**12, output_per_mtok=0)
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"):
            guard.track_llm(100, model="m")
        runtime.flush()
        until(lambda: codes)  # the hooks have a thread of their own
        assert codes == ["GD-O001"]


class TestNotDelivered:
    def test_a_transport_error_that_carries_the_counts(
        self, start: Callable[..., GuardRuntime]
    ) -> None:
        """Part 6: after retries, a transport error with events_lost and buffer_size is raised."""
        runtime = start(api_url="http://127.0.0.1:1", timeout_ms=300)
        for _ in range(3):
            guard.track_tool("a")
        with pytest.raises(BreakerTransportError) as failed:
            runtime.flush()
        assert failed.value.buffer_size == 3
        assert failed.value.events_lost == 0  # they wait for the gateway
        assert not isinstance(failed.value, guard.GuardError)

    def test_and_the_events_are_delivered_when_the_gateway_is_back(
        self, proxy: Any, start: Callable[..., GuardRuntime], tenant: Any
    ) -> None:
        """Semantics, delivery: what can be kept stays buffered."""
        runtime = start(api_url=proxy.url)
        proxy.fault = "reset"
        proxy.cut()
        guard.track_tool("kept")
        with pytest.raises(BreakerTransportError):
            runtime.flush()
        proxy.fault = "none"
        until(lambda: _flushed(runtime))
        assert len(tenant.admin.events(type="tool")) == 1

    def test_the_cause_is_the_transport_error(self, start: Callable[..., GuardRuntime]) -> None:
        """Part 7: BreakerTransportError is not a GuardError; its cause says what happened."""
        runtime = start(api_url="http://127.0.0.1:1", timeout_ms=300)
        guard.track_tool("a")
        with pytest.raises(BreakerTransportError) as failed:
            runtime.flush()
        assert isinstance(failed.value.__cause__, GuardTransportError)
