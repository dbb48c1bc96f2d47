"""Frames of a running thread are looked at without running finalisers meanwhile."""

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


class Noted:
    """Notes which thread its finaliser runs in."""

    def __init__(self, ended: list[int]) -> None:
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append(threading.get_ident())


@pytest.mark.interpreters
def test_what_a_body_lets_go_of_is_not_kept_for_it() -> None:
    """The next look would run its finaliser, and read on in a frame that may have ended."""
    steps, ended = threading.Semaphore(0), list[int]()
    at, seen = list[str](), list[bool]()

    def inside(noted: object) -> None:
        at.append("held")
        steps.acquire()
        del noted

    def body() -> None:
        noted = Noted(ended)
        at.append("own")
        steps.acquire()
        del noted
        seen.append(len(ended) == 1)
        inside(Noted(ended))
        seen.append(len(ended) == 2)
        at.append("done")
        steps.acquire()

    thread = threading.Thread(target=body)
    thread.start()
    try:
        for step in ("own", "held", "done"):
            until(lambda step=step: at[-1:] == [step])  # type: ignore[misc]
            frame = sys._current_frames()[thread.ident or 0]
            while frame.f_code is not body.__code__ and frame.f_back is not None:
                frame = frame.f_back
            assert frame.f_back is not None
            for _ in range(3):
                point = safepoints.inspect(thread.ident or 0, frame.f_back, patient=True)
                assert point.kind in ("unsafe", "interruptible")
            steps.release()
    finally:
        for _ in range(3):
            steps.release()
        thread.join()
    assert seen == [True, True]
    assert ended == [thread.ident] * 2


@pytest.mark.interpreters
def test_what_a_program_holds_of_its_own_variables_stays_there() -> None:
    def function() -> tuple[dict[str, Any], dict[str, Any]]:
        own = 7
        held = locals()
        safepoints.variables(sys._getframe(), "own")
        return held, safepoints.variables(sys._getframe(), "own", "held", "missing")

    held, found = function()
    assert held["own"] == found["own"] == 7
    assert sorted(found) == ["held", "own"]
    assert safepoints.variables(sys._getframe(), "held") == {"held": held}
    space: dict[str, Any] = {"read": safepoints.variables, "frame": sys._getframe}
    exec("name = 1; found = read(frame(), 'name')", space)
    assert space["found"] == {"name": 1}
    assert space["name"] == 1, "the namespace of a module, and no copy"

    class Made:
        own = 7
        found = safepoints.variables(sys._getframe(), "own")

    assert Made.own == Made.found["own"] == 7
    exec(
        "name = 1; found.update(read(frame(), 'name')); found['own'] = name",
        space,
        {"found": found},
    )
    assert (found["name"], found["own"]) == (1, 1)
