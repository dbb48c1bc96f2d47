"""The end of a killed body in its thread, one interpreter instruction at a time."""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.control import threads
from guard.control.bodies import ActiveBodies, _still_running
from guard.control.threads import Thread, ThreadBody
from guard.core.control import Mark
from guard.scope.scope import Scope
from tests.support.waiting import until

pytestmark = pytest.mark.interpreters


def killed_body(carrier: Thread) -> ThreadBody:
    body = ThreadBody(Scope(workflow_id="w"), sys._getframe(1), carrier)
    body.mark(Mark(1, halted=True, reason="an operator"))
    return body


@pytest.fixture
def pending(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, ThreadBody]]:
    """The bodies whose exceptions are posted."""
    of_bodies: dict[int, ThreadBody] = {}
    monkeypatch.setattr(threads, "_pending", of_bodies)
    yield of_bodies
    assert of_bodies == {}


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_signal_handler_never_finds_the_lock_held(
    pending: dict[int, ThreadBody], is_pending: bool
) -> None:
    """It may run between any two instructions, and run a killed body, which needs the lock."""
    carrier = Thread()
    body = killed_body(carrier)
    if is_pending:  # for good: there was no room to make the exception
        carrier.pending = pending[threading.get_ident()] = body
    ours = (ThreadBody.end.__code__, ThreadBody._take_pending.__code__)
    held: list[bool] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in ours:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            held.append(carrier.lock.locked())
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # first: Python 3.12 looks for one when tracing begins
    sys.settrace(trace)
    try:
        killed = body.end(None)
    finally:
        sys.settrace(before)
    assert isinstance(killed, WorkflowKilledInterrupt)
    assert carrier.pending is None
    assert not any(held)
    assert len(held) > 20, "the instructions were seen"


def test_the_end_waits_for_a_delivery_that_is_under_way() -> None:
    carrier = Thread()
    body = killed_body(carrier)
    ended: list[BaseException | None] = []
    ending = threading.Thread(target=lambda: ended.append(body.end(None)))
    with carrier.lock:
        ending.start()
        ending.join(0.1)
        assert ending.is_alive()
        assert body._frame is not None, "the delivery reads it"
    ending.join()
    assert isinstance(ended[0], WorkflowKilledInterrupt)
    assert body._frame is None


def test_a_body_around_one_that_was_killed_has_its_time_whenever_the_other_thread_looks(
    pending: dict[int, ThreadBody],
) -> None:
    """Also if its last look at the inner one was in the middle of that one's end."""
    bodies, carrier = ActiveBodies(), Thread()
    outer, inner = killed_body(carrier), killed_body(carrier)
    bodies.enter(outer)
    bodies.enter(inner)
    assert outer._kill is not None
    found: list[Any] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not ThreadBody.end.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not inner.stopped:
            found.append(_still_running(inner))
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # as above
    sys.settrace(trace)
    try:
        inner.end(None)
    finally:
        sys.settrace(before)
    assert set(map(id, found)) == {id(inner), id(outer)}
    bodies.leave(inner)
    assert not outer._kill.grace.is_over
    outer.end(None)
    bodies.leave(outer)


def test_what_is_posted_to_a_thread_that_has_moved_on_is_withdrawn(
    pending: dict[int, ThreadBody], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the post it may begin to take hold of something."""
    reading, writing = os.pipe()
    at, ended, bodies = list[str](), list[BaseException | None](), list[ThreadBody]()
    real = threads.post

    def stop(point: str) -> Any:
        # C code alone, which runs nothing between the note and the end of the wait.
        note, read = partial(at.append, point), partial(os.read, reading, 1)
        return partial(list, map(operator.call, (note, read)))

    def go_on() -> None:
        os.write(writing, b"x")

    def late(ident: int, kind: type[BaseException]) -> None:
        go_on()
        until(lambda: at[-1] == "takes hold")
        real(ident, kind)

    class Held:
        def __enter__(self) -> None:
            stop("takes hold")()
            at.append("holds")

        def __exit__(self, *_: object) -> None: ...

    def use() -> None:
        stop("waits")()
        with Held():
            stop("waits inside")()

    def outside() -> None:
        body = killed_body(threads.this_thread())
        body._frame = sys._getframe()
        bodies.append(body)
        try:
            use()
        except WorkflowKilledInterrupt as exc:
            ended.append(body.end(exc))
        else:
            ended.append(body.end(None))

    monkeypatch.setattr(threads, "_WATCHES", False)  # from CPython 3.12 on it seldom posts
    monkeypatch.setattr(threads, "post", late)
    thread = threading.Thread(target=outside)
    thread.start()
    try:
        until(lambda: at == ["waits"])
        (body,) = bodies
        assert not body.deliver()
        assert body.carrier.pending is None
        go_on()
        until(lambda: at[-1] == "waits inside" or ended)
        assert at == ["waits", "takes hold", "holds", "waits inside"]
        monkeypatch.setattr(threads, "post", real)
        assert body.deliver(), "it is at a safe point, and stays there"
        go_on()
        until(lambda: ended)
        assert body.stopped
    finally:
        os.close(writing)
        thread.join()
        os.close(reading)
