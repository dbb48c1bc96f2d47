"""Hooks httpcore and httpcore2: each body takes its hold as it leaves, by HTTP/1.1 and HTTP/2.

Requests of programs that use httpcore itself, or of a client whose hook was taken out, are checked
and observed at the pool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final
from urllib.parse import unquote

from guard.core.usage.decoding import plain_body
from guard.instrumentation import own_proxy, patching
from guard.instrumentation.interruptible import llm_request, llm_request_async
from guard.instrumentation.observed_call import ObservedCall, call_being_sent, is_signed
from guard.instrumentation.sending import Sending
from guard.instrumentation.stream_tee import AsyncTee, SyncTee
from guard.scope.scope import OWN_TRAFFIC

_UNSERVED: Final = 421
"""The status by which a server says the same of a request over HTTP/1.1: it is sent again, free."""

_MakeBody = Callable[[bytes], Any]


def patch(module: ModuleType) -> None:
    """Hook the connections and pools of ``httpcore`` or ``httpcore2``.

    Raises:
        AttributeError: this version sends bodies by another method.
    """
    for name in ("HTTP11Connection", "HTTP2Connection"):
        blocking, waiting = getattr(module, name), getattr(module, f"Async{name}")
        # Without h2 the second one is an empty class.
        if name == "HTTP11Connection" or hasattr(blocking, "handle_request"):
            _ = blocking._send_request_body, waiting._send_request_body
        patching.replace(blocking, "_send_request_body", _send_body)
        patching.replace(waiting, "_send_request_body", _send_body_async)
    unserved = module.ConnectionNotAvailable
    patching.replace(
        module.HTTP2Connection, "handle_request", lambda handle: _try(handle, unserved)
    )
    patching.replace(
        module.AsyncHTTP2Connection,
        "handle_async_request",
        lambda handle: _try_async(handle, unserved),
    )

    def body(content: bytes) -> Any:
        return module.Request("POST", "http://localhost/", content=content).stream

    patching.replace(module.ConnectionPool, "handle_request", lambda handle: _handle(handle, body))
    patching.replace(
        module.AsyncConnectionPool,
        "handle_async_request",
        lambda handle: _handle_async(handle, body),
    )


def _send_body(original: Any) -> Any:
    @functools.wraps(original)
    def send_request_body(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        call = call_being_sent()
        if call is None:
            _name_unpooled(request)
        elif _is_of(call, request):
            call.takes()
        return original(self, request, *args, **options)

    return send_request_body


def _send_body_async(original: Any) -> Any:
    @functools.wraps(original)
    async def send_request_body(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        call = call_being_sent()
        if call is None:
            _name_unpooled(request)
        elif _is_of(call, request):
            await call.takes_async()
        return await original(self, request, *args, **options)

    return send_request_body


def _try(original: Any, unserved: type[Exception]) -> Any:
    """Note a body that a server says it has not looked at, as it ends a connection of HTTP/2."""

    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        try:
            return original(self, request)
        except unserved:
            _note_unserved()
            raise

    return handle_request


def _try_async(original: Any, unserved: type[Exception]) -> Any:
    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        try:
            return await original(self, request)
        except unserved:
            _note_unserved()
            raise

    return handle_async_request


def _note_unserved() -> None:
    call = call_being_sent()
    if call is not None:
        call.is_tried(_UNSERVED)


def _name_unpooled(request: Any) -> None:
    """Report an LLM request of a connection without a pool: pools are what is observed.

    Raises:
        Refusal: such requests are refused here.
    """
    url = request.url
    if not request.extensions.get(OWN_TRAFFIC):
        why = "it is sent by a connection of httpcore's without a pool"
        patching.name_unhooked(
            request.method.decode(), url.host.decode(), url.port, _path(url), why
        )


def _is_of(call: ObservedCall, request: Any) -> bool:
    url = request.url
    return call.sends(request.method.decode(), url.host.decode(), _path(url), _content(request))


def _path(url: Any) -> str:
    return unquote(url.target.partition(b"?")[0].decode("latin-1"))


def _content(request: Any) -> bytes | None:
    """Return the body; None when it cannot be read without consuming it."""
    stream = request.stream
    for name in ("_stream", "_content"):  # httpx's and httpcore's
        found = getattr(stream, name, None)
        if isinstance(found, bytes):
            return found
    return None


def _handle(original: Any, body: _MakeBody) -> Any:
    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        sent = call_being_sent()
        call = _begin(request, body) if sent is None else None
        if call is None:
            _watch(sent)
            response = original(self, request)
            if sent is not None:
                sent.is_tried(response.status)
            return response
        patching.rehook()  # puts an upper hook back, for the next request
        if call.uncovered:
            call.ask()
        with Sending(call):
            call.watched = call.in_memory = call.endpoint.asks
            response = llm_request(original, self, request)
            call.is_tried(response.status)
        _observe(call, response, SyncTee)
        return response

    return handle_request


def _handle_async(original: Any, body: _MakeBody) -> Any:
    """Like :func:`_handle`."""

    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        sent = call_being_sent()
        call = _begin(request, body) if sent is None else None
        if call is None:
            _watch(sent)
            response = await original(self, request)
            if sent is not None:
                sent.is_tried(response.status)
            return response
        patching.rehook()
        if call.uncovered:
            await call.ask_async()
        with Sending(call):
            call.watched = call.in_memory = call.endpoint.asks
            response = await llm_request_async(original, self, request)
            call.is_tried(response.status)
        _observe(call, response, AsyncTee)
        return response

    return handle_async_request


def _watch(sent: ObservedCall | None) -> None:
    """Note that a call's bodies are seen as they leave, whichever transport is above."""
    if sent is not None and sent.endpoint.asks:
        sent.watched = True


def _begin(request: Any, body: _MakeBody) -> ObservedCall | None:
    observer = patching.active()
    if observer is None or request.extensions.get(OWN_TRAFFIC):
        return None
    url = request.url
    host = url.host.decode()
    if own_proxy.known is not None and own_proxy.is_at(host, url.port):
        return None
    return observer.begin(
        request.method.decode(),
        host,
        _path(url),
        lambda: plain_body(_content(request) or b"", _headers(request).get("content-encoding")),
        lambda content: _replace(request, content, body),
        lambda: _headers(request),
    )


def _headers(answer: Any) -> dict[str, str]:
    return {name.decode().lower(): value.decode("latin-1") for name, value in answer.headers}


def _replace(request: Any, content: bytes, body: _MakeBody) -> bool:
    headers = _headers(request)
    if is_signed(headers) or "content-encoding" in headers:
        return False
    request.stream = body(content)
    size = str(len(content)).encode()
    request.headers = [
        (name, size if name.lower() == b"content-length" else value)
        for name, value in request.headers
    ]
    return True


def _observe(call: ObservedCall, response: Any, tee: Any) -> None:
    if call.streaming(response.status, _headers(response).get):
        recording = call.recording
        if recording is not None:  # None if `close` has abandoned the call since
            response.stream = tee(response.stream, call, recording)
