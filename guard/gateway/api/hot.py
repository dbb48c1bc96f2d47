"""The hot routes: gate, release, lease, events. Bare ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

import attrs

from guard.core import wire
from guard.gateway.api.auth import Authenticator, KeyIdentity, signature_of
from guard.gateway.api.decisions import DecisionHandlers, Operation, overloaded, request_of
from guard.gateway.api.http import (
    Receive,
    Scope,
    Send,
    decoded,
    fail,
    headers_of,
    read_body,
    send_answer,
    take_place,
)
from guard.gateway.domain.commands import RequestOrigin
from guard.gateway.services.load import REQUEST_BYTES, Load
from guard.gateway.settings import GatewaySettings

Route = Callable[[Scope, Receive, Send], Awaitable[None]]


@attrs.define(eq=False)
class _Held:
    """Counts one request's bytes until it is answered."""

    _load: Load
    _owner: str
    _events: bool
    _size: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Count the request itself."""
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
                raise overloaded()
            self._size += more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._load.release(self._owner, self._size)


class HotRoutes:
    """Serves ``POST`` of ``/gate``, ``/gate/release``, ``/gate/lease`` and ``/api/v1/events``."""

    def __init__(
        self,
        decisions: DecisionHandlers,
        authenticator: Authenticator,
        settings: GatewaySettings,
        load: Load,
    ) -> None:
        self._load = load
        self._authenticator = authenticator
        self._settings = settings
        self.paths: dict[str, Route] = {
            wire.GATE_PATH: self._route(decisions.gate, is_signed=True),
            wire.RELEASE_PATH: self._route(decisions.release),
            wire.LEASE_PATH: self._route(decisions.lease, is_signed=True),
            wire.EVENTS_PATH: self._route(decisions.ingest, is_events=True),
        }

    def _route(
        self, decide: Operation, *, is_signed: bool = False, is_events: bool = False
    ) -> Route:
        """Return what serves one path.

        Args:
            decide: the operation.
            is_signed: whether the answer grants something, and so carries a signature.
            is_events: whether requests are batches of events, which are refused before decisions
                when there is little room.
        """

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            # The key before the body: strangers get no memory.
            headers, identity = await self._identify(scope)
            with _Held(self._load, identity.organisation_id, is_events) as held:
                request, body = await self._enter(scope, receive, headers, identity, held)
                answer = await decide(request, body)
                signature = signature_of(identity, answer) if is_signed else None
                await send_answer(scope, send, answer, signature)

        return serve

    async def _identify(self, scope: Scope) -> tuple[dict[bytes, bytes], KeyIdentity]:
        """Return the headers and the owner of their key, before the body is read."""
        if scope["method"] != "POST":
            raise fail(405, "GD-P005", "Method not allowed", headers=[(b"allow", b"POST")])
        headers = headers_of(scope)
        self._authenticator.check_protocol(headers)
        identity = await self._authenticator.identify(headers)
        # With a secret, whoever sends the key is a stranger until the signature is checked.
        if identity.hmac_secret is None:
            take_place(scope, identity.organisation_id)
        return headers, identity

    async def _enter(
        self,
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        identity: KeyIdentity,
        held: _Held,
    ) -> tuple[RequestOrigin, bytes]:
        bytes_max = self._settings.max_batch_bytes
        # The signature covers the body as sent, so it is checked before the body is unpacked.
        raw = await read_body(headers, receive, bytes_max, held.grow)
        if identity.hmac_secret is not None:
            await self._authenticator.check_signature(identity, scope, headers, raw)
            take_place(scope, identity.organisation_id)
        body = decoded(headers, raw, bytes_max)
        # Unpacked: counted at its larger size.
        if body is not raw:
            held.grow(len(body))
        key = headers.get(b"idempotency-key")
        text = None if key is None else key.decode("latin-1").strip()
        return request_of(identity, scope["path"], text, body), body
