"""Hooks ``websockets``: its clients' handshake, and the messages of an LLM's session."""

from __future__ import annotations

import asyncio
import functools
import importlib
import weakref
from types import ModuleType
from typing import Any

from guard.instrumentation import patching
from guard.instrumentation.interruptible import llm_request, llm_request_async
from guard.instrumentation.realtime import SESSION_ATTRIBUTE, RealtimeSession


def patch(module: ModuleType) -> None:
    """Hook the client of ``websockets.asyncio.client`` or ``websockets.sync.client``."""
    client = module.ClientConnection
    connection = client.__mro__[1]
    closed = importlib.import_module("websockets.exceptions").ConnectionClosed
    if module.__name__ == "websockets.sync.client":
        patching.replace(client, "handshake", _handshake)
        patching.replace(connection, "send", _send)
        patching.replace(connection, "recv", lambda recv: _recv(recv, closed))
    else:
        patching.replace(client, "handshake", _handshake_async)
        patching.replace(connection, "send", _send_async)
        patching.replace(connection, "recv", lambda recv: _recv_async(recv, closed))


def _begin(connection: Any) -> RealtimeSession | None:
    observer = patching.active()
    if observer is None:
        return None
    uri = connection.protocol.uri
    session = observer.begin_session(uri.host, uri.path, uri.query)
    if session is not None:
        setattr(connection, SESSION_ATTRIBUTE, session)
        # Also ends a session whose connection is dropped without being closed. Not at exit, where
        # `Instrumentation.close` ends the sessions before the last events are sent.
        weakref.finalize(connection, session.ended).atexit = False
    return session


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
            if _begin(self) is None:
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


def _send(original: Any) -> Any:
    @functools.wraps(original)
    def send(self: Any, message: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is not None:
            session.sending(message)
        return original(self, message, *args, **options)

    return send


def _send_async(original: Any) -> Any:
    @functools.wraps(original)
    async def send(self: Any, message: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is not None:
            session.sending(message)
        return await original(self, message, *args, **options)

    return send


def _recv(original: Any, closed: type[Exception]) -> Any:
    @functools.wraps(original)
    def recv(self: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return original(self, *args, **options)
        try:
            message = llm_request(original, self, *args, **options)
        except closed:
            session.ended()
            raise
        session.received(message)
        return message

    return recv


def _recv_async(original: Any, closed: type[Exception]) -> Any:
    @functools.wraps(original)
    async def recv(self: Any, *args: Any, **options: Any) -> Any:
        session = getattr(self, SESSION_ATTRIBUTE, None)
        if session is None:
            return await original(self, *args, **options)
        try:
            message = await llm_request_async(original, self, *args, **options)
        except closed:
            session.ended()
            raise
        session.received(message)
        return message

    return recv
