"""The control channel by long poll: a snapshot, then the messages after it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import urllib.parse
from collections.abc import Callable
from typing import Final

import attrs

from guard.core import wire
from guard.gateway.api.auth import Authenticator, KeyIdentity, signature_of
from guard.gateway.api.http import (
    ProblemError,
    Receive,
    Scope,
    Send,
    fail,
    receive_get,
    send_answer,
)
from guard.gateway.domain.commands import EncodedAnswer
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.fanout import Hub, Subscription
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import Storage

PAGE: Final = 500
POLL_SNAPSHOT_MAX: Final = 1000
"""A larger snapshot is not sent in one reply; the client gets the messages page by page."""


@attrs.frozen(eq=False)
class ControlRoutes:
    """Serves ``GET /api/v1/control``."""

    _storage: Storage
    _hub: Hub
    _authenticator: Authenticator
    _catalogue: CatalogueCache
    _settings: GatewaySettings
    _clock_ms: Callable[[], int]

    async def poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the messages newer than ``after``; wait for one up to ``wait_ms``.

        Raises:
            ProblemError: a bad request or key, or its organisation has too many channels to wait.
        """
        headers, body = await receive_get(scope, receive, self._settings.max_batch_bytes)
        self._authenticator.check_protocol(headers)
        after = number_in(scope, "after", 0)
        wait_ms = min(number_in(scope, "wait_ms", 0), self._settings.poll_wait_max_ms)
        known = KnownRules.of(self._catalogue, scope)
        identity = await self._authenticator.authenticate(scope, headers, body)
        reply = await self._wait_for_messages(identity, headers, after, known, wait_ms, receive)
        answer = EncodedAnswer(200, wire.encode(reply))
        await send_answer(scope, send, answer, signature_of(identity, answer))

    async def _wait_for_messages(
        self,
        identity: KeyIdentity,
        headers: dict[bytes, bytes],
        after: int,
        known: KnownRules,
        wait_ms: int,
        receive: Receive,
    ) -> wire.ControlReply:
        # A limit for each organisation, so that others have connections too. A poll that does not
        # have to wait is answered in any case.
        may_wait = self._hub.has_room(identity.organisation_id)
        # Before the queries: a message that is committed after them wakes ``next``.
        subscription = self._hub.subscribe(identity.organisation_id, identity.key_id, pushes=False)
        deadline = time.monotonic() + min(wait_ms / 1000, seconds_left(identity, self._clock_ms()))
        gone: asyncio.Task[None] | None = None
        try:
            epoch = await epoch_of(self._storage, identity.organisation_id, after)
            snapshot: list[wire.ControlMessage] = []
            if not after:
                snapshot = await self._storage.control_snapshot(
                    identity.organisation_id, identity.key_id
                )
            # 1. A new client gets the current state.
            if 0 < len(snapshot) <= POLL_SNAPSHOT_MAX:
                seq = snapshot[-1].seq
                if news := await known.news(identity, self._clock_ms()):
                    snapshot.append(news)
                return wire.ControlReply(snapshot, seq, epoch)
            # 2. Others get the messages after their own number. A message that comes while the poll
            # waits is not taken from the subscription, but read by the next round of the loop.
            while True:
                page = await self._storage.control_after(identity.organisation_id, after, PAGE)
                own = [m.message for m in page if m.key_id in (None, identity.key_id)]
                if page:
                    after = page[-1].message.seq
                if news := await known.news(identity, self._clock_ms()):
                    own.append(news)
                left_s = deadline - time.monotonic()
                newest = await self._storage.control_seq(identity.organisation_id)
                # A client that is ahead of every number given has to start over; waiting would
                # hide every message up to its number.
                if own or left_s <= 0 or after > newest or subscription.ended:
                    return wire.ControlReply(own, min(after, newest), epoch)
                if not may_wait:
                    raise too_many_channels(self._hub)
                if gone is None:
                    gone = asyncio.create_task(_end_when_gone(receive, subscription))
                with contextlib.suppress(TimeoutError):
                    if await subscription.next(left_s) is None:
                        await self._authenticator.require_valid(identity, headers)
        finally:
            self._hub.unsubscribe(identity.organisation_id, subscription)
            if gone is not None:
                gone.cancel()


async def _end_when_gone(receive: Receive, subscription: Subscription) -> None:
    """End a poll whose client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    subscription.end()


@attrs.define(eq=False)
class KnownRules:
    """The tool rules and facts that one client has.

    Args:
        catalogue: has those of all keys.
        tools, facts: the versions that the client named; None: the client does not support them.
    """

    _catalogue: CatalogueCache
    _tools: str | None
    _facts: str | None

    @classmethod
    def of(cls, catalogue: CatalogueCache, scope: Scope) -> KnownRules:
        """Return what a client has named in its query."""
        return cls(catalogue, text_in(scope, "tools"), text_in(scope, "facts"))

    async def news(self, identity: KeyIdentity, now_ms: int) -> wire.ControlMessage | None:
        """Return a message with what the client has not, and remember that it has this.

        It has no number and is not stored.
        """
        news = wire.ControlMessage(seq=0, type="policy", at_ms=now_ms)
        if self._tools is not None:
            rules = await self._catalogue.tool_rules(
                identity.organisation_id, identity.key_id, identity.workflow_id
            )
            if rules.version != self._tools:
                news.tools, self._tools = rules, rules.version
        if self._facts is not None:
            facts = (await self._catalogue.view(identity.organisation_id)).facts
            if facts.version != self._facts:
                news.facts, self._facts = facts, facts.version
        return None if news.tools is None and news.facts is None else news


def too_many_channels(hub: Hub) -> ProblemError:
    """Return the refusal of a channel for which its organisation has no connection left."""
    detail = f"at most {hub.channels_max} per organisation"
    return fail(429, "GD-R001", "Too many control channels", detail)


async def epoch_of(storage: Storage, organisation_id: str, seq: int) -> str:
    """Return the epoch of a message; empty when there is none with that number (any more)."""
    page = await storage.control_after(organisation_id, seq - 1, 1) if seq else []
    return page[0].message.epoch if page and page[0].message.seq == seq else ""


def seconds_left(identity: KeyIdentity, now_ms: int) -> float:
    """Return how long the identity's key stays valid."""
    if identity.expires_at_ms is None:
        return math.inf
    return max(0.0, (identity.expires_at_ms - now_ms) / 1000)


def text_in(scope: Scope, name: str) -> str | None:
    """Return a parameter of the query; the last one, if it is repeated."""
    query = urllib.parse.parse_qs(scope.get("query_string", b"").decode("latin-1"))
    values = query.get(name)
    return values[-1] if values else None


def number_in(scope: Scope, name: str, default: int) -> int:
    """Return a number of the query.

    Raises:
        ProblemError: 400, it is not a number.
    """
    text = text_in(scope, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise fail(400, "GD-P002", "Bad request", f"{name} must be a number, 0 or more")
    return int(text)
