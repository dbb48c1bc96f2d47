"""Composition root: builds the gateway's parts and joins them into one ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from guard.core import wire
from guard.gateway.domain.records import Rates
from guard.gateway.routes import docs
from guard.gateway.routes.admin import AdminHandlers, operations
from guard.gateway.routes.admin_app import AdminApp, starlette_app
from guard.gateway.routes.auth import Authenticator
from guard.gateway.routes.control import ControlRoutes
from guard.gateway.routes.health import HealthRoutes
from guard.gateway.routes.hot import HotRoutes
from guard.gateway.routes.http import (
    AsgiApp,
    ProblemError,
    Receive,
    Scope,
    Send,
    fail,
    send_answer,
)
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.fanout import Hub
from guard.gateway.services.gatekeeper import Gatekeeper
from guard.gateway.services.keys import KeyRing
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.base import Announcement, Storage, StoreError
from guard.gateway.storage.memory_rates import MemoryRates
from guard.gateway.storage.sqlite import SqliteStorage
from guard.gateway.storage.sqlite_books import wall_clock_ms

logger = logging.getLogger(__name__)


class GatewayApp:
    """The gateway as an ASGI application; call :meth:`open` before serving.

    Args:
        settings: how to run.
        clock_ms: Unix milliseconds; the machine's clock by default.
        storage: another store than the embedded one.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
        storage: Storage | None = None,
    ) -> None:
        self.settings = settings
        self.clock_ms = clock_ms
        self.storage: Storage = storage or SqliteStorage(
            settings.database, durable=settings.durable, clock_ms=clock_ms
        )
        self.draining = False
        fallback = Rates(
            input_per_mtok=settings.fallback_input_per_mtok,
            output_per_mtok=settings.fallback_output_per_mtok,
        )
        self.hub = Hub()
        self.keys = KeyRing(self.storage, clock_ms)
        self.catalogue = CatalogueCache(self.storage, fallback)
        gatekeeper = Gatekeeper(
            self.storage,
            self.catalogue,
            MemoryRates(clock_ms),
            max_event_bytes=settings.max_event_bytes,
        )
        authenticator = Authenticator(self.keys, self.storage, clock_ms, settings.public_url)
        self._control = ControlRoutes(self.storage, self.hub, authenticator, settings, clock_ms)
        self._hot: dict[str, AsgiApp] = {
            **HotRoutes(gatekeeper, authenticator, settings).paths,
            wire.CONTROL_PATH: self._control.poll,
        }
        health = HealthRoutes(
            self.storage, authenticator, settings, clock_ms, lambda: self.draining
        )
        admin = AdminApp(operations(AdminHandlers(self.storage, clock_ms)), self.keys, self.storage)
        self._cold = starlette_app([*health.routes(), *admin.routes(), *docs.routes()])
        self._sweeper: asyncio.Task[None] | None = None

    # -- life cycle ----------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store and start the sweeper.

        Raises:
            StoreError: the store cannot be opened.
        """
        await self.storage.open(self._committed)
        self._sweeper = asyncio.create_task(self._sweep(), name="guard-gateway-sweeper")

    def drain(self) -> None:
        """Stop being ready and end the control channels; open requests go on."""
        self.draining = True
        self.hub.close()

    async def close(self) -> None:
        """Stop the sweeper and close the store."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
        await self.storage.close()

    def _committed(self, news: Sequence[Announcement]) -> None:
        for announcement in news:
            if announcement.kind == "catalogue":
                self.keys.forget()
                self.catalogue.forget(announcement.organisation_id)
        self.hub.publish(news)

    async def _sweep(self) -> None:
        interval_s = self.settings.sweep_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.storage.sweep()
            except StoreError as exc:
                logger.warning("the sweep failed: %s", exc)

    # -- ASGI ----------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request or WebSocket."""
        if scope["type"] == "http":
            hot = self._hot.get(scope["path"])
            if hot is None:
                await self._cold(scope, receive, send)
                return
            try:
                await hot(scope, receive, send)
            except ProblemError as exc:
                await send_answer(send, exc.answer, exc.headers)
            except StoreError:
                unavailable = fail(503, "GD-B002", "Store not available", "try again")
                await send_answer(send, unavailable.answer)
        elif scope["type"] == "websocket":
            if scope["path"] == wire.CONTROL_WS_PATH:
                await self._control.websocket(scope, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 4404})
