"""Raises a kill at a line of the user's code, for bodies that swallow what is raised from outside.

An exception from outside is raised where the body waits or computes, which is inside its ``try``
each time: a loop around ``try: work() except BaseException: pass`` never ends. A line trap is a
trace function (``sys.settrace``) that is set for a moment once the body has swallowed a kill. It
raises at the next line of the user's code, which is in the handler itself. The next trap lets one
more line pass, and so on, until it raises at a line that no handler covers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, Final, Protocol

from guard.control.safepoints import is_users

monitoring: Final[Any] = getattr(sys, "monitoring", None)  # from CPython 3.12 on


class KilledBody(Protocol):
    """The body that a trap is set for.

    Attributes:
        ended: whether it has ended.
    """

    ended: bool


class LineTrap:
    """Raises in the thread that has armed it, once, and only in the user's frames.

    Args:
        body: nothing is raised once this body has ended.
        make: makes the exception.
        skip: how many lines to let pass.
        inside: returns whether a frame that is called or resumed meanwhile belongs to the body;
            None if no such frame is trapped.
    """

    def __init__(
        self,
        body: KilledBody,
        make: Callable[[], BaseException],
        skip: int,
        inside: Callable[[FrameType], bool] | None = None,
    ) -> None:
        self._body = body
        self._make = make
        # Lines still to let pass; counted down in the armed thread.
        self._skip = skip
        self._inside = inside

    def arm(self, frames: Iterable[FrameType] = ()) -> None:
        """Set the trap in the calling thread, unless a debugger or coverage traces it.

        Args:
            frames: those of the body that run now.
        """
        # Another trap may be replaced; any other tracer stays, because the user needs it.
        tracer = sys.gettrace()
        if tracer is not None and not isinstance(getattr(tracer, "__self__", None), LineTrap):
            return
        for frame in frames:
            if _may_raise_in(frame):
                frame.f_trace = self._at_line
        # Without a global tracer the interpreter ignores the `f_trace` of frames.
        sys.settrace(self._at_call)

    def disarm(self) -> None:
        """Take the trap out of the calling thread. Idempotent."""
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(None)

    def _at_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        inside = self._inside
        if inside is not None and _may_raise_in(frame) and inside(frame):
            return self._at_line
        return None

    def _at_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "line":
            return self._at_line
        if self._body.ended:
            return None
        if self._skip > 0:
            self._skip -= 1
            return self._at_line
        # Before it raises, so that the user's clean-up is not traced.
        sys.settrace(None)
        raise self._make()


def _may_raise_in(frame: FrameType) -> bool:
    # An exception between the line of an `acquire` and its `try` would leave the lock held.
    return is_users(frame) and "acquire" not in frame.f_code.co_names


# -- CPython 3.12 and later: at a line of another thread ------------------------------------------

_RAISES: Final[dict[int, Callable[[FrameType], None]]] = {}
"""By thread identifier, what raises in a frame of that thread if it may."""

_TOOLS: Final = 4, 3
"""Identifiers that ``sys.monitoring`` leaves to anyone: the first kill takes one, which is kept."""


def _taken() -> int | None:
    for tool in _TOOLS:
        if monitoring.get_tool(tool) == "guard":
            return tool
    for tool in _TOOLS:
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "guard")
            for event in (monitoring.events.LINE, monitoring.events.JUMP):
                monitoring.register_callback(tool, event, _at_event)
            return tool
    return None


def watch(thread_id: int, codes: Iterable[CodeType], raises: Callable[[FrameType], None]) -> bool:
    """Have a thread call ``raises`` with its frame at each line and loop of some code.

    Whoever shares the code stops watching it for all; so this is called again until the thread
    has raised.

    Returns:
        False if that is not possible: other tools have taken what there is.
    """
    tool = _taken()
    if tool is None:
        return False
    _RAISES[thread_id] = raises
    for code in codes:
        monitoring.set_local_events(tool, code, monitoring.events.LINE | monitoring.events.JUMP)
    return True


def unwatch(thread_id: int, codes: Iterable[CodeType]) -> None:
    """Undo :func:`watch`."""
    _RAISES.pop(thread_id, None)
    tool = _taken()
    if tool is not None:
        for code in codes:
            monitoring.set_local_events(tool, code, 0)


def _at_event(*_: object) -> None:
    raises = _RAISES.get(threading.get_ident())
    if raises is not None:
        raises(sys._getframe(1))
