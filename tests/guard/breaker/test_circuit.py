"""The circuit breaker: opens on consecutive failures, lets one probe through, backs off."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from guard.breaker.circuit import CircuitBreaker


def opened(threshold: int = 3, **options: float) -> CircuitBreaker:
    circuit = CircuitBreaker(threshold, **options)
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


@pytest.mark.parametrize("threshold", [1, 5])
def test_the_threshold_is_counted(threshold: int) -> None:
    assert opened(threshold).state == "open"


class CircuitMachine(RuleBasedStateMachine):
    """Callers that ask, and report later and in any order, over a clock that only goes forward."""

    threshold, cooldown_s, cooldown_max_s = 3, 2.0, 8.0

    def __init__(self) -> None:
        super().__init__()
        self.circuit = CircuitBreaker(self.threshold, self.cooldown_s, self.cooldown_max_s)
        self.now_s = 0.0
        self.state = "closed"
        self.failures = 0
        self.opened_s = 0.0
        self.wait_s = self.cooldown_s

    @rule(step_s=st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0]))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    @rule()
    def ask(self) -> None:
        due = self.state == "open" and self.now_s >= self.opened_s + self.wait_s
        assert self.circuit.allows(now_s=self.now_s) == (self.state == "closed" or due)
        if due:
            self.state = "half_open"

    @rule()
    def an_answer(self) -> None:
        self.circuit.succeeded()
        self.state, self.failures, self.wait_s = "closed", 0, self.cooldown_s

    @precondition(lambda self: self.state == "closed")
    @rule()
    def a_failure(self) -> None:
        self.circuit.failed(now_s=self.now_s)
        self.failures += 1
        if self.failures >= self.threshold:
            self.state, self.opened_s = "open", self.now_s

    @precondition(lambda self: self.state == "half_open")
    @rule()
    def the_probe_fails(self) -> None:
        self.circuit.failed(now_s=self.now_s)
        self.state, self.opened_s = "open", self.now_s
        self.wait_s = min(self.wait_s * 2, self.cooldown_max_s)

    @precondition(lambda self: self.state == "half_open")
    @rule()
    def the_probe_is_cancelled(self) -> None:
        self.circuit.abandoned()
        self.state = "open"

    @precondition(lambda self: self.state == "open" and self.now_s < self.opened_s + self.wait_s)
    @rule()
    def a_late_failure(self) -> None:
        self.circuit.failed(now_s=self.now_s)

    @invariant()
    def it_is_in_the_state_that_it_says(self) -> None:
        assert self.circuit.state == self.state


TestCircuit = CircuitMachine.TestCase
