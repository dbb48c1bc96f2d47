"""The interface between the control channel and a WebSocket, which the server implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

CLOSE_WRONG_TYPE = 1003
CLOSE_UNREADABLE = 1007
CLOSE_POLICY = 1008
CLOSE_ERROR = 1011
CLOSE_GOING_AWAY = 1012
CLOSE_OVERRUN = 1013
CLOSE_REVOKED = 4401


class FrameReader(Protocol):
    """Receives the frames of an accepted socket. Called on the loop; it must not block."""

    def received(self, frames: list[bytes]) -> None:
        """Take the text frames of one read, in order."""

    def writable(self) -> None:
        """Called when the client has read enough to be sent more."""

    def lost(self) -> None:
        """Called when the connection has ended, perhaps while requests are in flight."""


class Socket(Protocol):
    """One WebSocket, before and after its handshake. Used on the loop only."""

    @property
    def is_paused(self) -> bool:
        """Whether the client reads too slowly to be sent more now."""

    def identified(self, organisation_id: str) -> None:
        """Note whose key the handshake carried."""

    def accept(self, subprotocol: str | None, reader: FrameReader) -> None:
        """Complete the handshake; ``reader`` gets every frame."""

    def refuse(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Answer the handshake with a problem document, and close."""

    def send(self, payloads: Sequence[bytes]) -> None:
        """Write text frames, in one write; dropped once the socket is closing."""

    async def wait_writable(self) -> None:
        """Wait while the client reads too slowly."""

    def hold_reading(self, held: bool) -> None:
        """Stop reading from the client, or read again."""

    def close(self, code: int, reason: str = "") -> None:
        """Begin the closing handshake; a client that does not answer is cut off."""
