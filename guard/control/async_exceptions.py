"""Posts an exception to another thread, and withdraws it, through the interpreter's C interface.

Both set a flag that makes threads look for such exceptions. Before CPython 3.13 it is one flag for
all of them, and only raising an exception clears it: while one is pending in a thread that blocks,
and after one has been withdrawn, every thread would look at each step, and on CPython 3.11 a thread
that is traced (coverage, a debugger, a profiler) would not get beyond its next call. So there an
exception is raised in the posting thread right away and caught. The flag is set anew for the other
thread when that goes on.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any, Final

_set: Final[Any] = ctypes.pythonapi.PyThreadState_SetAsyncExc
_NOTHING: Final[Any] = ctypes.py_object()
_FLAG_IS_SHARED: Final = sys.version_info < (3, 13)
_TRACING_FREEZES: Final = sys.version_info < (3, 12)


class _Lowered(BaseException):
    """Raised and caught in the posting thread to clear the flag."""


_LOWERED: Final[Any] = ctypes.py_object(_Lowered)


def post(thread_id: int, kind: type[BaseException]) -> None:
    """Raise an exception in another thread as soon as that runs Python code; one may be pending.

    Called, like :func:`withdraw`, on a thread that no signal handler runs in.
    """
    _put(thread_id, ctypes.py_object(kind))


def withdraw(thread_id: int) -> None:
    """Withdraw what has been posted to another thread and not been raised yet."""
    _put(thread_id, _NOTHING)


def _put(thread_id: int, kind: Any) -> None:
    target = ctypes.c_ulong(thread_id)
    if not _FLAG_IS_SHARED:
        _set(target, kind)
        return
    if _TRACING_FREEZES and (sys.gettrace() or sys.getprofile()):
        # The flag is set again while the other thread goes from one wait to the next without
        # running Python code. Who is to clear it then must not be held up by it.
        sys.settrace(None)
        sys.setprofile(None)
    own = ctypes.c_ulong(threading.get_ident())
    try:
        list(map(_set, (target, own), (kind, _LOWERED)))  # one call: no Python code between
        while True:
            pass  # here at the latest
    except _Lowered:
        pass
