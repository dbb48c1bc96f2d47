"""``guard proxy env``: a shell's variables that lead tools to a proxy with a person's key."""

from __future__ import annotations

import shlex
from typing import Final

_TOOLS: Final = (
    ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "/anthropic"),
    ("OPENAI_BASE_URL", "OPENAI_API_KEY", "/openai/v1"),
    ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "/gemini"),
)
"""The variables of each vendor's clients, and its path at the proxy."""


def exports(proxy: str, key: str) -> str:
    """Return lines for a shell.

    Args:
        proxy: the address of a proxy that has the vendors' keys.
        key: a key of guard's.

    >>> print(exports("https://p.example/", "gdk_x").splitlines()[0])
    export ANTHROPIC_BASE_URL=https://p.example/anthropic ANTHROPIC_API_KEY=gdk_x
    """
    return "\n".join(
        f"export {url}={shlex.quote(proxy.rstrip('/') + path)} {name}={shlex.quote(key)}"
        for url, name, path in _TOOLS
    )
