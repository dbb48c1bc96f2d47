"""Hooks ``websockets``: its clients' handshake, and the messages of an LLM's session."""

from __future__ import annotations

import asyncio
import functools
import importlib
import weakref
from collections.abc import AsyncIterable, Iterable, Mapping
from types import ModuleType
from typing import Any

from guard.core.usage.ends import Ending
from guard.instrumentation import patching
from guard.instrumentation.frame_session import SESSION_ATTRIBUTE, FrameSession, wrap_close
from guard.instrumentation.interruptible import llm_request, llm_request_async


def patch(module: ModuleType) -> None:
    """Hook the client of ``websockets.asyncio``, ``websockets.sync`` or ``websockets.legacy``."""
    is_legacy = module.__name__ == "websockets.legacy.client"
    client = module.WebSocketClientProtocol if is_legacy else module.ClientConnection
    connection = client.__mro__[1]
    closed = importlib.import_module("websockets.exceptions").ConnectionClosed
    if module.__name__ == "websockets.sync.client":
        patching.replace(client, "handshake", _handshake)
        patching.replace(connection, "send", lambda send: _send(send, closed))
        patching.replace(connection, "recv", lambda recv: _recv(recv, closed))
        patching.replace(connection, "recv_streaming", _stream)
        patching.replace(connection, "close", wrap_close)
    else:
        patching.replace(client, "handshake", _handshake_async)
        patching.replace(connection, "send", lambda send: _send_async(send, closed))
        patching.replace(connection, "recv", lambda recv: _recv_async(recv, closed))
        patching.replace(connection, "recv_streaming", _stream_async)
        patching.replace(connection, "close", _close_async)


def _begin(connection: Any, wsuri: Any = None, *_: Any, **__: Any) -> FrameSession | None:
    observer = patching.active()
    if observer is None:
        return None
    protocol = _protocol_of(connection)
    uri = wsuri if protocol is connection else protocol.uri
    session = observer.begin_session(uri.host, uri.path, uri.query)
    if session is not None:
        setattr(connection, SESSION_ATTRIBUTE, session)
        # Also ends a session whose connection is dropped without being closed. Not at exit, where
        # `Instrumentation.close` ends the sessions before the last events are sent.
        weakref.finalize(connection, session.ended).atexit = False
    return session


def _protocol_of(connection: Any) -> Any:
    """Return what knows the state of a connection: the legacy one does so itself."""
    return getattr(connection, "protocol", connection)


def _is_open(connection: Any) -> bool:
    return bool(_protocol_of(connection).state.name == "OPEN")


def _handshake(original: Any) -> Any:
    @functools.wraps(original)
    def handshake(self: Any, *args: Any, **options: Any) -> Any:
        try:
            if _begin(self) is None:
                return original(self, *args, **options)
            return llm_request(original, self, *args, **options)
        except Exception:  # the client cleans up after those itself
            raise
        except BaseException:  # a refusal or a kill: the client would leave the socket open
            self.close_socket()
            raise

    return handshake


def _handshake_async(original: Any) -> Any:
    @functools.wraps(original)
    async def handshake(self: Any, *args: Any, **options: Any) -> Any:
        try:
            if _begin(self, *args, **options) is None:
                return await original(self, *args, **options)
            return await llm_request_async(original, self, *args, **options)
        except Exception:  # the client cleans up after those itself
            raise
        except BaseException:  # a refusal or a kill: the client would leave the connection open
            self.transport.abort()
            # The loop reports the loss in one of its next steps: the connection is gone before this
            # raises.
            await asyncio.wait([self.connection_lost_waiter])
            raise

    return handshake


def _send(original: Any, closed: type[Exception]) -> Any:
    @functools.wraps(original)
    def send(self: Any, message: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return original(self, message, *args, **options)
        if not _is_open(self):
            session.check_kill()
            return original(self, message, *args, **options)
        with session.drops(functools.partial(_drop, self, session)):
            parts = list(message) if _is_fragmented(message) else None
            frame = session.frame(message if parts is None else _joined(parts))
            frame.take()
        if not _is_open(self):
            frame.drop()
        try:
            return original(self, _again(frame, message, parts), *args, **options)
        except closed:
            session.check_kill()
            raise

    return send


def _send_async(original: Any, closed: type[Exception]) -> Any:
    @functools.wraps(original)
    async def send(self: Any, message: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return await original(self, message, *args, **options)
        if not _is_open(self):
            session.check_kill()
            return await original(self, message, *args, **options)
        with session.drops(functools.partial(_drop, self, session)):
            parts = None
            if isinstance(message, AsyncIterable):
                parts = [part async for part in message]
            elif _is_fragmented(message):
                parts = list(message)
            frame = session.frame(message if parts is None else _joined(parts))
            await frame.take_async()
        if not _is_open(self):
            frame.drop()
        try:
            return await original(self, _again(frame, message, parts), *args, **options)
        except closed:
            session.check_kill()
            raise

    return send


def _is_fragmented(message: Any) -> bool:
    return isinstance(message, Iterable) and not isinstance(
        message, str | bytes | bytearray | memoryview | Mapping
    )


def _joined(parts: list[Any]) -> Any:
    """Return the message of some fragments; empty where the client refuses them anyway."""
    if parts and isinstance(parts[0], str):
        return "".join(part for part in parts if isinstance(part, str))
    return b"".join(part for part in parts if not isinstance(part, str))


def _again(frame: Any, message: Any, parts: list[Any] | None) -> Any:
    """Return what is to be sent: fragments stay fragments unless guard has changed them."""
    if parts is None:
        return frame.message
    return parts if frame.message == _joined(parts) else frame.message


def _recv(original: Any, closed: type[Exception]) -> Any:
    @functools.wraps(original)
    def recv(self: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return original(self, *args, **options)
        drop = functools.partial(_drop, self, session)
        with session.reads(drop):
            try:
                message = llm_request(original, self, *args, **options)
            except closed:
                session.ended(Ending.LOST, seen=self.protocol.close_rcvd is not None)
                raise
        session.hear(message, drop)
        return message

    return recv


def _recv_async(original: Any, closed: type[Exception]) -> Any:
    @functools.wraps(original)
    async def recv(self: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return await original(self, *args, **options)
        drop = functools.partial(_drop, self, session)
        with session.reads(drop):
            try:
                message = await llm_request_async(original, self, *args, **options)
            except closed:
                session.ended(Ending.LOST, seen=_protocol_of(self).close_rcvd is not None)
                raise
        await session.hear_async(message, drop)
        return message

    return recv


def _drop(connection: Any, session: FrameSession) -> None:
    """End a connection at once: an answer must not go on."""
    transport = getattr(connection, "transport", None)
    connection.close_socket() if transport is None else transport.abort()
    session.ended()


def _close_async(original: Any) -> Any:
    @functools.wraps(original)
    async def close(self: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return await original(self, *args, **options)
        session.closing = True
        try:
            return await original(self, *args, **options)
        finally:
            session.closed()

    return close


def _stream(original: Any) -> Any:
    """Read whole messages: an answer must not pass by in fragments."""

    @functools.wraps(original)
    def recv_streaming(self: Any, decode: bool | None = None) -> Any:
        if getattr(self, SESSION_ATTRIBUTE, None) is None:
            yield from original(self, decode)
        else:
            yield self.recv(decode=decode)

    return recv_streaming


def _stream_async(original: Any) -> Any:
    @functools.wraps(original)
    async def recv_streaming(self: Any, decode: bool | None = None) -> Any:
        if getattr(self, SESSION_ATTRIBUTE, None) is None:
            async for part in original(self, decode):
                yield part
        else:
            yield await self.recv(decode=decode)

    return recv_streaming
