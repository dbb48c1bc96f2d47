"""The tools whose results a request carries to a model: names and ids, never what they returned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from guard.core.usage.request_body import UnreadableError, read_request

_MARKS: Final = (
    b'"tool"', b'"tool_result"', b'function_call_output"', b'"functionResponse"',
    b'"function_response"', b'"toolResult"',
)  # fmt: skip


def new_tool_results(body: bytes) -> list[tuple[str, str | None]]:
    """Return the names and ids of the tools that have run since the model's last turn.

    Those before it belong to an earlier request, perhaps of another process.

    >>> call = {"id": "c1", "function": {"name": "delete_files", "arguments": "{}"}}
    >>> messages = [{"role": "assistant", "tool_calls": [call]},
    ...             {"role": "tool", "tool_call_id": "c1", "content": "gone"}]
    >>> import json
    >>> new_tool_results(json.dumps({"messages": messages}).encode())
    [('delete_files', 'c1')]
    """
    if not any(mark in body for mark in _MARKS):
        return []
    try:
        request, _ = read_request(body)
    except UnreadableError:
        return []
    turns = request.get("messages") or request.get("input") or request.get("contents")
    if not isinstance(turns, list):
        return []
    turns = [turn for turn in turns if isinstance(turn, dict)]
    names: dict[str, str] = {}
    for turn in turns:
        names.update(_calls_in(turn))
    found: list[tuple[str, str | None]] = []
    for turn in reversed(turns):
        if turn.get("role") in ("assistant", "model") or "call" in _ending(turn.get("type")):
            break
        for name, identity in _results_in(turn):
            known = name or names.get(identity or "")
            if known:
                found.append((known, identity))
    return found[::-1]


def _ending(kind: object) -> str:
    """Return the last word of an item's type: ``function_call``, ``function_call_output``."""
    return kind.rpartition("_")[2] if isinstance(kind, str) else ""


def _calls_in(turn: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the ids and names of the tools that a model has asked for in its turn."""
    calls = [*_dicts(turn.get("tool_calls")), *_dicts(turn.get("content"))]
    if "call" in _ending(turn.get("type")):
        calls.append(turn)
    for call in calls:
        about = next(
            (call[key] for key in ("function", "toolUse") if _is_dict(call.get(key))), call
        )
        name = about.get("name")
        identity = call.get("call_id") or call.get("id") or about.get("toolUseId")
        if isinstance(name, str) and isinstance(identity, str):
            yield identity, name


def _results_in(turn: dict[str, Any]) -> Iterator[tuple[str | None, str | None]]:
    """Yield the names and ids, as far as they are given, of the results in a turn."""
    if turn.get("role") == "tool" and "tool_results" not in turn:
        yield _text(turn, "name", "tool_name"), _text(turn, "tool_call_id")
    elif _ending(turn.get("type")) == "output":
        yield _text(turn, "name"), _text(turn, "call_id")
    for part in (*_dicts(turn.get("content")), *_dicts(turn.get("parts"))):
        if part.get("type") == "tool_result":
            yield None, _text(part, "tool_use_id")
        for key in ("toolResult", "functionResponse", "function_response"):
            if _is_dict(part.get(key)):
                yield _text(part[key], "name"), _text(part[key], "toolUseId", "id")


def _text(holder: dict[str, Any], *keys: str) -> str | None:
    return next((holder[key] for key in keys if isinstance(holder.get(key), str)), None)


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)
