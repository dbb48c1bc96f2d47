"""``/openapi.json`` and ``/metrics``."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.core import wire
from guard.gateway.api.admin.operations import Operation
from guard.gateway.api.http import FORWARDED
from guard.gateway.api.openapi import document
from guard.gateway.services.metrics import CONTENT_TYPE, exposition


@attrs.define(eq=False)
class DocumentRoutes:
    """Serves the OpenAPI document and the metrics."""

    _operations: Sequence[Operation]
    _collector: Collector
    _document: bytes | None = attrs.field(default=None, init=False)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]

    async def _openapi(self, _: Request) -> Response:
        if self._document is None:
            self._document = wire.encode(document(self._operations))
        return Response(self._document, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        """Answer direct requests only: not every proxy can hide a path from the public."""
        if FORWARDED in request.headers:
            return Response("not for who comes by a proxy", 403, media_type="text/plain")
        return Response(exposition(self._collector), headers={"content-type": CONTENT_TYPE})
