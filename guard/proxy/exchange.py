"""One request and its answer, forwarded byte by byte under guard."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import httpx

from guard.asking.gate import questions_stay
from guard.breaker.exceptions import GuardError, WorkflowKilledInterrupt
from guard.breaker.refusals import Refusal, unwrap
from guard.breaker.rejection import CallerRejectedError
from guard.core.usage import Endpoint
from guard.core.usage.vendors import is_free
from guard.gateway.api.http import Scope, Send, send_whole
from guard.instrumentation import patching
from guard.instrumentation.tool_watch import on_asking
from guard.proxy.admission import RequestAdmission
from guard.proxy.callers import NoKeyError
from guard.proxy.counts import Counted
from guard.proxy.headers import Pairs, sent_back, sent_upstream, value_of
from guard.proxy.incoming import Incoming, ProgramGoneError, TooLargeError
from guard.proxy.refusals import (
    REFUSED,
    ErrorAnswer,
    dialect_of,
    keep_alive,
    told_of,
    unknown_caller,
    unreachable,
)
from guard.proxy.upstreams import Destination
from guard.scope.scope import current_scope

logger = logging.getLogger("guard.proxy")

_STREAMS: Final = (
    "text/event-stream", "application/vnd.amazon.eventstream", "application/x-ndjson",
)  # fmt: skip
_ENDS: Final = (b"\n\n", b"\r\n\r\n")

KEEP_ALIVE_S: Final = 10.0
"""How often a stream that waits for a person says that it lives; clients wait for a minute."""

_STREAMED_ARRAY: Final = ":streamGenerateContent"
"""Where Gemini streams one JSON array, if it is not asked for events."""

_WHOLE_MAX: Final = 64 << 20
"""Bytes of an answer that is checked whole before its status goes out; larger ones pass on."""

_STOPS: Final = (Refusal, GuardError, WorkflowKilledInterrupt)


class _BrokenStreamError(Exception):
    """The answer cannot be completed: the connection to the program is cut, as upstream's was."""


class Exchange:
    """One request and its answer. Runs in a task of its own.

    Args:
        client: sends upstream.
        admission: says whose it is.
        destination: where to.
        endpoint: of the model that works for it; None where none does, as far as is known.
        scope: of ASGI.
        incoming: the request.
        send: of ASGI.
        counted: takes what becomes of it.
        seen: called before a request to a model.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        admission: RequestAdmission,
        destination: Destination,
        endpoint: Endpoint | None,
        scope: Scope,
        incoming: Incoming,
        send: Send,
        counted: Counted,
        seen: Callable[[], None],
    ) -> None:
        self._client = client
        self._admission = admission
        self._destination = destination
        self._endpoint = endpoint
        self._scope = scope
        self._method: str = scope["method"]
        self._headers: Pairs = scope["headers"]
        self._incoming = incoming
        self._send = send
        self._counted = counted
        self._seen = seen
        self._dialect = dialect_of(destination.vendor, endpoint)
        # Of the request as it has arrived.
        self._length: str | None = None
        # Whether the status has gone out, and whether an event may still follow what has.
        self._started = False
        self._can_append = False
        # Whether what has gone out ends with a whole event.
        self._at_boundary = True

    async def run(self) -> None:
        """Forward it, or tell the program why not."""
        questions_stay.set(True)  # of this task, which ends with the exchange
        earlier = self._earlier_refusal()
        if earlier is not None:  # it has ended the run: nothing of it goes upstream any more
            await self._tell(told_of(unwrap(earlier)))
            return
        try:
            async with self._admission.enter(self._headers, self._destination.key):
                await self._forward()
            self._counted.answered()
        except NoKeyError:
            await self._tell(unknown_caller(named=False))
        except CallerRejectedError:
            await self._tell(unknown_caller(named=True))
        except _STOPS as exc:
            await self._tell(told_of(unwrap(exc)))
        except TooLargeError:
            await self._tell(ErrorAnswer(413, "GD-P003", "guard: the request is larger than 64 MB"))
        except ProgramGoneError:
            self._counted.left()
        except httpx.InvalidURL as exc:
            await self._tell(ErrorAnswer(REFUSED, "GD-P002", f"guard: {exc}"))
        except httpx.TransportError as exc:
            logger.info("%s: %s", self._destination.origin, type(exc).__name__)
            if self._started:
                raise _BrokenStreamError from None
            await self._tell(unreachable(self._destination.host))

    def _earlier_refusal(self) -> BaseException | None:
        entry = current_scope.get().entry
        return None if entry is None else entry.refused

    async def _forward(self) -> None:
        request = await self._request()
        response = await self._client.send(request, stream=True)
        try:
            await self._answer(request, response)
        finally:
            await response.aclose()

    # -- the request ---------------------------------------------------------------------------

    async def _request(self) -> httpx.Request:
        headers = sent_upstream(self._headers)
        content: bytes | AsyncIterator[bytes]
        if self._endpoint is not None and self._endpoint.asks:
            self._seen()
            content = await self._incoming.whole(value_of(headers, b"content-length"))
        elif self._has_body():
            if self._endpoint is None and self._method == "POST":
                self._check_unbounded()
            content = self._incoming.parts()
        else:
            content = await self._incoming.whole(None)
        request = httpx.Request(
            self._method,
            self._destination.url,
            headers=headers,
            content=content or None,
            extensions={"target": self._destination.target},
        )
        self._length = request.headers.get("content-length")
        return request

    def _has_body(self) -> bool:
        length = value_of(self._headers, b"content-length")
        return (length is not None and length != b"0") or (
            value_of(self._headers, b"transfer-encoding") is not None
        )

    def _check_unbounded(self) -> None:
        """Name a request that no model is known to answer; raise where it must not go out."""
        observer, path = patching.active(), self._destination.path
        host = self._destination.host
        if observer is not None and not self._destination.is_telemetry and not is_free(host, path):
            observer.unmetered(host, path, "its path is not known")

    # -- the answer ----------------------------------------------------------------------------

    async def _answer(self, request: httpx.Request, response: httpx.Response) -> None:
        if response.is_stream_consumed:  # guard has read it: a refusal of what was put in
            headers = sent_back(response.headers.raw, length=False, coding=False)
            await self._start(response.status_code, headers)
            await self._body(response.content, more=False)
            return
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A stream that guard asks for its usage comes without what that adds: it gets shorter.
        is_changed = request.headers.get("content-length") != self._length
        is_stream = kind in _STREAMS or self._destination.path.endswith(_STREAMED_ARRAY)
        self._can_append = kind in _STREAMS
        headers = sent_back(
            response.headers.raw, length=not (is_stream and is_changed), coding=True
        )
        chunks = aiter(response.aiter_raw())
        if self._endpoint is not None and self._endpoint.asks and not is_stream:
            await self._whole(response.status_code, headers, chunks)
            return
        await self._start(response.status_code, headers)
        with self._kept_alive():
            async for chunk in chunks:
                await self._body(chunk, more=True)
        await self._body(b"", more=False)

    @contextlib.contextmanager
    def _kept_alive(self) -> Iterator[None]:
        """While a person is asked about a tool, send what the vendor sends when it is silent."""
        pulse = keep_alive(self._dialect) if self._can_append else None
        if pulse is None:
            yield
            return
        beats: asyncio.Task[None] | None = None

        def asking(is_asked: bool) -> None:
            nonlocal beats
            if is_asked:
                beats = asyncio.create_task(self._beat(pulse))
            elif beats is not None:
                beats.cancel()

        on_asking.set(asking)  # of this task, which ends with the exchange
        try:
            yield
        finally:
            asking(False)

    async def _beat(self, pulse: bytes) -> None:
        """Send it again and again. The exchange's own task sends nothing meanwhile."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            if self._at_boundary:
                await self._body(pulse, more=True)

    async def _whole(self, status: int, headers: Pairs, chunks: AsyncIterator[bytes]) -> None:
        """Send an answer once all of it is there: a refusal can still take its place."""
        parts, size = [], 0
        async for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > _WHOLE_MAX:
                break
        await self._start(status, headers)
        await self._body(b"".join(parts), more=size > _WHOLE_MAX)
        if size > _WHOLE_MAX:
            async for chunk in chunks:
                await self._body(chunk, more=True)
            await self._body(b"", more=False)

    async def _tell(self, told: ErrorAnswer) -> None:
        """Tell the program why there is no answer, or no more of it."""
        self._counted.refused(told.code)
        if not self._started:
            headers, body = told.whole(self._dialect)
            self._counted.sent(len(body))
            # It may come before all of its request: in one write the program learns that.
            await send_whole(self._scope, self._send, told.status, headers, body)
        elif self._can_append:
            await self._body(told.event(self._dialect), more=False)
        else:
            raise _BrokenStreamError

    async def _start(self, status: int, headers: Pairs) -> None:
        self._started = True
        if any(name in (b"content-length", b"content-encoding") for name, _ in headers):
            self._can_append = False
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, body: bytes, *, more: bool) -> None:
        self._at_boundary = body.endswith(_ENDS)
        self._counted.sent(len(body))
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
