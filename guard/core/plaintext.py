"""Where plain HTTP may go: one rule for programs and for the command line."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

HOSTS_VARIABLE: Final = "GUARD_ALLOW_PLAINTEXT_HOSTS"
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:]*:[0-9a-f:.]*")


def hosts_in(text: str) -> tuple[str, ...]:
    """Return the names to which plain HTTP is allowed, from a setting.

    Raises:
        ValueError: something else than host names.

    >>> hosts_in("gateway, 10.0.0.7")
    ('10.0.0.7', 'gateway')
    """
    names = tuple(sorted(text.replace(",", " ").lower().split()))
    if not all(_HOST.fullmatch(name) for name in names):
        raise ValueError("host names without a port or a wildcard, separated by commas")
    return names


def flaw_in_address(url: str, allowed: Collection[str] = ()) -> str | None:
    """Return why nothing may be sent to an address; None: it is https, loopback or allowed.

    >>> flaw_in_address("http://127.0.0.1:8787") is flaw_in_address("https://gateway") is None
    True
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in ("https", "wss") or is_loopback(host) or host in allowed:
        return None
    return (
        f"plain {parts.scheme} is allowed to a loopback address only; use https for {host}. Inside "
        f"a network that nobody else can read (compose, a pod) name the host in {HOSTS_VARIABLE}"
    )


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost`` or a loopback address in its canonical spelling.

    Spellings such as ``127.1`` or ``0x7f000001`` are refused: resolvers disagree about them.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
