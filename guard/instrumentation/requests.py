"""Hooks requests: ``HTTPAdapter.send``."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from guard.instrumentation import patching
from guard.instrumentation.interruptible import llm_request, other_request
from guard.instrumentation.observed_call import ObservedCall
from guard.instrumentation.prepared_request import begin, replace
from guard.instrumentation.urllib3 import observe


def patch(module: ModuleType) -> None:
    """Hook the adapter of ``requests``, and so every session."""
    adapter = module.adapters.HTTPAdapter
    patching.replace(adapter, "send", lambda send: _send(send, adapter))


def _send(original: Any, adapter: Any) -> Any:
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
        call.watched = call.endpoint.asks and patching.is_seen("http.client")
        call.in_memory = call.watched and type(self) is adapter
        with call.sending():
            _ask_for_usage(call, request)
            response = llm_request(original, self, request, *args, **options)
            while call.is_doubted(response.status_code):
                body = call.unchanged(response.content)  # read whole: its connection is free
                if body is None:
                    break
                replace(request, body)
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
    if replace(request, body):
        _set_encoding(request, "identity")  # the added chunk has to be found in the stream
    else:
        call.filter = None


def _set_encoding(request: Any, encoding: str | None) -> None:
    request.headers.pop("Accept-Encoding", None)
    if encoding is not None:
        request.headers["Accept-Encoding"] = encoding
