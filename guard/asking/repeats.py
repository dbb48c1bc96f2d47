"""Repeated calls of a tool within a run, recognised by a digest of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from guard.asking.tool_calls import Checkpoint
from guard.asking.tool_policy import ToolPolicy
from guard.core import wire
from guard.core.arguments import digest, key_of
from guard.scope.scope import Scope


class Repeat(Struct):
    """The identity of a call whose repeats are counted.

    Attributes:
        digest: the digest of its tool and its arguments.
        is_asked: whether the gateway is asked about it; else its event carries the digest.
        joined: the money set aside when a model named the tool, until the repeat is judged.
    """

    digest: str
    is_asked: bool
    joined: wire.GateReply | None = None


def repeat_of(
    tools: ToolPolicy,
    outer: Scope,
    tool_name: str,
    watcher: Checkpoint,
    arguments: Callable[[], Mapping[str, Any] | None],
    api_key: str,
) -> Repeat | None:
    """Return the identity by which a call is counted; None where it is not counted.

    A call that an adapter around this one has counted already is the same call.

    Args:
        tools: knows the rules.
        outer: where the call is made.
        tool_name: the name of its tool.
        watcher: how it relates to the tool call.
        arguments: returns its arguments; None where they are not known.
        api_key: the key of digests is derived from it.
    """
    counting = tools.counts_call(outer, tool_name)
    # Only a watcher around the tool records an event for it; behind another one follows the tool's
    # function, which may.
    if not counting or (counting == "note" and not watcher.runs_tool):
        return None
    counted = None if outer.call is None else outer.call.counted
    if counted is not None and counted[0] == tool_name and counted[1] != watcher.kind:
        return None
    found = arguments()
    if found is None:
        return None
    made = digest({"tool": tool_name, "arguments": found}, key_of(api_key))
    return Repeat(made, counting == "ask")
