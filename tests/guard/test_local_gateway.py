"""The use of the local gateway by threads that restore and leave it at the same time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from guard import local_gateway
from guard.local_gateway import Files, LocalGateway, try_lock


def switched(run: Callable[[], object], to: Callable[[], object], after: int) -> bool:
    """Run a method, and the other one between two of its instructions, as another thread may.

    Returns:
        Whether it has so many instructions.
    """
    left = after

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_globals is not vars(local_gateway):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                to()  # untraced: a trace function is not traced itself
        return trace

    before = sys.gettrace()
    # Python 3.12 traces no instructions at all if no frame wants them at this point.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.parametrize("first", ["leave", "restore"])
def test_a_gateway_that_is_left_while_it_is_restored_keeps_and_closes_nothing_else(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    taken: list[int] = []

    def use(*_: object) -> LocalGateway:
        taken.append(os.open(tmp_path, os.O_RDONLY))
        return LocalGateway(files, taken[-1])

    closed: list[int] = []
    monkeypatch.setattr(local_gateway, "join", use)
    monkeypatch.setattr(local_gateway, "os", SimpleNamespace(close=closed.append))
    after = 0
    is_reached = True
    while is_reached:
        after += 1
        taken.clear()
        closed.clear()
        gateway = use()
        methods = [gateway.leave, gateway.restore]
        run, to = methods if first == "leave" else methods[::-1]
        is_reached = switched(run, to, after)
        for descriptor in taken:
            os.close(descriptor)
        # At the end, where the switch is not reached, only the first of them has run.
        if is_reached:
            assert sorted(closed) == sorted(taken), f"switched after {after} instructions"
    assert after > 10


def test_one_that_is_left_while_it_is_looked_at_does_not_run(tmp_path: Path) -> None:
    files = Files(tmp_path)
    after = 0
    is_reached = True
    while is_reached:
        after += 1
        users = try_lock(files.users, shared=True)
        assert users is not None
        gateway = LocalGateway(files, users)
        is_reached = switched(gateway.is_running, gateway.leave, after)
        gateway.leave()
        assert not gateway.is_running()
    assert after > 10
