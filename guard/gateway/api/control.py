"""The control channel: a snapshot and its tail, over a WebSocket or by long poll."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import urllib.parse
from collections.abc import Callable
from typing import Final

from guard.core import signing, wire
from guard.gateway.api.auth import Authenticator, Identity
from guard.gateway.api.http import (
    ProblemError,
    Receive,
    Scope,
    Send,
    fail,
    headers_of,
    read_body,
    send_answer,
)
from guard.gateway.domain.commands import Answer
from guard.gateway.domain.errors import StoreError
from guard.gateway.services.fanout import Hub, Subscription
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import ControlLog

PAGE: Final = 500
POLL_SNAPSHOT_MAX: Final = 1000
"""A larger snapshot is not sent in one reply; such a client reads the record page by page."""
_ORGANISATION_SHARE: Final = 0.8
"""Share of all connections that one organisation's control channels may use."""
_CLOSE_REVOKED: Final = 4401
_CLOSE_OVERRUN: Final = 1013
_CLOSE_GOING_AWAY: Final = 1012
_CLOSE_ERROR: Final = 1011

logger = logging.getLogger(__name__)


class ControlRoutes:
    """Serves ``WS /api/v1/control/ws`` and ``GET /api/v1/control``."""

    def __init__(
        self,
        log: ControlLog,
        hub: Hub,
        authenticator: Authenticator,
        settings: GatewaySettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._hub = hub
        self._authenticator = authenticator
        self._settings = settings
        self._clock_ms = clock_ms

    # -- WebSocket -----------------------------------------------------------------------------

    async def websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one control WebSocket until either side ends it."""
        await receive()  # websocket.connect
        try:
            headers = headers_of(scope)
            self._authenticator.check_protocol(headers)
            after = _number(scope, "after", 0)
            identity = await self._authenticator.authenticate(scope, headers, b"")
            self._check_share(identity)
        except ProblemError as exc:
            await _deny(scope, send, exc)
            return
        offered = scope.get("subprotocols", [])
        chosen = wire.CONTROL_SUBPROTOCOL if wire.CONTROL_SUBPROTOCOL in offered else None
        subscription = self._hub.subscribe(identity.organisation_id, identity.key_id)
        try:
            await send({"type": "websocket.accept", "subprotocol": chosen})
            await self._serve(identity, headers, subscription, after, receive, send)
        finally:
            self._hub.unsubscribe(identity.organisation_id, subscription)

    def _check_share(self, identity: Identity) -> None:
        """Leave other organisations some connections.

        Raises:
            ProblemError: 429; the SDK polls meanwhile.
        """
        most = max(1, int(self._settings.connections_max * _ORGANISATION_SHARE))
        if self._hub.count_of(identity.organisation_id) >= most:
            raise fail(
                429, "GD-R001", "Too many control channels", f"at most {most} per organisation"
            )

    def _left_s(self, identity: Identity) -> float:
        """Return how long the identity's key stays valid, in seconds."""
        if identity.expires_at_ms is None:
            return math.inf
        return max(0.0, (identity.expires_at_ms - self._clock_ms()) / 1000)

    async def _serve(
        self,
        identity: Identity,
        headers: dict[bytes, bytes],
        subscription: Subscription,
        after: int,
        receive: Receive,
        send: Send,
    ) -> None:
        reading = asyncio.create_task(_drain(receive))
        pushing = asyncio.create_task(self._push(identity, headers, subscription, after, send))
        try:
            done, _ = await asyncio.wait((reading, pushing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            pushing.cancel()
            await asyncio.gather(reading, pushing, return_exceptions=True)
        if reading in done:
            return
        code = _CLOSE_ERROR
        if pushing.exception() is None:
            code = pushing.result()
        elif not isinstance(pushing.exception(), (OSError, StoreError)):
            logger.error("the control channel failed", exc_info=pushing.exception())
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "websocket.close", "code": code})

    async def _push(
        self,
        identity: Identity,
        headers: dict[bytes, bytes],
        subscription: Subscription,
        after: int,
        send: Send,
    ) -> int:
        newest = await self._log.control_seq(identity.organisation_id)
        hello = self._heartbeat("hello", newest)
        hello.epoch = await self._epoch_of(identity, after)
        await _send_message(send, identity, hello)
        sent = after
        if not after:
            for known in await self._snapshot(identity):
                sent = known.seq
                await _send_message(send, identity, known)
        while True:
            page = await self._log.control_after(identity.organisation_id, sent, PAGE)
            for stored in page:
                sent = stored.message.seq
                if stored.key_id in (None, identity.key_id):
                    await _send_message(send, identity, stored.message)
            if len(page) < PAGE:
                break
        interval_s = self._settings.control_ping_interval_ms / 1000
        while not self._hub.closing:
            if subscription.overrun:
                return _CLOSE_OVERRUN
            try:
                message = await subscription.next(min(interval_s, self._left_s(identity)))
            except TimeoutError:
                if not self._left_s(identity):
                    return _CLOSE_REVOKED
                newest = await self._log.control_seq(identity.organisation_id)
                await _send_message(send, identity, self._heartbeat("ping", newest))
                continue
            if message is None:
                if not await self._authenticator.still_valid(identity, headers):
                    return _CLOSE_REVOKED
            elif message.seq > sent:
                sent = message.seq
                await _send_message(send, identity, message)
        return _CLOSE_GOING_AWAY

    async def _snapshot(self, identity: Identity) -> list[wire.ControlMessage]:
        return await self._log.control_snapshot(identity.organisation_id, identity.key_id)

    async def _epoch_of(self, identity: Identity, seq: int) -> str:
        """Return the epoch of a message; empty when there is none with that number (any more)."""
        page = await self._log.control_after(identity.organisation_id, seq - 1, 1) if seq else []
        return page[0].message.epoch if page and page[0].message.seq == seq else ""

    def _heartbeat(self, kind: str, seq: int) -> wire.ControlMessage:
        return wire.ControlMessage(seq=seq, type=kind, at_ms=self._clock_ms())

    # -- long poll -----------------------------------------------------------------------------

    async def poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the messages newer than ``after``; wait for one up to ``wait_ms``."""
        if scope["method"] != "GET":
            raise fail(405, "GD-P005", "Method not allowed", headers=[(b"allow", b"GET")])
        headers = headers_of(scope)
        body = await read_body(headers, receive, self._settings.max_batch_bytes)
        self._authenticator.check_protocol(headers)
        after = _number(scope, "after", 0)
        wait_ms = min(_number(scope, "wait_ms", 0), self._settings.poll_wait_max_ms)
        identity = await self._authenticator.authenticate(scope, headers, body)
        reply = await self._wait_for_messages(identity, headers, after, wait_ms)
        answer = Answer(200, wire.encode(reply))
        extra = []
        if identity.hmac_secret is not None:
            signature = signing.sign_frame(identity.hmac_secret, identity.nonce, answer.body)
            extra.append((b"x-guard-signature", signature.encode()))
        await send_answer(scope, send, answer, extra)

    async def _wait_for_messages(
        self, identity: Identity, headers: dict[bytes, bytes], after: int, wait_ms: int
    ) -> wire.ControlReply:
        subscription = self._hub.subscribe(identity.organisation_id, identity.key_id)
        deadline = time.monotonic() + min(wait_ms / 1000, self._left_s(identity))
        try:
            epoch = await self._epoch_of(identity, after)
            snapshot = await self._snapshot(identity) if not after else []
            if 0 < len(snapshot) <= POLL_SNAPSHOT_MAX:
                return wire.ControlReply(snapshot, snapshot[-1].seq, epoch)
            while True:
                page = await self._log.control_after(identity.organisation_id, after, PAGE)
                own = [m.message for m in page if m.key_id in (None, identity.key_id)]
                if page:
                    after = page[-1].message.seq
                left_s = deadline - time.monotonic()
                newest = await self._log.control_seq(identity.organisation_id)
                # A client that is ahead of every number given has to start over; waiting would
                # hide every message up to its number.
                if own or left_s <= 0 or after > newest or self._hub.closing:
                    return wire.ControlReply(own, min(after, newest), epoch)
                with contextlib.suppress(TimeoutError):
                    if await subscription.next(left_s) is None and not (
                        await self._authenticator.still_valid(identity, headers)
                    ):
                        raise fail(401, "GD-A003", "Key rejected", "the key was revoked")
        finally:
            self._hub.unsubscribe(identity.organisation_id, subscription)


async def _drain(receive: Receive) -> None:
    """Read and ignore acknowledgements until the client ends the connection."""
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def _send_message(send: Send, identity: Identity, message: wire.ControlMessage) -> None:
    payload = wire.encode(message)
    if identity.hmac_secret is not None:
        signature = signing.sign_frame(identity.hmac_secret, identity.nonce, payload)
        payload = wire.encode({"payload": payload.decode(), "signature": signature})
    await send({"type": "websocket.send", "text": payload.decode()})


async def _deny(scope: Scope, send: Send, problem: ProblemError) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": _CLOSE_REVOKED})
        return
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(problem.answer.body)),
        *problem.headers,
    ]
    await send(
        {
            "type": "websocket.http.response.start",
            "status": problem.answer.status,
            "headers": headers,
        }
    )
    await send({"type": "websocket.http.response.body", "body": problem.answer.body})


def _number(scope: Scope, name: str, default: int) -> int:
    query = urllib.parse.parse_qs(scope.get("query_string", b"").decode("latin-1"))
    values = query.get(name)
    if not values:
        return default
    text = values[-1]
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise fail(400, "GD-P002", "Bad request", f"{name} must be a number, 0 or more")
    return int(text)
