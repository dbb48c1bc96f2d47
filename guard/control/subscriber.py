"""The control channel: messages pushed over a WebSocket, and by long poll while that is down."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import urlsplit

import msgspec

from guard.breaker.exceptions import GuardError, RateLimitError
from guard.control.ask_channel import AskChannel
from guard.control.directives import DirectiveFeed
from guard.core import wire
from guard.core.retry import Backoff
from guard.core.signing import verify_frame
from guard.loop import held_forks
from guard.settings import Settings
from guard.transport.client import GatewayClient

if TYPE_CHECKING:  # loaded when a socket is opened; `init` does not wait for that
    from guard.control.control_socket import ControlConnection

logger = logging.getLogger("guard.control")

Channel = Literal["none", "websocket", "poller"]

RECONNECT: Final = Backoff(base_s=0.2, cap_s=10.0)
RECONNECT_WITHOUT_POLL: Final = Backoff(base_s=0.2, cap_s=2.0)
"""Shorter, because without the poller no kill arrives while there is no socket."""

_POLL_LATER_S: Final = 0.5
"""How long the poller waits after a socket is lost.

When a gateway loses all sockets at once, each client then sends it one request and not two.
"""

_FIRST_POLL_S: Final = 1.0
"""How long the first socket waits for the poller to read the directives in force."""

_FIRST_PAUSE_S: Final = 0.05
"""How long the first socket waits for ``init`` to return; the poller listens meanwhile."""

_POLL_WAIT_MS: Final = 10_000
_STABLE_S: Final = 5.0
"""How long a socket must have been up for the next attempt to begin without a back-off."""

_CLOCK_TOLERANCE_MS: Final = 2_000
"""Below this the clocks count as equal: the difference measured includes the network's delay."""

_BATCH_MAX: Final = 500
"""Messages that are applied at once; a long replay gives the loop a turn between two batches."""


class ChannelError(Exception):
    """The channel has to be opened anew."""


class Subscriber:
    """Keeps the control state up to date; runs on the background loop.

    Messages have increasing numbers. Both channels ask for those after the newest, and
    applying one twice changes nothing: so the socket and the poller may overlap, and a message that
    arrives while one of them dies is read again by the next.

    Args:
        settings: address, key, secret and transport mode.
        client: signs the handshake and does the long polls.
        directives: knows the newest message that was applied.
        apply: called with a batch of control messages.
        switched: called with the channel in use, when it changes.
        asks: sends requests over the socket while it is open.
        recalled: called with the leases whose unused money the gateway wants back at once, and for
            how many seconds it wants back what becomes unused later.
        room: called with the ids of waiting calls that should ask again.
        key_ended: called when the gateway has closed the socket because the key was revoked or has
            expired.
    """

    def __init__(
        self,
        settings: Settings,
        client: GatewayClient,
        directives: DirectiveFeed,
        *,
        apply: Callable[..., None],
        switched: Callable[[Channel], None],
        asks: AskChannel,
        recalled: Callable[[list[str], float], None],
        room: Callable[[list[str]], None],
        key_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._client = client
        self._directives = directives
        self._apply = apply
        self._switched = switched
        self._asks = asks
        self._recalled = recalled
        self._room = room
        self._key_ended = key_ended
        # All state belongs to the background loop, so there is no lock.
        # The channel in use, as last reported by `switched`.
        self._channel: Channel = "none"
        # The open socket, None while there is none.
        self._socket: ControlConnection | None = None
        # The task of `run`, for `close` to cancel.
        self._task: asyncio.Task[Any] | None = None
        # The long poll that listens while the socket is down; None while the socket is up.
        self._poller: asyncio.Task[None] | None = None
        # When the current or last socket was greeted; None if it never was.
        self._up_since_s: float | None = None
        # Whether the hello of this socket was accepted. Before that the gateway's record may be
        # another one (restored from a copy), and the numbers of its messages mean nothing here.
        self._greeted_here = False
        # Whether requests go over this socket: only once the replay is applied.
        self._asks_open = False
        # This machine's clock minus the gateway's, from the newest hello or ping.
        self._behind_ms = 0
        # The time over which the gateway wants its clients to spread their reconnections.
        self._spread_s = 0.0
        # Whether the gateway closed the last socket because it restarts.
        self._restarts = False
        # Set, and never cleared, once everything that the gateway had sent by then is applied.
        self._caught_up = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled, whatever the network does."""
        self._task = asyncio.current_task()
        mode = self._settings.transport_mode
        # 1. Only the poller.
        if mode == "http":
            await self._poll_forever()
            return
        # 2. The socket, with (`auto`) or without (`websocket`) the poller while it is down.
        reconnect = RECONNECT if mode == "auto" else RECONNECT_WITHOUT_POLL
        attempt = 0
        try:
            if mode == "auto":
                self._start_fallback_poll()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_FIRST_POLL_S):
                        await self._caught_up.wait()
                # `init` has waited for that and is about to return; loading websockets, which
                # holds the interpreter's lock, would delay it.
                await asyncio.sleep(_FIRST_PAUSE_S)
            while True:
                # A gateway that restarts has spread its clients out already, by closing their
                # sockets one by one.
                spread_s = min(0.0 if self._restarts else self._spread_s, reconnect.cap_s)
                if mode == "auto":  # before the pause: kills arrive during it as well
                    self._start_fallback_poll(_POLL_LATER_S + spread_s * random.random())
                if attempt:
                    # A random share of the longest delay, so that clients do not come at once.
                    longest_s = max(spread_s, reconnect.delay_s(attempt - 1, 1.0))
                    await asyncio.sleep(longest_s * random.random())
                self._up_since_s = None
                self._restarts = False
                try:
                    await self._listen()
                except (OSError, TimeoutError, ChannelError) as exc:
                    logger.debug("control socket: %s: %s", type(exc).__name__, exc)
                except Exception:
                    logger.exception("control socket")  # a mistake must not end the channel
                self._use("none", self._channel == "websocket")
                # Not 0 after a stable socket: all clients of a gateway may have lost theirs at the
                # same moment. More after one that was accepted and soon dropped.
                attempt = 1 if self._was_stable() else attempt + 1
        finally:
            self._stop_fallback_poll()

    def _was_stable(self) -> bool:
        """Return whether the socket was up for a while, or ended because the gateway restarts."""
        if self._up_since_s is None:
            return False
        return self._restarts or time.monotonic() - self._up_since_s > _STABLE_S

    def _start_fallback_poll(self, after_s: float = 0.0) -> None:
        """Start the poller, which begins to listen after a delay, unless it runs already."""
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll_forever(after_s))

    def _stop_fallback_poll(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def caught_up(self) -> None:
        """Wait until everything that the gateway has sent so far is applied."""
        await self._caught_up.wait()

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
        with held_forks():  # a child would keep the half of it that is loaded
            from guard.control import control_socket

        settings = self._settings
        parts = urlsplit(settings.api_url)
        # Read before the handshake: the hello refers to the position that was asked for, and the
        # poller may apply further messages meanwhile.
        position = self._directives.position()
        path = f"{parts.path}{wire.CONTROL_WS_PATH}?after={position[0]}&{self._directives.known()}"
        url = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}{path}"
        # The gateway checks the signature over this URI. The nonce is part of every signature on
        # this socket, so that no frame of another socket can be replayed.
        signature, nonce = self._client.signer.headers("GET", url, b"")
        headers = {
            wire.HEADER_API_KEY: settings.api_key,
            wire.HEADER_PROTOCOL: str(wire.PROTOCOL_VERSION),
            **signature,
        }
        eagerly = functools.partial(self._apply_eagerly, nonce)
        try:
            received = self._asks.received
            opening = control_socket.open_socket(url, headers, eagerly, received, self._client.tls)
            async with opening as socket:
                await self._listen_on(cast("ControlConnection", socket), nonce, position)
        except control_socket.Closed:
            raise ChannelError("the gateway closed the control socket") from None
        except control_socket.Failure as exc:
            self._restarts = control_socket.is_restart(exc)
            raise ChannelError(f"{type(exc).__name__}: {exc}") from None

    async def _listen_on(
        self, socket: ControlConnection, nonce: str, position: tuple[int, str]
    ) -> None:
        from guard.control.control_socket import is_end_of_key  # loaded by now

        self._socket = socket
        self._asks_open = ends_key = False
        try:
            # 1. The hello. 2. The replay of the messages that were missed; when it is applied, as
            # the hello's number says, requests may use the socket. 3. New messages as they come.
            hello = self._open_frame(await socket.recv(), nonce)
            self._greeted(hello, position)
            self._note_position(hello.seq)
            self._open_asks(socket, nonce, hello.seq)
            while True:
                await self._take_what_came(socket, nonce)
                self._note_position(hello.seq)
                self._open_asks(socket, nonce, hello.seq)
        except Exception as exc:
            ends_key = is_end_of_key(exc)
            raise
        finally:
            # Requests without an answer are sent over HTTP from here on.
            self._asks_open = False
            self._asks.closed()
            # A lost socket leaves leases valid for a while; the end of the key ends them at once.
            if ends_key:
                self._key_ended()
            self._socket = None
            self._greeted_here = False

    def _greeted(self, hello: wire.ControlMessage, position: tuple[int, str]) -> None:
        if hello.type != "hello":
            raise ChannelError("a control socket that does not begin with a hello")
        if self._starts_anew(hello.seq, hello.epoch, position):
            # The position is reset: the next socket asks for the record from its start.
            raise ChannelError("the gateway's record is another one")
        self._take(hello)
        # An answer, too: requests over HTTP need not wait for the circuit's next probe.
        self._client.circuit.succeeded()
        self._up_since_s = time.monotonic()
        self._greeted_here = True
        self._stop_fallback_poll()  # the replay follows on this socket
        self._use("websocket")

    def _note_position(self, newest: int) -> None:
        if self._directives.position()[0] >= newest:
            self._caught_up.set()

    def _open_asks(self, socket: ControlConnection, nonce: str, newest: int) -> None:
        """Let requests use the socket once every message that was missed is applied.

        An answer over this socket could otherwise overtake a kill that was issued before it.
        """
        if not self._asks_open and self._directives.position()[0] >= newest:
            self._asks_open = True
            self._asks.opened(socket.send_now, nonce, socket.transport.abort)

    async def _take_what_came(self, socket: ControlConnection, nonce: str) -> None:
        """Wait for a message, apply all that have arrived as one batch, acknowledge the newest."""
        messages = [self._open_frame(await socket.recv(), nonce)]
        try:
            while len(messages) < _BATCH_MAX:
                # A frame that has arrived is returned without a wait; a wait ends at once.
                async with asyncio.timeout(0):
                    frame = await socket.recv()
                messages.append(self._open_frame(frame, nonce))
        except TimeoutError:
            pass
        finally:  # also when the connection ends, or a later frame has a wrong signature
            self._take(*messages)
        # After they are applied. A replay does not depend on it: it begins at `position`.
        newest = max(message.seq for message in messages)
        if newest:
            await socket.send(f'{{"type":"ack","seq":{newest}}}')

    def _starts_anew(self, seq: int, epoch: str, position: tuple[int, str]) -> bool:
        """Return whether the gateway's record is another one than before; then reset the position.

        A record that was restored from a copy ends before the newest message that was applied here,
        or has given that number to another message since. Kills and pauses stay in force.

        Args:
            seq: the number of the gateway's newest message.
            epoch: the epoch of its message with the number in ``position``.
            position: number and epoch of the newest message here when the gateway was asked.
        """
        if not position[0] or (seq >= position[0] and epoch == position[1]):
            return False
        logger.info("control: the gateway's record is another one; it is read from its start")
        self._take(wire.ControlMessage(seq=-1, type="hello"))
        return True

    def _apply_eagerly(self, nonce: str, frames: list[bytes]) -> None:
        """Apply kills, recalls and room as soon as their bytes have arrived.

        Called from the connection's ``data_received``. The same frames are received again in their
        turn, so a kill is applied twice, which changes nothing.
        """
        if not self._greeted_here:
            return  # only the hello says whether this is the record that was followed
        kills = []
        recalled: list[str] = []
        returns_ms = 0
        calls: list[str] = []
        # A bad frame ends the connection when it is received in its turn, not in here.
        with contextlib.suppress(ChannelError):
            for frame in frames:
                message = self._open_frame(frame, nonce)
                if message.type == "kill":
                    kills.append(message)
                elif message.type == "recall":
                    recalled += message.leases
                    returns_ms = max(returns_ms, message.returns_ms)
                elif message.type == "room":
                    calls += message.calls
        # Kills first: room must not start a call that a kill in the same read forbids.
        if kills:
            self._take(*kills)
        if recalled:
            self._recalled(recalled, returns_ms / 1000)
        if calls:
            self._room(calls)

    def _open_frame(self, frame: str | bytes, nonce: str) -> wire.ControlMessage:
        try:
            return wire.decode(self._verified(frame, nonce), wire.ControlMessage)
        except wire.WireError as exc:
            raise ChannelError(f"a control frame cannot be read: {exc}") from None

    def _verified(self, frame: str | bytes, nonce: str) -> str | bytes:
        """Return the payload of a frame; with a secret, only if its signature is right."""
        secret = self._settings.hmac_secret
        if secret is None:
            return frame
        signed = wire.decode(frame, wire.SignedFrame)
        if not verify_frame(secret, nonce, signed.payload.encode(), signed.signature):
            raise ChannelError("a control frame has a wrong signature")
        return signed.payload

    async def _poll_forever(self, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        attempt = 0
        current = False  # whether the last reply brought nothing new
        while True:
            # The gateway answers at once until the whole record is read, so that a kill is seen at
            # the first contact; then it holds each answer back until there is a message.
            wait_ms = _POLL_WAIT_MS if current and self._channel == "poller" else 0
            try:
                position = self._directives.position()
                reply = await self._client.poll(position[0], wait_ms, self._directives.known())
                if self._channel != "websocket":  # the socket may have come up during the poll
                    self._use("poller")
                if not self._starts_anew(reply.seq, reply.epoch, position):
                    self._take(*reply.messages)
                    current = not reply.messages
                    if current:
                        self._caught_up.set()
            except Exception as exc:
                if isinstance(exc, GuardError):
                    logger.debug("control poll: %s", exc)
                else:  # a mistake must not end the channel
                    logger.error("control poll", exc_info=exc)
                current = False
                if wait_ms and isinstance(exc, RateLimitError):
                    # The gateway has no room for another waiting poll. It still answers at once, so
                    # the channel is up: the next poll does not wait.
                    await asyncio.sleep((exc.retry_after or 0.0) + random.random())
                    continue
                self._use("none", self._channel == "poller")
                await asyncio.sleep(max(0.05, RECONNECT.delay_s(attempt, random.random())))
                attempt += 1
            else:
                attempt = 0

    def _take(self, *messages: wire.ControlMessage) -> None:
        # A bug in applying one batch is logged and must not end the channel: it brings the next
        # kill.
        taken = [self._by_our_clock(message) for message in messages]
        try:
            self._apply(*taken)
        except Exception:
            logger.exception("control messages could not be applied")

    def _by_our_clock(self, message: wire.ControlMessage) -> wire.ControlMessage:
        if message.type in ("hello", "ping") and message.at_ms:
            self._behind_ms = time.time_ns() // 1_000_000 - message.at_ms
            self._spread_s = message.spread_ms / 1000
        elif message.type == "pause" and abs(self._behind_ms) > _CLOCK_TOLERANCE_MS:
            # The time at which the pause ends is compared with this machine's clock.
            return msgspec.structs.replace(message, at_ms=message.at_ms + self._behind_ms)
        return message

    def _use(self, channel: Channel, changed: bool = True) -> None:
        if changed and channel != self._channel:
            logger.log(
                logging.DEBUG if self._channel == "none" else logging.INFO,
                "control channel: %s",
                channel,
            )
            self._channel = channel
            self._switched(channel)
