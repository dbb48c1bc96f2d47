"""Serves the proxy on uvicorn."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any, Final

from guard.gateway.connections import HttpConnections
from guard.gateway.server import config_of
from guard.gateway.uvicorn_http import GuardedHttpProtocol, UvicornServer
from guard.proxy.app import ProxyApp
from guard.running import processes

logger = logging.getLogger("guard.proxy")

REQUEST_S: Final = 300.0
"""Seconds in which a request has to arrive."""

DRAIN_S: Final = 5
"""Default: seconds that open answers may take when the server stops."""


class _OwnUsersProtocol(GuardedHttpProtocol):
    """Takes connections of this process's own user only, where the system shows the owner.

    Such a proxy asks for no key: any other user of the machine could spend this user's money.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows the type the same way
        """End a connection of another user."""
        super().connection_made(transport)
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        owner = processes.owner(peer, own)
        if owner is not None and owner != os.geteuid():
            logger.warning("a connection of user %d was refused", owner)
            self.evict()


class ProxyServer:
    """One proxy on one listening socket.

    Args:
        app: the application.
        listening: the socket to serve.
        connections_max: maximum connections at once.
        own_user: whether it takes connections of its own user only.
        tls: files of the certificate chain and of its key; None serves plain HTTP.
        drain_s: seconds that open answers may take when it stops.
    """

    def __init__(
        self,
        app: ProxyApp,
        listening: socket.socket,
        *,
        connections_max: int,
        own_user: bool = False,
        tls: tuple[Path, Path] | None = None,
        drain_s: int = DRAIN_S,
    ) -> None:
        self._app = app
        self._listening = listening
        self._connections = HttpConnections(REQUEST_S, connections_max)
        base = _OwnUsersProtocol if own_user else GuardedHttpProtocol
        # uvicorn takes a class: this one's attribute is the watch over this server's connections.
        protocol: Any = type("BoundHttpProtocol", (base,), {"watch": self._connections})
        self._server = UvicornServer(
            config_of(app, http=protocol, ws="none", tls=tls, drain_s=drain_s, date_header=False)
        )

    async def serve(self) -> None:
        """Serve until :meth:`stop`."""
        # Silenced: uvicorn logs each request to upgrade, and the traceback of each stream that was
        # cut, which the proxy does on purpose.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        watching = asyncio.create_task(self._connections.run(), name="guard-proxy-watch")
        try:
            await self._server.serve(sockets=[self._listening])
        finally:
            watching.cancel()
            await self._app.close()

    def stop(self) -> None:
        """End serving: open answers get ``drain_s``, and none at a second call.

        Call it on the server's loop.
        """
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True
