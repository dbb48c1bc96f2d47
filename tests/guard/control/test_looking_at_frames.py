"""Frames of a running thread are looked at while no garbage is collected."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest

from guard.control import safepoints
from tests.support.waiting import until


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="it collects between instructions only")
def test_nothing_is_collected_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finaliser would let the thread run on, and CPython 3.11 read the memory of its frames."""
    over, begun, meanwhile = threading.Event(), list[str](), list[int]()
    look = safepoints.point_at

    def counted(*given: Any, **more: Any) -> Any:
        before = len(begun)
        point = look(*given, **more)
        meanwhile.append(len(begun) - before)
        return point

    def note(phase: str, _: object) -> None:
        begun.append(phase)

    def body() -> None:
        over.wait()

    thread = threading.Thread(target=body)
    thread.start()
    until(lambda: thread.ident in sys._current_frames())
    frame = sys._current_frames()[thread.ident or 0]
    while frame.f_code is not body.__code__ and frame.f_back is not None:
        frame = frame.f_back
    monkeypatch.setattr(safepoints, "point_at", counted)
    threshold = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        for _ in range(20):
            safepoints.inspect(thread.ident or 0, frame)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)
        over.set()
        thread.join()
    assert begun, "it collects as often as it can"
    assert meanwhile == [0] * 20
    assert gc.isenabled()
