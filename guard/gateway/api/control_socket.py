"""The control channel over a WebSocket: messages pushed, and requests answered."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from guard.core import wire
from guard.gateway.api.asks import SocketAsks, sealed
from guard.gateway.api.auth import Authenticator, KeyIdentity
from guard.gateway.api.control import (
    PAGE,
    KnownRules,
    epoch_of,
    number_in,
    seconds_left,
    too_many_channels,
)
from guard.gateway.api.decisions import DecisionHandlers
from guard.gateway.api.http import (
    PROBLEM_JSON,
    ProblemError,
    Scope,
    fail,
    headers_of,
    store_failed,
)
from guard.gateway.api.socket import (
    CLOSE_ERROR,
    CLOSE_GOING_AWAY,
    CLOSE_OVERRUN,
    CLOSE_REVOKED,
    Socket,
)
from guard.gateway.domain.errors import StoreError
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.fanout import Hub, Subscription
from guard.gateway.services.load import Load
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import Storage


@attrs.frozen(eq=False)
class ControlSocketRoute:
    """Serves ``WS /api/v1/control/ws``."""

    _storage: Storage
    _hub: Hub
    _authenticator: Authenticator
    _catalogue: CatalogueCache
    _decisions: DecisionHandlers
    _load: Load
    _settings: GatewaySettings
    _clock_ms: Callable[[], int]

    async def serve(self, socket: Socket, scope: Scope) -> None:
        """Serve one WebSocket until either side ends it."""
        try:
            headers, identity, after = await self._admitted(scope)
        except ProblemError as exc:
            _refuse(socket, exc)
            return
        socket.identified(identity.organisation_id)
        offered = scope.get("subprotocols", [])
        chosen = wire.CONTROL_SUBPROTOCOL if wire.CONTROL_SUBPROTOCOL in offered else None
        # Before the replay reads the stored messages: one that is committed meanwhile is queued
        # here, and ``_push`` drops it if the replay has sent it too.
        subscription = self._hub.subscribe(identity.organisation_id, identity.key_id)
        try:
            # Once more, now that the subscription tells of what changes from here on: a key that
            # was revoked since the look above would be served for as long as the socket is open.
            try:
                await self._authenticator.require_valid(identity, headers)
            except ProblemError as exc:
                _refuse(socket, exc)
                return
            asks = SocketAsks(
                socket, identity, headers, self._authenticator, self._decisions, self._load,
                self._clock_ms,
            )  # fmt: skip
            socket.accept(chosen, asks)
            known = KnownRules.of(self._catalogue, scope)
            channel = _Channel(socket, identity, headers, subscription, known)
            try:
                code = await self._push(channel, after)
            except StoreError:
                code = CLOSE_ERROR
            # The gateway ends: the requests in flight still get their answers.
            if code == CLOSE_GOING_AWAY:
                await asks.finish()
            socket.close(code)
        finally:
            self._hub.unsubscribe(identity.organisation_id, subscription)

    async def _admitted(self, scope: Scope) -> tuple[dict[bytes, bytes], KeyIdentity, int]:
        """Return the headers, the caller, and the number of the newest message it knows.

        Raises:
            ProblemError: the handshake is refused.
        """
        if scope["path"] != wire.CONTROL_WS_PATH:
            raise fail(404, "GD-N001", "Not found")
        headers = headers_of(scope)
        self._authenticator.check_protocol(headers)
        after = number_in(scope, "after", 0)
        try:
            identity = await self._authenticator.authenticate(scope, headers, b"")
        except StoreError as exc:
            raise store_failed(exc) from None
        # Others need connections too; the SDK polls meanwhile.
        if not self._hub.has_room(identity.organisation_id):
            raise too_many_channels(self._hub)
        return headers, identity, after

    async def _push(self, channel: _Channel, after: int) -> int:
        """Push messages until the channel has to be closed; return the code."""
        sent = await self._replay(channel, after)
        identity, own = channel.identity, channel.identity.organisation_id
        interval_s = self._settings.control_ping_interval_ms / 1000
        while not channel.subscription.ended:
            # 1. The client was too slow, and messages were dropped: it connects again and gets
            # them from the record.
            if channel.subscription.overrun:
                return CLOSE_OVERRUN
            left_s = seconds_left(identity, self._clock_ms())
            try:
                message = await channel.subscription.next(min(interval_s, left_s))
            # 2. Nothing to send for a while, or the key has expired.
            except TimeoutError:
                if not seconds_left(
                    identity, self._clock_ms()
                ) and not await self._authenticator.still_valid(identity, channel.headers):
                    return CLOSE_REVOKED
                newest = await self._storage.control_seq(own)
                await channel.send(self._heartbeat("ping", newest))
                continue
            # 3. Keys or rules have changed.
            if message is None:
                if not await self._authenticator.still_valid(identity, channel.headers):
                    return CLOSE_REVOKED
                if news := await channel.known.news(identity, self._clock_ms()):
                    await channel.send(news)
            # 4. A message. Those that the replay has sent are skipped; those without a number were
            # never stored, so the replay has not sent them.
            elif message.seq > sent or not message.seq:
                sent = max(sent, message.seq)
                await channel.send(message)
        return CLOSE_GOING_AWAY

    async def _replay(self, channel: _Channel, after: int) -> int:
        """Send the hello, the snapshot and the messages after it; return the newest number."""
        own, key_id = channel.identity.organisation_id, channel.identity.key_id
        hello = self._heartbeat("hello", await self._storage.control_seq(own))
        hello.epoch = await epoch_of(self._storage, own, after)
        if news := await channel.known.news(channel.identity, self._clock_ms()):
            hello.tools, hello.facts = news.tools, news.facts
        await channel.send(hello)
        sent = after
        if not after:
            for known in await self._storage.control_snapshot(own, key_id):
                sent = known.seq
                await channel.send(known)
        while True:
            page = await self._storage.control_after(own, sent, PAGE)
            for stored in page:
                sent = stored.message.seq
                if stored.key_id in (None, key_id):
                    await channel.send(stored.message)
            if len(page) < PAGE:
                return sent

    def _heartbeat(self, kind: str, seq: int) -> wire.ControlMessage:
        spread_ms = math.ceil(self._hub.spread_s() * 10) * 100
        return wire.ControlMessage(seq=seq, type=kind, at_ms=self._clock_ms(), spread_ms=spread_ms)


@attrs.frozen(eq=False)
class _Channel:
    """One client's view of the control messages."""

    _socket: Socket
    identity: KeyIdentity
    headers: dict[bytes, bytes]
    subscription: Subscription
    known: KnownRules

    async def send(self, message: wire.ControlMessage) -> None:
        """Send a message, once the client has read enough of the earlier ones."""
        await self._socket.wait_writable()
        self._socket.send([sealed(self.identity, wire.encode(message))])


def _refuse(socket: Socket, exc: ProblemError) -> None:
    problem = [(b"content-type", PROBLEM_JSON), *exc.headers]
    socket.refuse(exc.answer.status, problem, exc.answer.body)
