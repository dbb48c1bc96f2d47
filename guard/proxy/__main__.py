"""The proxy of one run: ``guard run`` starts it as ``python -m guard.proxy`` and ends it.

It reads one line of JSON from standard input (``directory``, ``upstreams``, and as ``fd`` the
listening socket that it has inherited, else it makes its own), answers with one line (``url``, or
``error``), and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

CONNECTIONS_MAX: Final = 4096


def main() -> None:
    """Serve until standard input ends: ``guard run`` has closed it, or has died."""
    try:
        told = json.loads(sys.stdin.buffer.readline() or b"{}")
        asyncio.run(_serve(told))
    except Exception as exc:  # noqa: BLE001  # whatever it is, `guard run` has to report it
        _say({"error": f"{type(exc).__name__}: {exc}"})
        raise SystemExit(1) from None


async def _serve(told: dict[str, Any]) -> None:
    import guard
    from guard.gateway.server import base_url
    from guard.proxy.admission import OwnKey
    from guard.proxy.app import ProxyApp
    from guard.proxy.counts import ProxyCounts
    from guard.proxy.server import ProxyServer
    from guard.proxy.upstreams import Upstreams
    from guard.running import child, reports

    directory = Path(told["directory"])
    runtime = await asyncio.to_thread(guard.init)
    child.stand_in(directory, runtime)
    requests = 0

    def seen() -> None:
        nonlocal requests
        requests += 1
        # Written at once, so that the run knows even if this process is killed; at the end the
        # total replaces it.
        if requests == 1:
            reports.say_proxied(directory, requests)

    listening = _listening(told)
    app = ProxyApp(Upstreams(told.get("upstreams", {})), OwnKey(), ProxyCounts(), seen)
    server = ProxyServer(app, listening, connections_max=CONNECTIONS_MAX, own_user=True)
    loop = asyncio.get_running_loop()
    stdin = sys.stdin.fileno()

    def at_its_end() -> None:
        # An empty read is the end. The kernel closes the other side however `guard run` ends, so
        # no proxy outlives its run.
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            server.stop()

    loop.add_reader(stdin, at_its_end)
    # Only now: `guard run` starts the program as soon as it has this line.
    _say({"url": base_url(listening)})
    try:
        await server.serve()
    finally:
        if requests:
            reports.say_proxied(directory, requests)
        await asyncio.to_thread(guard.shutdown)


def _listening(told: dict[str, Any]) -> socket.socket:
    from guard.gateway.server import bind

    if "fd" not in told:
        return bind("127.0.0.1", 0)
    # With its protocol: asyncio sets TCP_NODELAY only on sockets that name it.
    inherited = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=told["fd"]
    )
    inherited.setblocking(False)
    return inherited


def _say(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201  # the protocol


if __name__ == "__main__":
    main()
