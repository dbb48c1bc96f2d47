"""The proxy of the run that this process belongs to: what is sent there is held and recorded there.

Clients are led to the vendor itself, but a settings file or an argument may still name the proxy.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

_LOOPBACK: Final = ("127.0.0.1", "localhost")

known: tuple[str, int] | None = None
"""Its host and port; None where there is none. Callers look here before they call."""


def know(url: str | None) -> None:
    """Say where the proxy is.

    Args:
        url: its address; None or anything that is none for no proxy.
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
    """Tell whether a request goes to the proxy.

    Args:
        host: of its URL, in lower case.
        port: of its URL; None where that names none.
    """
    if known is None or port is None or str(port) != str(known[1]):
        return False
    return host == known[0] or (host in _LOOPBACK and known[0] in _LOOPBACK)
