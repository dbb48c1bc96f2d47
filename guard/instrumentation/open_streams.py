"""The streams that the running task or thread reads: while it waits, they give nothing back.

A request that is asked for in between two chunks names them. The gateway does not keep it in line
for money that only its own reader could return.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any, Final, Protocol
from weakref import ref

from guard.core import wire
from guard.instrumentation.request_gate import RequestCover
from guard.scope.scope import Scope


class ReadStream(Protocol):
    """A stream; see ``ObservedCall``."""

    @property
    def scope(self) -> Scope:
        """The scope of its request."""

    @property
    def recording(self) -> object | None:
        """The recorded part of it; None once it is over."""

    @property
    def hold(self) -> RequestCover | None:
        """The money set aside for it."""


Reader = asyncio.Task[Any] | threading.Thread

_open: Final[ContextVar[tuple[tuple[ref[Reader], ReadStream], ...]]] = ContextVar(
    "guard_open_streams", default=()
)
"""The streams that were read in this context, each with the reader of its first chunk. A task has a
copy of its creator's context, but is another reader; hence the reader beside each stream. By a
reference, since the id of one that is gone is given to another."""


def note(stream: ReadStream) -> None:
    """Note that the running task or thread reads a stream; called with its first chunk."""
    # Streams that are over are dropped here, so that the tuple stays as short as what is open.
    others = [
        each for each in _open.get() if each[1].recording is not None and each[1] is not stream
    ]
    _open.set((*others, (ref(reader()), stream)))


def is_left(other: Reader | None) -> bool:
    """Return whether a reader reads nothing meanwhile: it is the running one, or has ended."""
    if other is None or other is reader():
        return True
    return other.done() if isinstance(other, asyncio.Task) else not other.is_alive()


def held(scope: Scope) -> dict[str, int]:
    """Return the money of the caller's streams that are read here: nano-dollars by reservation."""
    if not _open.get():
        return {}
    found: dict[str, int] = {}
    me = reader()
    for other, stream in _open.get()[-wire.AROUND_MAX :]:
        hold = stream.hold
        if other() is not me or stream.scope.caller is not scope.caller:
            continue
        if stream.recording is not None and hold is not None:
            name, amount = hold.reservation_id, hold.amount_nanousd
            if name is not None and amount:
                found[name] = found.get(name, 0) + amount
    return found


def reader() -> Reader:
    """Return the running task; the thread where none runs."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return threading.current_thread() if task is None else task
