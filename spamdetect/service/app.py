"""The composition root: settings in, ASGI application out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spamdetect.errors import SpamConfigError
from spamdetect.models import ErrorCode
from spamdetect.service.analysis import TextEngine
from spamdetect.service.body import ClientGoneError, RequestBody, fields_of
from spamdetect.service.keys import StoreError
from spamdetect.service.limits import Allowance, Limits, StoreLimits
from spamdetect.service.metrics import Metrics
from spamdetect.service.openapi import openapi_document
from spamdetect.service.processes import EngineProcesses
from spamdetect.service.respond import RefusalError, Reply, envelope, send_reply
from spamdetect.service.routes import HotRoutes, endpoint_of
from spamdetect.service.rule_book import RuleBook
from spamdetect.service.settings import ServiceSettings, read_service_settings
from spamdetect.service.state import HotState
from spamdetect.service.store import KeyStore
from spamdetect.service.together import Together
from spamdetect.service.work import WorkerPool
from spamdetect.version import installs

_PAGE_BODY_MAX: Final = 4096


class SpamService:
    """The service as an ASGI application.

    It starts with ASGI lifespan events, or with :meth:`running` where a program runs it itself.

    Args:
        settings: How it runs; None reads the environment.
        engine: The engine; None loads the model that the settings name.

    Example:
        >>> from spamdetect.service.app import SpamService
        >>> app = SpamService()  # uvicorn module:app
    """

    def __init__(
        self, settings: ServiceSettings | None = None, engine: TextEngine | None = None
    ) -> None:
        self.settings = settings or read_service_settings()
        self._engine = engine
        self._state: HotState | None = None
        self._hot: HotRoutes | None = None
        self._document = b""
        self._ping = Together(self._ping_once, 1_000_000)
        self._lifespan_stack: contextlib.AsyncExitStack | None = None
        self._pages = Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                Route("/openapi.json", self._openapi),
            ],
            exception_handlers={404: _not_found, 405: _not_allowed},
        )
        self._pages.router.redirect_slashes = False

    @property
    def store(self) -> KeyStore:
        """The key store, while the service runs."""
        return self._running_state().store

    @property
    def routes(self) -> HotRoutes | None:
        """The routes that take a key, while the service runs."""
        return self._hot

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[SpamService]:
        """Load the model and open the stores, and close them at the end.

        Raises:
            SpamConfigError: The model or a store cannot be used.
        """
        async with contextlib.AsyncExitStack() as stack:
            settings = self.settings
            engine, processes = self._engine, None
            if engine is None:
                if settings.processes:
                    processes = EngineProcesses(
                        settings.processes, settings.model_path, settings.threshold
                    )
                engine = await asyncio.to_thread(load_engine, settings)
            store = await open_store(settings.database_url)
            stack.push_async_callback(store.close)
            metrics = Metrics()
            metrics.model.labels(engine.model_version).set(1)
            limits = await open_limits(settings, store, metrics)
            stack.push_async_callback(limits.close)
            workers = WorkerPool(
                engine,
                settings.processes if processes else settings.workers,
                settings.max_pending,
                settings.max_queue_wait_ms / 1000,
                processes,
            )
            stack.push_async_callback(workers.close)
            await workers.warm_up()
            self._state = HotState(settings, store, limits, workers, metrics, RuleBook(store))
            self._hot = HotRoutes(self._state)
            try:
                yield self
            finally:
                self._state = self._hot = None

    @property
    def monitoring(self) -> Any:
        """The pages that need no key, as an ASGI application for a separate port."""

        async def pages(scope: Any, receive: Any, send: Any) -> None:
            await self._page(scope, receive, send)

        return pages

    async def _page(self, scope: Any, receive: Any, send: Any) -> None:
        # These need no body: a long one is refused, not read for as long as it comes.
        fields = fields_of(scope["headers"])
        body = RequestBody(b"", fields, receive, self.settings.body_timeout_s)
        declared = int(fields.get(b"content-length", b"0"))
        with contextlib.suppress(ClientGoneError):
            if declared or b"transfer-encoding" in fields:
                if declared <= _PAGE_BODY_MAX:
                    await body.drain(_PAGE_BODY_MAX)
                if not body.complete:
                    refusal = RefusalError(413, ErrorCode.TEXT_TOO_LONG, "A page takes no body.")
                    drain = partial(body.drain, self.settings.max_body_bytes)
                    await send_reply(send, Reply(413, refusal.body(), close=True), drain)
                    return
            await self._pages(scope, receive, send)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if self._hot is not None and endpoint_of(scope["path"]) is not None:
                await self._hot(scope, receive, send)
            elif self.settings.monitor_port is None:
                await self._page(scope, receive, send)
            else:
                await _no_page(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        stack = contextlib.AsyncExitStack()
        try:
            await stack.enter_async_context(self.running())
        except SpamConfigError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await stack.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    def _running_state(self) -> HotState:
        if self._state is None:
            raise RuntimeError("The service is not running.")
        return self._state

    async def _healthz(self, request: Request) -> Response:
        return _json(200, envelope("The service is alive.", {"error_code": ""}))

    async def _readyz(self, request: Request) -> Response:
        if self._state is None:
            return _refused(503, ErrorCode.UNAVAILABLE, "The service is starting or stopping.")
        try:
            # Whoever asks meanwhile shares a question: it costs a connection to the store.
            await asyncio.wait_for(self._ping(None), 2)
        except (StoreError, TimeoutError):
            return _refused(503, ErrorCode.UNAVAILABLE, "The key store cannot be reached.")
        return _json(200, envelope("The service is ready.", {"error_code": ""}))

    async def _ping_once(self, asked: list[None]) -> list[None]:
        await self._running_state().store.ping()
        return asked

    async def _metrics(self, request: Request) -> Response:
        state = self._running_state()
        state.metrics.pending.set(state.workers.pending)
        state.metrics.busy.set(state.workers.busy)
        state.metrics.wait_s.set(state.workers.estimated_wait_s)
        return Response(state.metrics.render(), media_type=Metrics.content_type)

    async def _openapi(self, request: Request) -> Response:
        self._document = self._document or openapi_document(self.settings)
        return _json(200, self._document)


def load_engine(settings: ServiceSettings) -> TextEngine:
    """Load the engine that the settings name.

    Raises:
        SpamConfigError: Its model cannot be loaded.
    """
    from spamdetect.engine import Engine, ModelError

    try:
        return Engine.load(settings.model_path, threshold=settings.threshold)
    except (ModelError, OSError) as error:
        raise SpamConfigError(f"The model cannot be loaded: {error}") from error


async def open_store(database_url: str) -> KeyStore:
    """Open the key store that a URL names.

    Raises:
        SpamConfigError: The kind of URL is unknown, or the store cannot be opened.
    """
    try:
        if database_url.startswith("sqlite:///"):
            from spamdetect.service.sqlite_store import SqliteKeyStore

            return await SqliteKeyStore.open(Path(database_url.removeprefix("sqlite:///")))
        if database_url.startswith(("postgresql://", "postgres://")):
            try:
                from spamdetect.service.postgres_store import PostgresKeyStore
            except ImportError:
                raise SpamConfigError(
                    f"A PostgreSQL key store needs psycopg: {installs('postgres')}."
                ) from None
            return await PostgresKeyStore.open(database_url)
    except StoreError as error:
        raise SpamConfigError(str(error)) from error
    raise SpamConfigError(
        "The database URL must be sqlite:///path or postgresql://user@host/name "
        "(SPAMDETECT_DATABASE_URL)."
    )


async def open_limits(settings: ServiceSettings, store: KeyStore, metrics: Metrics) -> Limits:
    """Open the limiter that the settings name.

    Raises:
        SpamConfigError: The Redis URL is invalid.
    """
    default = Allowance(settings.rate_per_minute, settings.quota_per_day)
    in_process = StoreLimits(store, default)
    if not settings.redis_url:
        return in_process
    from spamdetect.service.redis_limits import RedisLimits

    return RedisLimits.open(settings.redis_url, in_process, default, metrics)


def _json(status_code: int, body: bytes) -> Response:
    return Response(body, status_code, media_type="application/json")


def _refused(status_code: int, error_code: ErrorCode, message: str) -> Response:
    return _json(status_code, RefusalError(status_code, error_code, message).body())


async def _not_found(request: Request, error: Exception) -> Response:
    return _refused(404, ErrorCode.NOT_FOUND, "There is no such endpoint; see /openapi.json.")


_no_page: Final = Starlette(exception_handlers={404: _not_found})


async def _not_allowed(request: Request, error: Exception) -> Response:
    response = _refused(
        405, ErrorCode.METHOD_NOT_ALLOWED, "This endpoint does not take that method."
    )
    response.headers["allow"] = "GET, HEAD"
    return response
