"""Spec part 3: states and transitions (blanks: semantics)."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, get_args

import httpx
import pytest

import guard
from guard import GuardRuntime
from guard.breaker.exceptions import (
    GuardBudgetError,
    GuardChainError,
    RateLimitError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.gateway.embedded import Gateway, run_gateway
from guard.state import Facts, State, derive_state
from tests.support.waiting import WAIT_S, until

CENT = 10_000_000
"""Nano-dollars."""


@guard.protect
def step() -> str:
    return "ran"


class TestRuntimeStatus:
    def test_the_four_values(self) -> None:
        """Part 3: ok, degraded, offline, misconfigured."""
        assert get_args(State) == ("ok", "degraded", "offline", "misconfigured")

    @pytest.mark.usefixtures("runtime")
    def test_ok(self) -> None:
        """Part 3 (semantics, status()): ok when nothing worse is true."""
        until(lambda: guard.status().state == "ok")

    def test_degraded_on_the_poller(self, start: Callable[..., GuardRuntime]) -> None:
        """Part 3 (semantics): degraded with the control channel on the poller."""
        start(transport_mode="http")
        until(lambda: guard.status().control_channel == "poller")
        assert guard.status().state == "degraded"

    def test_degraded_while_the_gate_gives_no_decision(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Part 3: not ok while every call is answered 429 (semantics, status)."""
        until(lambda: guard.status().state == "ok")
        caps = [{"calls": 1, "per_ms": 3_600_000, "by": "workflow"}]
        tenant.admin.set_policy("p", rate_caps=caps)
        with guard.workflow("w"):
            step()
            assert guard.status().state == "ok"
            with pytest.raises(RateLimitError):
                step()
        assert guard.status().state == "degraded"

    def test_offline_without_a_gateway_and_after_shutdown(
        self, start: Callable[..., GuardRuntime]
    ) -> None:
        """Part 3 (semantics): offline when nothing was heard, and when shut down."""
        start(api_url="http://127.0.0.1:1", timeout_ms=200)
        assert guard.status().state == "offline"
        guard.shutdown()
        assert guard.status().state == "offline"

    def test_misconfigured_with_a_revoked_key(
        self, tenant: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        """Part 3 (semantics): misconfigured when the key is rejected."""
        made = tenant.admin.create_key_full("revoked")
        start(api_key=made["api_key"])
        tenant.admin.revoke_key(made["key"]["key_id"])
        with pytest.raises(guard.GuardAuthError):
            step()
        assert guard.status().state == "misconfigured"
        assert guard.status().last_error_code == "GD-A003"

    def test_the_worst_fact_names_the_state(self) -> None:
        """Part 3 (semantics): misconfigured > offline > degraded > ok, over all facts."""
        worst = {
            "misconfigured": [{"misconfigured": True}],
            "offline": [{"breaker": "open"}, {"shut_down": True}, {"channel": "none"}],
            "degraded": [
                {"channel": "poller"},
                {"breaker": "half_open"},
                {"spooled": 1},
                {"lost_since_contact": True},
                {"unseen_hosts": True},
            ],
            "ok": [{}],
        }
        order = list(worst)
        fine: dict[str, Any] = {"channel": "websocket", "silence_ms": 0}
        for one, other in itertools.combinations(order, 2):
            for first, second in itertools.product(worst[one], worst[other]):
                silent = {"silence_ms": 10**6} if "channel" in first else {}
                facts = Facts(**{**fine, **second, **first, **silent})
                assert derive_state(facts) == one, facts

    def test_three_quiet_poll_intervals_are_offline(self) -> None:
        """Part 3 (semantics): offline when nothing was heard for 3 poll intervals."""
        quiet = Facts(channel="none", poll_interval_ms=100, silence_ms=301)
        assert derive_state(quiet) == "offline"


class TestChainOperations:
    """The gateway's own clock is moved, so that the time-to-live can be seen."""

    @pytest.fixture
    def name(self) -> str:
        """A chain that no other test has opened in this process."""
        return uuid.uuid4().hex

    @pytest.fixture
    def clock(self) -> list[int]:
        return [time.time_ns() // 1_000_000]

    @pytest.fixture
    def timed(self, clock: list[int]) -> Iterator[Gateway]:
        with run_gateway(clock_ms=lambda: clock[0]) as gateway:
            gateway.admin.update_settings(chain_ttl_ms=60_000)
            gateway.admin.set_price("m", input_per_mtok=1_000_000 * CENT, output_per_mtok=0)
            gateway.admin.set_budget(limit_cents=100, scope_kind="workflow", scope_id="w")
            yield gateway

    @pytest.fixture
    def forward(
        self, timed: Gateway, clock: list[int], start: Callable[..., GuardRuntime]
    ) -> Callable[[int], None]:
        """Move the clock; the SDK begins anew.

        It would keep a lease by a clock of its own, and one that was granted inside of a chain may
        still pay for a call outside.
        """

        def moved(ms: int) -> None:
            guard.shutdown(WAIT_S)
            clock[0] += ms
            start(api_key=timed.api_key, api_url=timed.base_url)

        return moved

    @pytest.fixture(autouse=True)
    def _runtime(self, timed: Gateway, start: Callable[..., GuardRuntime]) -> Iterator[None]:
        start(api_key=timed.api_key, api_url=timed.base_url)
        with guard.workflow("w"):
            yield

    @staticmethod
    def _spend(cents: int) -> None:
        """Report a call of one cent a token."""
        guard.track_llm(cents, model="m")

    def _allowed(self) -> bool:
        try:
            return step() == "ran"
        except GuardBudgetError:
            return False

    def test_inside_a_chain_the_budget_is_soft_up_to_the_ceiling(self, name: str) -> None:
        """Part 2 and 3: soft-mode budget gate; GD-CH001 at the ceiling (semantics: 20 %)."""
        with guard.chain(name):
            self._spend(100)
            assert step() == "ran"
            self._spend(25)
            with pytest.raises(GuardChainError) as refused:
                step()
        assert refused.value.error_code == "GD-CH001"
        assert refused.value.workflow_id == "w"

    def test_outside_of_a_chain_it_is_hard(self) -> None:
        """Part 7: GuardBudgetError, budget exhausted."""
        self._spend(100)
        assert not self._allowed()

    def test_start_registers_and_leaves_it_open(
        self, name: str, forward: Callable[[int], None]
    ) -> None:
        """Part 3, op=start: registers the chain (semantics: left open on exit)."""
        with guard.chain(name, op="start"):
            self._spend(100)
            assert self._allowed()
        forward(0)
        assert not self._allowed()  # no longer inside of it
        with guard.chain(name, op="continue"):
            assert self._allowed()  # and still open

    def test_end_closes_it(self, name: str, forward: Callable[[int], None]) -> None:
        """Part 3, op=end: closes the chain."""
        with guard.chain(name, op="start"):
            self._spend(100)
            assert self._allowed()
        with guard.chain(name, op="end"):
            assert self._allowed()
        forward(0)
        with guard.chain(name, op="continue"):
            assert not self._allowed()

    def test_continue_extends_the_time_to_live(
        self, name: str, forward: Callable[[int], None]
    ) -> None:
        """Part 3, op=continue: extends the chain's time-to-live; part 8: a gateway setting."""
        with guard.chain(name, op="start"):
            self._spend(100)
            assert self._allowed()
        for _ in range(3):
            forward(50_000)
            with guard.chain(name, op="continue"):
                assert self._allowed()
        forward(61_000)
        with guard.chain(name, op="continue"):
            assert not self._allowed()

    def test_auto_is_the_default_starts_outermost_and_ends_there(
        self, name: str, forward: Callable[[int], None]
    ) -> None:
        """Part 3, op=auto: the default; the outermost entry starts, and its exit ends."""
        with guard.chain(name):
            self._spend(100)
            with guard.chain(name):
                assert self._allowed()
            assert self._allowed()  # the inner exit did not end it
        forward(0)
        with guard.chain(name, op="continue"):
            assert not self._allowed()  # the outer one did

    def test_auto_continues_a_chain_that_is_open_in_this_process(self, name: str) -> None:
        """Part 3, op=auto (semantics): of a chain that this process opened, continues."""
        with guard.chain(name, op="start"):
            self._spend(100)
        with guard.chain(name):
            assert self._allowed()
        with guard.chain(name, op="continue"):
            assert self._allowed()

    def test_without_a_name_each_entry_is_a_chain_of_its_own(self, name: str) -> None:
        """Part 3: ``chain(name=None)`` (semantics: makes an id)."""
        with guard.chain() as first:
            pass
        with guard.chain() as second:
            pass
        assert first.chain_id
        assert second.chain_id
        assert first.chain_id != second.chain_id

    def test_an_unknown_operation_is_refused(self, name: str) -> None:
        """Part 3: start, continue, end, auto."""
        with pytest.raises(ValueError, match="start"):
            guard.chain(name, op="pause")  # type: ignore[arg-type]

    def test_llm_requests_inside_a_chain_are_soft_too(
        self, scripted: Any, timed: Gateway, name: str
    ) -> None:
        """Part 2, Chain: soft mode holds for the check before each LLM request as well."""
        scripted.answer("/v1/chat/completions", body={"id": "1", "choices": []})
        url = f"{scripted.url}/v1/chat/completions"

        @guard.protect
        def body() -> int:
            asked = {"model": "cheap", "messages": [], "max_tokens": 10}
            return httpx.post(url, json=asked).status_code

        with guard.chain(name):
            self._spend(110)
            assert step() == "ran"  # the gateway knows of the spending, and has said so
            until(lambda: (b := guard.track_llm(0)["budget"]) and b["remaining_cents"] < 0)
            assert body() == 200


class TestWorkflowLifecycle:
    @pytest.mark.usefixtures("runtime")
    def test_active(self) -> None:
        """Part 3, workflow: active."""
        with guard.workflow("w"):
            assert step() == "ran"

    @pytest.mark.usefixtures("runtime")
    def test_paused_may_carry_a_resume_after_hint(self, tenant: Any) -> None:
        """Part 3, workflow: paused by the control plane, may carry a resume_after hint."""
        with guard.workflow("w"):
            tenant.admin.pause("w", reason="lunch")
            with pytest.raises(WorkflowPausedException) as paused:
                step()
            assert paused.value.resume_after is None
            before = time.time()
            tenant.admin.pause("w", resume_after_ms=60_000)
            # Known to the gateway at once, and to the process when the second message has come.
            hint = until(_resume_after)
            assert hint is not None
            assert before + 30 < hint <= time.time() + 61

    @pytest.mark.usefixtures("runtime")
    def test_resume_lifts_a_pause_and_never_a_kill(self, tenant: Any) -> None:
        """Part 3, workflow (semantics): resume lifts pause, never kill; only revive does."""
        with guard.workflow("w"):
            tenant.admin.pause("w")
            tenant.admin.resume("w")
            until(lambda: _state() == "active")
            tenant.admin.kill("w")
            until(lambda: _state() == "killed")
            tenant.admin.resume("w")
            assert _state() == "killed"
            tenant.admin.revive("w")
            until(lambda: _state() == "active")

    @pytest.mark.usefixtures("runtime")
    def test_killed_before_the_call(self, tenant: Any) -> None:
        """Part 3, workflow: killed by the control plane; the body is not entered."""
        tenant.admin.kill("w", reason="runaway")

        @guard.protect
        def body() -> None:
            raise AssertionError("ran")

        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt) as killed:
            body()
        assert killed.value.workflow_id == "w"
        assert killed.value.reason == "runaway"

    def test_kill_arriving_mid_call(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 3, workflow: or kill arriving mid-call."""
        until(lambda: guard.status().control_channel == "websocket")
        left = []

        @guard.protect
        def body() -> None:
            try:
                tenant.admin.kill("w", reason="runaway")
                until(lambda: False)
            finally:
                left.append(True)

        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt) as killed:
            body()
        assert killed.value.reason == "runaway"
        assert left == [True]

    @pytest.mark.usefixtures("runtime")
    def test_the_state_belongs_to_the_name_and_holds_for_every_run(self, tenant: Any) -> None:
        """Part 3, workflow (semantics): a killed workflow stays killed when entered again."""
        tenant.admin.kill("w")
        for _ in range(2):
            with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
                step()
        with guard.workflow("other"):
            assert step() == "ran"

    @pytest.mark.usefixtures("runtime")
    def test_killing_a_run_ends_that_run_alone(self, tenant: Any) -> None:
        """Part 3, workflow (semantics): killing a run ends that run alone."""
        with guard.workflow("w") as first:
            tenant.admin.kill("w", run_id=first.run_id)
            with pytest.raises(WorkflowKilledInterrupt):
                step()
        with guard.workflow("w"):
            assert step() == "ran"


def _state() -> str:
    try:
        step()
    except WorkflowPausedException:
        return "paused"
    except WorkflowKilledInterrupt:
        return "killed"
    return "active"


def _resume_after() -> float | None:
    with pytest.raises(WorkflowPausedException) as paused:
        step()
    return paused.value.resume_after
