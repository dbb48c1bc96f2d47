"""Prints guard's own uncaught exceptions as two lines instead of a traceback.

They say what happened, what to do, and at which line of the program. The whole chain is in the
debug log (``GUARD_DEBUG=1``).
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from guard.breaker.exceptions import BreakerTransportError, GuardError
from guard.breaker.exceptions import WorkflowKilledInterrupt as Killed
from guard.breaker.refusals import unwrap
from guard.messages import print_message

logger: Final = logging.getLogger("guard.uncaught")

_OWN: Final = (GuardError, Killed, BreakerTransportError)


def last_words(exc: BaseException) -> str | None:
    """Return the two lines of an exception of guard's own: what happened, and what to do.

    The second one names the last line of the program's own code that the exception has passed.

    Returns:
        None for any other exception, which keeps its traceback.

    >>> print(last_words(Killed(workflow_id="w", reason="too dear")))
    guard: [GD-W002] too dear
    Ask the operator; only a revive lets the workflow run again. (guard explain GD-W002)
    """
    error = unwrap(exc)
    if not isinstance(error, _OWN):
        return None
    code = error.error_code
    what = " ".join(str(error).removeprefix(f"[{code}]").split())
    action = " ".join(error.user_action.split())
    return f"guard: [{code}] {what}\n{action} (guard explain {code}{_place(exc)})"


def _place(exc: BaseException) -> str:
    import sysconfig  # only a program that ends needs it

    libraries = [sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib")]
    others = tuple(f"{each}{os.sep}" for each in (Path(__file__).parent, *libraries))
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        if not frame.filename.startswith(others):
            return f"; {frame.filename}, line {frame.lineno}"
    return ""


def note_chain(exc: BaseException) -> None:
    """Write the traceback and all causes to the debug log."""
    logger.debug("ended by", exc_info=exc)


def end_in_two_lines() -> None:
    """Have an uncaught exception of guard's own end this program with two lines. Idempotent.

    Each runtime asks for it, before it reads its settings. If another hook is installed, such as
    for reporting errors, it stays and this does nothing.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _hook


def _hook(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
    said = last_words(exc)
    if said is None:
        sys.__excepthook__(kind, exc, trace)
        return
    note_chain(exc)
    print_message(said)
