"""The seam of httpx and httpx2: ``Client.send`` and ``AsyncClient.send``, a tee on the stream.

One implementation serves both modules. The response object stays the client's own; only the byte
stream under it is wrapped, and every chunk is handed on before anything else happens to it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any, Final

import wrapt

from guard.instrumentation.observer import Exchange, Instrumentation
from guard.scope import OWN_TRAFFIC

_MODULES: Final = ("httpx", "httpx2")
_ORIGINAL: Final = "__guard_original__"

_active: Instrumentation | None = None
_hooked: set[str] = set()


def install(instrumentation: Instrumentation) -> None:
    """Observe clients of both modules, also those made before; again changes nothing."""
    global _active
    _active = instrumentation
    for name in _MODULES:
        if name in sys.modules:
            _patch(sys.modules[name])
        elif name not in _hooked:
            _hooked.add(name)
            wrapt.register_post_import_hook(_imported, name)


def uninstall(instrumentation: Instrumentation) -> None:
    """Restore both modules if ``instrumentation`` is the one that observes them."""
    global _active
    if _active is not instrumentation:
        return
    _active = None
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None:
            for kind in (module.Client, module.AsyncClient):
                original = getattr(kind.send, _ORIGINAL, None)
                if original is not None:
                    kind.send = original


def _imported(module: ModuleType) -> None:
    if _active is not None:
        _patch(module)


def _patch(module: ModuleType) -> None:
    if hasattr(module.Client.send, _ORIGINAL):  # also when httpx2 has been aliased as httpx
        return
    sync_tee, async_tee = _tees(module)
    module.Client.send = _sync_send(module.Client.send, sync_tee)
    module.AsyncClient.send = _async_send(module.AsyncClient.send, async_tee)


def _sync_send(original: Any, tee: Any) -> Any:
    @functools.wraps(original)
    def send(self: Any, request: Any, **options: Any) -> Any:
        exchange = _begin(request)
        if exchange is None:
            return original(self, request, **options)
        response = original(self, request, **options)
        return _observe(exchange, response, tee, bool(options.get("stream")))

    setattr(send, _ORIGINAL, original)
    return send


def _async_send(original: Any, tee: Any) -> Any:
    @functools.wraps(original)
    async def send(self: Any, request: Any, **options: Any) -> Any:
        exchange = _begin(request)
        if exchange is None:
            return await original(self, request, **options)
        response = await original(self, request, **options)
        return _observe(exchange, response, tee, bool(options.get("stream")))

    setattr(send, _ORIGINAL, original)
    return send


def _begin(request: Any) -> Exchange | None:
    instrumentation = _active
    if instrumentation is None or request.extensions.get(OWN_TRAFFIC):
        return None
    url = request.url
    return instrumentation.begin(url.host, url.path, lambda: _body(request))


def _body(request: Any) -> bytes:
    try:
        content = request.content
    except Exception:  # noqa: BLE001  # a streamed upload was not kept, and that is fine
        return b""
    return content if isinstance(content, bytes) else b""


def _observe(exchange: Exchange, response: Any, tee: Any, streamed: bool) -> Any:
    if not streamed:
        exchange.whole(response.status_code, response.content)
    elif exchange.streaming(
        response.status_code,
        response.headers.get("content-type", ""),
        response.headers.get("content-encoding", ""),
    ):
        if response.is_stream_consumed:  # an event hook of the user has read it already
            exchange.whole(response.status_code, response.content)
        else:
            response.stream = tee(response.stream, exchange)
    return response


def _tees(module: ModuleType) -> tuple[type[Any], type[Any]]:
    """Make the stream wrappers as subclasses of the module's own stream classes."""
    sync_base: Any = module.SyncByteStream
    async_base: Any = module.AsyncByteStream

    class SyncTee(sync_base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self, stream: Any, exchange: Exchange) -> None:
            self._stream = stream
            self._exchange = exchange

        def __iter__(self) -> Iterator[bytes]:
            feed = self._exchange.feed
            try:
                for chunk in self._stream:
                    feed(chunk)
                    yield chunk
            finally:
                self._exchange.finish()

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._exchange.finish()

    class AsyncTee(async_base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self, stream: Any, exchange: Exchange) -> None:
            self._stream = stream
            self._exchange = exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            feed = self._exchange.feed
            try:
                async for chunk in self._stream:
                    feed(chunk)
                    yield chunk
            finally:
                self._exchange.finish()

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._exchange.finish()

    return SyncTee, AsyncTee
