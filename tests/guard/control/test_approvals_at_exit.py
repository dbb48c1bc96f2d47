"""However a caller stops waiting, its question leaves the operator's list, and no answer counts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import guard
from guard.gateway.admin import AdminError
from guard.gateway.ledger import approvals as ledger_approvals
from guard.session import approvals
from tests.support.waiting import WAIT_S, until, until_async

HEAD = """
import asyncio, os, signal, sys, threading, time
import guard

runtime = guard.init()

@guard.protect
def pay():
    print("PAID", flush=True)

@guard.protect
async def pay_async():
    print("PAID", flush=True)

def waiting():
    return runtime.link.session is not None and runtime.link.session.approvals.waiting

def tell():
    while not waiting():
        time.sleep(0.01)
    os.write(1, b"it waits\\n")

threading.Thread(target=tell, daemon=True).start()

def in_thread(daemon):
    thread = threading.Thread(target=pay, daemon=daemon)
    thread.start()
    while not waiting():
        time.sleep(0.01)
    return thread
"""
ENDS = {
    "the main thread ends": "in_thread(True); time.sleep(0.2)",
    "sys.exit in a handler of SIGTERM": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
guard.init().open()
pay()
""",
    "SIGTERM": "pay()",
    "SIGTERM, in a loop": "asyncio.run(pay_async())",
    "Ctrl-C": "pay()",
    "Ctrl-C, in a loop": "asyncio.run(pay_async())",
    "Ctrl-C, in a thread": "in_thread(True).join()",
    "Ctrl-C while a thread waits that is no daemon": """
in_thread(False)

def tell_of_the_end():  # before it, Ctrl-C would end the main thread, and nobody the other one
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_name != "_shutdown":
        time.sleep(0.01)
    os.write(1, b"the main thread ends\\n")

threading.Thread(target=tell_of_the_end, daemon=True).start()
""",
    "shutdown": "in_thread(True); guard.shutdown(); time.sleep(60)",
    "the deadline": """
async def main():
    async with asyncio.timeout(None) as deadline:
        async def come():
            while not waiting():
                await asyncio.sleep(0.01)
            deadline.reschedule(asyncio.get_running_loop().time() + 0.2)
        coming = asyncio.create_task(come())
        await pay_async()
asyncio.run(main())
""",
}


@pytest.fixture
def program(tenant: Any) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a program of the tenant."""
    tenant.admin.set_policy("p", approval_tools=["pay*"])
    started: list[subprocess.Popen[str]] = []

    def run(source: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "GUARD_API_URL": tenant.url, "GUARD_API_KEY": tenant.key}
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD + source],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ended(tenant: Any, status: str) -> Any:
    """Return the one approval, once it has a status; no answer counts any more."""
    found = until(lambda: tenant.admin.approvals(status), WAIT_S)[0]
    with pytest.raises(AdminError, match="409"):
        tenant.admin.answer_approval(found["approval_id"], approved=True)
    assert tenant.admin.approvals("pending") == []
    return found


@pytest.mark.parametrize("end", ENDS)
def test_the_process_ends(tenant: Any, program: Any, end: str) -> None:
    process = program(ENDS[end])
    if "TERM" in end or "Ctrl-C" in end:
        # The operator's list has it a little earlier. Who leaves before the gateway's answer is
        # there, is gone without a word: then it stays in the list for half a minute.
        said = [process.stdout.readline()]
        if "no daemon" in end:
            said.append(process.stdout.readline())
            assert "the main thread ends\n" in said
        assert "it waits\n" in said
        process.send_signal(signal.SIGTERM if "TERM" in end else signal.SIGINT)
    assert ended(tenant, "withdrawn")["reason"] == "the call waits no longer"
    if end != "shutdown":
        process.wait(WAIT_S)
    else:
        process.kill()
    assert "PAID" not in process.communicate()[0]
    audited = [e["action"] for e in tenant.admin.audit()]
    assert audited.count("approval.withdraw") == 1


def test_a_program_that_is_killed(
    tenant: Any, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_approvals, "PRESENCE_MS", 1500)
    process = program("pay()")
    until(lambda: tenant.admin.approvals(None), WAIT_S)
    process.kill()
    assert ended(tenant, "expired")["reason"] == "the program that asked is gone"


@pytest.mark.parametrize("transport", ["auto", "http"])
def test_a_program_that_lives_is_not_taken_for_gone(
    tenant: Any, start: Any, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence_ms = 5000  # a busy machine renews late
    monkeypatch.setattr(ledger_approvals, "PRESENCE_MS", presence_ms)
    monkeypatch.setattr(approvals, "RENEW_S", 0.2)
    tenant.admin.set_policy("p", approval_tools=["pay"])
    start(transport_mode=transport)

    @guard.protect
    def pay() -> None:
        pass

    thread = threading.Thread(target=pay)
    thread.start()
    first = until(lambda: tenant.admin.approvals("pending"), WAIT_S)[0]

    def renewed() -> bool:
        (now,) = tenant.admin.approvals("pending")
        return bool(now["present_until_ms"] > first["present_until_ms"] + presence_ms)

    until(renewed, WAIT_S)
    tenant.admin.answer_approval(first["approval_id"], approved=True)
    thread.join(WAIT_S)
    assert tenant.admin.approvals(None)[0]["status"] == "used"


def test_an_answer_whose_push_was_lost_arrives_all_the_same(
    tenant: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "RENEW_S", 0.2)
    monkeypatch.setattr(approvals.Approvals, "answered", _deaf(approvals.Approvals.answered))
    tenant.admin.set_policy("p", approval_tools=["pay"])
    start()

    @guard.protect
    def pay() -> None:
        pass

    thread = threading.Thread(target=pay)
    thread.start()
    (asked,) = until(lambda: tenant.admin.approvals("pending"), WAIT_S)
    tenant.admin.answer_approval(asked["approval_id"], approved=True)
    thread.join(WAIT_S)
    assert tenant.admin.approvals(None)[0]["status"] == "used"


def _deaf(answered: Any) -> Any:
    def once_deaf(self: Any, approval_id: str, approved: bool) -> None:
        if getattr(self, "heard", False):
            answered(self, approval_id, approved)
        self.heard = True

    return once_deaf


@pytest.mark.asyncio
async def test_a_clock_that_is_ahead_leaves_no_question_behind(
    tenant: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own clock the caller's time is over, by the gateway's it is not."""
    await asyncio.to_thread(tenant.admin.set_policy, "p", approval_tools=["pay"])
    start()

    @guard.protect
    async def pay() -> None:
        pass

    ahead = approvals.time.time
    monkeypatch.setattr(approvals.time, "time", lambda: ahead() + 600)
    with pytest.raises(guard.GuardBlockedException, match="no operator approved"):
        await pay()
    monkeypatch.undo()
    await until_async(lambda: tenant.admin.approvals("withdrawn"), WAIT_S)
