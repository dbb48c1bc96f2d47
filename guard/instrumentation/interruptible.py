"""Lets a kill stop a request that runs outside any protected body.

A protected body is stopped together with the request that it waits for. A task that is not
awaited, one behind ``asyncio.shield`` and a function in ``asyncio.to_thread`` belong to the
workflow too, but only by their context. There a kill stops the request itself while its answer is
awaited; an LLM request, until the last byte of the answer. In a ``workflow`` without any protected
call this applies to LLM requests only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from types import FrameType
from typing import Any, Final, Protocol

from guard.instrumentation import patching
from guard.instrumentation.account import Account
from guard.instrumentation.observed_call import call_being_sent
from guard.scope.scope import current_scope

_END: Final = object()
"""Sentinel that an iterator returns at its end."""


class InterruptibleRequest(Protocol):
    """A request that a kill can stop."""

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the request; return the exception to raise instead of ``exc``, or None."""


def llm_request(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that sends an LLM request or reads its answer, so that a kill stops it.

    Raises:
        WorkflowKilledInterrupt: the workflow was killed, meanwhile or before.
    """
    return _call(True, function, args, options)


def llm_request_async(
    function: Callable[..., Awaitable[Any]], *args: Any, **options: Any
) -> Awaitable[Any]:
    """Return an awaitable that sends an LLM request or reads its answer; await it at once.

    Not a coroutine function: where no kill has to reach the request, the caller gets the client's
    own awaitable, without a frame in between.

    Raises (here, or when awaited):
        WorkflowKilledInterrupt: the workflow was killed, meanwhile or before.
    """
    return _await(True, function, args, options)


def other_request(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that sends any other request; one that starts after a kill may run.

    Raises:
        WorkflowKilledInterrupt: the workflow was killed meanwhile.
    """
    return _call(False, function, args, options)


def other_request_async(
    function: Callable[..., Awaitable[Any]], *args: Any, **options: Any
) -> Awaitable[Any]:
    """Return an awaitable that sends any other request; await it at once.

    Raises (when awaited):
        WorkflowKilledInterrupt: the workflow was killed meanwhile.
    """
    return _await(False, function, args, options)


def chunks_of(stream: Iterable[Any]) -> Iterable[Any]:
    """Return a stream whose reader a kill stops; ``stream`` itself where none has to."""
    return Chunks(stream) if _needed(sys._getframe()) else stream


def chunks_of_async(stream: AsyncIterable[Any]) -> AsyncIterable[Any]:
    """Return a stream whose reader a kill stops; ``stream`` itself where none has to."""
    return AsyncChunks(stream) if _needed(None) else stream


class Chunks:
    """The chunks of a blocking stream.

    Each read is registered by itself: between two reads the reader's own code runs, which a kill
    must not stop by way of this request.
    """

    __slots__ = ("_chunks",)

    def __init__(self, stream: Iterable[Any]) -> None:
        self._chunks = iter(stream)

    def __iter__(self) -> Chunks:
        return self

    def __next__(self) -> Any:
        chunk = llm_request(next, self._chunks, _END)
        if chunk is _END:
            raise StopIteration
        return chunk


class AsyncChunks:
    """The chunks of an asynchronous stream."""

    __slots__ = ("_next",)

    def __init__(self, stream: AsyncIterable[Any]) -> None:
        self._next = aiter(stream).__anext__

    def __aiter__(self) -> AsyncChunks:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return llm_request_async(self._next)


def _needed(frame: FrameType | None) -> bool:
    account = _account()
    if account is None:
        return False
    # Registered and removed at once, to find out: the result is the same for every chunk.
    request = account.enter_request(frame, True)
    if request is None:
        return False
    request.end(None)
    account.leave_request(request)
    return True


def _account() -> Account | None:
    """Return the account that requests of the current scope belong to; None if none is observed."""
    observer = patching.active()
    return None if observer is None else observer.account(current_scope.get())


def _call(llm: bool, function: Callable[..., Any], args: Any, options: Any) -> Any:
    account = _account()
    # This frame: a kill acts on what this function calls, and on nothing around it.
    request = None if account is None else account.enter_request(sys._getframe(), llm)
    _note_sent(llm)
    if account is None or request is None:
        return function(*args, **options)
    try:
        result = function(*args, **options)
        request.end(None)  # in here: it raises a kill that has come too late for `function`
        return result
    except BaseException as exc:
        # A kill of this request becomes the public interrupt; any other error stays.
        error = request.end(exc)
        if error is None or error is exc:
            raise
        raise error from None
    finally:
        account.leave_request(request)


def _note_sent(llm: bool) -> None:
    """Note when the request is handed to the client; after :meth:`enter`, which may raise a kill.

    Each chunk of a stream would note it again, but ``call_being_sent`` is None by then.
    """
    call = call_being_sent() if llm else None
    if call is not None:
        call.sent_s = time.monotonic()


def _await(
    llm: bool, function: Callable[..., Awaitable[Any]], args: Any, options: Any
) -> Awaitable[Any]:
    account = _account()
    # Before the coroutine is made: if a kill raises here, none is left that is never awaited.
    request = None if account is None else account.enter_request(None, llm)
    _note_sent(llm)
    if account is None or request is None:
        return function(*args, **options)
    return _awaited(account.leave_request, request, function(*args, **options))


async def _awaited(
    leave: Callable[[Any], None], request: InterruptibleRequest, answer: Awaitable[Any]
) -> Any:
    try:
        result = await answer
    # A kill has cancelled this task: the cancellation becomes the public interrupt.
    except BaseException as exc:
        error = request.end(exc)
        if error is None or error is exc:
            raise
        raise error from None
    else:
        request.end(None)
        return result
    finally:
        leave(request)
