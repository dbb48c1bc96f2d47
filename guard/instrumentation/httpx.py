"""Hooks httpx and httpx2: ``Client.send`` and ``AsyncClient.send``, a tee on the stream.

One implementation serves both modules. The client keeps its own response object; only the byte
stream under it is wrapped. A chunk is checked for refused tools and recorded, then the reader gets
it.

The transports below are hooked too. They count each try that a client makes by itself, and each
redirect. If other code has taken the upper hook out, the request is checked and observed there.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any, Final

from guard.breaker.exceptions import GuardBlockedException
from guard.core.usage import Recording, find_endpoint
from guard.core.usage.decoding import plain_body
from guard.core.usage.ends import Ending
from guard.core.usage.recording import PENDING_BYTES
from guard.core.usage.request_body import form_as_json
from guard.instrumentation import own_proxy, patching
from guard.instrumentation.interruptible import (
    chunks_of,
    chunks_of_async,
    llm_request,
    llm_request_async,
    other_request,
    other_request_async,
)
from guard.instrumentation.observed_call import ObservedCall, call_being_sent, is_signed
from guard.instrumentation.sending import Sending, answer_of, status_of
from guard.instrumentation.tool_watch import (
    check_answer,
    check_answer_async,
    checked,
    checked_async,
)
from guard.instrumentation.unseen import BY_PATH
from guard.scope.scope import OWN_TRAFFIC

_ENCODING: Final = "guard_accept_encoding"
"""Extension of a request that keeps its own ``accept-encoding`` while it asks for usage."""


def patch(module: ModuleType) -> None:
    """Hook both clients of ``httpx`` or ``httpx2``."""
    sync_tee, async_tee = _tees(module)
    outgoing = Outgoing(module)
    patching.replace(module.Client, "send", lambda send: _sync_send(send, sync_tee, outgoing))
    patching.replace(
        module.AsyncClient, "send", lambda send: _async_send(send, async_tee, outgoing)
    )
    patching.replace(
        module.HTTPTransport, "handle_request", lambda handle: _handle(handle, sync_tee, outgoing)
    )
    patching.replace(
        module.AsyncHTTPTransport,
        "handle_async_request",
        lambda handle: _handle_async(handle, async_tee, outgoing),
    )


class Outgoing:
    """Replaces the bodies of a module's requests, and reports when a request leaves.

    Stateless after its creation, so all threads share one object.

    Args:
        module: ``httpx`` or ``httpx2``.
    """

    def __init__(self, module: ModuleType) -> None:
        self._body: Any = _body_class(module)
        # The streams whose bytes are in memory: they can be sent again, and replaced.
        self._bytes = module.ByteStream, self._body
        self._response: Any = module.Response
        # The transports that read a body only once they have a connection.
        self._transports = module.HTTPTransport, module.AsyncHTTPTransport

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
        """Have a call's ``unsent`` set when its request leaves, if httpx sends it itself."""
        if type(request.stream) not in self._bytes:
            return  # a stream of the caller's own may be read before there is a connection
        request.stream = self._body(request.content)
        find = getattr(client, "_transport_for_url", None)
        if find is not None and isinstance(find(request.url), self._transports):
            call.unsent = True  # other transports may send it without reading the stream

    def watches(self, request: Any) -> bool:
        """Return whether the request's body shows when it leaves."""
        return type(request.stream) is self._body

    def tries_again(self, call: ObservedCall, request: Any) -> None:
        """Note that another try begins.

        After a redirect ``unsent`` stays false: the request before it was sent, and a failure of
        the next one does not undo that.
        """
        if not call.tried or call.tried >= 400:
            call.unsent = True if self.watches(request) else None


def _body_class(module: ModuleType) -> type[Any]:
    base: Any = module.ByteStream

    class ObservedBody(base):  # type: ignore[misc]  # the base is known at run time only
        """A body whose first read shows that its request leaves: there is a connection then."""

        def __iter__(self) -> Iterator[bytes]:
            call = call_being_sent()
            if call is not None:
                call.leaves()
                call.unsent = False
            return iter(super().__iter__())

        async def __aiter__(self) -> AsyncIterator[bytes]:
            call = call_being_sent()
            if call is not None:
                await call.leaves_async()
                call.unsent = False
            async for part in super().__aiter__():
                yield part

    return ObservedBody


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
                    if not _change_back(call, self, request, answer_of(exc), outgoing):
                        raise
                    continue
                if not call.is_doubted(response.status_code):
                    break
                answer = response.read()  # to its end, so that its connection can be used again
                if not _change_back(call, self, request, answer, outgoing):
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
                    if not _change_back(call, self, request, answer_of(exc), outgoing):
                        raise
                    continue
                if not call.is_doubted(response.status_code):
                    break
                answer = await response.aread()
                if not _change_back(call, self, request, answer, outgoing):
                    break
        _observe(call, response, tee, options)
        await check_answer_async(call)
        return response

    return send


def _handle(original: Any, tee: Any, outgoing: Outgoing) -> Any:
    """Cover each try of one ``send``: every one is a request to the vendor."""

    # The same steps as in `send`, for a request whose upper hook was taken out. `stream` is not
    # a transport's option: it makes `_observe` wrap the stream and not read the whole answer.
    def bare(self: Any, request: Any, stream: bool) -> Any:
        return original(self, request)

    guarded = _sync_send(bare, tee, outgoing)

    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        call = call_being_sent()
        # 1. No hook above has seen the request.
        if call is None:
            if _is_covered(request):
                return original(self, request)
            patching.rehook()  # puts the upper hook back, for the next request
            return guarded(self, request, stream=True)
        # 2. Another try, or a redirect: the last one may be billed, this one needs its own cover.
        if call.tried is not None:
            if call.has_lost_a_try:
                call.retry()
            outgoing.tries_again(call, request)
        if not outgoing.watches(request):
            call.leaves()
        # 3. Every try. If it raises, `tried` stays 0: a try whose answer is lost.
        call.tried = 0
        response = original(self, request)
        call.tried = response.status_code
        return response

    return handle_request


def _handle_async(original: Any, tee: Any, outgoing: Outgoing) -> Any:
    """Like :func:`_handle`."""

    async def bare(self: Any, request: Any, stream: bool) -> Any:
        return await original(self, request)

    guarded = _async_send(bare, tee, outgoing)

    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        call = call_being_sent()
        if call is None:
            if _is_covered(request):
                return await original(self, request)
            patching.rehook()
            return await guarded(self, request, stream=True)
        if call.tried is not None:
            if call.has_lost_a_try:
                await call.retry_async()
            outgoing.tries_again(call, request)
        if not outgoing.watches(request):
            await call.leaves_async()
        call.tried = 0
        response = await original(self, request)
        call.tried = response.status_code
        return response

    return handle_async_request


def _is_covered(request: Any) -> bool:
    """Return whether a request that no hook above has seen needs no cover at its transport."""
    if patching.active() is None or request.extensions.get(OWN_TRAFFIC):
        return True
    return find_endpoint(request.method, request.url.host, request.url.path) is None


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
    )


def _make_ready(call: ObservedCall, client: Any, request: Any, outgoing: Outgoing) -> None:
    """Have a stream report its usage, and watch when the request leaves.

    In this order: what is watched is the final body.
    """
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


def _change_back(
    call: ObservedCall, client: Any, request: Any, answer: bytes, outgoing: Outgoing
) -> bool:
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
    outgoing.watch(call, client, request)
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


def _tees(module: ModuleType) -> tuple[type[Any], type[Any]]:
    """Create the stream wrappers as subclasses of the module's own stream classes."""
    sync_base: Any = module.SyncByteStream
    async_base: Any = module.AsyncByteStream

    class SyncTee(sync_base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self, stream: Any, call: ObservedCall, recording: Recording) -> None:
            self._stream = stream
            self._call = call
            self._recording = recording

        def __iter__(self) -> Iterator[bytes]:
            call, recording = self._call, self._recording
            hide = call.filter
            chunks = checked(chunks_of(self._stream), call)
            pend, room = recording.pending.append, PENDING_BYTES
            call.is_read_here()  # this runs with the first read, in the reader's own context
            try:
                # 1. The common case, without a function call for each chunk: this is
                #    `call.feed` and `recording.feed` written out.
                if hide is None and call.watch is None:
                    for chunk in chunks:
                        pend(chunk)
                        room -= len(chunk)
                        if room < 0:
                            recording.settle()
                            room = PENDING_BYTES
                        yield chunk
                    call.finish(Ending.COMPLETE)
                    return
                # 2. The usage chunk is hidden, or the stream may outgrow its cover.
                for chunk in chunks:
                    call.feed(chunk)
                    if shown := chunk if hide is None else hide.feed(chunk):
                        yield shown
                if hide is not None and (shown := hide.rest()):
                    yield shown
                call.finish(Ending.COMPLETE)
            # A transport's error is an `Exception`. Kills, refusals, cancellation and the
            # `GeneratorExit` of a reader that leaves early are not: then the stream was closed
            # here. Only the first `finish` counts.
            except Exception:
                call.finish(Ending.LOST)
                raise
            finally:
                call.finish(Ending.CLOSED)

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._call.finish(Ending.CLOSED)

        def __del__(self) -> None:  # dropped without being closed
            self._call.finish(Ending.CLOSED)

    # The same, step by step, for asynchronous streams.
    class AsyncTee(async_base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self, stream: Any, call: ObservedCall, recording: Recording) -> None:
            self._stream = stream
            self._call = call
            self._recording = recording

        async def __aiter__(self) -> AsyncIterator[bytes]:
            call, recording = self._call, self._recording
            hide = call.filter
            chunks = checked_async(chunks_of_async(self._stream), call)
            pend, room = recording.pending.append, PENDING_BYTES
            call.is_read_here()  # this runs with the first read, in the reader's own context
            try:
                if hide is None and call.watch is None:
                    async for chunk in chunks:
                        pend(chunk)
                        room -= len(chunk)
                        if room < 0:
                            recording.settle()
                            room = PENDING_BYTES
                        yield chunk
                    call.finish(Ending.COMPLETE)
                    return
                async for chunk in chunks:
                    call.feed(chunk)
                    if shown := chunk if hide is None else hide.feed(chunk):
                        yield shown
                if hide is not None and (shown := hide.rest()):
                    yield shown
                call.finish(Ending.COMPLETE)
            except Exception:
                call.finish(Ending.LOST)
                raise
            finally:
                call.finish(Ending.CLOSED)

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._call.finish(Ending.CLOSED)

        def __del__(self) -> None:  # dropped without being closed
            self._call.finish(Ending.CLOSED)

    return SyncTee, AsyncTee
