"""Hooks botocore: ``URLLib3Session.send``, for Amazon Bedrock."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from guard.instrumentation import patching
from guard.instrumentation.interruptible import llm_request, other_request
from guard.instrumentation.prepared_request import begin
from guard.instrumentation.tool_watch import check_answer
from guard.instrumentation.urllib3 import observe


def patch(module: ModuleType) -> None:
    """Hook the HTTP session of ``botocore.httpsession``."""
    patching.replace(module.URLLib3Session, "send", _send)


def _send(original: Any) -> Any:
    @functools.wraps(original)
    def send(self: Any, request: Any) -> Any:
        call = begin(request)
        if call is None:
            return other_request(original, self, request)
        if call.uncovered:
            call.ask()
        call.watched = call.endpoint.asks and patching.is_seen("http.client")
        call.in_memory = call.watched
        with call.sending():
            response = llm_request(original, self, request)
        header = response.headers.get
        if not request.stream_output:
            call.whole(response.status_code, header, response.content)
            check_answer(call)
        elif call.streaming(response.status_code, header):
            observe(call, response.raw)
        return response

    return send
