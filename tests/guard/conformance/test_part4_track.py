"""Spec part 4: ``track_llm``, ``track_tool``, ``track_event``; part 6: events."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

import guard
from guard import GuardRuntime
from tests.guard.conftest import settled
from tests.support.waiting import until


class Hostile:
    """A value that raises whatever is done with it; what it shows must not be logged."""

    def __repr__(self) -> str:
        return "canary"

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError("canary")


ITSELF: list[Any] = []
ITSELF.append(ITSELF)
OUTSIDE_JSON: Any = [
    Hostile(),
    b"\xff".decode("utf-8", "surrogateescape"),
    {1: object()},
    ITSELF,
    2j,
]


class TestTrackLlm:
    def test_what_is_recorded(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4: mirrors vendor usage: input, output, model, latency in ms, free metadata."""
        with guard.workflow("w"):
            decision = guard.track_llm(
                812, 64, model="m", latency_ms=12.5, metadata={"ticket": [1, {"deep": None}]}
            )
        runtime.flush()
        (event,) = tenant.llm_events("w")
        assert event["event_id"] == decision["event_id"]
        assert event["data"]["input_tokens"] == 812
        assert event["data"]["output_tokens"] == 64
        assert event["data"]["model"] == "m"
        assert event["data"]["latency_ms"] == 12.5
        assert event["data"]["metadata"] == {"ticket": [1, {"deep": None}]}
        assert event["data"].get("source", "manual") == "manual"

    def test_output_tokens_default_to_zero(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4: ``track_llm(input_tokens, output_tokens=0)``."""
        guard.track_llm(5)
        runtime.flush()
        (event,) = tenant.llm_events()
        assert event["data"]["input_tokens"] == 5
        assert event["data"].get("output_tokens", 0) == 0

    @pytest.mark.usefixtures("runtime")
    def test_returns_the_decision_dictionary(self) -> None:
        """Part 4: returns the backend decision dict."""
        assert guard.track_llm(1)["decision"] == "allow"

    def test_returns_a_kill_and_a_pause_as_soon_as_they_are_known(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Part 4: returns the backend decision (semantics: the newest known)."""
        with guard.workflow("w"):
            tenant.admin.pause("w")
            until(lambda: guard.track_llm(0)["decision"] == "pause")
            tenant.admin.kill("w")
            until(lambda: guard.track_llm(0)["decision"] == "kill")

    def test_buffered_and_flushed_on_the_next_protected_call(
        self, start: Callable[..., GuardRuntime], tenant: Any
    ) -> None:
        """Part 4 and 6: buffered; flushed on the next ``@protect`` call."""
        settled(start(flush_interval_ms=3_600_000))

        @guard.protect
        def step() -> None: ...

        with guard.workflow("w"):
            guard.track_llm(5, model="m")
            assert guard.status().buffered == 1
            assert tenant.llm_events("w") == []
            step()
        assert len(tenant.llm_events("w")) == 1

    def test_or_after_the_flush_interval(
        self, start: Callable[..., GuardRuntime], tenant: Any
    ) -> None:
        """Part 4 and 6: or after the flush interval (milliseconds)."""
        start(flush_interval_ms=30)
        guard.track_llm(5)
        until(lambda: tenant.llm_events())

    def test_or_when_a_batch_is_full(
        self, start: Callable[..., GuardRuntime], scripted: Any
    ) -> None:
        """Part 6: the SDK buffers events into a batch."""
        settled(
            start(
                api_url=scripted.url,
                transport_mode="http",
                flush_interval_ms=3_600_000,
                batch_size=5,
            )
        )
        for _ in range(5):
            guard.track_llm(1)
        until(lambda: scripted.calls("/api/v1/events"))
        (batch,) = scripted.calls("/api/v1/events")
        assert len(batch.json["events"]) == 5

    @pytest.mark.parametrize(
        ("arguments", "keywords", "error"),
        [
            ((-1,), {}, ValueError),
            ((1, -1), {}, ValueError),
            ((2**60,), {}, ValueError),
            (("1",), {}, TypeError),
            ((1.0,), {}, TypeError),
            ((True,), {}, TypeError),
            ((None,), {}, TypeError),
            ((1,), {"model": ""}, ValueError),
            ((1,), {"model": "m" * 257}, ValueError),
            ((1,), {"model": 3}, TypeError),
            ((1,), {"latency_ms": -0.1}, ValueError),
            ((1,), {"latency_ms": math.nan}, ValueError),
            ((1,), {"latency_ms": math.inf}, ValueError),
            ((1,), {"latency_ms": "1"}, TypeError),
            ((1,), {"metadata": [1]}, TypeError),
            ((1,), {"metadata": {"x": "y" * 70_000}}, ValueError),
        ],
    )
    @pytest.mark.usefixtures("runtime")
    def test_validation(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], error: type[Exception]
    ) -> None:
        """Semantics, track_llm: they validate (negative tokens: ValueError)."""
        with pytest.raises(error):
            guard.track_llm(*arguments, **keywords)
        assert guard.status().buffered == 0

    def test_metadata_is_taken_as_it_was_said(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4: free-form metadata mapping; later changes do not reach the event."""
        metadata = {"step": [1]}
        guard.track_llm(1, metadata=metadata)
        metadata["step"].append(2)
        runtime.flush()
        (event,) = tenant.llm_events()
        assert event["data"]["metadata"] == {"step": [1]}


class TestTrackTool:
    def test_what_is_recorded(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 6: tool name, duration, retry flag."""
        guard.track_tool("search", 12, is_retry=True, metadata={"query": "x"})
        guard.track_tool("plain")
        runtime.flush()
        full, plain = (event["data"] for event in tenant.admin.events(type="tool"))
        assert full["tool_name"] == "search"
        assert full["duration_ms"] == 12
        assert full["is_retry"] is True
        assert full["metadata"] == {"query": "x"}
        assert plain["tool_name"] == "plain"
        assert plain.get("is_retry", False) is False

    def test_returns_nothing(self, runtime: GuardRuntime) -> None:
        """Part 4: a report."""
        assert guard.track_tool("search") is None  # type: ignore[func-returns-value]

    def test_the_policy_engine_sees_the_name(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4: a tool-block policy with a glob-style pattern matches tool_name."""
        tenant.admin.set_policy("p", tools_block=["delete_*"])
        guard.track_tool("delete_account")
        guard.track_tool("search")
        runtime.flush()
        blocked, fine = tenant.admin.events(type="tool")
        assert blocked["flags"] == ["blocked_tool"]
        assert fine["flags"] == []

    @pytest.mark.parametrize(
        ("arguments", "keywords", "error"),
        [
            (("",), {}, ValueError),
            ((3,), {}, TypeError),
            (("x" * 257,), {}, ValueError),
            (("a", -1), {}, ValueError),
            (("a", "1"), {}, TypeError),
            (("a",), {"metadata": "text"}, TypeError),
        ],
    )
    @pytest.mark.usefixtures("runtime")
    def test_validation(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], error: type[Exception]
    ) -> None:
        """Semantics, track_llm "and friends": they validate."""
        with pytest.raises(error):
            guard.track_tool(*arguments, **keywords)
        assert guard.status().buffered == 0


class TestTrackEvent:
    def test_keyword_arguments_form_the_payload(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4 and 6: custom event_type plus keyword payload."""
        guard.track_event("ticket.closed", minutes=12, tags=["a"], name="x", self="s")
        runtime.flush()
        (event,) = tenant.admin.events(type="ticket.closed")
        assert event["data"] == {"minutes": 12, "tags": ["a"], "name": "x", "self": "s"}

    def test_without_a_payload(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4: ``track_event(event_type, **kwargs)``."""
        guard.track_event("bare")
        runtime.flush()
        (event,) = tenant.admin.events(type="bare")
        assert event["data"] == {}

    @pytest.mark.parametrize(
        ("event_type", "payload", "error"),
        [
            ("", {}, ValueError),
            ("x" * 257, {}, ValueError),
            (3, {}, TypeError),
            ("llm", {}, ValueError),
            ("sdk.loss", {}, ValueError),
            ("mine", {"x": "y" * 70_000}, ValueError),
        ],
    )
    @pytest.mark.usefixtures("runtime")
    def test_validation(
        self, event_type: Any, payload: dict[str, Any], error: type[Exception]
    ) -> None:
        """Semantics: they validate; the SDK's own types are its own (protocol: events)."""
        with pytest.raises(error):
            guard.track_event(event_type, **payload)
        assert guard.status().buffered == 0

    @pytest.mark.parametrize("value", OUTSIDE_JSON, ids=lambda value: type(value).__name__)
    def test_a_value_outside_json_loses_its_key_and_not_the_report(
        self, runtime: GuardRuntime, tenant: Any, value: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Part 4: what was spent is reported; what cannot be sent is named, not shown."""
        guard.track_event("mine", x=value, deep=[{"x": value}], kept=1)
        guard.track_llm(7, metadata={"x": value, "kept": 2})
        guard.track_tool("search", metadata={"x": value, "kept": 3})
        guard.track_llm(8, metadata={("a", "tuple"): 1, "kept": 4})
        runtime.flush()
        mine, tool, *llm = (
            each["data"]
            for kind in ("mine", "tool", "llm")
            for each in sorted(tenant.admin.events(type=kind), key=lambda each: each["event_seq"])
        )
        assert mine == {"kept": 1}
        assert tool["metadata"] == {"kept": 3}
        assert [each["metadata"] for each in llm] == [{"kept": 2}, {"kept": 4}]
        assert "canary" not in caplog.text
        assert "a value is left out" in caplog.text


class TestNeverInTheWay:
    def test_no_transport_trouble_is_raised(self, start: Callable[..., GuardRuntime]) -> None:
        """Semantics, track_llm: never raise on transport trouble."""
        start(api_url="http://127.0.0.1:1", timeout_ms=200)
        assert guard.track_llm(1)["buffered"] is True
        guard.track_tool("a")
        guard.track_event("a")
        assert guard.status().buffered == 3

    def test_nothing_is_waited_for(self, scripted: Any, start: Callable[..., GuardRuntime]) -> None:
        """Semantics, track_llm: never block, also while a delivery hangs."""
        start(api_url=scripted.url, transport_mode="http", flush_interval_ms=10)
        hanging, release = threading.Event(), threading.Event()

        def hang(asked: Any) -> Any:
            hanging.set()
            release.wait(120)
            return type("Canned", (), {"status": 202, "body": {"accepted": 1}, "headers": {}})

        scripted.answer_with("/api/v1/events", hang)
        guard.track_tool("first")
        assert hanging.wait(120)
        for _ in range(1000):
            guard.track_tool("more")
        assert not release.is_set()
        assert guard.status().buffered >= 1000
        release.set()

    def test_an_overfull_buffer_sheds_the_least_important_first_and_says_so(
        self, start: Callable[..., GuardRuntime], tenant: Any
    ) -> None:
        """Semantics, delivery: custom events go first, ``llm`` last; ``sdk.loss`` reports it."""
        runtime = settled(start(buffer_size=10, flush_interval_ms=3_600_000, batch_size=1000))
        for number in range(10):
            guard.track_event("custom", number=number)
        for _ in range(10):
            guard.track_llm(1)
        runtime.flush()
        assert len(tenant.llm_events()) == 10
        assert tenant.admin.events(type="custom") == []
        until(lambda: tenant.admin.events(type="sdk.loss"))
        assert sum(e["data"]["events"] for e in tenant.admin.events(type="sdk.loss")) >= 10
        assert guard.status().events_lost >= 10
