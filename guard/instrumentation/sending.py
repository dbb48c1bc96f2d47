"""The request that is being sent in this context, and what its failure says of its sending."""

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
"""Names of exceptions that end a request before any of it was sent, in every client's own words."""

_SAID_STATUS: Final = re.compile(r"\b([45]\d\d) error")
_CAUSES_MAX: Final = 8


class SentRequest(Protocol):
    """What a sending reports its failure to."""

    def unanswered(self, exc: BaseException) -> None:
        """The client raised instead of returning an answer."""


R = TypeVar("R", bound=SentRequest)


class Sending(Generic[R]):
    """Wraps the sending of an observed call: nested sends are the same request."""

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
    """Tell whether an exception says that nothing of a request has left.

    >>> never_left(TimeoutError()), never_left(type("ConnectTimeout", (Exception,), {})())
    (False, True)
    """
    return any(
        kind.__name__ in _NEVER_LEFT for each in _wrapped(exc) for kind in type(each).__mro__
    )


def status_of(exc: BaseException) -> int | None:
    """Return the status of the answer that an exception speaks of, if it speaks of one.

    A client, or a hook of the user's, may turn an answer into an exception.
    """
    response = getattr(exc, "response", None)
    for source, name in ((response, "status_code"), (response, "status"), (exc, "status")):
        found = getattr(source, name, None)
        if type(found) is int:
            return found
    for each in _wrapped(exc):
        if type(each).__name__ == "ResponseError":  # urllib3's, after its last try
            said = _SAID_STATUS.search(str(each))
            return int(said[1]) if said else None
    return None


def answer_of(exc: BaseException) -> bytes:
    """Return what the answer that an exception speaks of says, as far as it was read."""
    try:
        content = exc.response.content  # type: ignore[attr-defined]  # httpx's and requests'
    except Exception:  # noqa: BLE001  # there is none, or nobody has read it
        return b""
    return content if isinstance(content, bytes) else b""


def _wrapped(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that requests and urllib3 put inside of it."""
    each: Any = exc
    for _ in range(_CAUSES_MAX):
        yield each
        reason = getattr(each, "reason", None)
        inner = reason if isinstance(reason, BaseException) else next(iter(each.args), None)
        if not isinstance(inner, BaseException):
            return
        each = inner
