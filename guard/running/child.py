"""Runs inside a process of a run: guard starts before the program, and its refusals end the run."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import guard
from guard.breaker.exceptions import (
    BreakerError,
    GuardBlockedException,
    GuardError,
    WorkflowKilledInterrupt,
)
from guard.breaker.refusals import unwrap
from guard.control.enforcement import refusal_in
from guard.instrumentation import own_proxy
from guard.last_words import end_in_two_lines, note_chain
from guard.running import reports, routes
from guard.running.children import RunEnvironment, keep_in_run
from guard.scope.scope import Entry, Scope, set_process_entry


class RunEntry(Entry):
    """The boundary around a whole process: a refusal that reaches it ends the run."""

    directory: Path = Path()

    def refuse(self, error: BaseException) -> None:
        """Report a refusal to ``guard run``."""
        self.refused = error
        _report(self.directory, error)


def start(directory: str) -> None:
    """Put this process under guard, or end it: a run is never unguarded."""
    # 1. Announced first: if anything below fails, the run ends instead of running it unguarded.
    path = Path(directory)
    _announce(path)
    _complete(os.environ, reports.environment(path))
    changed = reports.routed(path)
    kept = RunEnvironment.of_process(os.environ, changed)
    # 2. Its clients connect to the vendors directly, and requests are covered in this process.
    #    Requests that they send to the proxy all the same are not covered twice.
    routes.put_back(os.environ, changed)
    own_proxy.know(os.environ.get(routes.PROXY_VARIABLE))
    os.register_at_fork(after_in_child=lambda: _announce(path))
    # 3. Before `init`, which registers exit handlers; see there.
    _end_by_ctrl_c()
    try:
        runtime = guard.init()
    except BreakerError as exc:
        _report(path, exc)
        os._exit(reports.REFUSED_CODE)
    stand_in(path, runtime)
    keep_in_run(path, kept)
    _end_quietly(path)


def _complete(environ: MutableMapping[str, str], needed: Mapping[str, str]) -> None:
    """Add the variables that this process was not given: some agents pass no keys on.

    Another key in there is its caller's choice.
    """
    if environ.get("GUARD_API_KEY") in (None, needed.get("GUARD_API_KEY")):
        for name, text in needed.items():
            environ.setdefault(name, text)


def stand_in(directory: Path, runtime: guard.GuardRuntime) -> None:
    """Make the refusals of this process end the run that it works for.

    Args:
        directory: the directory of the run.
        runtime: the runtime of this process, which uses the run's key.
    """
    runtime.link.restarts_gateway = True  # `guard run` does that
    runtime.link.key_limit = "this run's --limit"
    set_process_entry(RunEntry(Scope(), directory=directory))
    _name_unseen(directory, runtime)


def _name_unseen(directory: Path, runtime: guard.GuardRuntime) -> None:
    """Report LLM requests that cannot be metered; refuse them where a limit could not hold."""
    instrumentation = runtime.instrumentation
    instrumentation.unseen.changed = lambda counts: reports.say_unseen(directory, counts)
    if os.environ.get(reports.SEEN_ONLY_VARIABLE):
        instrumentation.refuse_unseen = refuse_unseen


def refuse_unseen(reason: str, scope: Scope) -> NoReturn:
    """Refuse a request that cannot be covered.

    Raises:
        Refusal: always; the public error itself where there is no boundary to convert it.
    """
    text = f"{reason}; --allow-unseen lets it go"
    raise refusal_in(scope, GuardBlockedException(workflow_id=scope.workflow_id, reason=text))


# Descriptor of the lock that shows that this process is guarded; the kernel releases it when the
# process ends.
_lock: int | None = None


def _announce(directory: Path) -> None:
    global _lock
    # In a forked child: the parent's, which would seem to live as long as the child.
    if _lock is not None:
        os.close(_lock)
    try:
        _lock = reports.announce(directory)
    except OSError:  # the run is over, and its directory gone
        _lock = None


def _report(directory: Path, error: BaseException) -> None:
    code = getattr(error, "error_code", "GD-X000")
    details = getattr(error, "details", None) or {}
    reports.refuse(
        directory,
        str(code),
        str(error),
        budget=_plain(details.get("budget")),
        counted=details.get("counted"),
        tool_name=getattr(error, "tool_name", None),
        unknown=details.get("unknown"),
        needed_nanousd=details.get("needed_nanousd"),
    )


def _plain(budget: Any) -> dict[str, Any]:
    """Return the fields of a refusal's budget: a mapping, or an object of the protocol."""
    names = ("scope", "limit_nanousd", "spent_nanousd", "resets_at_ms")
    if isinstance(budget, Mapping):
        return {name: budget.get(name) for name in names}
    return {name: getattr(budget, name, None) for name in names} if budget is not None else {}


def _end_by_ctrl_c() -> None:
    """Make an uncaught ``KeyboardInterrupt`` end the process by SIGINT, as Python intends.

    Python forgets that a ``KeyboardInterrupt`` has ended the program as soon as any thread runs
    code from a string, as the imports of guard's own thread do, and would exit with 1. The exit
    handler in here restores that. Exit handlers run in reverse order, so it has to be registered
    first.
    """
    before = sys.excepthook
    is_interrupted = False

    def hook(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        nonlocal is_interrupted
        # At an interactive prompt it ends one statement and not the program.
        is_interrupted = kind is KeyboardInterrupt and not hasattr(sys, "ps1")
        before(kind, exc, trace)

    def remind() -> None:
        if is_interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # noqa: S102  # only code from a string reminds it

    sys.excepthook = hook
    atexit.register(remind)


def _end_quietly(directory: Path) -> None:
    """Make an uncaught refusal end the program with its exit code and without a traceback."""
    end_in_two_lines()
    before, thread_before = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        error = unwrap(exc)
        if isinstance(error, GuardError | WorkflowKilledInterrupt):
            note_chain(exc)
            _report(directory, error)
            raise SystemExit(reports.REFUSED_CODE)
        before(kind, exc, trace)

    def thread_hook(arguments: Any) -> None:
        exc = arguments.exc_value
        error = None if exc is None else unwrap(exc)
        if isinstance(error, GuardError | WorkflowKilledInterrupt):
            _report(directory, error)
        else:
            thread_before(arguments)

    sys.excepthook, threading.excepthook = hook, thread_hook
