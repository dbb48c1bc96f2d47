"""Hooks httpx and httpx2: ``Client.send`` and ``AsyncClient.send``, a tee on the stream.

One implementation serves both modules. The client keeps its own response object; only the byte
stream under it is wrapped, and every chunk is handed on before anything else happens to it.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import msgspec

from guard.core.usage import Recording
from guard.core.usage.recording import PENDING_BYTES
from guard.instrumentation import patching
from guard.instrumentation.include_usage import UsageChunkFilter, asking_for_usage
from guard.instrumentation.interruptible import (
    chunks_of,
    chunks_of_async,
    llm_request,
    llm_request_async,
    other_request,
    other_request_async,
)
from guard.instrumentation.observed_call import ObservedCall
from guard.instrumentation.observer import Observer
from guard.scope.scope import OWN_TRAFFIC


def patch(module: ModuleType) -> None:
    """Hook both clients of ``httpx`` or ``httpx2``."""
    sync_tee, async_tee = _tees(module)
    stream = module.ByteStream
    patching.replace(module.Client, "send", lambda send: _sync_send(send, sync_tee, stream))
    patching.replace(module.AsyncClient, "send", lambda send: _async_send(send, async_tee, stream))


def _sync_send(original: Any, tee: Any, byte_stream: Any) -> Any:
    @functools.wraps(original)
    def send(self: Any, request: Any, **options: Any) -> Any:
        call = _begin(request, byte_stream)
        if call is None:
            return other_request(original, self, request, **options)
        with call.sending():
            response = llm_request(original, self, request, **options)
        return _observe(call, response, tee, options)

    return send


def _async_send(original: Any, tee: Any, byte_stream: Any) -> Any:
    @functools.wraps(original)
    async def send(self: Any, request: Any, **options: Any) -> Any:
        call = _begin(request, byte_stream)
        if call is None:
            return await other_request_async(original, self, request, **options)
        with call.sending():
            response = await llm_request_async(original, self, request, **options)
        return _observe(call, response, tee, options)

    return send


def _begin(request: Any, byte_stream: Any) -> ObservedCall | None:
    observer = patching.active()
    if observer is None or request.extensions.get(OWN_TRAFFIC):
        return None
    url = request.url
    call = observer.begin(request.method, url.host, url.path, lambda: _body(request))
    if call is not None and call.endpoint.injectable:
        _ask_for_usage(observer, call, request, byte_stream)
    return call


def _ask_for_usage(observer: Observer, call: ObservedCall, request: Any, byte_stream: Any) -> None:
    if not observer.inject_stream_usage:
        return
    body = asking_for_usage(_body(request))
    if body is not None:
        request._content = body
        request.stream = byte_stream(body)
        request.headers["content-length"] = str(len(body))
        # The added chunk must be removed again, so the stream must not be compressed.
        request.headers["accept-encoding"] = "identity"
        call.filter = UsageChunkFilter()


def _body(request: Any) -> bytes:
    try:
        content = request.content
    except Exception:  # noqa: BLE001  # a streamed upload is not kept, which is fine
        return _form(request)
    return content if isinstance(content, bytes) else b""


def _form(request: Any) -> bytes:
    """Return the text fields of a multipart form as JSON, for the model's name."""
    fields = {
        field.name: field.value
        for field in getattr(request.stream, "fields", ())
        if isinstance(getattr(field, "value", None), str)
    }
    return msgspec.json.encode(fields) if fields else b""


def _observe(call: ObservedCall, response: Any, tee: Any, options: dict[str, Any]) -> Any:
    headers, status = response.headers, response.status_code
    if not options.get("stream"):
        call.whole(status, headers.get, response.content)
    elif response.is_stream_consumed:  # the user's event hook has already read it
        content = getattr(response, "_content", None)
        if content is not None:
            call.whole(status, headers.get, content)
    elif call.streaming(status, headers.get):
        response.stream = tee(response.stream, call, call.recording)
    return response


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
            recording, hide = self._recording, self._call.filter
            chunks = chunks_of(self._stream)
            pend, room = recording.pending.append, PENDING_BYTES
            try:
                if hide is None:
                    for chunk in chunks:
                        pend(chunk)
                        room -= len(chunk)
                        if room < 0:
                            recording.settle()
                            room = PENDING_BYTES
                        yield chunk
                    self._call.finish(complete=True)
                    return
                for chunk in chunks:
                    recording.feed(chunk)
                    if shown := hide.feed(chunk):
                        yield shown
                if shown := hide.rest():
                    yield shown
                self._call.finish(complete=True)
            finally:
                self._call.finish()

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._call.finish()

        def __del__(self) -> None:  # dropped without being closed
            self._call.finish()

    class AsyncTee(async_base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self, stream: Any, call: ObservedCall, recording: Recording) -> None:
            self._stream = stream
            self._call = call
            self._recording = recording

        async def __aiter__(self) -> AsyncIterator[bytes]:
            recording, hide = self._recording, self._call.filter
            chunks = chunks_of_async(self._stream)
            pend, room = recording.pending.append, PENDING_BYTES
            try:
                if hide is None:
                    async for chunk in chunks:
                        pend(chunk)
                        room -= len(chunk)
                        if room < 0:
                            recording.settle()
                            room = PENDING_BYTES
                        yield chunk
                    self._call.finish(complete=True)
                    return
                async for chunk in chunks:
                    recording.feed(chunk)
                    if shown := hide.feed(chunk):
                        yield shown
                if shown := hide.rest():
                    yield shown
                self._call.finish(complete=True)
            finally:
                self._call.finish()

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._call.finish()

        def __del__(self) -> None:  # dropped without being closed
            self._call.finish()

    return SyncTee, AsyncTee
