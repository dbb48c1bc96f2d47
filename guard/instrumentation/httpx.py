"""Hooks httpx and httpx2: ``Client.send`` and ``AsyncClient.send``, a tee on the stream.

One implementation serves both modules. The client keeps its own response object; only the byte
stream under it is wrapped. A chunk is checked for refused tools and recorded, then the reader gets
it.

Each body takes its hold in httpcore below. If other code has taken the upper hook out, the request
is checked and observed there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from guard.breaker.exceptions import GuardBlockedException
from guard.core.usage.decoding import plain_body
from guard.core.usage.request_body import form_as_json
from guard.instrumentation import own_proxy, patching
from guard.instrumentation.interruptible import (
    llm_request,
    llm_request_async,
    other_request,
    other_request_async,
)
from guard.instrumentation.observed_call import ObservedCall, is_signed
from guard.instrumentation.sending import Sending, answer_of, status_of
from guard.instrumentation.stream_tee import AsyncTee, SyncTee
from guard.instrumentation.tool_watch import check_answer, check_answer_async
from guard.instrumentation.unseen import BY_PATH
from guard.scope.scope import OWN_TRAFFIC

_ENCODING: Final = "guard_accept_encoding"
"""Extension of a request that keeps its own ``accept-encoding`` while it asks for usage."""


def patch(module: ModuleType) -> None:
    """Hook both clients of ``httpx`` or ``httpx2``."""
    # httpx looks whether a stream is one of its own.
    sync_tee = type("SyncTee", (SyncTee, module.SyncByteStream), {})
    async_tee = type("AsyncTee", (AsyncTee, module.AsyncByteStream), {})
    outgoing = Outgoing(module)
    patching.replace(module.Client, "send", lambda send: _sync_send(send, sync_tee, outgoing))
    patching.replace(
        module.AsyncClient, "send", lambda send: _async_send(send, async_tee, outgoing)
    )


class Outgoing:
    """Replaces the bodies of a module's requests, and knows its transports.

    Stateless after its creation, so all threads share one object.

    Args:
        module: ``httpx`` or ``httpx2``.
    """

    def __init__(self, module: ModuleType) -> None:
        self._body: Any = module.ByteStream
        self._response: Any = module.Response
        # They send by httpcore, which is hooked.
        self._transports = module.HTTPTransport, module.AsyncHTTPTransport
        self._core = "httpcore" + module.__name__.removeprefix("httpx")
        self._roots = module.__name__, "respx"

    def replace(self, request: Any, body: bytes) -> bool:
        """Give a request another body; return whether that was possible."""
        if is_signed(request.headers) or "content-encoding" in request.headers:
            return False
        # Both: `request.content` returns the first, the transport sends the second.
        request._content = body
        request.stream = self._body(body)
        request.headers["content-length"] = str(len(body))
        return True

    def refused(self, request: Any, error: GuardBlockedException) -> Any:
        """Return the answer to a request for a path that is not known, as vendors refuse it.

        Their clients raise it at once, without another try, and go on.

        Raises:
            GuardBlockedException: the refusal is another one.
        """
        if error.action != BY_PATH:
            raise error
        about = {"type": "invalid_request_error", "code": error.error_code, "param": None,
                 "status": "FAILED_PRECONDITION", "message": f"guard: {error.reason}"}  # fmt: skip
        return self._response(400, json={"type": "error", "error": about}, request=request)

    def watch(self, call: ObservedCall, client: Any, request: Any) -> None:
        """Note whether a body of this request can leave unseen, by the client's transport."""
        find = getattr(client, "_transport_for_url", None)
        if find is None or not call.endpoint.asks:
            return
        transport = find(request.url)
        # A subclass may answer by itself, and by what it likes.
        call.in_memory = type(transport).__module__.partition(".")[0] in self._roots
        call.watched = call.in_memory or isinstance(transport, self._transports)
        if not patching.is_seen(self._core):
            call.in_memory = call.watched = False


def _sync_send(original: Any, tee: Any, outgoing: Outgoing) -> Any:
    @functools.wraps(original)
    def send(self: Any, request: Any, **options: Any) -> Any:
        # 1. Check and cover the request. What raises here ends the call: nothing was sent.
        try:
            call = _begin(request, outgoing)
        except GuardBlockedException as exc:
            return outgoing.refused(request, exc)
        if call is None:
            return other_request(original, self, request, **options)
        if call.uncovered:
            call.ask()
        # `Sending` ends the call when anything in it raises.
        with Sending(call):
            # 2. Change it. After the cover, which may have put a limit into the body.
            _make_ready(call, self, request, outgoing)
            # 3. Send it, and once more if the vendor refuses what was changed. The user's event
            #    hooks may turn a refusal into an exception, so both ways lead to `_change_back`.
            while True:
                try:
                    response = llm_request(original, self, request, **options)
                except Exception as exc:
                    if not call.is_doubted(status_of(exc)):
                        raise
                    if not _change_back(call, request, answer_of(exc), outgoing):
                        raise
                    continue
                if not call.is_doubted(response.status_code):
                    break
                answer = response.read()  # to its end, so that its connection can be used again
                if not _change_back(call, request, answer, outgoing):
                    break
        # 4. Observe the answer first, then check its tools: a refused answer is billed as well.
        _observe(call, response, tee, options)
        check_answer(call)
        return response

    return send


def _async_send(original: Any, tee: Any, outgoing: Outgoing) -> Any:
    """Like :func:`_sync_send`, step by step."""

    @functools.wraps(original)
    async def send(self: Any, request: Any, **options: Any) -> Any:
        try:
            call = _begin(request, outgoing)
        except GuardBlockedException as exc:
            return outgoing.refused(request, exc)
        if call is None:
            return await other_request_async(original, self, request, **options)
        if call.uncovered:
            await call.ask_async()
        with Sending(call):
            _make_ready(call, self, request, outgoing)
            while True:
                try:
                    response = await llm_request_async(original, self, request, **options)
                except Exception as exc:
                    if not call.is_doubted(status_of(exc)):
                        raise
                    if not _change_back(call, request, answer_of(exc), outgoing):
                        raise
                    continue
                if not call.is_doubted(response.status_code):
                    break
                answer = await response.aread()
                if not _change_back(call, request, answer, outgoing):
                    break
        _observe(call, response, tee, options)
        await check_answer_async(call)
        return response

    return send


def _begin(request: Any, outgoing: Outgoing) -> ObservedCall | None:
    observer = patching.active()
    if observer is None or request.extensions.get(OWN_TRAFFIC):
        return None
    url = request.url
    if own_proxy.known is not None and own_proxy.is_at(url.host, url.port):
        return None
    return observer.begin(
        request.method,
        url.host,
        url.path,
        lambda: _body(request),
        lambda body: outgoing.replace(request, body),
        lambda: request.headers,
    )


def _make_ready(call: ObservedCall, client: Any, request: Any, outgoing: Outgoing) -> None:
    """Have a stream report its usage, and note how the request leaves."""
    body = call.asking_for_usage()
    if body is not None:
        _ask_for_usage(call, request, body, outgoing)
    outgoing.watch(call, client, request)


def _ask_for_usage(call: ObservedCall, request: Any, body: bytes, outgoing: Outgoing) -> None:
    encoding = request.headers.get("accept-encoding")
    if outgoing.replace(request, body):
        # The added chunk is removed from the stream again, so it must not be compressed.
        request.headers["accept-encoding"] = "identity"
        request.extensions = {**request.extensions, _ENCODING: encoding}
    else:
        call.filter = None


def _change_back(call: ObservedCall, request: Any, answer: bytes, outgoing: Outgoing) -> bool:
    """Undo the change that was refused; return whether to send the request once more."""
    body = call.unchanged(answer)
    if body is None:
        return False
    outgoing.replace(request, body)
    if _ENCODING in request.extensions:
        encoding = request.extensions[_ENCODING]
        if encoding is None:
            del request.headers["accept-encoding"]
        else:
            request.headers["accept-encoding"] = encoding
    return True


def _body(request: Any) -> bytes:
    """Return the body, decoded; empty when it cannot be read without consuming it."""
    try:
        content = request.content
    except Exception:  # noqa: BLE001  # httpx's RequestNotRead: a streamed upload
        return _form(request)
    if not isinstance(content, bytes):
        return b""
    return plain_body(content, request.headers.get("content-encoding"))


def _form(request: Any) -> bytes:
    fields = getattr(request.stream, "fields", ())
    texts = [(each.name, getattr(each, "value", None)) for each in fields]
    return form_as_json((name, text) for name, text in texts if isinstance(text, str))


def _observe(call: ObservedCall, response: Any, tee: Any, options: dict[str, Any]) -> None:
    header, status = _reader(response.headers), response.status_code
    # 1. httpx has read the answer already, because its caller asked for no stream.
    if not options.get("stream"):
        call.whole(status, header, response.content)
        hide = call.filter
        if hide is not None and not header("content-encoding"):  # a stream, read at once
            response._content = hide.feed(response.content) + hide.rest()
    # 2. The user's event hook has read it.
    elif response.is_stream_consumed:
        content = getattr(response, "_content", None)
        if content is not None:
            call.whole(status, header, content)
    # 3. Its caller is going to read it.
    elif call.streaming(status, header):
        recording = call.recording
        if recording is not None:  # None if `close` has abandoned the call since
            response.stream = tee(response.stream, call, recording)


def _reader(headers: Any) -> Callable[[str], str | None]:
    """Return a function that reads response headers.

    Looks all of them up once: httpx's ``get`` goes through the whole list at each call.
    """
    found: dict[bytes, bytes] = {}

    def header(name: str) -> str | None:
        if not found:
            for raw, value in headers.raw:
                key = raw.lower()
                found[key] = found[key] + b", " + value if key in found else value
        value = found.get(name.encode())
        return None if value is None else value.decode("latin-1")

    return header
