"""``/openapi.json`` and ``/metrics``."""

from __future__ import annotations

import attrs
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.core import wire
from guard.gateway.api.http import fail, has_bearer
from guard.gateway.api.openapi import document
from guard.gateway.services.metrics import CONTENT_TYPE, exposition


@attrs.define(eq=False)
class DocumentRoutes:
    """Serves the OpenAPI document, and the metrics to who has their key."""

    _collector: Collector
    _metrics_key: str
    _document: bytes | None = attrs.field(default=None, init=False)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]

    async def _openapi(self, _: Request) -> Response:
        if self._document is None:
            self._document = wire.encode(document())
        return Response(self._document, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        # They say what every organisation spends.
        if not has_bearer(request.scope, self._metrics_key):
            raise fail(
                401, "GD-A003", "Key rejected",
                "the metrics need the key that the setting metrics_key gives the gateway: "
                "Authorization: Bearer KEY",
                headers=[(b"www-authenticate", b'Bearer realm="guard metrics"')],
            )  # fmt: skip
        return Response(exposition(self._collector), headers={"content-type": CONTENT_TYPE})
