"""The address of this run's proxy, which holds and records the requests that it forwards itself.

In a process that guard observes, clients are pointed back to the vendor. But a settings file or an
argument may still name the proxy: such a request must not be held twice.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

_LOOPBACK: Final = ("127.0.0.1", "localhost")

known: tuple[str, int] | None = None
"""Its host and port; None without one. Set once, before the program starts. The hot path compares
it with None before it calls :func:`is_at`."""


def know(url: str | None) -> None:
    """Set the proxy's address.

    Args:
        url: its address; None, or anything that is not a URL with a port, for no proxy.
    """
    global known
    known = None
    try:
        parts = urlsplit(url or "")
        if parts.hostname and parts.port:
            known = parts.hostname, parts.port
    except ValueError:
        return


def is_at(host: str | None, port: int | str | None) -> bool:
    """Return whether a request goes to the proxy.

    Args:
        host: the host of its URL, in lower case.
        port: the port of its URL; None where the URL has none.
    """
    if known is None or port is None or str(port) != str(known[1]):
        return False
    return host == known[0] or (host in _LOOPBACK and known[0] in _LOOPBACK)
