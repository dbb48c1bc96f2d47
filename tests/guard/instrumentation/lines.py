"""WebSockets of the real clients, behind one blocking interface."""

from __future__ import annotations

import asyncio
import contextvars
import json
import queue
import socket
import threading
import warnings
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import websocket
from websockets.asyncio.client import connect as connect_async
from websockets.sync.client import connect

from tests.support.waiting import WAIT_S, until


class Line(Protocol):
    """One connection."""

    def send(self, frame: dict[str, Any]) -> None: ...
    def receive(self) -> dict[str, Any] | None:
        """Return the next event; None once the connection is over."""

    def close(self) -> None: ...


class SyncLine:
    def __init__(self, url: str, known_as: str | None = None) -> None:
        """Connect, to what passes for another host if ``known_as`` names one."""
        to: dict[str, Any] = {}
        if known_as is not None:
            at = urlsplit(url)
            to["sock"] = socket.create_connection((at.hostname, at.port))
            url = url.replace(at.netloc, known_as)
        self.connection = connect(url, open_timeout=WAIT_S, **to)

    def send(self, frame: dict[str, Any]) -> None:
        self.connection.send(json.dumps(frame))

    def receive(self) -> dict[str, Any] | None:
        from websockets.exceptions import ConnectionClosed

        try:
            event: dict[str, Any] = json.loads(self.connection.recv(timeout=WAIT_S))
        except ConnectionClosed:
            return None
        return event

    def close(self) -> None:
        self.connection.close()


class AsyncLine:
    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.connection: Any = self._runner.run(self._opened(url))

    async def _opened(self, url: str) -> Any:
        return await connect_async(url, open_timeout=WAIT_S, proxy=None)

    def send(self, frame: dict[str, Any]) -> None:
        self._run(self.connection.send, json.dumps(frame))

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        async def run() -> Any:
            return await asyncio.wait_for(function(*args), WAIT_S)

        return self._runner.run(run(), context=contextvars.copy_context())

    def receive(self) -> dict[str, Any] | None:
        from websockets.exceptions import ConnectionClosed

        try:
            event: dict[str, Any] = json.loads(self._run(self.connection.recv))
        except ConnectionClosed:
            return None
        return event

    def close(self) -> None:
        self._run(self.connection.close)
        self._runner.close()


class AiohttpLine(AsyncLine):
    async def _opened(self, url: str) -> Any:
        self._http = aiohttp.ClientSession()
        return await self._http.ws_connect(url)

    def send(self, frame: dict[str, Any]) -> None:
        self._run(self.connection.send_str, json.dumps(frame))

    def receive(self) -> dict[str, Any] | None:
        message = self._run(self.connection.receive)
        if message.type is not aiohttp.WSMsgType.TEXT:
            return None
        event: dict[str, Any] = message.json()
        return event

    def close(self) -> None:
        self._run(self.connection.close)
        self._run(self._http.close)
        self._runner.close()


class LegacyLine(AsyncLine):
    async def _opened(self, url: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from websockets.legacy.client import connect as connect_legacy

            return await connect_legacy(url, open_timeout=WAIT_S)


class WebsocketClientLine:
    def __init__(self, url: str) -> None:
        self.connection = websocket.create_connection(url, timeout=WAIT_S)

    def send(self, frame: dict[str, Any]) -> None:
        self.connection.send(json.dumps(frame))

    def receive(self) -> dict[str, Any] | None:
        try:
            text = self.connection.recv()
        except (websocket.WebSocketConnectionClosedException, ConnectionError):
            return None
        event: dict[str, Any] | None = json.loads(text) if text else None
        return event

    def close(self) -> None:
        self.connection.close()


class AppLine:
    """The client's own loop, in a thread; its messages wait in a queue."""

    def __init__(self, url: str) -> None:
        self._came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        opened = threading.Event()
        self._app = websocket.WebSocketApp(
            url,
            on_open=lambda _: opened.set(),
            on_message=lambda _, text: self._came.put(json.loads(text)),
        )
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._loop,), daemon=True)
        self._thread.start()
        until(lambda: opened.is_set() or not self._thread.is_alive())

    def _loop(self) -> None:
        try:
            self._app.run_forever()
        except BaseException as exc:
            self._came.put(exc)
        self._came.put(None)

    def send(self, frame: dict[str, Any]) -> None:
        self._app.send(json.dumps(frame))

    def receive(self) -> dict[str, Any] | None:
        event = self._came.get(timeout=WAIT_S)
        if isinstance(event, BaseException):
            raise event
        if event is None:
            self._came.put(None)
        found: dict[str, Any] | None = event
        return found

    def close(self) -> None:
        self._app.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


LINES: list[Callable[[str], Line]] = [
    SyncLine,
    AsyncLine,
    AiohttpLine,
    LegacyLine,
    WebsocketClientLine,
    AppLine,
]
