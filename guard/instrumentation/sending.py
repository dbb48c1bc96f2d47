"""The request that is being sent in this context, and what an exception says about its sending."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar

_NEVER_LEFT: Final = frozenset({
    "ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol",  # httpx
    "InvalidURL", "MissingSchema", "InvalidSchema", "InvalidHeader",  # httpx and requests
    "NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "LocationValueError",
    "EmptyPoolError", "ClosedPoolError",  # urllib3
    "EndpointConnectionError", "ProxyConnectionError", "InvalidProxiesConfigError",  # botocore
    "ClientConnectorError", "ConnectionTimeoutError", "InvalidUrlClientError",  # aiohttp
})  # fmt: skip
"""Names of the clients' exceptions that end a request before any of it was sent.

By name, because the clients need not be installed. A name that is missing costs money and not
safety: its request is charged its bound.
"""

_HOLDS_ANSWER: Final = {"_send_handling_redirects": "response", "_request": "resp"}
"""Functions of httpx and aiohttp that call the user's hooks, and their local with the answer."""

_CLIENTS: Final = frozenset({
    "httpx", "httpx2", "aiohttp", "requests", "urllib3", "botocore", "guard",
})  # fmt: skip
"""Packages whose exceptions have the vendor's status in their attributes."""

_SAID_STATUS: Final = re.compile(r"\b([45]\d\d) error")
"""Finds the status in the text of urllib3's ``ResponseError``, which has no attribute for it."""

_CAUSES_MAX: Final = 8
"""How many exceptions inside each other are looked at; ends a chain that refers to itself."""


class SentRequest(Protocol):
    """What a sending reports its failure to."""

    def unanswered(self, exc: BaseException) -> None:
        """The client raised instead of returning an answer."""


R = TypeVar("R", bound=SentRequest)


class Sending(Generic[R]):
    """Wraps the sending of an observed call: nested sends are the same request.

    The context variable holds this object and not the call. A task that the client starts copies
    the variable and may outlive the request, but ``call`` is None for it afterwards.
    """

    __slots__ = ("_call", "_token")

    def __init__(self, call: R) -> None:
        self._call: R | None = call

    def __enter__(self) -> None:
        self._token: Token[Sending[Any] | None] = nested_call.set(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Cleared first: tasks that the client has left behind share this object, and their later
        # requests are not this one.
        call, self._call = self._call, None
        nested_call.reset(self._token)
        if exc is not None and call is not None:
            call.unanswered(exc)

    @property
    def call(self) -> R | None:
        """The call that is being sent; None afterwards, for tasks that the client left behind."""
        return self._call


nested_call: ContextVar[Sending[Any] | None] = ContextVar("guard_nested_call", default=None)
"""Set while an observed request is sent, including in tasks that the client starts for it."""


def never_left(exc: BaseException) -> bool:
    """Return whether an exception says that nothing of a request has left.

    >>> never_left(TimeoutError()), never_left(type("ConnectTimeout", (Exception,), {})())
    (False, True)
    """
    return any(
        kind.__name__ in _NEVER_LEFT for each in _wrapped(exc) for kind in type(each).__mro__
    )


def held_answer(exc: BaseException) -> Any:
    """Return the answer that a client held when an exception was raised; None without one.

    Then a hook of the user's, called with the answer, has raised. A redirect does not count: the
    client still holds it while it sends the next request.
    """
    # No client attaches the answer to such an exception, so it is read from the client's frame,
    # which the traceback keeps. The innermost of these frames wins. It has ended, or waits for this
    # call: no thread runs it meanwhile, as it may one that `safepoints.variables` looks at.
    answer, trace = None, exc.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        name = _HOLDS_ANSWER.get(frame.f_code.co_name)
        if name is not None and _package(frame.f_globals.get("__name__")) in _CLIENTS:
            answer = frame.f_locals.get(name)
        trace = trace.tb_next
    status = _status_in(answer)
    return None if status is not None and 300 <= status < 400 else answer


def _status_in(answer: Any) -> int | None:
    for name in ("status_code", "status"):  # httpx's and aiohttp's
        found = getattr(answer, name, None)
        if type(found) is int:
            return found
    return None


def content_of(answer: Any) -> bytes | None:
    """Return the body of an answer that was read already; None otherwise."""
    for name in ("_content", "_body"):  # httpx's and aiohttp's
        content = getattr(answer, name, None)
        if isinstance(content, bytes):
            return content
    return None


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def status_of(exc: BaseException) -> int | None:
    """Return the status of the answer behind an exception, if there is one.

    A client, or a hook of the user's, may turn an answer into an exception. A status in an
    exception of the application's own need not be the vendor's, so only the clients' are read.
    """
    # 1. The answer itself, in the client's frame.
    found = _status_in(held_answer(exc))
    if found is not None:
        return found
    if _package(type(exc).__module__) not in _CLIENTS:
        return None
    # 2. An attribute of the client's exception.
    response = getattr(exc, "response", None)
    for source, name in ((response, "status_code"), (response, "status"), (exc, "status")):
        found = getattr(source, name, None)
        if type(found) is int:
            return found
    # 3. The text of urllib3's exception after its last try.
    for each in _wrapped(exc):
        if type(each).__name__ == "ResponseError":
            said = _SAID_STATUS.search(str(each))
            return int(said[1]) if said else None
    return None


def answer_of(exc: BaseException) -> bytes:
    """Return the body of the answer behind an exception; empty unless it was read."""
    held = content_of(held_answer(exc))
    if held is not None:
        return held
    try:
        content = exc.response.content  # type: ignore[attr-defined]  # httpx's and requests'
    except Exception:  # noqa: BLE001  # there is none, or it was not read
        return b""
    return content if isinstance(content, bytes) else b""


def _wrapped(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then those that requests and urllib3 keep inside it."""
    each: Any = exc
    for _ in range(_CAUSES_MAX):
        yield each
        reason = getattr(each, "reason", None)
        inner = reason if isinstance(reason, BaseException) else next(iter(each.args), None)
        if not isinstance(inner, BaseException):
            return
        each = inner
