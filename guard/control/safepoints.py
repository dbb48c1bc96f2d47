"""Where another thread stands, judged from its frames: may an exception be raised there now?

An asynchronous exception is raised in a thread at the next point where the interpreter looks for
one, which is at most a function's first instruction away from where the thread stands. So looking
first keeps it out of code that must not be torn: guard's own, HTTP clients' books of their
connection pools, a lock that has just been acquired and not yet been handed to its ``try``.
"""

from __future__ import annotations

import dis
import socket
import sys
from asyncio import AbstractEventLoop
from types import FrameType
from typing import Any, Final, Literal

import attrs

from guard.control.sockets import HTTP_CLIENTS, blocking_socket

Kind = Literal["open", "busy", "loop", "gone"]

_DRIVERS: Final = frozenset({"wrapper", "inside"})
"""Functions of guard that call the user's and are written to be interrupted."""

_LIKE_A_USER: Final = "guard.demo"

_BUSY_MODULES: Final = frozenset({"asyncio", "importlib", "_frozen_importlib", "logging"})
"""Short calls that hold a lock shared with every other thread, or make and close an event loop."""


@attrs.frozen
class Place:
    """Where a thread stands.

    Attributes:
        kind: ``open`` (an exception may be raised), ``busy`` (it must not, look again soon),
            ``loop`` (it drives an event loop, which has to be asked), ``gone`` (not in the body).
        socket: what an HTTP call blocks on, with ``open``.
        loop, task: the event loop and the task that it runs until completion, with ``loop``.
    """

    kind: Kind
    socket: socket.socket | None = None
    loop: AbstractEventLoop | None = None
    task: Any = None


BUSY: Final = Place("busy")
GONE: Final = Place("gone")
OPEN: Final = Place("open")


def locate(thread_id: int, body: FrameType, *, patient: bool = True) -> Place:
    """Tell where a thread stands inside of the body that the frame ``body`` called.

    Args:
        thread_id: of the thread; it must not be the calling one.
        body: the frame of guard that called the user's function in that thread.
        patient: whether a timed ``acquire`` is waited for (a loop of them has to end some time).
    """
    innermost = sys._current_frames().get(thread_id)
    inside: list[FrameType] = []
    frame = innermost
    while frame is not None and frame is not body:
        inside.append(frame)
        frame = frame.f_back
    if frame is None or innermost is None:
        return GONE
    for frame in inside:
        if frame.f_code.co_name == "__del__":
            return BUSY  # what is raised in a finaliser is only printed
        driven = _driven(frame)
        if driven is not None:
            return driven
    if _acquires(innermost, timed=patient):
        return BUSY
    for frame in inside:
        module = _root(frame)
        if module in HTTP_CLIENTS:
            sock = blocking_socket(innermost)
            return BUSY if sock is None else Place("open", socket=sock)
        if module in _BUSY_MODULES:
            return BUSY
        if module == "guard":
            return OPEN if _drives(frame) else BUSY
        if module not in sys.stdlib_module_names:
            return OPEN
    return OPEN


def _root(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""


def _drives(frame: FrameType) -> bool:
    return frame.f_code.co_name in _DRIVERS or str(frame.f_globals.get("__name__")).startswith(
        _LIKE_A_USER
    )


def _driven(frame: FrameType) -> Place | None:
    """Return the event loop that a frame runs: ``asyncio.run`` inside of a plain function."""
    code = frame.f_code
    if code.co_name == "run_until_complete" and frame.f_globals.get("__name__") == (
        "asyncio.base_events"
    ):
        variables = frame.f_locals
        return Place("loop", loop=variables["self"], task=variables.get("future"))
    if code.co_name == "run" and frame.f_globals.get("__name__") == "asyncio.runners":
        variables = frame.f_locals  # a loop that is not written in Python has no frame of its own
        runner, task = variables.get("self"), variables.get("task")
        if runner is not None and task is not None:
            return Place("loop", loop=runner.get_loop(), task=task)
    return None


def _acquires(frame: FrameType, *, timed: bool) -> bool:
    """Tell whether a frame stands in a call of ``something.acquire(...)``.

    An exception that is raised when that call returns would leave the lock held for ever: the
    ``try`` that releases it begins one instruction later. The waits of ``threading`` are written
    with that in mind.

    Args:
        frame: of a thread that is not running now.
        timed: also when the call has arguments, so that it returns by itself soon.
    """
    code = frame.f_code
    if "acquire" not in code.co_names or frame.f_globals.get("__name__") == "threading":
        return False
    acquires = False
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.positions.lineno != frame.f_lineno:
            continue
        if instruction.argval == "acquire":
            acquires = True
        if instruction.offset == frame.f_lasti:
            called = instruction.opname.startswith("CALL")
            return acquires and called and (timed or not instruction.arg)
    return False
