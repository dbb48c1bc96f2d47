"""A point at which a body takes hold of something, or lets go, is unsafe by rule, not by name."""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Final

import pytest

from guard.control import safepoints
from tests.guard.control.things_to_hold import compute
from tests.support.waiting import until

pytestmark = pytest.mark.interpreters

Stop = Callable[..., object]
"""Blocks in C until the test has looked."""


class Manager:
    """Does something as it is entered, left, or ended."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def begin(self, *_: object) -> None:
        below(self.stop)

    def end(self, *_: object) -> None:
        below(self.stop)


def below(stop: Stop) -> None:
    stop()


def entered(stop: Stop) -> None:
    class Entered(Manager):
        def __enter__(self) -> None:
            below(stop)

        def __exit__(self, *_: object) -> None: ...

    with Entered(stop):
        pass


def left(stop: Stop) -> None:
    class Left(Manager):
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            below(stop)

    with Left(stop):
        pass


def entered_by_another_name(stop: Stop) -> None:
    class Entered(Manager):
        __enter__ = Manager.begin

        def __exit__(self, *_: object) -> None: ...

    with Entered(stop):
        pass


def left_by_another_name(stop: Stop) -> None:
    class Left(Manager):
        def __enter__(self) -> None: ...

        __exit__ = Manager.end

    with Left(stop):
        pass


def opened_in_the_line_of_a_with(stop: Stop) -> None:
    with contextlib.nullcontext(below(stop)):
        pass


def entered_by_a_call(stop: Stop) -> None:
    class Entered(Manager):
        def __enter__(self) -> None:
            below(stop)

        def __exit__(self, *_: object) -> None: ...

    Entered(stop).__enter__()


def called_by_a_stack(stop: Stop) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(below, stop)
        stack.close()


def entered_by_a_stack(stop: Stop) -> None:
    class Entered(Manager):
        __enter__ = Manager.begin

        def __exit__(self, *_: object) -> None: ...

    with contextlib.ExitStack() as stack:
        stack.enter_context(Entered(stop))


def generator_as_a_manager(stop: Stop) -> None:
    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        stop()
        yield

    manager().__enter__()


def in_finally(stop: Stop) -> None:
    try:
        pass
    finally:
        below(stop)


def in_finally_after_an_error(stop: Stop) -> None:
    with contextlib.suppress(LookupError):
        try:
            raise LookupError
        finally:
            below(stop)


def in_a_handler(stop: Stop) -> None:
    try:
        raise LookupError
    except LookupError:
        below(stop)


def last_call_before_a_try(stop: Stop) -> None:
    take = stop
    take()
    try:
        compute()
    finally:
        compute()


def in_a_finaliser(stop: Stop) -> None:
    class Finalised:
        def __del__(self) -> None:
            below(stop)

    Finalised()


def in_a_weak_callback(stop: Stop) -> None:
    def gone(_: object) -> None:
        below(stop)

    made = Manager(stop)
    kept = weakref.ref(made, gone)
    del made
    assert kept() is None


def in_a_weak_callback_of_many(stop: Stop) -> None:
    made = Manager(stop)
    kept = weakref.ref(made, lambda *_: below(stop))
    del made
    assert kept() is None


def in_a_weak_method(stop: Stop) -> None:
    made, watching = Manager(stop), Manager(stop)
    kept = weakref.ref(made, watching.end)
    del made
    assert kept() is None


def in_finalize(stop: Stop) -> None:
    made = Manager(stop)
    weakref.finalize(made, below, stop)
    del made


def in_weakref(stop: Stop) -> None:
    made = Manager(stop)
    weakref.finalize(made, stop)()


def in_contextlib(stop: Stop) -> None:
    make: Any = stop
    contextlib.contextmanager(make)()


def in_a_queue(stop: Stop) -> None:
    items: Any = queue.Queue()
    items._qsize = stop
    items.qsize()


def in_threading(stop: Stop) -> None:
    threading.Timer(0, stop).run()


def in_multiprocessing(stop: Stop) -> None:
    multiprocessing.Process(target=stop).run()


def in_subprocess(stop: Stop) -> None:
    texts: Any = type("Texts", (), {"__iter__": staticmethod(stop)})()
    with contextlib.suppress(TypeError):  # it returns no iterator
        subprocess.list2cmdline(texts)


UNSAFE: Final = (
    entered, left, entered_by_another_name, left_by_another_name, opened_in_the_line_of_a_with,
    entered_by_a_call, called_by_a_stack, entered_by_a_stack, generator_as_a_manager,
    in_finally,
    in_finally_after_an_error, in_a_handler, last_call_before_a_try, in_a_finaliser,
    in_a_weak_callback, in_a_weak_callback_of_many, in_a_weak_method, in_finalize, in_weakref,
    in_contextlib, in_a_queue, in_threading, in_multiprocessing, in_subprocess,
)  # fmt: skip


def computes(stop: Stop) -> None:
    below(stop)


def inside_a_with(stop: Stop) -> None:
    with contextlib.nullcontext():
        below(stop)


def inside_a_try(stop: Stop) -> None:
    try:
        below(stop)
    finally:
        compute()


def after_a_handler(stop: Stop) -> None:
    try:
        raise LookupError
    except LookupError:
        pass
    below(stop)
    below(stop)


def given_a_reference_in_a_list(stop: Stop) -> None:
    def read(_: object) -> None:
        below(stop)

    read([weakref.ref(Manager)])


SAFE: Final = (
    computes, inside_a_with, inside_a_try, after_a_handler, given_a_reference_in_a_list,
)  # fmt: skip


def looked_at(situation: Callable[[Stop], None], *, patient: bool) -> str:
    """Return the kind of the point at which a body has stopped."""
    reading, writing = os.pipe()
    stopped: list[int] = []
    # C code alone, so that the innermost frame is its caller's; once only.
    noted, read = partial(stopped.append, 1), partial(os.read, reading, 1)
    stop = partial(list, map(operator.call, (noted, read)))

    def body() -> None:
        situation(stop)

    def outside() -> None:
        body()

    thread = threading.Thread(target=outside)
    thread.start()
    try:
        until(lambda: stopped)  # and it runs nothing until it has read
        ident = thread.ident or 0
        frame: FrameType | None = sys._current_frames()[ident]
        while frame is not None and frame.f_code is not outside.__code__:
            frame = frame.f_back
        assert frame is not None
        return safepoints.inspect(ident, frame, patient=patient).kind
    finally:
        os.write(writing, b"x")
        thread.join()
        os.close(reading)
        os.close(writing)


@pytest.mark.generator("points at which a body takes hold or lets go")
@pytest.mark.parametrize("situation", UNSAFE, ids=lambda each: each.__name__)
def test_taking_hold_and_letting_go_is_unsafe_for_a_while(
    situation: Callable[[Stop], None],
) -> None:
    assert looked_at(situation, patient=True) == "unsafe"
    assert looked_at(situation, patient=False) == "interruptible"


@pytest.mark.parametrize("situation", SAFE, ids=lambda each: each.__name__)
def test_the_rest_is_safe(situation: Callable[[Stop], None]) -> None:
    assert looked_at(situation, patient=True) == "interruptible"
