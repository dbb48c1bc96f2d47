"""A kill at any line between a call's first question and its wait for a person stops the call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.asking import gate
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.interpreters, pytest.mark.generator("moments of a kill while asking")]


class KillAtLine:
    """Kills a workflow when its call reaches the n-th line of the code that asks the gateway.

    Args:
        kill: kills, and returns when the kill is in force in this process.
        line: how many lines come before the kill.

    Attributes:
        is_last: the call was about to wait for a person; no line follows until a kill ends it.
    """

    def __init__(self, kill: Callable[[], None], line: int) -> None:
        self.is_last = False
        self._kill = kill
        self._left = line
        self._waits: list[FrameType] = []

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code.co_filename != gate.__file__:
            return None
        if event == "call" and code.co_name in ("_result", "_arrival"):
            if frame not in self._waits:  # a coroutine is called again where it goes on
                self._waits.append(frame)
            self.is_last = len(self._waits) == 2 and self._left > 0
        elif event == "line":
            self._left -= 1
        if self._left == 0 or self.is_last:
            self._left = -1
            sys.settrace(None)
            self._kill()
            return None
        return self._trace if self._left > 0 else None


@pytest.fixture
def kills(connected: Any, tenant: Any) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Give what kills a workflow, and needs a person for each call of ``act``."""
    tenant.admin.set_policy("p", approval_tools=["act*"], approval_timeout_ms=20_000)
    until(lambda: connected.enforcement.control.tools, WAIT_S)

    def killer(workflow_id: str) -> Callable[[], None]:
        def kill() -> None:
            tenant.admin.kill(workflow_id, reason="stop it")
            until(lambda: connected.enforcement.control.kills.exact.get(workflow_id), WAIT_S)

        return kill

    yield killer
    until(lambda: tenant.admin.approvals("pending") == [], WAIT_S)


def test_a_thread(kills: Any, count_cases: Callable[[int], None]) -> None:
    @guard.protect
    def act() -> None:
        raise AssertionError("entered")

    line, is_last = 0, False
    while not is_last:
        line += 1
        workflow_id = f"w{line}"
        at = KillAtLine(kills(workflow_id), line)
        with guard.workflow(workflow_id), at, pytest.raises(WorkflowKilledInterrupt):
            act()
        is_last = at.is_last
    assert line > 20, "the lines of both questions were seen"
    count_cases(line)


@pytest.mark.asyncio
async def test_a_task(kills: Any, count_cases: Callable[[int], None]) -> None:
    @guard.protect
    async def act() -> None:
        raise AssertionError("entered")

    line, is_last = 0, False
    while not is_last:
        line += 1
        workflow_id = f"w{line}"
        at = KillAtLine(kills(workflow_id), line)
        with guard.workflow(workflow_id), at, pytest.raises(WorkflowKilledInterrupt):
            await act()
        is_last = at.is_last
    assert line > 20, "the lines of both questions were seen"
    count_cases(line)
