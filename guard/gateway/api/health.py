"""Liveness, readiness and capabilities."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard import gateway
from guard.core import wire
from guard.gateway.api.auth import Authenticator
from guard.gateway.api.http import fail, headers_of, read_body
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import Storage

READY_WAIT_S: Final = 2.0
"""A store that takes longer to answer is not ready."""

FEATURES: Final = (
    wire.FEATURE_APPROVAL_NOTES,
    "approvals",
    wire.FEATURE_CALLERS,
    "control_poll",
    "control_ws",
    "events_gzip",
    wire.FEATURE_GATE_WS,
    wire.FEATURE_LEASE_AHEAD,
    wire.FEATURE_LEASES,
    wire.FEATURE_REQUEST_GATE,
    wire.FEATURE_SPEND,
    wire.FEATURE_WAIT_FOR_ROOM,
    wire.FEATURE_KEY_WORKFLOW,
    "signing",
)


@attrs.frozen(eq=False)
class HealthRoutes:
    """Serves ``/healthz``, ``/readyz`` and ``/api/v1/capabilities``."""

    _storage: Storage
    _authenticator: Authenticator
    _settings: GatewaySettings
    _clock_ms: Callable[[], int]
    _draining: Callable[[], bool]

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route(wire.CAPABILITIES_PATH, self._capabilities, methods=["GET"]),
        ]

    async def _healthz(self, _: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def _readyz(self, _: Request) -> Response:
        if self._draining():
            raise fail(503, "GD-B002", "Not ready", "draining")
        ready = False
        # A store that does not answer must not make the probe itself time out.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_WAIT_S):
                ready = await self._storage.ready()
        if not ready:
            detail = "the store is being opened, does not answer, or its disk is full"
            raise fail(503, "GD-B002", "Not ready", detail)
        return Response(b'{"status":"ready"}', media_type="application/json")

    async def _capabilities(self, request: Request) -> Response:
        headers = headers_of(request.scope)
        body = await read_body(headers, request.receive, self._settings.max_batch_bytes)
        self._authenticator.check_protocol(headers)
        identity = await self._authenticator.authenticate(request.scope, headers, body, alone=True)
        reply = wire.Capabilities(
            protocol=wire.PROTOCOL_VERSION,
            min_sdk_version=wire.SDK_MIN_VERSION_FOR_V3,
            server=f"guard-gateway/{gateway.__version__}",
            features=list(FEATURES),
            limits=self._settings.limits(),
            control=wire.ControlSettings(self._settings.poll_interval_ms),
            server_time_ms=self._clock_ms(),
            workflow_id=identity.workflow_id,
            role=identity.role,
            key_id=identity.key_id,
            organisation_id=identity.organisation_id,
            team=identity.team,
            person=identity.person,
            may_name=list(identity.may_name),
            shows_cost=identity.shows_cost,
        )
        return Response(wire.encode(reply), media_type="application/json")
