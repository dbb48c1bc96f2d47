"""The control channel: pushed over a WebSocket, by long poll while that is away."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode

from guard.breaker.exceptions import GuardError
from guard.core import wire
from guard.core.retry import Backoff
from guard.core.signing import verify_frame
from guard.io.gateway import GatewayClient
from guard.settings import Settings, is_loopback

logger = logging.getLogger("guard.control")

# At debug level the library logs the handshake's headers, and one of them is the key.
_quiet = logging.getLogger("guard.control.websocket")
_quiet.setLevel(logging.INFO)

Channel = Literal["none", "websocket", "poller"]

PING_INTERVAL_S: Final = 5.0
PING_TIMEOUT_S: Final = 5.0
RECONNECT: Final = Backoff(base_s=0.2, cap_s=10.0)
RECONNECT_UNCOVERED: Final = Backoff(base_s=0.2, cap_s=2.0)
"""Without the poller nobody listens meanwhile, so hurry more."""
_OPEN_TIMEOUT_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 0.5
_FRAME_BYTES_MAX: Final = 256 * 1024
_POLL_WAIT_MS: Final = 10_000
_STABLE_S: Final = 5.0
_CLOCK_TOLERANCE_MS: Final = 2_000


class _SignedFrame(msgspec.Struct):
    payload: str
    signature: str


class ChannelError(Exception):
    """The channel has to be opened anew."""


class _EagerConnection(ClientConnection):
    """Shows a text frame to ``glance`` while its bytes are being read.

    The usual way, through a future and another turn of the loop, costs up to three more waits for
    the interpreter's lock (5 ms each) when the body that is to be stopped computes in Python.
    """

    def __init__(self, glance: Callable[[bytes], None], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._glance = glance

    def process_event(self, event: Any) -> None:
        """Process one incoming event."""
        super().process_event(event)
        if isinstance(event, Frame) and event.opcode is Opcode.TEXT and event.fin:
            self._glance(bytes(event.data))


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
        self._task: asyncio.Task[Any] | None = None
        self._poller: asyncio.Task[None] | None = None
        self._up_since_s: float | None = None
        self._behind_ms = 0

    async def run(self) -> None:
        """Listen until cancelled, whatever the network does."""
        self._task = asyncio.current_task()
        mode = self._settings.transport_mode
        if mode == "http":
            await self._poll_forever()
            return
        reconnect = RECONNECT if mode == "auto" else RECONNECT_UNCOVERED
        attempt = 0
        try:
            while True:
                if mode == "auto":
                    self._cover()  # at once: what is said during the pause is heard by the poller
                if attempt:
                    await asyncio.sleep(reconnect.delay_s(attempt - 1, random.random()))
                self._up_since_s = None
                try:
                    await self._listen()
                except (OSError, TimeoutError, ChannelError, websockets.WebSocketException) as exc:
                    logger.debug("control socket: %s: %s", type(exc).__name__, exc)
                except Exception:
                    logger.exception("control socket")  # a mistake must not end the channel
                self._use("none", self._channel == "websocket")
                # A gateway that accepts sockets and drops them again is not to be hammered.
                attempt = 1 if self._was_up_for_s() > _STABLE_S else attempt + 1
        finally:
            self._uncover()

    def _was_up_for_s(self) -> float:
        return 0.0 if self._up_since_s is None else time.monotonic() - self._up_since_s

    def _cover(self) -> None:
        """Have the poller listen while the socket is away."""
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll_forever())

    def _uncover(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def close(self) -> None:
        """Send a clean close frame (spec part 4, ``shutdown``) and stop listening."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self) -> None:
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
            logger=_quiet,
            create_connection=functools.partial(
                _EagerConnection, functools.partial(self._glance, nonce)
            ),  # type: ignore[arg-type]  # called like the class
        ) as socket:
            self._socket = socket
            try:
                async for frame in socket:
                    message = self._open_frame(frame, nonce)
                    before = self._seq()
                    self._take(message)
                    if message.type == "hello":
                        if self._seq() < before:
                            raise ChannelError("the gateway counts anew")
                        self._client.circuit.succeeded()
                        self._up_since_s = time.monotonic()
                        self._uncover()  # the replay follows on this socket
                        self._use("websocket")
                    if message.seq:
                        await socket.send(f'{{"type":"ack","seq":{message.seq}}}')
            finally:
                self._socket = None
        raise ChannelError("the gateway closed the control socket")

    def _glance(self, nonce: str, frame: bytes) -> None:
        """Apply a kill as soon as its bytes are here; it is taken again in its turn."""
        with contextlib.suppress(ChannelError):
            message = self._open_frame(frame, nonce)
            if message.type == "kill":
                self._take(message)

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
        now_ms = time.time_ns() // 1_000_000
        if message.type in ("hello", "ping") and message.at_ms:
            self._behind_ms = now_ms - message.at_ms
        elif message.type == "pause" and abs(self._behind_ms) > _CLOCK_TOLERANCE_MS:
            # The time that the pause lifts itself at is compared with this machine's clock.
            message = msgspec.structs.replace(message, at_ms=message.at_ms + self._behind_ms)
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
