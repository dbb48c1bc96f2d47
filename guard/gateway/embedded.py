"""A gateway in this process, on a thread and a loop of its own: for demos and tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guard.gateway.admin import AdminClient
from guard.gateway.app import GatewayApp
from guard.gateway.bootstrap import first_run, new_admin_key
from guard.gateway.server import GatewayServer, bind, new_event_loop
from guard.gateway.settings import GatewaySettings
from guard.gateway.tls import files_of, fingerprint

START_TIMEOUT_S = 30.0
"""How long a start may take, and a stop."""


class Gateway:
    """A running gateway.

    Attributes:
        base_url: where it listens, such as ``http://127.0.0.1:43121``.
        api_key: the first SDK key (only when this run made it, else ``""``).
        admin_key: a key for the admin API.
        organisation_id: the first organisation.
        admin: a blocking client of the admin API.
    """

    def __init__(self, settings: GatewaySettings, **app_options: Any) -> None:
        self._tls = files_of(settings)
        self._listening = bind(settings.host, settings.port)
        self._settings = settings
        self._app_options = app_options
        # Set by the thread once the gateway serves or has failed. The attributes below are written
        # by the thread before that, and read by the caller's thread after it.
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: GatewayServer | None = None
        self.base_url = ""
        self.api_key = ""
        self.admin_key = ""
        self.organisation_id = ""
        self._thread = threading.Thread(target=self._run, name="guard-gateway", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError("the gateway did not start in time")
        self._raise_failure()
        pinned = fingerprint(self._tls[0]) if self._tls is not None else None
        self.admin = AdminClient(self.base_url, self.admin_key, tls_fingerprint=pinned)

    def stop(self) -> None:
        """Finish the requests in flight, then close the store. Idempotent."""
        self.admin.close()
        loop, server = self._loop, self._server
        if loop is not None and server is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
                loop.call_soon_threadsafe(server.stop)
            self._thread.join(START_TIMEOUT_S)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._thread.join(START_TIMEOUT_S)
            raise self._failure

    def _run(self) -> None:
        self._loop = new_event_loop()
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as exc:  # noqa: BLE001  # carried to the caller, whatever it is
            self._failure = exc
        finally:
            self._listening.close()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            # Set already, unless the start has failed: then the caller is waiting for it.
            self._started.set()

    async def _main(self) -> None:
        app = GatewayApp(self._settings, **self._app_options)
        server = self._server = GatewayServer(app, self._listening, self._tls)
        try:
            await app.open()
            made = await first_run(app.storage, app.clock_ms())
            if made is None:
                self.admin_key = await new_admin_key(app.storage, app.clock_ms(), "embedded")
                self.organisation_id = (await app.storage.organisations())[0].organisation_id
            else:
                self.api_key, self.admin_key = made.api_key, made.admin_key
                self.organisation_id = made.organisation_id
        except BaseException:
            await app.close()
            raise
        self.base_url = server.base_url
        serving = asyncio.create_task(server.serve())
        # Before uvicorn accepts connections: the socket was listening before this thread began, so
        # early requests wait in its backlog.
        self._started.set()
        await serving


@contextlib.contextmanager
def run_gateway(
    database: str | os.PathLike[str] | None = None, **settings: Any
) -> Iterator[Gateway]:
    """Run a gateway while the block runs.

    Args:
        database: the SQLite file, or a PostgreSQL URI; ``None`` makes a temporary file, deleted
            afterwards.
        settings: fields of :class:`guard.gateway.settings.GatewaySettings`, and ``clock_ms`` (a
            function that returns Unix milliseconds) for tests.

    Raises:
        PortInUseError: a port was asked for and is taken.
        StoreError: the database cannot be opened, or another gateway has it.

    Example:
        >>> with run_gateway() as gateway:  # doctest: +SKIP
        ...     key = gateway.admin.create_key("worker")
    """
    app_options = {name: settings.pop(name) for name in ("clock_ms", "storage") if name in settings}
    with contextlib.ExitStack() as stack:
        if database is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="guard-gateway-"))
            database = Path(folder) / "gateway.sqlite3"
        gateway = Gateway(GatewaySettings(database=os.fspath(database), **settings), **app_options)
        stack.callback(gateway.stop)
        yield gateway
