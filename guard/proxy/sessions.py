"""Reads the sender of a request: the tool is the agent, its session the run; no I/O."""

from __future__ import annotations

import re
from typing import Final

from guard.proxy.headers import Pairs, value_of

SESSIONS: Final = (
    b"x-claude-code-session-id", b"session-id", b"session_id", b"x-session-id",
    b"x-opencode-session", b"x-gemini-session-id",
)  # fmt: skip
"""Headers by which tools name their session."""

_PRODUCT: Final = re.compile(rb"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_SESSION: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")


def agent_of(headers: Pairs) -> str | None:
    """Return the name of the tool, without its version, which would make each one another agent.

    >>> agent_of([(b"user-agent", b"claude-cli/2.0.1 (external, cli)")])
    'claude-cli'
    """
    found = _PRODUCT.match(value_of(headers, b"user-agent") or b"")
    return None if found is None else found[0].decode("ascii")


def run_of(headers: Pairs) -> str | None:
    """Return the session that a tool names, if it names one."""
    for name in SESSIONS:
        found = value_of(headers, name)
        if found is not None and _SESSION.fullmatch(found):
            return found.decode("ascii")
    return None
