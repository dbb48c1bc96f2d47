"""Hooks aiohttp: ``ClientSession._request``, and reads from the response's content.

The session, the response and its reader stay aiohttp's own: an observed reader changes its class
to one that reports every piece taken out of its buffer. aiohttp decodes bodies before they reach
the reader.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Awaitable
from types import ModuleType
from typing import Any, Final, TypeVar

import msgspec

from guard.core.usage.decoding import plain_body
from guard.core.usage.ends import Ending
from guard.core.usage.request_body import form_as_json
from guard.instrumentation import own_proxy, patching
from guard.instrumentation.frame_session import SESSION_ATTRIBUTE, FrameSession
from guard.instrumentation.include_usage import UsageChunkFilter
from guard.instrumentation.interruptible import llm_request_async, other_request_async
from guard.instrumentation.observed_call import ObservedCall, call_being_sent, is_signed
from guard.instrumentation.sending import answer_of, status_of
from guard.instrumentation.tool_watch import ToolWatch, check_answer_async

T = TypeVar("T")

# By the identity of their reader, which has slots and takes no other attribute. An entry is removed
# at the end of the body, or by the reader's `__del__`: an identity is never used by two at once. A
# reader belongs to one loop; each operation on the dicts is atomic, so loops in other threads do no
# harm.

_observed: Final[dict[int, ObservedCall]] = {}
"""The calls whose bodies are being read."""

_watched: Final[dict[int, ToolWatch]] = {}
"""The watches that check the tools which a body asks for."""


_hiding: Final[dict[int, UsageChunkFilter]] = {}
"""The filters that hide a part of a body."""


def patch(module: ModuleType) -> None:
    """Hook the session of ``aiohttp``."""
    reader = _observed_reader(module.StreamReader)
    patching.replace(module.ClientSession, "_request", lambda request: _request(request, reader))
    patching.replace(module.BaseConnector, "connect", _connect)
    patching.replace(module.ClientRequest, "send", _send_request)
    patching.replace(module.ClientResponse, "start", _start)
    patching.replace(module.ClientSession, "_ws_connect", _ws_connect)
    response = module.ClientWebSocketResponse
    patching.replace(response, "receive", _receive)
    patching.replace(response, "close", _ws_close)
    patching.replace(response, "send_frame", functools.partial(_send, is_raw=True))
    for name in ("send_str", "send_bytes"):
        patching.replace(response, name, _send)


def _request(original: Any, reader: Any) -> Any:
    @functools.wraps(original)
    async def request(self: Any, method: str, str_or_url: Any, **options: Any) -> Any:
        # The same steps as in `httpx._sync_send`.
        call = _begin(self, method, str_or_url, options)
        if call is None:
            return await other_request_async(original, self, method, str_or_url, **options)
        if call.uncovered:
            await call.ask_async()
        with call.sending():
            # Unless a class of the program's own sends.
            seen = patching.is_hooked(self._request_class, "send")
            call.watched = call.in_memory = call.endpoint.asks and seen
            _ask_for_usage(call, self, options)
            while True:
                try:
                    response = await llm_request_async(
                        original, self, method, str_or_url, **options
                    )
                except Exception as exc:
                    if not call.is_doubted(status_of(exc)):
                        raise
                    if not _change_back(call, self, options, answer_of(exc)):
                        raise
                    continue
                if not call.is_doubted(response.status):
                    break
                if not _change_back(call, self, options, await response.read()):
                    break
        _observe(call, response, reader)
        await check_answer_async(call)
        return response

    return request


def _send_request(original: Any) -> Any:
    """Take a hold for each body: of a redirect, a middleware, or a connection that has gone."""

    @functools.wraps(original)
    async def send(self: Any, *args: Any, **options: Any) -> Any:
        call = call_being_sent()
        if call is not None:
            content = getattr(self._body, "_value", None)
            if call.sends(self.method, self.url.host or "", self.url.path, content):
                await call.takes_async()
        return await original(self, *args, **options)

    return send


def _start(original: Any) -> Any:
    @functools.wraps(original)
    async def start(self: Any, *args: Any, **options: Any) -> Any:
        response = await original(self, *args, **options)
        call = call_being_sent()
        if call is not None:
            call.is_tried(self.status)
        return response

    return start


def _connect(original: Any) -> Any:
    @functools.wraps(original)
    async def connect(self: Any, *args: Any, **options: Any) -> Any:
        call = call_being_sent()
        if call is None:
            _name_unhooked(args[0] if args else options.get("req"))
        elif call.endpoint.asks:
            call.watched = True  # also below another client's transport
        return await original(self, *args, **options)

    return connect


def _name_unhooked(request: Any) -> None:
    """Report an LLM request that no hook above has seen.

    Other code has taken the hook out, or a server redirects there from what is none.

    Raises:
        Refusal: such requests are refused here.
    """
    url = getattr(request, "url", None)
    if url is not None:
        why = "a redirect of aiohttp's led there; ask that address itself"
        patching.name_unhooked(request.method.upper(), url.host or "", url.port, url.path, why)


def _ws_connect(original: Any) -> Any:
    @functools.wraps(original)
    async def connect(self: Any, url: Any, **options: Any) -> Any:
        observer = patching.active()
        if observer is None:
            return await original(self, url, **options)
        try:
            whole = self._build_url(url).update_query(options.get("params") or {})
            host, path, query = whole.host or "", whole.path, whole.query_string
        except Exception:  # noqa: BLE001  # aiohttp reports what is wrong with it
            return await original(self, url, **options)
        session = observer.begin_session(host, path, query)
        if session is None:
            return await original(self, url, **options)
        socket = await llm_request_async(original, self, url, **options)
        setattr(socket, SESSION_ATTRIBUTE, session)
        # For a socket that is dropped without being closed; not at exit, where
        # `Instrumentation.close` ends the sessions.
        weakref.finalize(socket, session.ended).atexit = False
        return socket

    return connect


def _receive(original: Any) -> Any:
    @functools.wraps(original)
    async def receive(self: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return await original(self, *args, **options)
        drop = functools.partial(_drop, self, session)
        with session.reads(drop):
            message = await llm_request_async(original, self, *args, **options)
        await session.hear_async(message.data, drop)
        if self.closed:
            session.ended(Ending.LOST, seen=self.close_code not in (None, _BROKEN))
        return message

    return receive


_BROKEN: Final = 1006
"""The close code of a connection that has ended without one."""


def _send(original: Any, *, is_raw: bool = False) -> Any:
    @functools.wraps(original)
    async def send(self: Any, data: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        opcode = options.get("opcode", args[0] if args else 0) if is_raw else 0
        if session is None or self.closed or int(opcode) >= _CONTROL:
            return await original(self, data, *args, **options)
        with session.drops(functools.partial(_drop, self, session)):
            frame = session.frame(data)
            await frame.take_async()
        if self.closed:
            frame.drop()
        return await original(self, frame.message, *args, **options)

    return send


_CONTROL: Final = 8
"""The first opcode of frames that carry no message (RFC 6455, section 5.2)."""


def _drop(socket: Any, session: FrameSession) -> None:
    """End a connection at once: an answer must not go on."""
    socket._set_closed()
    socket._response.close()
    session.ended()


def _ws_close(original: Any) -> Any:
    @functools.wraps(original)
    async def close(self: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return await original(self, *args, **options)
        # A reader closes it as well, once the server has.
        session.closing = session.closing or not session.reading or self._waiting
        try:
            return await original(self, *args, **options)
        finally:
            session.closed()

    return close


def _begin(
    session: Any, method: str, str_or_url: Any, options: dict[str, Any]
) -> ObservedCall | None:
    observer = patching.active()
    if observer is None:
        return None
    try:
        url = session._build_url(str_or_url)
        host, path = url.host or "", url.path
    except Exception:  # noqa: BLE001  # aiohttp reports what is wrong with it
        return None
    if own_proxy.is_at(host, url.port):
        return None
    return observer.begin(
        method.upper(),
        host,
        path,
        lambda: _body(session, options),
        lambda body: _replace(session, options, body),
        lambda: session._prepare_headers(options.get("headers")),
    )


def _ask_for_usage(call: ObservedCall, session: Any, options: dict[str, Any]) -> None:
    body = call.asking_for_usage()
    if body is not None and not _replace(session, options, body):
        call.filter = None


def _change_back(call: ObservedCall, session: Any, options: dict[str, Any], answer: bytes) -> bool:
    """Undo the change that was refused; return whether to send the request once more."""
    body = call.unchanged(answer)
    return body is not None and _replace(session, options, body)


def _replace(session: Any, options: dict[str, Any], body: bytes) -> bool:
    """Put another body into the options, which are this call's own; return whether it could be."""
    if is_signed(options.get("headers") or {}) or _packing(session, options):
        return False
    if options.get("json") is not None:
        options["json"] = msgspec.json.decode(body)
    else:
        options["data"] = body
    return True


def _packing(session: Any, options: dict[str, Any]) -> str | None:
    """Return the encoding of a body that its caller has compressed; None of any other."""
    for headers in (dict(options.get("headers") or ()), session.headers):
        for name, value in headers.items():
            if str(name).lower() == "content-encoding":
                return str(value)
    return None


def _body(session: Any, options: dict[str, Any]) -> bytes:
    data = options.get("data")
    if data is None:
        try:
            return msgspec.json.encode(options.get("json"))
        except (TypeError, ValueError):
            return b""
    if isinstance(data, str):
        return data.encode()
    data = getattr(data, "_value", data)  # aiohttp's payload around bytes
    if not isinstance(data, bytes):
        fields = getattr(data, "_fields", ())  # of aiohttp's form
        texts = [(about.get("name"), value) for about, _, value in fields]
        return form_as_json((name, value) for name, value in texts if isinstance(value, str))
    return plain_body(data, _packing(session, options))


def _observe(call: ObservedCall, response: Any, reader: Any) -> None:
    header = response.headers.get
    body = response._body
    content = response.content
    if body is not None:  # already read by a middleware
        call.whole(response.status, header, body)
    elif type(content) is not reader.__base__:
        call.whole(response.status, header, b"")  # the reader of a response without a body
    elif call.streaming(response.status, header, _encoding(response)):
        _observed[id(content)] = call
        if call.tool_watch is not None:
            _watched[id(content)] = call.tool_watch
        # After the entries, which the new class looks up. aiohttp and its parser keep this object,
        # so its class is changed and not the object.
        content.__class__ = reader
        # What has arrived with the head is in the buffer already, perhaps the whole body: it did
        # not pass through the new class.
        content.hide()
        content.settle()


def _ending_of(exc: Any) -> Ending:
    """Return whether a response was closed here or lost, by the exception that its reader gets."""
    here = type(exc).__name__ == "ClientConnectionError" and str(exc) == "Connection closed"
    return Ending.CLOSED if here else Ending.LOST


def _encoding(response: Any) -> str | None:
    """Return the encoding of the reader's data: "" if decoded, None for that of the header."""
    session = response._session
    return None if session is not None and session.auto_decompress is False else ""


def _observed_reader(base: type[Any]) -> type[Any]:
    class ObservedReader(base):  # type: ignore[misc]  # the base is known at run time only
        """A reader that feeds the data read from its buffer to the observed call.

        All reading methods of the base take data by ``_read_nowait_chunk``, and all data comes in
        by ``feed_data``, so these two see every byte once. Nothing is fed that is never read.
        """

        __slots__ = ()

        def _read_nowait_chunk(self, n: int) -> bytes:
            chunk: bytes = super()._read_nowait_chunk(n)
            call = _observed.get(id(self))
            if call is not None:
                call.feed(chunk)
                self.settle()
            watch = _watched.get(id(self))
            if watch is not None:
                watch.take(chunk)
            return chunk

        # Hidden data is taken out before it gets into the buffer: `readline` and others look there.

        def feed_data(self, data: bytes, *size: Any) -> Any:
            hidden = _hiding.get(id(self))
            if hidden is None:
                return super().feed_data(data, *size)
            shown = hidden.feed(data)
            return super().feed_data(shown, *size) if shown else None

        def hide(self) -> None:
            """Hide what guard's option adds to the stream, from the buffer on."""
            call = _observed.get(id(self))
            recording = None if call is None else call.recording
            if call is None or call.filter is None or recording is None:
                return
            call.filter.hidden = recording.feed
            _hiding[id(self)] = call.filter
            waiting = b"".join(self._buffer)  # it came with the head
            shown = call.filter.feed(waiting)
            if self._eof:
                shown += call.filter.rest()
                del _hiding[id(self)]
            self._size += len(shown) - len(waiting)
            self._buffer.clear()
            if shown:
                self._buffer.append(shown)

        def _show_rest(self) -> None:
            hidden = _hiding.pop(id(self), None)
            if hidden is not None and (rest := hidden.rest()):
                super().feed_data(rest)

        async def readuntil(self, *args: Any, **options: Any) -> bytes:
            return await self._checked(await super().readuntil(*args, **options))

        async def read(self, n: int = -1) -> bytes:
            return await self._checked(await super().read(n))

        async def readany(self) -> bytes:
            return await self._checked(await super().readany())

        async def readchunk(self) -> tuple[bytes, bool]:
            return await self._checked(await super().readchunk())

        async def readexactly(self, n: int) -> bytes:
            return await self._checked(await super().readexactly(n))

        async def _checked(self, data: T) -> T:
            """Return data once the gateway has decided about the tools that it asks for."""
            watch = _watched.get(id(self))
            if watch is not None:
                await watch.check_async(b"", last=self.at_eof())
            return data

        def _wait(self, func_name: str) -> Awaitable[None]:
            return llm_request_async(super()._wait, func_name)

        def feed_eof(self) -> None:
            self._show_rest()
            super().feed_eof()
            self.settle()

        def set_exception(self, *args: Any, **options: Any) -> None:
            # The connection broke, or the response was closed or released early.
            super().set_exception(*args, **options)
            self.settle(_ending_of(args[0] if args else options.get("exc")))

        def settle(self, ending: Ending | None = None) -> None:
            # Several of these methods see the end; the one that pops the call finishes it. A body
            # is complete only once all that has arrived was read.
            if ending is None and self._eof and not self._buffer:
                ending = Ending.COMPLETE
            if ending is not None:
                call = _observed.pop(id(self), None)
                if call is not None:
                    call.finish(ending)

        def __del__(self) -> None:  # dropped without being closed
            self.settle(Ending.CLOSED)
            _watched.pop(id(self), None)
            _hiding.pop(id(self), None)

    return ObservedReader
