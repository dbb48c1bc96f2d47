"""The control channel: pushed over a WebSocket, by long poll while that is away."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from guard.breaker.exceptions import GuardError
from guard.core import wire
from guard.core.retry import Backoff
from guard.core.signing import verify_frame
from guard.io.gateway import GatewayClient
from guard.settings import Settings, is_loopback

logger = logging.getLogger("guard.control")

Channel = Literal["none", "websocket", "poller"]

PING_INTERVAL_S: Final = 5.0
PING_TIMEOUT_S: Final = 5.0
RECONNECT: Final = Backoff(base_s=0.2, cap_s=10.0)
_OPEN_TIMEOUT_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 0.5
_FRAME_BYTES_MAX: Final = 256 * 1024
_POLL_WAIT_MS: Final = 10_000


class _SignedFrame(msgspec.Struct):
    payload: str
    signature: str


class ChannelError(Exception):
    """The channel has to be opened anew."""


class Subscriber:
    """Keeps the control state fresh; runs on the background loop.

    Args:
        settings: address, key, secret and transport mode.
        client: signs the handshake and does the long polls.
        seq: returns the newest sequence number that was applied.
        apply: takes a control message.
        switched: told which channel is in use.
    """

    def __init__(
        self,
        settings: Settings,
        client: GatewayClient,
        *,
        seq: Callable[[], int],
        apply: Callable[[wire.ControlMessage], None],
        switched: Callable[[Channel], None],
    ) -> None:
        self._settings = settings
        self._client = client
        self._seq = seq
        self._apply = apply
        self._switched = switched
        self._channel: Channel = "none"
        self._socket: ClientConnection | None = None

    async def run(self) -> None:
        """Listen until cancelled, whatever the network does."""
        mode = self._settings.transport_mode
        if mode == "http":
            await self._poll_forever()
            return
        attempt = 0
        while True:
            poller = asyncio.create_task(self._poll_forever()) if mode == "auto" else None
            try:
                await self._listen(poller)
                attempt = 0
            except (OSError, TimeoutError, ChannelError, websockets.WebSocketException) as exc:
                logger.debug("control socket: %s: %s", type(exc).__name__, exc)
                if self._channel == "websocket":
                    attempt = 0
                self._use("none", self._channel == "websocket")
                # Nobody is cut off while the poller covers; without it, hurry more.
                delay_s = RECONNECT.delay_s(attempt, random.random())
                attempt += 1
                await asyncio.sleep(delay_s)
            finally:
                if poller is not None:
                    poller.cancel()

    async def close(self) -> None:
        """Send a clean close frame (spec part 4, ``shutdown``)."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _listen(self, poller: asyncio.Task[None] | None) -> None:
        settings = self._settings
        parts = urlsplit(settings.api_url)
        secure = parts.scheme == "https"
        path = f"{parts.path}{wire.CONTROL_WS_PATH}?after={self._seq()}"
        url = f"{'wss' if secure else 'ws'}://{parts.netloc}{path}"
        headers, nonce = self._client.signed("GET", url, b"")  # the URI that the gateway checks
        async with connect(
            url,
            additional_headers={
                wire.HEADER_API_KEY: settings.api_key,
                wire.HEADER_PROTOCOL: str(wire.PROTOCOL_VERSION),
                **headers,
            },
            subprotocols=[websockets.Subprotocol(wire.CONTROL_SUBPROTOCOL)],
            ssl=ssl.create_default_context() if secure else None,
            proxy=None if is_loopback(parts.hostname or "") else True,
            open_timeout=_OPEN_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            close_timeout=_CLOSE_TIMEOUT_S,
            max_size=_FRAME_BYTES_MAX,
            compression=None,
        ) as socket:
            self._socket = socket
            if poller is not None:
                poller.cancel()
            try:
                async for frame in socket:
                    message = self._open_frame(frame, nonce)
                    before = self._seq()
                    self._take(message)
                    if message.type == "hello":
                        self._client.circuit.succeeded()
                        self._use("websocket")
                        if self._seq() < before:
                            raise ChannelError("the gateway counts anew")
                    if message.seq:
                        await socket.send(f'{{"type":"ack","seq":{message.seq}}}')
            finally:
                self._socket = None
        raise ChannelError("the gateway closed the control socket")

    def _open_frame(self, frame: str | bytes, nonce: str) -> wire.ControlMessage:
        secret = self._settings.hmac_secret
        try:
            if secret is None:
                return wire.decode(frame, wire.ControlMessage)
            signed = wire.decode(frame, _SignedFrame)
            if not verify_frame(secret, nonce, signed.payload.encode(), signed.signature):
                raise ChannelError("a control frame has a wrong signature")
            return wire.decode(signed.payload, wire.ControlMessage)
        except wire.WireError as exc:
            raise ChannelError(f"a control frame cannot be read: {exc}") from None

    async def _poll_forever(self) -> None:
        attempt = 0
        while True:
            try:
                # The first answer comes at once, so that a kill is seen on the first contact.
                wait_ms = _POLL_WAIT_MS if self._channel == "poller" else 0
                reply = await self._client.poll(self._seq(), wait_ms)
            except GuardError as exc:
                logger.debug("control poll: %s", exc)
                self._use("none", self._channel == "poller")
                await asyncio.sleep(max(0.05, RECONNECT.delay_s(attempt, random.random())))
                attempt += 1
                continue
            attempt = 0
            if self._channel != "websocket":
                self._use("poller")
            if reply.seq < self._seq():
                self._take(wire.ControlMessage(seq=reply.seq, type="hello"))
                continue
            for message in reply.messages:
                self._take(message)

    def _take(self, message: wire.ControlMessage) -> None:
        try:
            self._apply(message)
        except Exception:
            logger.exception("a control message could not be applied")

    def _use(self, channel: Channel, changed: bool = True) -> None:
        if changed and channel != self._channel:
            logger.log(
                logging.DEBUG if self._channel == "none" else logging.INFO,
                "control channel: %s",
                channel,
            )
            self._channel = channel
            self._switched(channel)
