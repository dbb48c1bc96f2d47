"""Hooks ``websocket-client``: handshake, messages of an LLM's session, and the loop of an app."""

from __future__ import annotations

import functools
import importlib
import weakref
from types import ModuleType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from guard.core.usage.ends import Ending
from guard.instrumentation import patching
from guard.instrumentation.frame_session import SESSION_ATTRIBUTE, FrameSession, wrap_close
from guard.instrumentation.interruptible import llm_request

_TEXT, _BINARY, _CLOSE = 1, 2, 8
"""Opcodes (RFC 6455, section 5.2); frames from ``_CLOSE`` on carry no message."""

_LOOK_S: Final = 0.5
"""How long an app waits for a message before it looks for a kill: no thread wakes its selector."""


def patch(module: ModuleType) -> None:
    """Hook the client of ``websocket._core``, or the loops of ``websocket._app``."""
    if module.__name__ == "websocket._app":
        patching.replace(module.Dispatcher, "read", _read)
        patching.replace(module.SSLDispatcher, "read", _read)
        return
    errors = importlib.import_module("websocket._exceptions")
    lost = (errors.WebSocketConnectionClosedException, ConnectionError)
    patching.replace(module.WebSocket, "connect", _connect)
    patching.replace(module.WebSocket, "send_frame", _send_frame)
    patching.replace(module.WebSocket, "recv_data_frame", lambda receive: _receive(receive, lost))
    patching.replace(module.WebSocket, "close", wrap_close)


def _session_of(connection: Any) -> FrameSession | None:
    return getattr(connection, SESSION_ATTRIBUTE, None)


def _begin(url: Any) -> FrameSession | None:
    observer = patching.active()
    if observer is None:
        return None
    try:
        parts = urlsplit(str(url))
        host, path = parts.hostname or "", unquote(parts.path)
    except ValueError:  # the client will say what is wrong with it
        return None
    return observer.begin_session(host, path, parts.query)


def _connect(original: Any) -> Any:
    @functools.wraps(original)
    def connect(self: Any, url: Any, **options: Any) -> Any:
        before = _session_of(self)
        if before is not None:  # the object is used again
            before.ended()
        session = _begin(url)
        setattr(self, SESSION_ATTRIBUTE, session)
        if session is None:
            return original(self, url, **options)
        # An answer must not pass by in fragments.
        self.cont_frame.fire_cont_frame = False
        # For a connection that is dropped without being closed; not at exit, where
        # `Instrumentation.close` ends the sessions.
        weakref.finalize(self, session.ended).atexit = False
        return llm_request(original, self, url, **options)

    return connect


def _send_frame(original: Any) -> Any:
    @functools.wraps(original)
    def send_frame(self: Any, frame: Any) -> Any:
        session = _session_of(self)
        if session is None or frame.opcode >= _CLOSE:
            return original(self, frame)
        if self.connected:
            with session.drops(functools.partial(_drop, self, session)):
                # As the client masks it.
                data = frame.data.encode("latin-1") if isinstance(frame.data, str) else frame.data
                asked = session.frame(data)
                asked.take()
            if not self.connected:
                asked.drop()
            frame.data = asked.message
        try:
            return original(self, frame)
        except Exception:  # also a connection that a kill has closed
            session.check_kill()
            raise

    return send_frame


def _receive(original: Any, lost: tuple[type[Exception], ...]) -> Any:
    @functools.wraps(original)
    def recv_data_frame(self: Any, *args: Any, **options: Any) -> Any:
        session = _session_of(self)
        if session is None:
            return original(self, *args, **options)
        drop = functools.partial(_drop, self, session)
        with session.reads(drop):
            try:
                opcode, frame = llm_request(original, self, *args, **options)
            except lost:
                session.ended(Ending.LOST)
                session.check_kill()
                raise
        if opcode == _CLOSE:
            session.ended(Ending.LOST, seen=True)
        elif opcode in (_TEXT, _BINARY):
            session.hear(frame.data, drop)
        return opcode, frame

    return recv_data_frame


def _drop(connection: Any, session: FrameSession) -> None:
    """End a connection at once: an answer must not go on."""
    connection.shutdown()
    session.ended()


def _read(original: Any) -> Any:
    """Let a kill end an app that waits for a message."""

    @functools.wraps(original)
    def read(self: Any, sock: Any, read_callback: Any, check_callback: Any) -> Any:
        connection = self.app.sock
        session = _session_of(connection)
        if session is None:
            return original(self, sock, read_callback, check_callback)

        def check() -> Any:
            with session.drops(functools.partial(_drop, connection, session)):
                session.check_kill()
            return check_callback()

        self.ping_timeout = min(self.ping_timeout, _LOOK_S)
        return original(self, sock, read_callback, check)

    return read
