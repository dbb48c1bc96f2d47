"""Calls of a tool that are the same within a run: each is known by a digest of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from guard.asking.tool_calls import Watcher
from guard.asking.tool_policy import ToolPolicy
from guard.core import wire
from guard.core.arguments import digest, key_of
from guard.scope.scope import Scope


class Repeat(Struct):
    """What a call is counted by.

    Attributes:
        digest: of its tool and its arguments.
        is_asked: whether the gateway is asked about it; else its event has the digest.
        joined: what was set aside where a model named the tool, until the repeat is judged.
    """

    digest: str
    is_asked: bool
    joined: wire.GateReply | None = None


def repeat_of(
    tools: ToolPolicy,
    outer: Scope,
    tool_name: str,
    watcher: Watcher,
    arguments: Callable[[], Mapping[str, Any] | None],
    api_key: str,
) -> Repeat | None:
    """Return what a call is counted by; None where it is not.

    A call that an adapter around this one has counted is the same call.

    Args:
        tools: knows the rules.
        outer: where the call is made.
        tool_name: of its tool.
        watcher: what it is to the tool call.
        arguments: returns its arguments; None where they are not known.
        api_key: from which the key of digests is made.
    """
    counting = tools.counts_call(outer, tool_name)
    # What does not surround the tool is followed by its function, which may note it.
    if not counting or (counting == "note" and not watcher.surrounds):
        return None
    counted = None if outer.call is None else outer.call.counted
    if counted is not None and counted[0] == tool_name and counted[1] != watcher.kind:
        return None
    found = arguments()
    if found is None:
        return None
    made = digest({"tool": tool_name, "arguments": found}, key_of(api_key))
    return Repeat(made, counting == "ask")
