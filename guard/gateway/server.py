"""Runs the application on uvicorn, with deadlines and caps that uvicorn lacks."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

from guard.gateway.app import GatewayApp
from guard.gateway.connections import HttpConnections
from guard.gateway.uvicorn_http import Config, GuardedHttpProtocol, UvicornServer
from guard.gateway.websocket import SocketProtocol

logger = logging.getLogger(__name__)


class PortInUseError(OSError):
    """Another process listens on the wanted port."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        PortInUseError: the port is taken.
        OSError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio's own loop sets TCP_NODELAY only where the protocol is named; without it the body of
    # an answer waits for the ACK of its head, up to 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as exc:
        listening.close()
        if exc.errno in (98, 48, 10048):
            raise PortInUseError(exc.errno, f"port {port} on {host} is in use") from None
        raise OSError(exc.errno, f"cannot listen on {host}: {exc.strerror or exc}") from None
    listening.setblocking(False)
    return listening


def base_url(listening: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def config_of(
    app: Any, *, http: Any, ws: Any, tls: tuple[Path, Path] | None, drain_s: int, **more: Any
) -> Config:
    """Return uvicorn's configuration for an application of guard, without logs and headers.

    Args:
        app, http, ws: the application, and the protocols of its connections.
        tls: files of the certificate chain and of its key; None serves plain HTTP.
        drain_s: how long open requests may take when the server ends, in seconds.
        more: further settings of uvicorn.
    """
    return Config(
        app,
        http=http,
        ws=ws,
        ssl_certfile=None if tls is None else tls[0],
        ssl_keyfile=None if tls is None else tls[1],
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=drain_s,
        backlog=2048,
        **more,
    )


class GatewayServer:
    """One gateway on one listening socket.

    Args:
        app: the application, not yet opened.
        listening: the socket to serve.
        tls: files of the certificate chain and of its key; None serves plain HTTP.
    """

    def __init__(
        self, app: GatewayApp, listening: socket.socket, tls: tuple[Path, Path] | None = None
    ) -> None:
        self.app = app
        # Whether ``stop`` was called. Used on the loop only.
        self._stopping = False
        self.base_url = base_url(listening, "http" if tls is None else "https")
        self._tls = tls
        self._listening = listening
        self._connections = HttpConnections(
            app.settings.request_deadline_ms / 1000,
            app.settings.connections_max,
            app.hub.sockets_of,
        )
        # uvicorn makes the protocols itself, so this server's objects are attributes of subclasses.
        protocol = type("BoundHttpProtocol", (GuardedHttpProtocol,), {"watch": self._connections})
        sockets = type(
            "BoundSocketProtocol",
            (SocketProtocol,),
            {
                "endpoint": staticmethod(app.serve_socket),
                "bytes_max": app.settings.max_batch_bytes,
                "accounts": self._connections.accounts,
            },
        )
        self._server = UvicornServer(
            config_of(
                app,
                http=protocol,
                ws=sockets,
                tls=tls,
                drain_s=-(-app.settings.drain_timeout_ms // 1000),
            )
        )
        self._server.handshake_deadline_s = app.settings.request_deadline_ms / 1000
        open_now = self._server.server_state.connections
        app.connections = lambda: len(open_now)

    async def serve(self) -> None:
        """Serve until :meth:`stop`, and close the application at the end.

        Until the application is open, probes are answered and other requests wait a moment.
        """
        watching = asyncio.create_task(self._connections.run(), name="guard-gateway-watch")
        try:
            await self._server.serve(sockets=[self._listening])
        finally:
            watching.cancel()
            # The second call, unless the server has ended without ``stop``: ends all channels that
            # are left.
            self.app.drain()
            await self.app.close()
            logger.info("closed")

    def reload_certificate(self) -> None:
        """Read the certificate and its key anew, for connections from now on."""
        context = self._server.config.ssl
        if self._tls is None or context is None:
            return
        try:
            # Into a context of its own first: if the two files do not fit, a failure half-way would
            # leave the live context with the new certificate and the old key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._tls)  # both fit?
            context.load_cert_chain(*self._tls)
        except OSError as exc:
            logger.error("the certificate cannot be read anew: %s", exc)
        else:
            logger.warning("the certificate was read anew")

    def stop(self) -> None:
        """End serving, letting open requests finish. Call on the server's loop.

        A second call ends them as well.
        """
        # 1. The operator does not want to wait.
        if self._stopping:
            self._server.force_exit = True
            self._end()
            return
        # 2. ``/readyz`` fails from here on. For the delay the server still accepts requests, until
        # load balancers have noticed.
        self._stopping = self.app.draining = True
        logger.info("draining: %d connections", self.app.connections())
        delay_s = self.app.settings.drain_delay_ms / 1000
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._end)
        else:
            self._end()

    def _end(self) -> None:
        if not self._server.should_exit:
            self.app.drain()
            self._server.should_exit = True


def tune_process() -> None:
    """Run the garbage collector less often; for a process that is only a gateway.

    Requests make no reference cycles, so a pass over many open reservations finds nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of the fastest kind that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: Any = uvloop.new_event_loop()
    return loop  # type: ignore[no-any-return]  # uvloop has no complete stubs
