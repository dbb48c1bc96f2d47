"""Hooks tornado's own HTTP client: its requests are checked, and their bodies take holds.

It sends by tasks that it starts from anywhere, so the call goes with the request object.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from guard.core.usage.ends import Ending
from guard.instrumentation import patching
from guard.instrumentation.observed_call import ObservedCall, is_signed
from guard.instrumentation.prepared_request import begin

_CALL: Final = "_guard_call"
"""Where a request keeps its call; the copy for a redirect has it too."""


def patch(module: ModuleType) -> None:
    """Hook the client of ``tornado.simple_httpclient``."""
    patching.replace(module.SimpleAsyncHTTPClient, "fetch_impl", _fetch)
    patching.replace(module._HTTPConnection, "_write_body", _write_body)
    patching.replace(module._HTTPConnection, "headers_received", _headers_received)
    patching.replace(module._HTTPConnection, "data_received", _data_received)


def _fetch(original: Any) -> Any:
    @functools.wraps(original)
    def fetch_impl(self: Any, request: Any, callback: Callable[[Any], None]) -> Any:
        if _call_of(request) is not None:  # a redirect, which the connection follows
            return original(self, request, callback)
        call = begin(request.request, _replace)
        if call is None:
            return original(self, request, callback)
        call.watched = call.in_memory = call.endpoint.asks
        call.sent_s = time.monotonic()
        setattr(request.request, _CALL, call)

        def answered(response: Any) -> None:
            delattr(request.request, _CALL)  # the object may be sent again
            _end(call, response)
            callback(response)

        return original(self, request, answered)

    return fetch_impl


def _call_of(request: Any) -> ObservedCall | None:
    return getattr(request.request, _CALL, None)


def _replace(request: Any, body: bytes) -> bool:
    if is_signed(request.headers) or "Content-Encoding" in request.headers:
        return False
    if request.body is None or "Content-Length" in request.headers:
        return False
    request.body = body
    return True


def _end(call: ObservedCall, response: Any) -> None:
    if response.code == 599:  # tornado's own, for anything that is no answer
        call.unanswered(response.error or ConnectionError())
    elif call.recording is not None:
        call.finish(Ending.COMPLETE)
    else:
        call.whole(response.code, response.headers.get, response.body)


def _write_body(original: Any) -> Any:
    @functools.wraps(original)
    async def write_body(self: Any, *args: Any, **options: Any) -> Any:
        call = _call_of(self.request)
        sent = self.request.body, self.request.body_producer
        if call is not None and sent != (None, None):
            try:
                await call.takes_async()
            except BaseException:  # a refusal: tornado lets only an `Exception` reach the caller
                if not self._handle_exception(*sys.exc_info()):
                    raise
                return None
        return await original(self, *args, **options)

    return write_body


def _headers_received(original: Any) -> Any:
    @functools.wraps(original)
    async def headers_received(self: Any, first_line: Any, headers: Any) -> Any:
        call = _call_of(self.request)
        if call is not None and first_line.code >= 200:
            call.is_tried(first_line.code)
            if self.request.streaming_callback is not None and first_line.code < 300:
                call.streaming(first_line.code, headers.get, "")  # tornado decodes it
        return await original(self, first_line, headers)

    return headers_received


def _data_received(original: Any) -> Any:
    @functools.wraps(original)
    def data_received(self: Any, chunk: bytes) -> Any:
        call = _call_of(self.request)
        if call is not None and call.recording is not None:
            call.recording.feed(chunk)
        return original(self, chunk)

    return data_received
