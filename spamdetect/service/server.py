"""The service on a socket: bind, run uvicorn, stop gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import uvicorn

from spamdetect.errors import SpamConfigError
from spamdetect.service.app import SpamService
from spamdetect.service.direct import direct_protocol
from spamdetect.service.keys import KeySpec, NewKey
from spamdetect.service.protocol import hardened_protocol
from spamdetect.service.routes import HotRoutes
from spamdetect.service.settings import ServiceSettings

# Longer than the client keeps an idle connection, so that the client is the one that closes.
_KEEP_ALIVE_S = 30
_GRACE_S = 5


@attrs.frozen
class Listening:
    """An application that is accepting requests.

    Attributes:
        base_url: Where it listens.
        stop: Set it to stop the server.
        finished: Done when the server has stopped.
    """

    base_url: str
    stop: asyncio.Event
    finished: asyncio.Task[None]


@attrs.frozen
class RunningServer:
    """A service that is accepting requests.

    Attributes:
        listening: Where, and how to stop it.
        first_key: The key made for an empty key store, else None.
        monitor_url: URL of the pages that need no key.
    """

    listening: Listening
    first_key: NewKey | None
    monitor_url: str

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return self.listening.base_url


@contextlib.asynccontextmanager
async def serving(service: SpamService) -> AsyncIterator[RunningServer]:
    """Run a service on its host and port in this event loop, and stop it gracefully at the end.

    Raises:
        SpamConfigError: The port is in use, or the model or a store cannot be used.
    """
    settings = service.settings
    # The port first: it fails most often, and the model need not be loaded to find that out.
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(_bound(settings.host, settings.port))
        monitor = None
        if settings.monitor_port is not None:
            host = settings.monitor_host or settings.host
            monitor = stack.enter_context(_bound(host, settings.monitor_port, "--monitor-port"))
        await stack.enter_async_context(service.running())
        # Several processes may start on one empty store: one of them makes the key.
        first_key = await service.store.create_first(KeySpec(label="first key"))
        monitor_url = ""
        if monitor is not None:
            pages = _listening(service.monitoring, monitor, settings)
            monitor_url = (await stack.enter_async_context(pages)).base_url
        api = _listening(service, listener, settings, service.routes)
        listening = await stack.enter_async_context(api)
        yield RunningServer(listening, first_key, monitor_url or listening.base_url)


@contextlib.asynccontextmanager
async def serving_app(app: Any, settings: ServiceSettings) -> AsyncIterator[Listening]:
    """Run any ASGI application without lifespan on the host and port of the settings.

    Raises:
        SpamConfigError: The port is in use.
    """
    with _bound(settings.host, settings.port) as listener:
        async with _listening(app, listener, settings) as listening:
            yield listening


@contextlib.asynccontextmanager
async def _listening(
    app: Any,
    listener: socket.socket,
    settings: ServiceSettings,
    routes: HotRoutes | None = None,
) -> AsyncIterator[Listening]:
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            ws="none",
            http=(
                hardened_protocol(settings) if routes is None else direct_protocol(settings, routes)
            ),
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )
    stop = asyncio.Event()
    task = asyncio.create_task(server.serve(sockets=[listener]), name="spamdetect-uvicorn")
    stopper = asyncio.create_task(_stop_when(stop, server))
    try:
        await server.ready.wait()
        yield Listening(_base_url(listener), stop, task)
    finally:
        server.should_exit = True
        stopper.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it is ready and leaves signals to its caller."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _stop_when(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True


@contextlib.contextmanager
def _bound(host: str, port: int, option: str = "--port") -> Iterator[socket.socket]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise SpamConfigError(
            f"{host!r} is no address of this machine: {error.strerror}."
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(2048)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise SpamConfigError(
                    f"Port {port} on {host} is in use already. Stop what runs there, or choose "
                    f"another one with {option} (0 takes a free one)."
                ) from None
            raise SpamConfigError(f"Cannot listen on {host}:{port}: {error.strerror}.") from None
        yield listener
    finally:
        listener.close()


def _base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
