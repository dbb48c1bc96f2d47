"""``GUARD_MODE``: observe decides and reports and refuses nothing; off does nothing at all."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import guard
from guard.runtime import active, active_runtime
from guard.runtime.runtime import GuardRuntime
from tests.guard.conftest import Tenant
from tests.support.llm_vendor import vendor_process
from tests.support.waiting import WAIT_S, until


@pytest.fixture(scope="module")
def vendor() -> Iterator[str]:
    with vendor_process() as url:
        yield url


@pytest.fixture
def runtime(tenant: Tenant) -> Iterator[GuardRuntime]:
    running = GuardRuntime(tenant.key, tenant.url, mode="observe", flush_interval_ms=20)
    running.open()
    yield running
    running.shutdown(WAIT_S)


@guard.protect
def work() -> str:
    return "done"


@guard.protect
async def work_async() -> str:
    return "done"


@guard.protect
def delete_all() -> str:
    return "deleted"


def observed(tenant: Tenant, workflow: str) -> list[dict[str, Any]]:
    return tenant.admin.events(workflow_id=workflow, type="sdk.observed")


def ask(vendor: str) -> int:
    body = {"model": "gpt-x", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
    return httpx.post(f"{vendor}/v1/chat/completions", json=body).status_code


def test_observe_lets_an_exhausted_budget_pass_and_reports_it_once(
    tenant: Tenant, runtime: GuardRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    tenant.admin.set_budget(0, scope_kind="workflow", scope_id="spent")
    heard: list[Any] = []
    forget = guard.on_error(lambda error, context: heard.append(error.error_code))
    with caplog.at_level(logging.WARNING, "guard"), guard.workflow("spent"):
        assert work() == "done"
        assert asyncio.run(work_async()) == "done"
    runtime.flush()
    until(lambda: len(heard) == 2)  # the hooks have a thread of their own
    forget()
    assert heard == ["GD-B004", "GD-B004"]
    assert len(observed(tenant, "spent")) == 2
    assert caplog.text.count("observed, not refused: GD-B004") == 2


def test_observe_lets_blocked_tools_pass(tenant: Tenant, runtime: GuardRuntime) -> None:
    tenant.admin.set_policy("tools", tools_block=["delete_*"])
    with guard.workflow("tools"):
        assert delete_all() == "deleted"
    runtime.flush()
    (event,) = observed(tenant, "tools")
    assert event["data"]["tool_name"] == "delete_all"


def test_observe_does_not_wait_for_a_person(tenant: Tenant, runtime: GuardRuntime) -> None:
    tenant.admin.set_policy("people", approval_tools=["delete_*"])
    with guard.workflow("people"):
        assert delete_all() == "deleted"
    until(lambda: not tenant.admin.approvals())
    runtime.flush()
    (event,) = observed(tenant, "people")
    assert "approve" in event["data"]["reason"]


def test_observe_stops_nothing_that_is_killed(tenant: Tenant, runtime: GuardRuntime) -> None:
    @guard.protect
    def long() -> str:
        tenant.admin.kill("doomed")
        until(lambda: runtime.enforcement.control.kills)
        return work()

    with guard.workflow("doomed"):
        assert long() == "done"
        assert work() == "done"
    runtime.flush()
    assert [e["data"]["error_code"] for e in observed(tenant, "doomed")] == ["GD-W002"] * 2


def test_observe_sends_requests_that_would_be_refused_and_charges_them(
    tenant: Tenant, runtime: GuardRuntime, vendor: str
) -> None:
    tenant.admin.set_price("*", input_per_mtok=10**9, output_per_mtok=10**9)
    tenant.admin.set_budget(limit_nanousd=160_000, scope_kind="workflow", scope_id="requests")
    with guard.workflow("requests"):
        for _ in range(5):
            assert ask(vendor) == 200
            runtime.flush()
    assert tenant.admin.workflow("requests")["spent_nanousd"] == 5 * 55_000
    codes = [e["data"]["error_code"] for e in observed(tenant, "requests")]
    assert codes == ["GD-B004"] * 4, "the first is within the budget; each other is told once"


def test_observe_goes_on_without_the_gateway(runtime: GuardRuntime) -> None:
    runtime.shutdown()
    assert work() == "done"
    assert runtime.status().mode == "observe"


OFF = """
import asyncio, os, socket, threading

def refuse(*args):
    raise AssertionError("no network")

socket.socket.connect = refuse
import guard

@guard.sensitive
@guard.protect
def work():
    return 1

@guard.protect
async def work_async():
    return 2

@guard.protect
def steps():
    yield 3

@guard.guarded
def main():
    with guard.workflow("w") as flow, guard.chain("c"), guard.span("s"), guard.agent("a"):
        assert flow.workflow_id == "w"
        assert (work(), asyncio.run(work_async()), list(steps())) == (1, 2, [3])
        guard.track_tool("t")
        guard.track_event("e", x=1)
        decision = guard.track_llm(1, 2, model="m")
        assert (decision["decision"], decision["buffered"]) == ("allow", False)

main()
runtime = guard.init()
assert guard.init() is runtime
main()
assert guard.status().mode == "off"
guard.instrument()
guard.shutdown()
guard.init_or_die()
assert threading.active_count() == 1, threading.enumerate()
import httpx
assert not hasattr(httpx.Client.send, "__wrapped__")
print("inert")
"""


def test_off_needs_no_key_no_network_and_no_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFF],
        env={"GUARD_MODE": "off", "GUARD_API_URL": "local", "PATH": ""},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("inert\n", "")


def test_off_by_argument_and_on_again(tenant: Tenant) -> None:
    off = GuardRuntime(mode="off")
    assert off.open() is off
    assert (active_runtime(), work()) == (None, "done")
    off.shutdown()
    running = guard.init(tenant.key, tenant.url)
    assert (running.status().mode, work()) == ("enforce", "done")


def test_an_unknown_mode_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD_MODE", "of")
    with pytest.raises(guard.GuardConfigError, match="GUARD_MODE takes one of enforce, observe"):
        guard.init()


class TestWithoutAKey:
    """Nothing runs uncontrolled because a key was forgotten; in ``observe`` mode a line says so."""

    @pytest.mark.parametrize(
        "enter",
        [
            lambda: guard.workflow("w"),
            lambda: guard.chain("c"),
            lambda: guard.context.options(limit_cents=1),
        ],
        ids=["workflow", "chain", "options"],
    )
    def test_entering_is_refused(self, enter: Callable[[], Any]) -> None:
        with pytest.raises(guard.GuardAuthenticationError) as failed, enter():
            pytest.fail("the body ran")
        assert failed.value.error_code == "GD-C001"
        decorated = enter()(lambda: pytest.fail("the body ran"))
        with pytest.raises(guard.GuardAuthenticationError):
            decorated()

    @pytest.mark.asyncio
    async def test_entering_is_refused_in_a_loop(self) -> None:
        with pytest.raises(guard.GuardAuthenticationError):
            async with guard.workflow("w"):
                pytest.fail("the body ran")

    def test_calls_and_tracking_are_refused(self) -> None:
        for call in (
            guard.protect(lambda: pytest.fail("the body ran")),
            lambda: guard.track_llm(1),
            lambda: guard.track_tool("t"),
            lambda: guard.track_event("e"),
        ):
            with pytest.raises(guard.GuardAuthenticationError) as failed:
                call()
            assert failed.value.error_code == "GD-C001"

    def test_to_observe_it_is_only_said(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("GUARD_MODE", "observe")
        monkeypatch.setattr(active, "_warned_of_no_key", False)
        with guard.workflow("w"), guard.chain("c"):
            assert guard.protect(lambda: "ran")() == "ran"
            assert guard.track_llm(1)["buffered"] is False
        said = [record.message for record in caplog.records if record.name == "guard"]
        assert said == [
            "nothing is observed: guard.init() was not called and GUARD_API_KEY is not set"
        ]
