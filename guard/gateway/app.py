"""Composition root: builds the gateway's parts and joins them into one ASGI application.

Everything runs on one event loop, except the threads of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from guard.core import wire
from guard.gateway.api import docs
from guard.gateway.api.admin.app import AdminApp, starlette_app
from guard.gateway.api.admin.operations import Services
from guard.gateway.api.auth import Authenticator
from guard.gateway.api.control import ControlRoutes
from guard.gateway.api.control_socket import ControlSocketRoute
from guard.gateway.api.decisions import DecisionHandlers
from guard.gateway.api.document import DocumentRoutes
from guard.gateway.api.health import HealthRoutes
from guard.gateway.api.hot import HotRoutes
from guard.gateway.api.http import (
    PROBLEM_JSON,
    AsgiApp,
    ProblemError,
    Receive,
    Scope,
    Send,
    fail,
    in_one_write,
    send_answer,
    store_failed,
)
from guard.gateway.api.login import LoginRoutes
from guard.gateway.api.slack import SlackRoute
from guard.gateway.api.socket import Socket
from guard.gateway.api.spend import SpendRoute
from guard.gateway.api.usable_models import ModelsRoute
from guard.gateway.dashboard.dashboard import dashboard_routes
from guard.gateway.dashboard.site import Parts, Site
from guard.gateway.databases import storage_of
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.records import Rates
from guard.gateway.first_secrets import metrics_key_of
from guard.gateway.services.alert_watch import AlertWatch
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.change_watcher import ChangeWatcher
from guard.gateway.services.fanout import Hub
from guard.gateway.services.gatekeeper import Gatekeeper
from guard.gateway.services.keys import KeyRing
from guard.gateway.services.load import Load
from guard.gateway.services.logins import LoginService
from guard.gateway.services.metrics import Counts, GatewayCollector
from guard.gateway.services.operators import OperatorService
from guard.gateway.services.published import load_published
from guard.gateway.services.questions import Questions
from guard.gateway.services.recalls import Recalls
from guard.gateway.services.waiting_line import WaitingLine
from guard.gateway.services.webhooks import WebhookSender
from guard.gateway.settings import GatewaySettings
from guard.gateway.single_sign_on import login_secrets_of, provider_of
from guard.gateway.storage.port import Storage
from guard.gateway.unit.rows import monotonic_clock_ms, wall_clock_ms

logger = logging.getLogger(__name__)

_MAY_MAKE_ROOM: Final = frozenset({"policy", "budget"})
"""Control messages after which a call that waits for money may find some."""
_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_OPEN_WAIT_S: Final = 2.0
"""How long requests wait for a store that is being opened; then they are refused."""


_STARTING: Final = fail(503, "GD-B002", "Starting", "the store is being opened")


class GatewayApp:
    """The gateway as an ASGI application; call :meth:`open` before serving.

    Args:
        settings: how to run.
        clock_ms: Unix milliseconds; the machine's clock by default.
        storage: a store other than the embedded one.
        origins: where settings were given, for the dashboard.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
        storage: Storage | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.storage: Storage = storage or storage_of(settings, clock_ms)
        # Whether the gateway is ending; ``/readyz`` then fails. It never goes back.
        self.draining = False
        # Set once by ``open``. Until then, requests wait for it or are refused.
        self._opened = asyncio.Event()
        self.connections: Callable[[], int] = lambda: 0  # the server replaces it
        fallback = Rates(
            input_per_mtok=settings.fallback_input_per_mtok,
            output_per_mtok=settings.fallback_output_per_mtok,
        )
        # Elapsed time must not follow a wrong reading of the machine's clock.
        passed_ms = monotonic_clock_ms if clock_ms is wall_clock_ms else clock_ms
        # A store that replicas share has one clock for all of them.
        self.clock_ms = clock_ms = self.storage.clock_ms
        self.hub = Hub(settings.connections_max)
        self.counts = Counts()
        self.load = Load(settings.max_pending_bytes)
        self.keys = KeyRing(self.storage, clock_ms)
        self.catalogue = CatalogueCache(self.storage, fallback, clock_ms)
        # Only a store that replicas share has peers.
        peers = getattr(self.storage, "peers", None)
        self._recalls = Recalls(self.hub.recall, peers)
        self._line = WaitingLine(self.hub.wake, clock_ms, peers)
        gatekeeper = Gatekeeper(
            self.storage, self.catalogue, self._recalls, self._line, settings.max_event_bytes,
            clock_ms,
        )  # fmt: skip
        authenticator = Authenticator(self.keys, self.storage, clock_ms, settings.public_url)
        decisions = DecisionHandlers(gatekeeper, self.counts, settings.max_batch_events)
        control = ControlRoutes(
            self.storage, self.hub, authenticator, self.catalogue, settings, clock_ms
        )
        self.control_socket = ControlSocketRoute(
            self.storage, self.hub, authenticator, self.catalogue, decisions, self.load, settings,
            clock_ms,
        )  # fmt: skip
        self._hot: dict[str, AsgiApp] = {
            **HotRoutes(decisions, authenticator, settings, self.load).paths,
            wire.CONTROL_PATH: control.poll,
            wire.SPEND_PATH: SpendRoute(self.storage, authenticator, self.load, settings).get,
            wire.MODELS_PATH: ModelsRoute(self.catalogue, authenticator, settings).get,
        }
        health = HealthRoutes(
            self.storage, authenticator, settings, clock_ms, lambda: self.draining
        )
        self.operators = OperatorService(self.storage, clock_ms, passed_ms)
        questions = Questions(self.storage, settings.public_url or "", clock_ms)
        services = Services(
            self.storage, gatekeeper.recent, self.catalogue, self.operators, settings, clock_ms
        )
        admin = AdminApp(services, self.keys)
        collector = GatewayCollector(
            self.counts,
            self.load,
            self.hub,
            self.storage.statistics,
            lambda: self.connections(),
            self._line.count,
            lambda: self.draining,
        )
        # Without a key in the settings nobody has it.
        metrics_key = metrics_key_of(settings) or secrets.token_urlsafe()
        document = DocumentRoutes(collector, metrics_key)
        self.change_watcher = ChangeWatcher(self.storage, settings.connections_max)
        provider, sealing = provider_of(settings), login_secrets_of(settings)
        logins = None
        if sealing is not None and provider is not None:
            logins = LoginService(self.storage, sealing, provider, clock_ms)
            self.keys.put_off = logins.put_off
        site = Site(
            Parts(
                self.storage,
                services,
                provider,
                logins,
                questions,
                self.operators,
                self.change_watcher,
                settings,
                clock_ms,
                lambda: self.draining,
                self.catalogue,
                origins or {},
            )
        )
        self._cold = starlette_app(
            [
                *health.routes(),
                *docs.routes(),
                *document.routes(),
                *admin.routes(),
                *SlackRoute(self.storage, clock_ms).routes(),
                *LoginRoutes(logins, site.addresses.of, site.base_url).routes(),
                *dashboard_routes(site),
            ]
        )
        self._webhooks = WebhookSender(
            self.storage, clock_ms, private=settings.private_webhooks,
            base_url=settings.public_url or "", ask=questions.of,
        )  # fmt: skip
        self._alert_watch = AlertWatch(
            self.storage, lambda: self.storage.statistics().get("healthy", False),
            self._webhooks.send_unrecorded, clock_ms, time.monotonic,
        )  # fmt: skip
        # Background tasks, from ``open`` to ``close``.
        self._tasks: list[asyncio.Task[None]] = []

    # -- life cycle ----------------------------------------------------------------------------

    async def open(self) -> None:
        """Load the price tables, open the store and start the background tasks.

        Raises:
            StoreError: the store cannot be opened.
        """
        # Off the loop, and before the first request, which would have to wait for it.
        await asyncio.to_thread(load_published)
        await self.storage.open(self._committed)
        # Before the sweep: leases whose holders could not renew while there was no gateway must not
        # expire.
        await self.storage.resume()
        self._tasks = [
            asyncio.create_task(self._sweep(), name="guard-gateway-sweeper"),
            asyncio.create_task(self._webhooks.run(), name="guard-gateway-webhooks"),
            asyncio.create_task(self._alert_watch.run(), name="guard-gateway-alerts"),
            asyncio.create_task(self.change_watcher.run(), name="guard-gateway-change-watcher"),
        ]
        self._opened.set()

    def drain(self) -> None:
        """Report not ready and end the control channels; requests in flight continue.

        Sockets are asked to move over at most half the time that draining may take, a thousand a
        second or faster. A second call ends the rest at once.
        """
        most_s = self.settings.drain_timeout_ms / 2000
        self.hub.close(0.0 if self.hub.closing else min(most_s, self.hub.spread_s()))
        self.draining = True
        self.change_watcher.close()
        self.operators.close()

    async def close(self) -> None:
        """Stop the background tasks and close the store."""
        async with contextlib.AsyncExitStack() as last:
            # Closed in reverse, and each of them even if something before it fails.
            last.push_async_callback(self.storage.close)
            # The tasks first: they use the store.
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    logger.error("a background task has failed", exc_info=ended)

    def _committed(self, events: Sequence[PostCommitEvent]) -> None:
        """Handle the events of a commit, on the loop, before its callers get their answers.

        It must not raise, and must not wait: see ``GroupWriter``.
        """
        for event in events:
            if event.kind == "catalogue":
                self.keys.forget()
                self.catalogue.forget(event.organisation_id)
            elif event.kind == "webhooks":
                self._webhooks.wake()
            elif event.kind == "control" and event.organisation_id is not None:
                if event.message is not None and event.message.type in _MAY_MAKE_ROOM:
                    self._line.stirred(event.organisation_id)
            elif event.kind == "room" and event.organisation_id is not None:
                self._line.freed(event.organisation_id, event.balance_ids)
            elif event.kind == "room_at_peer" and event.organisation_id is not None:
                self._line.freed_at_peer(event.organisation_id, event.balance_ids)
            elif event.kind == "waits_at_peer" and event.organisation_id is not None:
                self._line.waits_at_peer(event.organisation_id, event.balance_ids)
            elif event.kind == "recall" and event.organisation_id is not None:
                self._recalls.asked_by_peer(event.organisation_id, event.leases, event.returns_ms)
            elif event.kind == "answered":
                for lease_id in event.leases.get("", ()):
                    self._recalls.answered_at_peer(lease_id)
        # Last: a client that is notified of new rules must not find the old ones in a cache.
        self.hub.publish(events)

    async def _sweep(self) -> None:
        interval_s = self.settings.sweep_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.storage.sweep()
                await self.keys.write_uses()
            except StoreError as exc:
                logger.warning("the sweep failed: %s", exc)
            except Exception:  # one failed sweep does not end the sweeper
                logger.exception("the sweep failed")

    # -- ASGI ----------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request; WebSockets are served below ASGI, by :meth:`serve_socket`."""
        if scope["type"] != "http":
            return
        if not self._opened.is_set() and not await self._opens_soon(scope):
            await send_answer(scope, send, _STARTING.answer, _STARTING.headers)
            return
        hot = self._hot.get(scope["path"])
        # The hot paths bypass Starlette, which costs more than a decision.
        if hot is None:
            await self._cold(scope, receive, in_one_write(scope, send))
            return
        try:
            await hot(scope, receive, send)
        except ProblemError as exc:
            self.counts.answered(scope["path"], exc.answer.status)
            await send_answer(scope, send, exc.answer, exc.headers)
        except StoreError as exc:
            answer = store_failed(exc).answer
            self.counts.answered(scope["path"], answer.status)
            await send_answer(scope, send, answer)

    async def serve_socket(self, socket: Socket, scope: Scope) -> None:
        """Serve one WebSocket until either side ends it."""
        if not self._opened.is_set() and not await self._opens_soon(scope):
            headers = [(b"content-type", PROBLEM_JSON), *_STARTING.headers]
            socket.refuse(_STARTING.answer.status, headers, _STARTING.answer.body)
            return
        await self.control_socket.serve(socket, scope)

    async def _opens_soon(self, scope: Scope) -> bool:
        """Return whether the store opens within a moment. Probes do not wait: they report it."""
        if scope["path"] in _PROBES:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_WAIT_S):
                await self._opened.wait()
        return self._opened.is_set()
