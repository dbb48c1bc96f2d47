"""A call that stops waiting for a person takes its question back."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.core import wire
from guard.core.ids import IdFactory
from tests.support.waiting import WAIT_S, until, until_async


@pytest.fixture(autouse=True)
def needs_approval(connected: Any, tenant: Any) -> None:
    """Calls of ``act`` need a person."""
    tenant.admin.set_policy("p", approval_tools=["act"])


@guard.protect
def act() -> str:
    """The plain function that needs a person."""
    return "done"


@guard.protect
async def act_async() -> str:
    """The coroutine function that needs a person."""
    return "done"


def statuses(tenant: Any) -> list[str]:
    return [approval["status"] for approval in tenant.admin.approvals(None)]


def waiting(tenant: Any) -> bool:
    return statuses(tenant) == ["pending"]


def test_a_killed_wait(operator: Any, tenant: Any) -> None:
    operator(lambda: waiting(tenant))
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        act()
    until(lambda: statuses(tenant) == ["withdrawn"], WAIT_S)
    approval = tenant.admin.approvals("withdrawn")[0]
    assert approval["answered_by"] is None
    assert approval["reason"] == "the call waits no longer"


@pytest.mark.asyncio
async def test_a_killed_wait_in_a_task(operator: Any, tenant: Any) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["act_async"])
    operator(lambda: waiting(tenant))
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        await act_async()
    await until_async(lambda: statuses(tenant) == ["withdrawn"], WAIT_S)


@pytest.mark.asyncio
async def test_the_users_own_cancellation(tenant: Any) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["act_async"])

    async def run() -> None:
        with guard.workflow("w"):
            await act_async()

    task = asyncio.create_task(run())
    await until_async(lambda: waiting(tenant), WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_async(lambda: statuses(tenant) == ["withdrawn"], WAIT_S)


def test_an_answer_stays_what_it_was(tenant: Any) -> None:
    results: list[str] = []

    def run() -> None:
        with guard.workflow("w"):
            results.append(act())

    thread = threading.Thread(target=run)
    thread.start()
    approval_id = until(lambda: tenant.admin.approvals(), WAIT_S)[0]["approval_id"]
    tenant.admin.answer_approval(approval_id, approved=True)
    thread.join(WAIT_S)
    assert results == ["done"]
    assert give_back(tenant, tenant.key, approval_id).status_code == 404
    assert statuses(tenant) == ["used"]


def test_nobody_elses_question(tenant: Any) -> None:
    other_key = tenant.admin.create_key("another")

    def refused() -> None:
        with pytest.raises(guard.GuardError):
            act()

    thread = threading.Thread(target=refused)
    thread.start()
    approval_id = until(lambda: tenant.admin.approvals(), WAIT_S)[0]["approval_id"]
    assert give_back(tenant, other_key, approval_id).status_code == 404
    assert statuses(tenant) == ["pending"]
    tenant.admin.answer_approval(approval_id, approved=False)
    thread.join(WAIT_S)


def give_back(tenant: Any, key: str, approval_id: str) -> httpx.Response:
    headers = {
        wire.HEADER_API_KEY: key,
        wire.HEADER_PROTOCOL: "3",
        wire.HEADER_IDEMPOTENCY: IdFactory().uuid7(1),
    }
    body = {"reservation_id": approval_id, "reason": "test"}
    return httpx.post(f"{tenant.url}{wire.RELEASE_PATH}", json=body, headers=headers)


@pytest.mark.asyncio
async def test_cancelled_between_the_question_and_the_wait(
    runtime: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the answer has been submitted, and its coroutine has not begun."""
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["act_async"])
    submitted = asyncio.Event()
    submit = runtime.gate._submit_pending

    def submit_and_block(*args: Any) -> None:
        blocked = threading.Event()
        runtime._background.call_soon(blocked.wait, WAIT_S)
        submit(*args)
        submitted.set()
        asyncio.get_running_loop().call_later(0.1, blocked.set)

    monkeypatch.setattr(runtime.gate, "_submit_pending", submit_and_block)

    async def run() -> None:
        with guard.workflow("w"):
            await act_async()

    task = asyncio.create_task(run())
    await submitted.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_async(lambda: statuses(tenant) == ["withdrawn"], WAIT_S)


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_thousand_and_more_wait_at_once(runtime: Any, tenant: Any) -> None:
    """None is forgotten for another: the first yes comes when 1,100 are waiting."""
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["act_async"])
    wanted, at_once = 1100, 50
    session = runtime.link.session
    tasks: list[asyncio.Task[str]] = []
    approval_ids: list[str] = []

    def all_wait() -> bool:
        return len(session.approvals.waiting) == len(tasks)

    for _ in range(wanted // at_once):
        tasks.extend(asyncio.create_task(act_async()) for _ in range(at_once))
        await until_async(all_wait, WAIT_S)
        query = {"status": "pending", "limit": at_once}  # the newest ones
        page = await asyncio.to_thread(tenant.admin.request, "GET", "/approvals", **query)
        approval_ids += [each["approval_id"] for each in page]
    assert len(set(approval_ids)) == wanted

    def approve() -> None:
        for approval_id in approval_ids:
            tenant.admin.answer_approval(approval_id, approved=True)

    await asyncio.to_thread(approve)
    assert await asyncio.gather(*tasks) == ["done"] * wanted
    assert not session.approvals.waiting
    assert not session.approvals.early_answers


def test_interrupted_before_the_wait(
    runtime: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when the gateway has answered that a person is asked."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime.gate, "_require_people", interrupt)
    with guard.workflow("w"), pytest.raises(KeyboardInterrupt):
        act()
    until(lambda: statuses(tenant) == ["withdrawn"], WAIT_S)


@pytest.mark.asyncio
async def test_interrupted_before_the_wait_in_a_task(
    runtime: Any, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["act_async"])

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(runtime.gate, "_require_people", fail)
    with guard.workflow("w"), pytest.raises(MemoryError):
        await act_async()
    await until_async(lambda: statuses(tenant) == ["withdrawn"], WAIT_S)
