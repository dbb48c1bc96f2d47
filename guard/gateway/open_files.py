"""How many connections this process can hold: each takes a file descriptor."""

from __future__ import annotations

from typing import Final

RESERVED: Final = 100
"""Descriptors for everything but clients: stores, files, webhooks."""


def room_for(connections: int) -> int:
    """Raise this process's limit of open files as far as that is needed and allowed.

    Args:
        connections: of clients that are wanted at once.

    Returns:
        How many of them there is room for.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # some systems allow less than they say
        most = soft
    return max(1, min(connections, most - RESERVED))
