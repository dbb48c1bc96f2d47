"""Hooks requests: ``HTTPAdapter.send``."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from guard.core.usage.decoding import plain_body
from guard.instrumentation import own_proxy, patching
from guard.instrumentation.interruptible import llm_request, other_request
from guard.instrumentation.observed_call import ObservedCall, is_signed
from guard.instrumentation.urllib3 import observe, watch_connections


def patch(module: ModuleType) -> None:
    """Hook the adapter of ``requests``, and so every session."""
    watch_connections()
    patching.replace(module.adapters.HTTPAdapter, "send", _send)


def _send(original: Any) -> Any:
    @functools.wraps(original)
    def send(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        call = begin(request)
        if call is None:
            return other_request(original, self, request, *args, **options)
        if call.uncovered:
            call.ask()
        # The same steps as in `httpx._sync_send`. The adapter returns refusals as
        # answers, so no exception is looked at.
        encoding = request.headers.get("Accept-Encoding")
        with call.sending():
            _ask_for_usage(call, request)
            response = llm_request(original, self, request, *args, **options)
            while call.is_doubted(response.status_code):
                body = call.unchanged(response.content)  # read whole: its connection is free
                if body is None:
                    break
                _replace(request, body)
                _set_encoding(request, encoding)
                response = llm_request(original, self, request, *args, **options)
        # Always a stream: the session reads the body later, also for a caller that wants it whole.
        if call.streaming(response.status_code, response.headers.get):
            observe(call, response.raw)
        return response

    return send


def _ask_for_usage(call: ObservedCall, request: Any) -> None:
    """Have a stream report its usage."""
    body = call.asking_for_usage()
    if body is None:
        return
    if _replace(request, body):
        _set_encoding(request, "identity")  # the added chunk has to be found in the stream
    else:
        call.filter = None


def _set_encoding(request: Any, encoding: str | None) -> None:
    request.headers.pop("Accept-Encoding", None)
    if encoding is not None:
        request.headers["Accept-Encoding"] = encoding


def begin(request: Any) -> ObservedCall | None:
    """Check a prepared request of requests or botocore and start observing it."""
    observer = patching.active()
    if observer is None:
        return None
    try:
        parts = urlsplit(request.url)
        method, host, path = request.method.upper(), parts.hostname or "", unquote(parts.path)
        if own_proxy.is_at(host, parts.port):
            return None
    except (AttributeError, TypeError, ValueError):
        return None
    return observer.begin(
        method, host, path, lambda: _body(request), lambda body: _replace(request, body)
    )


def _replace(request: Any, body: bytes) -> bool:
    if is_signed(request.headers) or request.headers.get("Content-Encoding"):
        return False
    request.body = body
    request.headers["Content-Length"] = str(len(body))
    return True


def _body(request: Any) -> bytes:
    body = request.body
    if isinstance(body, str):
        return body.encode()
    if not isinstance(body, bytes | bytearray):
        return b""
    return plain_body(bytes(body), request.headers.get("Content-Encoding"))
