"""``carry``, ``carrying``, ``ContextExecutor``: the scope in plain threads and in executors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from guard.breaker.refusals import error_at_edge
from guard.control.pools import carry_kills_out
from guard.control.threads import ThreadBody, this_thread
from guard.runtime.account import KeyAccount
from guard.runtime.active import active_account
from guard.scope.scope import Entry, Scope, current_scope
from guard.scope.wrapping import CallLifecycle, wrap_function

carry_kills_out()

P = ParamSpec("P")
R = TypeVar("R")


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """Bind a function to the current workflow, span and call, for plain threads and executors.

    A kill of the workflow stops the function in its thread, like a protected body.
    ``asyncio.to_thread`` copies the context by itself; ``threading.Thread`` and executors do not.

    Raises (from the bound function):
        WorkflowKilledInterrupt: the workflow is killed, before or in mid-call.
        GuardError: a refusal from inside, as its public exception.

    Example:
        >>> import threading
        >>> threading.Thread(target=carry(len), args=("abc",)).start()
    """
    carried: Callable[P, R] = wrap_function(
        function, functools.partial(_CarriedCall, current_scope.get())
    )
    return carried


class _CarriedCall(CallLifecycle):
    """The edge of one call of a function that :func:`carry` has bound to a scope."""

    def __init__(self, scope: Scope) -> None:
        # An entry of its own, so that a refusal which this call raises is not raised by the edge
        # around as well.
        self._entry = Entry(scope)
        super().__init__(scope if scope.entry is None else scope.at(self._entry))
        # Both are set while the function runs, if a kill can concern it. The account is kept, since
        # `leave` must go to the one that `enter` went to.
        self._account: KeyAccount | None = None
        self.body: ThreadBody | None = None

    def enter(self, *, in_task: bool) -> None:
        self.resume()
        scope = self.scope
        assert scope is not None, "it is bound to one"
        account = active_account(scope)
        if account is None or (scope.workflow_id is None and scope.call is None):
            return
        body = self.body = ThreadBody(scope, sys._getframe(1), this_thread())
        self._account = account
        # First entered, then checked, so that no kill falls between the two.
        account.enforcement.bodies.enter(body)
        account.enforcement.check_killed(scope)

    def leave(
        self, exc: BaseException | None = None, *, yields: bool = False
    ) -> BaseException | None:
        body, account = self.body, self._account
        if body is not None and account is not None:
            exc = body.end(exc)
            account.enforcement.bodies.leave(body)
            self.body = None
        self.suspend()
        return error_at_edge(exc, self._entry, raises=False)


class ContextExecutor(ThreadPoolExecutor):
    """A thread pool whose work belongs to the workflow, user and call that submitted it.

    Like ``concurrent.futures.ThreadPoolExecutor``, with every submitted function bound by
    :func:`carry`. It can be an event loop's default executor.

    Example:
        >>> with ContextExecutor(max_workers=2) as pool:
        ...     list(pool.map(len, ["a", "bc"]))
        [1, 2]
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a function in a thread of the pool, in the scope of the code that submits it.

        Raises:
            RuntimeError: the pool was shut down.
        """
        return super().submit(carry(fn), *args, **kwargs)


def carrying(executor: Executor) -> Executor:
    """Return an executor that runs work in another one, in the scope of the code that submits it.

    For an executor that exists already or is of another library; a new pool of threads is simpler
    made as :class:`ContextExecutor`. Shutting either down shuts down both.

    Args:
        executor: one of ``concurrent.futures``, or with the same interface; its work runs in this
            process.

    Raises:
        TypeError: it is none, or runs its work in other processes.

    Example:
        >>> with carrying(ThreadPoolExecutor(2)) as pool:
        ...     pool.submit(len, "abc").result()
        3
    """
    return _Carrying(executor)


class _Carrying(Executor):
    def __init__(self, executor: Executor) -> None:
        if not callable(getattr(executor, "submit", None)):
            raise TypeError(f"carrying takes an executor, not {type(executor).__name__}")
        module = sys.modules.get("concurrent.futures.process")
        if module is not None and isinstance(executor, module.ProcessPoolExecutor):
            raise TypeError(
                "carrying takes executors of this process; in a process pool, open the workflow in "
                "the function itself"
            )
        self._executor = executor

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self._executor.submit(carry(fn), *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait, cancel_futures=cancel_futures)
