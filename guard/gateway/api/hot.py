"""The hot routes: gate, release, events. Bare ASGI."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from guard.core import wire
from guard.gateway.api.auth import Authenticator, Identity
from guard.gateway.api.http import (
    IDENTIFIED,
    ProblemError,
    Receive,
    Scope,
    Send,
    decoded,
    fail,
    headers_of,
    read_body,
    send_answer,
)
from guard.gateway.domain.commands import Answer, Request
from guard.gateway.domain.errors import StoreError
from guard.gateway.services.gatekeeper import Gatekeeper
from guard.gateway.services.load import REQUEST_BYTES, Load
from guard.gateway.services.metrics import Counts
from guard.gateway.settings import GatewaySettings

T = TypeVar("T")


class _Held:
    """Counts one request's bytes until it is answered."""

    __slots__ = ("_events", "_load", "_owner", "_size")

    def __init__(self, load: Load, owner: str, events: bool) -> None:
        self._load = load
        self._owner = owner
        self._events = events
        self._size = 0
        self.grow(0)

    def grow(self, body_bytes: int) -> None:
        """Count the bytes of the body that have arrived so far.

        They are counted on arrival, so that a body that never comes takes no room.

        Raises:
            ProblemError: 429, when the requests in flight leave no room.
        """
        more = body_bytes + REQUEST_BYTES - self._size
        if more > 0:
            if not self._load.take(self._owner, more, events=self._events, held=self._size):
                raise _overloaded()
            self._size += more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._load.release(self._owner, self._size)


def _overloaded() -> ProblemError:
    return fail(429, "GD-R001", "Gateway overloaded", "too much is waiting; try again")


class HotRoutes:
    """Serves ``POST /gate``, ``POST /gate/release`` and ``POST /api/v1/events``."""

    def __init__(
        self,
        gatekeeper: Gatekeeper,
        authenticator: Authenticator,
        settings: GatewaySettings,
        counts: Counts,
        load: Load,
    ) -> None:
        self._counts = counts
        self._load = load
        self._gatekeeper = gatekeeper
        self._authenticator = authenticator
        self._settings = settings
        self.paths: dict[str, Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            wire.GATE_PATH: self._gate,
            wire.RELEASE_PATH: self._release,
            wire.EVENTS_PATH: self._events,
        }

    async def _gate(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, identity = await self._identify(scope)
        with _Held(self._load, identity.organisation_id, False) as held:
            request, body = await self._enter(scope, receive, headers, identity, held)
            started = time.perf_counter()
            call = parse(body, wire.GateRequest)
            if len(call.events) > self._settings.max_batch_events:
                raise self._too_many()
            try:
                answer = await self._gatekeeper.gate(request, call)
            except StoreError:
                raise fail(
                    503,
                    "GD-R002",
                    "Reservation store failed",
                    "the call cannot be decided now",
                    reason="RATE_LIMIT_STORE",
                ) from None
            self._counts.gated(time.perf_counter() - started)
            self._counts.answered(wire.GATE_PATH, answer.status)
            await send_answer(scope, send, answer)

    async def _release(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, identity = await self._identify(scope)
        with _Held(self._load, identity.organisation_id, False) as held:
            request, body = await self._enter(scope, receive, headers, identity, held)
            answer = await self._gatekeeper.release(request, parse(body, wire.ReleaseRequest))
            self._counts.answered(wire.RELEASE_PATH, answer.status)
            await send_answer(scope, send, answer)

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, identity = await self._identify(scope)
        with _Held(self._load, identity.organisation_id, True) as held:
            request, body = await self._enter(scope, receive, headers, identity, held)
            batch = parse(body, wire.EventBatch)
            if len(batch.events) > self._settings.max_batch_events:
                raise self._too_many()
            answer: Answer = await self._gatekeeper.ingest(request, batch)
            self._counts.answered(wire.EVENTS_PATH, answer.status)
            await send_answer(scope, send, answer)

    async def _identify(self, scope: Scope) -> tuple[dict[bytes, bytes], Identity]:
        """Return the headers and the owner of their key, before the body is read."""
        if scope["method"] != "POST":
            raise fail(405, "GD-P005", "Method not allowed", headers=[(b"allow", b"POST")])
        headers = headers_of(scope)
        self._authenticator.check_protocol(headers)
        identity = await self._authenticator.identify(headers)
        identified = scope.get("extensions", {}).get(IDENTIFIED)
        if identified is not None:
            identified(identity.organisation_id)
        return headers, identity

    async def _enter(
        self,
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        identity: Identity,
        held: _Held,
    ) -> tuple[Request, bytes]:
        bytes_max = self._settings.max_batch_bytes
        raw = await read_body(headers, receive, bytes_max, held.grow)
        if identity.hmac_secret is not None:
            await self._authenticator.check_signature(identity, scope, headers, raw)
        body = decoded(headers, raw, bytes_max)
        if body is not raw:
            held.grow(len(body))
        idempotency_key = headers.get(b"idempotency-key")
        request = Request(
            organisation_id=identity.organisation_id,
            key_id=identity.key_id,
            key_workflow_id=identity.workflow_id,
        )
        if idempotency_key is not None:
            text = idempotency_key.decode("latin-1").strip()
            if not 1 <= len(text) <= wire.NAME_LENGTH_MAX:
                raise fail(400, "GD-P002", "Bad request", "Idempotency-Key: 1 to 256 characters")
            request.idempotency_key = text
            request.fingerprint = hashlib.blake2b(
                body, digest_size=16, person=scope["path"].encode()[:16]
            ).digest()
        return request, body

    def _too_many(self) -> Exception:
        most = self._settings.max_batch_events
        return fail(413, "GD-P003", "Body too large", f"at most {most} events")


def parse(body: bytes, kind: type[T]) -> T:
    """Decode a body.

    Raises:
        ProblemError: 400, naming the field and what was expected.
    """
    try:
        return wire.decode(body, kind)
    except wire.WireError as exc:
        raise fail(400, "GD-P002", "Bad request", str(exc)) from None
