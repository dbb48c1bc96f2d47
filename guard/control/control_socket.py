"""The WebSocket of the control channel. A module of its own: it imports ``websockets``."""

from __future__ import annotations

import functools
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from guard.core import wire
from guard.core.plaintext import is_loopback

Closed = websockets.ConnectionClosedOK
"""The gateway has closed the socket in order."""

Failure = websockets.WebSocketException
"""Every other failure, except those of the network."""

# Close codes: the registered one, and one of the protocol's own.
_SERVICE_RESTART: Final = 1012
_KEY_ENDED: Final = 4401


def is_restart(exc: Exception) -> bool:
    """Return whether the gateway restarts in order: it closes its clients' sockets one by one."""
    return _code_of(exc) == _SERVICE_RESTART


def is_end_of_key(exc: Exception) -> bool:
    """Return whether the gateway has closed the socket because the key has become invalid."""
    return _code_of(exc) == _KEY_ENDED


def _code_of(exc: Exception) -> int | None:
    # The code that the gateway sent; without a close frame the connection was lost.
    closed = exc.rcvd if isinstance(exc, websockets.ConnectionClosed) else None
    return None if closed is None else closed.code


PING_INTERVAL_S: Final = 5.0
PING_TIMEOUT_S: Final = 5.0
_OPEN_TIMEOUT_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 0.5
_FRAME_BYTES_MAX: Final = 1024 * 1024
_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""With more than this in the write buffer the socket counts as congested."""

# At debug level the library logs the handshake's headers, and one of them is the key.
_quiet = logging.getLogger("guard.control.websocket")
_quiet.setLevel(logging.INFO)


class Connect(connect):
    """Opens the socket at the given address and follows no redirect."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Treat a redirect as a failure: the handshake carries the key, meant for one host."""
        return exc


def open_socket(
    url: str,
    headers: Mapping[str, str],
    apply_eagerly: Callable[[list[bytes]], None],
    answered: Callable[[bytes], None],
    tls: ssl.SSLContext | None,
) -> Connect:
    """Return an async context manager of the control socket.

    Args:
        url: the URL of the socket.
        headers: the headers of the handshake.
        apply_eagerly: called with text frames as soon as their bytes have been read.
        answered: likewise called with frames of answers; these are not received again.
        tls: checks the gateway's certificate; None for a plain socket.
    """
    parts = urlsplit(url)
    return Connect(
        url,
        additional_headers=headers,
        subprotocols=[websockets.Subprotocol(wire.CONTROL_SUBPROTOCOL)],
        ssl=tls,
        # A proxy from the environment must not see traffic that is not encrypted.
        proxy=None if tls is None or is_loopback(parts.hostname or "") else True,
        open_timeout=_OPEN_TIMEOUT_S,
        ping_interval=PING_INTERVAL_S,
        ping_timeout=PING_TIMEOUT_S,
        close_timeout=_CLOSE_TIMEOUT_S,
        max_size=_FRAME_BYTES_MAX,
        compression=None,
        logger=_quiet,
        create_connection=functools.partial(ControlConnection, apply_eagerly, answered),  # type: ignore[arg-type]  # called like the class
    )


_ANSWERS: Final = (b'{"type":"answers"', b'{"payload":"{\\"type\\":\\"answers\\"')
"""How a frame of answers begins, plain and signed: cheaper than decoding every frame twice.

A signed payload is a JSON string, so its quotes are escaped.
"""


class ControlConnection(ClientConnection):
    """Passes text frames to ``apply_eagerly`` while their bytes are being read.

    The usual way, through a future and another turn of the loop, costs up to three more waits for
    the interpreter's lock (5 ms each) when the body that is to be stopped computes in Python.
    """

    def __init__(
        self,
        apply_eagerly: Callable[[list[bytes]], None],
        answered: Callable[[bytes], None],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._apply_eagerly = apply_eagerly
        self._answered = answered
        # Frames of the current network read: control messages and answers, in order of arrival.
        # `process_event` fills the lists, `data_received` empties them in the same call.
        self._came: list[bytes] = []
        self._answers: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Process bytes from the network: control messages before answers."""
        super().data_received(data)  # calls `process_event` for each complete frame
        # Kills first: an answer must not start a call that a kill in the same read forbids. The
        # lists are emptied first: a callback may abort the connection, or raise.
        if self._came:
            frames, self._came = self._came, []
            self._apply_eagerly(frames)
        if self._answers:
            frames, self._answers = self._answers, []
            for frame in frames:
                self._answered(frame)

    def process_event(self, event: Any) -> None:
        """Process one incoming event."""
        # Only messages of one frame; the first of several fragments is no message yet.
        if isinstance(event, Frame) and event.opcode is Opcode.TEXT and event.fin:
            data = bytes(event.data)
            if data.startswith(_ANSWERS):
                self._answers.append(data)
                return  # not into the library's queue: answers need no order among messages
            self._came.append(data)
        super().process_event(event)

    def send_now(self, frame: bytes) -> bool:
        """Send a text frame without waiting; False when the socket is closing or congested."""
        # Below the library's `send`, a coroutine that waits while the write buffer is full.
        if (
            self.protocol.state is not State.OPEN
            or self.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX
        ):
            return False
        self.protocol.send_text(frame)
        self.send_data()
        return True
