"""Model Context Protocol: the tool calls of client sessions pass the tool policy.

::

    from guard.integrations import mcp

    mcp.install()

From then on ``ClientSession.call_tool`` is a protected call under the tool's name, also when an
agent framework makes it: a blocked tool's request is not sent.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from mcp import ClientSession

from guard.asking.tool_calls import Checkpoint
from guard.integrations import tools

_SESSION: Final = Checkpoint("mcp adapter")  # the seam of the sessions is another watcher

_original: Any = None


def install() -> None:
    """Check every tool call of every session against the tool policy. Idempotent."""
    global _original
    if _original is not None:
        return
    original = _original = ClientSession.call_tool

    @functools.wraps(original)
    async def call_tool(self: ClientSession, name: str, *arguments: Any, **options: Any) -> Any:
        return await tools.call_tool_async(
            name, lambda: original(self, name, *arguments, **options), _SESSION,
            (arguments[0] if arguments else options.get("arguments")) or {},
        )  # fmt: skip

    ClientSession.call_tool = call_tool  # type: ignore[method-assign]


def uninstall() -> None:
    """Undo :func:`install`. Idempotent."""
    global _original
    if _original is not None:
        ClientSession.call_tool = _original  # type: ignore[method-assign]
        _original = None
