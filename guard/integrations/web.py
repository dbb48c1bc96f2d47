"""WSGI and ASGI: a killed workflow ends its one request with 503, not the server's worker.

::

    from guard.integrations.web import WSGIMiddleware

    app = WSGIMiddleware(app)  # outermost

``WorkflowKilledInterrupt`` is no ``Exception``, so frameworks let it pass. Some servers then end
the worker with all other requests in it (gunicorn's ``gthread``).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.breaker.refusals import unwrap
from guard.messages import format_user_message

logger = logging.getLogger("guard")

Message = dict[str, Any]


class WSGIMiddleware:
    """Answer 503 for a request whose workflow is killed.

    A response that has begun is cut off with a ``ConnectionAbortedError``.

    Args:
        app: the application.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        try:
            body = self._app(environ, start_response)
        except BaseException as exc:  # noqa: BLE001  # raised again unless it is a kill
            return [_refuse(_killed_or_raise(exc), start_response)]
        # A whole body, or a file that the server sends itself: no code of the application runs
        # while it is sent. Returned as it is, because servers optimise these types.
        file_wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(body, list | tuple) or (
            isinstance(file_wrapper, type) and isinstance(body, file_wrapper)
        ):
            return body
        return _Body(body, start_response)


class _Body:
    """A response that the application produces while it is sent."""

    def __init__(self, body: Iterable[bytes], start_response: Callable[..., Any]) -> None:
        self._body = body
        self._start_response = start_response

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except GeneratorExit:
            raise
        except BaseException as exc:  # noqa: BLE001  # raised again unless it is a kill
            yield _refuse(_killed_or_raise(exc), self._start_response)

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


def _refuse(killed: WorkflowKilledInterrupt, start_response: Callable[..., Any]) -> bytes:
    """Start the 503 and return its body; raises if a response has been sent in part."""
    text = _text(killed)
    aborted = ConnectionAbortedError("the workflow was killed in mid-response")
    try:
        raise aborted from killed
    except ConnectionAbortedError:
        # By the WSGI specification a server whose response has begun raises the exception that it
        # gets here; else the 503 replaces what was not sent yet.
        start_response("503 Service Unavailable", _headers(text), sys.exc_info())
    return text


class ASGIMiddleware:
    """Answer 503 for a request whose workflow is killed; close a WebSocket with 1013.

    A response that has begun is left incomplete, so that the server closes its connection.

    Args:
        app: the application.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Run the application for one request."""
        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, tracked)
        except BaseException as exc:
            killed = _killed_or_raise(exc)
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1013})
            elif scope["type"] != "http":
                raise
            elif started:
                logger.warning("a response is left incomplete: %s", killed)
            else:
                text = _text(killed)
                headers = [(n.lower().encode(), v.encode()) for n, v in _headers(text)]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
                await send({"type": "http.response.body", "body": text})


def _killed_or_raise(exc: BaseException) -> WorkflowKilledInterrupt:
    """Return the kill that an exception is or holds; raise any other. Called in its handler."""
    error = unwrap(exc)
    if isinstance(error, WorkflowKilledInterrupt):
        return error
    raise  # the exception that is being handled


def _text(killed: WorkflowKilledInterrupt) -> bytes:
    return format_user_message(killed).encode() + b"\n"


def _headers(text: bytes) -> list[tuple[str, str]]:
    return [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
