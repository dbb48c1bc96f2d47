"""Requests as requests, botocore, urllib3 and tornado send them: with their whole body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from guard.core.usage.decoding import plain_body
from guard.instrumentation import own_proxy, patching
from guard.instrumentation.observed_call import ObservedCall, is_signed


def replace(request: Any, body: bytes) -> bool:
    """Give a request another body; return whether that was possible."""
    if is_signed(request.headers) or request.headers.get("Content-Encoding"):
        return False
    request.body = body
    request.headers["Content-Length"] = str(len(body))
    return True


def begin(request: Any, replace: Callable[[Any, bytes], bool] = replace) -> ObservedCall | None:
    """Check a request and start observing it; None when it is not an LLM call.

    Args:
        request: has ``method``, ``url``, ``headers`` and ``body``.
        replace: gives it another body; returns whether that was possible.
    """
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
        method,
        host,
        path,
        lambda: _body(request),
        lambda body: replace(request, body),
        lambda: request.headers,
    )


def _body(request: Any) -> bytes:
    body = request.body
    if isinstance(body, str):
        return body.encode()
    if not isinstance(body, bytes | bytearray):
        return b""
    return plain_body(bytes(body), request.headers.get("Content-Encoding"))
