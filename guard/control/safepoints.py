"""Inspects another thread's frames: may an exception be raised there now?

An asynchronous exception is raised in a thread at the interpreter's next check for one, at the
latest at the first instruction of the next function that the thread calls. Inspecting the frames
first keeps it out of code that must run as a whole: the SDK's own, HTTP clients' bookkeeping of
their connection pools, the moment between the acquisition of a lock and the ``try`` that releases
it.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import socket
import sys
import threading
import weakref
from asyncio import AbstractEventLoop, CancelledError
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final, Literal

from msgspec import Struct

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.control.sockets import HTTP_CLIENTS, blocking_socket
from guard.scope.wrapping import INTERRUPTIBLE, CallLifecycle

Kind = Literal["interruptible", "unsafe", "loop", "gone"]

_UNSAFE_MODULES: Final = frozenset({"asyncio", "importlib", "_frozen_importlib", "logging"})
"""Modules whose short calls hold a lock that all threads share, or open and close an event loop."""

_HOLDING_MODULES: Final = frozenset(
    {"contextlib", "multiprocessing", "queue", "subprocess", "threading", "weakref"}
)
"""Modules that are unsafe as a whole while there is patience: they take hold and let go."""

# Functions that take hold or let go, in whatever they call.
_HOLDING: Final = {"__aenter__", "__aexit__", "__del__", "__enter__", "__exit__", "enter_context"}

_WAIT: Final = threading.Condition.wait.__code__

_LOCK_METHODS: Final = frozenset({"__enter__", "__exit__", "acquire", "release"})
"""Methods that ``threading`` implements in Python: an exception in them would leave a lock held."""

_START: Final = threading.Thread.start.__code__
"""On CPython 3.11 a thread has, until it runs, the identifier of the one that starts it: it would
get the exception and die, and ``start`` would wait for it for ever."""

_CONTEXTS_MAX: Final = 100
"""How many links of a chain of exceptions are followed; a program can make a circular one."""


class Safepoint(Struct, frozen=True):
    """The point that a thread has reached.

    Attributes:
        kind: ``interruptible`` (an exception may be raised), ``unsafe`` (it must not; retry soon),
            ``loop`` (the thread runs an event loop, whose task has to be cancelled), ``gone`` (the
            thread has left the body).
        socket: with ``interruptible``, the socket that an HTTP call blocks on, if it is in one.
        loop, task: with ``loop``, the event loop and the task that it runs until completion.
    """

    kind: Kind
    socket: socket.socket | None = None
    loop: AbstractEventLoop | None = None
    task: Any = None


UNSAFE: Final = Safepoint("unsafe")
GONE: Final = Safepoint("gone")
SAFE: Final = Safepoint("interruptible")


def inspect(thread_id: int, body: FrameType, *, patient: bool = True) -> Safepoint:
    """Return the point that a thread has reached inside the body that the frame ``body`` called.

    Args:
        thread_id: identifier of the thread; not of the calling one.
        body: frame of the SDK that called the user's function in that thread.
        patient: whether what ends soon counts as unsafe: a timed ``acquire``, a finaliser,
            the beginning and end of a ``with``. A body that runs them in a loop is stopped only
            without patience.
    """
    # The other thread may run on from here: `ThreadBody._post` inspects it again after the post.
    with _without_collection():
        innermost = sys._current_frames().get(thread_id)
        point = point_at(innermost, body, patient=patient)
        if point is SAFE and patient and innermost is not None and not _checks(innermost):
            return UNSAFE
        return point


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the garbage collector away while frames of a running thread are walked over.

    CPython 3.11 may collect when it makes an object for a frame. Finalisers then let the other
    thread run, its frame ends, and the interpreter goes on in that frame's memory: a segmentation
    fault. Later versions collect between instructions only.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def frames_inside(frame: FrameType | None, body: FrameType) -> list[FrameType]:
    """Return a frame and those around it up to ``body``, which is left out; empty without it."""
    frames: list[FrameType] = []
    while frame is not None and frame is not body:
        frames.append(frame)
        frame = frame.f_back
    return [] if frame is None else frames


def variables(frame: FrameType, *names: str) -> dict[str, Any]:
    """Return those local variables of a frame that are set, and leave no reference to any there.

    Before CPython 3.13 the frame keeps the dictionary, and the next read drops from it what the
    program has replaced since. A finaliser would then let the other thread run, its frame end, and
    the interpreter go on in that frame's memory: a segmentation fault.
    """
    kept = frame.f_locals
    found = {name: kept[name] for name in names if name in kept}
    # Unless somebody else has it: a module, a class, a program that called `locals()`. The three
    # references are the frame's and two of the count.
    if isinstance(kept, dict) and sys.getrefcount(kept) == 3:
        kept.clear()
    return found


def point_at(innermost: FrameType | None, body: FrameType, *, patient: bool) -> Safepoint:
    """Return the point that a thread has reached, as :func:`inspect`, by its innermost frame."""
    # 1. The body's frame is not among them: the thread has left it.
    frames = frames_inside(innermost, body)
    if innermost is None or not frames:
        return GONE
    # 2. A finaliser, an event loop, or the start of a thread, anywhere inside the body.
    for frame in frames:
        if frame.f_code is _START and variables(frame, "self")["self"].ident is None:
            return UNSAFE
        running = _running_loop(frame)
        if running is not None:
            return running
    # 3. The thread waits for a lock, or has just got it.
    if _acquires(innermost, timed=patient):
        return UNSAFE
    point = _by_module(frames, patient=patient)
    # 4. A frame takes hold of something, or lets go of it. A client that blocks cleans up anyway.
    if patient and point is SAFE and any(map(_holds, frames)):
        return UNSAFE
    return point


def _by_module(frames: list[FrameType], *, patient: bool) -> Safepoint:
    innermost = frames[0]
    if innermost.f_code is _WAIT and variables(innermost, "saved_state"):
        return SAFE  # it waits inside its `try`
    sock = _read_websocket(frames)
    if sock is not None:
        return Safepoint("interruptible", socket=sock)
    # From the innermost frame outwards, the first frame of a module that is known to be safe or
    # not decides. Other modules of the standard library do neither: their caller decides.
    for frame in frames:
        module = _root(frame)
        if module in HTTP_CLIENTS:
            # Only while it blocks: its pool is consistent then, and the shutdown of the socket
            # leads it through its own clean-up.
            sock = blocking_socket(**variables(innermost, "self", "sock"))
            return UNSAFE if sock is None else Safepoint("interruptible", socket=sock)
        if module in _UNSAFE_MODULES or (patient and module in _HOLDING_MODULES):
            return UNSAFE
        if module == "guard":
            return SAFE if frame.f_code in INTERRUPTIBLE else UNSAFE
        if module not in sys.stdlib_module_names:
            return SAFE  # the user's code or a library of theirs
    return SAFE


def _read_websocket(frames: list[FrameType]) -> socket.socket | None:
    """Return the socket of the WebSocket that a thread reads; None where it reads none.

    With ``websockets`` it waits for another thread, which reads the socket and wakes it once that
    is shut down; with ``websocket-client`` for the socket itself, perhaps by a selector.
    """
    for frame in frames:
        module = _root(frame)
        if module not in ("websockets", "websocket", "selectors", "ssl"):
            return None
        if module[0] == "w" and frame.f_code.co_name in ("recv", "read"):
            local = variables(frame, "self", "sock")
            found = local.get("sock") or getattr(local.get("self"), "socket", None)
            return found if isinstance(found, socket.socket) else None
    return None


def is_users(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code, or that of a library of theirs."""
    module = _root(frame)
    return not (module == "guard" or module in HTTP_CLIENTS or module in sys.stdlib_module_names)


def has_safe_points(frame: FrameType) -> bool:
    """Return whether there are points in a frame's code where an exception may be raised."""
    module = _root(frame)
    return not (module == "guard" or module in HTTP_CLIENTS or module in _UNSAFE_MODULES)


def is_inside(frame: FrameType, body: object) -> bool:
    """Return whether a frame runs below the SDK's function that surrounds ``body``."""
    # The drivers in `guard.scope.wrapping` keep the call's edge in a local variable of this name.
    outer = frame.f_back
    while outer is not None:
        if outer.f_code in INTERRUPTIBLE:
            edge = variables(outer, "edge").get("edge")
            if isinstance(edge, CallLifecycle) and edge.body is body:
                return True
        outer = outer.f_back
    return False


def handles_kill(thread_id: int, *, in_loop: bool) -> bool:
    """Return whether a thread is in a handler, or a ``finally``, because of a kill.

    Args:
        thread_id: the id of the thread.
        in_loop: whether the kill has cancelled the task of an event loop in the thread: the plain
            code around the loop sees a ``CancelledError`` then.
    """
    kinds = (WorkflowKilledInterrupt, CancelledError) if in_loop else WorkflowKilledInterrupt
    found: Any = sys._current_exceptions().get(thread_id)
    exc: BaseException | None = found[1] if isinstance(found, tuple) else found  # 3.11: a triple
    # The handled exception may be one that the handler raised itself: the kill is in its context.
    for _ in range(_CONTEXTS_MAX):
        if exc is None or isinstance(exc, kinds):
            break
        exc = exc.__context__
    return isinstance(exc, kinds)


def _checks(frame: FrameType) -> bool:
    """Return whether a pending exception is raised right where a waiting thread's frame is.

    The interpreter looks for one after calls, at loops and where functions begin. From any other
    instruction the thread would take the exception along, into an ``__exit__`` perhaps.
    """
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name.startswith(("CALL", "PRECALL", "RESUME")) or "JUMP_BACKWARD" in name


def _holds(frame: FrameType) -> bool:
    """Return whether a frame takes hold of something or lets go of it, or was called to."""
    code = frame.f_code
    if code.co_name in _HOLDING or frame.f_lasti in _holding_offsets(code):
        return True
    # The callback of a weak reference is a finaliser too: it gets the reference, maybe as `*args`.
    given = variables(frame, *code.co_varnames[: min(code.co_argcount + 1, 3)]).values()
    return any(
        isinstance(each[0] if type(each) is tuple and each else each, weakref.ref) for each in given
    )


@functools.lru_cache(maxsize=1000)
def _holding_offsets(code: CodeType) -> frozenset[int]:
    """Return the offsets in a function's code at which it takes hold of something or lets go.

    These are the lines of ``finally`` and ``except``, those that begin a ``with``, whose ends have
    the same number, and what follows the last call before a ``try``: an acquisition by any name.
    """
    instructions = list(dis.get_instructions(code))
    names = {each.offset: each.opname for each in instructions}
    lines = [position[0] for position in code.co_positions()]
    handled: dict[int, list[int]] = {}
    tries: dict[int, int] = {}
    entries: Any = dis.Bytecode(code)
    for entry in entries.exception_entries:
        if names[entry.target] == "PUSH_EXC_INFO":
            tries[entry.target] = min(entry.start, tries.get(entry.target, entry.start))
        elif names[entry.target] == "COPY":  # how handlers end; they are covered themselves
            handled.setdefault(entry.target, []).extend((entry.start, entry.end))
    spans = [lines[min(each) // 2 : max(each) // 2] for each in handled.values()]
    held = {line for span in spans for line in span}
    found = {2 * index for index, line in enumerate(lines) if line is not None and line in held}
    for start in tries.values():
        before = [each for each in instructions if each.offset < start]
        while before and not before[-1].opname.startswith(_CALLS):
            before.pop()
        if before:
            # From `PRECALL` on, which is part of the call on CPython 3.11.
            found.update(range(before[-1].offset - 4, start, 2))
    return frozenset(found)


_CALLS: Final = "CALL_FUNCTION_EX", "CALL_KW", "CALL"


def _root(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""


def _running_loop(frame: FrameType) -> Safepoint | None:
    """Return the event loop that a frame runs (``asyncio.run`` in a plain function), or None."""
    called = frame.f_globals.get("__name__"), frame.f_code.co_name
    if called == ("asyncio.base_events", "run_until_complete"):
        known = variables(frame, "self", "future")
        return Safepoint("loop", loop=known["self"], task=known.get("future"))
    if called == ("asyncio.runners", "run"):
        # A loop that is not written in Python has no frame of its own.
        known = variables(frame, "self", "task")
        if "task" in known:
            return Safepoint("loop", loop=known["self"].get_loop(), task=known["task"])
    return None


def _acquires(frame: FrameType, *, timed: bool) -> bool:
    """Return whether a frame is in a call of ``something.acquire(...)``.

    An exception that is raised when that call returns would leave the lock held for ever: the
    ``try`` that releases it begins one instruction later. The waiting methods of ``threading``
    handle that themselves; entering and leaving its conditions and semaphores does not.

    Args:
        frame: innermost frame of a thread that is not running now.
        timed: whether calls with arguments count, which return by themselves soon.
    """
    # A lock's own `acquire` is C code without a frame: the frame is that of its caller, so the
    # caller's instructions are read.
    code = frame.f_code
    if frame.f_globals.get("__name__") == "threading":
        return code.co_name in _LOCK_METHODS
    if "acquire" not in code.co_names:
        return False
    # On the current line: the name `acquire`, and after it the call that the frame is in.
    acquires = False
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.positions.lineno != frame.f_lineno:
            continue
        if instruction.argval == "acquire":
            acquires = True
        if instruction.offset == frame.f_lasti:
            called = instruction.opname.startswith(("CALL", "PRECALL"))
            return acquires and called and (timed or not instruction.arg)
    return False
