"""Recognises the hosts that are this machine. Pure functions."""

from __future__ import annotations

import re
from typing import Final

_LOCAL: Final = re.compile(
    r"(?:.+\.)?localhost|127(?:\.\d{1,3}){3}|\[?::1\]?|host\.docker\.internal", re.IGNORECASE
)


def is_local(host: str) -> bool:
    """Return whether a host is this machine, also as seen from a container on it.

    Args:
        host: a name or address, without the port.

    >>> is_local("localhost"), is_local("127.0.0.1"), is_local("api.openai.com")
    (True, True, False)
    """
    return _LOCAL.fullmatch(host) is not None
