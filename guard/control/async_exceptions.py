"""Posts an exception to another thread, and withdraws it, through the interpreter's C interface.

Both set a flag that makes threads look for such exceptions. Before CPython 3.13 all threads share
one flag, and only raising an exception clears it. While an exception is pending in a thread that
blocks, and after one has been withdrawn, every thread would look for one at each step; on CPython
3.11 a thread that is traced (coverage, a debugger, a profiler) would not get beyond its next call.
So on these versions an exception is also raised in the posting thread at once, and caught, which
clears the flag. It is set again for the other thread when that thread runs again.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any, Final

# Through `pythonapi`, so with the interpreter's lock held: no other thread runs during the call.
_set: Final[Any] = ctypes.pythonapi.PyThreadState_SetAsyncExc
_NOTHING: Final[Any] = ctypes.py_object()
_FLAG_IS_SHARED: Final = sys.version_info < (3, 13)
_TRACING_FREEZES: Final = sys.version_info < (3, 12)


class _Lowered(BaseException):
    """Raised and caught in the posting thread to clear the flag."""


_LOWERED: Final[Any] = ctypes.py_object(_Lowered)


def post(thread_id: int, kind: type[BaseException]) -> None:
    """Raise an exception in another thread as soon as that thread runs Python code.

    A thread has one pending exception at most: a second post replaces the first. Call this, like
    :func:`withdraw`, only on a thread that runs no signal handlers.
    """
    _put(thread_id, ctypes.py_object(kind))


def withdraw(thread_id: int) -> None:
    """Withdraw an exception that has been posted to another thread and not been raised yet."""
    _put(thread_id, _NOTHING)


def _put(thread_id: int, kind: Any) -> None:
    target = ctypes.c_ulong(thread_id)
    if not _FLAG_IS_SHARED:
        _set(target, kind)
        return
    if _TRACING_FREEZES and (sys.gettrace() or sys.getprofile()):
        # The flag is set again while the other thread goes from one wait to the next without
        # running Python code. This thread has to clear it then, so it must not be traced.
        sys.settrace(None)
        sys.setprofile(None)
    own = ctypes.c_ulong(threading.get_ident())
    try:
        # One call, so that no Python code runs between the two posts.
        list(map(_set, (target, own), (kind, _LOWERED)))
        while True:
            pass  # `_Lowered` is raised here at the latest
    except _Lowered:
        pass
