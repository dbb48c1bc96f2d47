"""The circuit breaker: opens on consecutive failures, lets one probe through, backs off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from guard.breaker.circuit import CircuitBreaker


def opened(threshold: int = 3, **options: Any) -> CircuitBreaker:
    circuit = CircuitBreaker(threshold, **{"caller": lambda: "me", **options})
    for _ in range(threshold):
        assert circuit.allows(now_s=0.0)
        circuit.failed(now_s=0.0)
    return circuit


def test_it_opens_on_consecutive_failures_only() -> None:
    circuit = CircuitBreaker(threshold=3)
    for _ in range(10):
        circuit.failed(now_s=0.0)
        circuit.failed(now_s=0.0)
        circuit.succeeded()
    assert circuit.state == "closed"
    for _ in range(2):
        circuit.failed(now_s=0.0)
    assert circuit.allows(now_s=0.0)
    circuit.failed(now_s=0.0)
    assert circuit.state == "open"
    assert not circuit.allows(now_s=0.0)


def test_one_probe_after_the_cooldown() -> None:
    circuit = opened(cooldown_s=5.0)
    assert not circuit.allows(now_s=4.99)
    assert [circuit.allows(now_s=5.0) for _ in range(5)] == [True, False, False, False, False]
    assert circuit.state == "half_open"
    assert not circuit.allows(now_s=500.0), "the probe is still under way"


def test_a_cooldown_that_is_ended_lets_one_probe_through() -> None:
    circuit = opened(cooldown_s=5.0)
    circuit.end_cooldown(now_s=1.0)
    assert [circuit.allows(now_s=1.0) for _ in range(2)] == [True, False]
    closed = CircuitBreaker()
    closed.end_cooldown(now_s=1.0)
    assert closed.state == "closed"


def test_a_good_probe_closes_and_forgets() -> None:
    circuit = opened(cooldown_s=5.0)
    assert circuit.allows(now_s=5.0)
    circuit.succeeded()
    assert circuit.state == "closed"
    for _ in range(2):
        circuit.failed(now_s=6.0)
    assert circuit.state == "closed", "the old failures do not count any more"


def test_bad_probes_double_the_cooldown_up_to_the_cap() -> None:
    circuit = opened(cooldown_s=1.0, cooldown_max_s=5.0)
    now_s = 0.0
    for cooldown_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert not circuit.allows(now_s=now_s + cooldown_s - 0.01)
        now_s += cooldown_s
        assert circuit.allows(now_s=now_s)
        circuit.failed(now_s=now_s)
    assert circuit.allows(now_s=now_s + 5.0)
    circuit.succeeded()
    again = circuit
    for _ in range(3):
        again.failed(now_s=100.0)
    assert again.allows(now_s=101.0), "after a success the cooldown starts short again"


def test_an_abandoned_probe_leaves_room_for_another() -> None:
    circuit = opened(cooldown_s=1.0)
    assert circuit.allows(now_s=1.0)
    circuit.abandoned()
    assert circuit.allows(now_s=1.0)


def test_failures_of_calls_under_way_when_it_opened_do_not_prolong_it() -> None:
    circuit = opened(cooldown_s=1.0)
    for _ in range(50):
        circuit.failed(now_s=0.9)
    assert circuit.allows(now_s=1.0)


async def reported(circuit: CircuitBreaker, report: str) -> None:
    """Report the end of an older request, in a task of its own."""
    match report:
        case "failed":
            circuit.failed(now_s=1.0)
        case "abandoned":
            circuit.abandoned()
        case "late":  # as the client does at a request's deadline
            circuit.abandoned()
            circuit.failed(now_s=1.0)


@pytest.mark.parametrize("report", ["failed", "abandoned", "late"])
def test_older_requests_do_not_end_the_probe(report: str) -> None:
    async def body() -> None:
        circuit = opened(cooldown_s=1.0, caller=asyncio.current_task)
        assert circuit.allows(now_s=1.0)
        await asyncio.create_task(reported(circuit, report))
        assert circuit.state == "half_open"
        assert not circuit.allows(now_s=500.0), "the probe is still under way"
        circuit.failed(now_s=501.0)
        assert not circuit.allows(now_s=502.9), "it failed, so the cooldown is twice as long"
        assert circuit.allows(now_s=503.0)

    asyncio.run(body())


def test_a_probe_that_reaches_its_deadline_has_failed() -> None:
    circuit = opened(cooldown_s=1.0)
    assert circuit.allows(now_s=1.0)
    circuit.abandoned()
    circuit.failed(now_s=1.0)
    assert not circuit.allows(now_s=2.9)
    assert circuit.allows(now_s=3.0)


@pytest.mark.parametrize("threshold", [1, 5])
def test_the_threshold_is_counted(threshold: int) -> None:
    assert opened(threshold).state == "open"


class CircuitMachine(RuleBasedStateMachine):
    """Requests that end later and in any order, over a clock that only goes forward."""

    threshold, cooldown_s, cooldown_max_s = 2, 2.0, 8.0
    under_way = Bundle("under_way")

    def __init__(self) -> None:
        super().__init__()
        self.caller = 0
        self.circuit = CircuitBreaker(
            self.threshold, self.cooldown_s, self.cooldown_max_s, caller=lambda: self.caller
        )
        self.now_s = 0.0
        self.state = "closed"
        self.failures = 0
        self.open_until_s = 0.0
        self.wait_s = self.cooldown_s
        self.requests = 0
        # The newest probe, unless it has failed or the circuit was closed since.
        self.prober = 0

    @rule(step_s=st.sampled_from([0.5, 2.0, 8.0]))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    @rule(target=under_way)
    def ask(self) -> Any:
        self.requests += 1
        self.caller = self.requests
        due = self.state == "open" and self.now_s >= self.open_until_s
        allowed = self.circuit.allows(now_s=self.now_s)
        assert allowed == (self.state == "closed" or due)
        if due:
            self.state, self.prober = "half_open", self.caller
        return self.caller if allowed else multiple()

    # One rule, so that as many requests are made as end, and several are under way at a time.
    @rule(
        request=consumes(under_way),
        end=st.sampled_from(["answer", "failure", "failure", "cancellation", "deadline"]),
    )
    def a_request_ends(self, request: int, end: str) -> None:
        self.caller = request
        match end:
            case "answer":
                self.circuit.succeeded()
                self.state, self.failures, self.wait_s = "closed", 0, self.cooldown_s
                self.prober = 0
            case "failure":
                self.circuit.failed(now_s=self.now_s)
                self.has_failed(request)
            case "cancellation":
                self.circuit.abandoned()
                self.was_abandoned(request)
            case "deadline":  # the client reports both
                self.circuit.abandoned()
                self.circuit.failed(now_s=self.now_s)
                self.was_abandoned(request)
                self.has_failed(request)

    def has_failed(self, request: int) -> None:
        self.failures += 1
        if request == self.prober or (self.state == "closed" and self.failures >= self.threshold):
            self.state, self.prober = "open", 0
            self.open_until_s = self.now_s + self.wait_s
            self.wait_s = min(self.wait_s * 2, self.cooldown_max_s)

    def was_abandoned(self, request: int) -> None:
        if request == self.prober:
            self.state = "open"

    @invariant()
    def it_is_in_the_state_that_it_says(self) -> None:
        assert self.circuit.state == self.state


TestCircuit = CircuitMachine.TestCase
