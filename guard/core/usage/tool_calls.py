"""The tools that an answer asks its caller to run: names only, in every vendor's shape.

Tools that the vendor runs itself (web search, code execution, remote MCP) are left out: they have
run already when the answer names them. A hosted MCP tool that asks for approval first is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from guard.core.usage.message import Message, items, mapping, text_or_none
from guard.core.usage.response_format import ToolCallReader, ToolUse

_TYPED: Final = frozenset({
    "function_call", "custom_tool_call", "mcp_approval_request", "tool_use", "function.call",
    "function.call.delta",
})  # fmt: skip
"""Types of items that name a tool of the caller."""

_BUILT_IN: Final = {
    "computer_call": "computer",
    "local_shell_call": "local_shell",
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
}
"""Types of items that ask for a tool without naming it, and the tool's name."""

_ITEM_LISTS: Final = ("output", "outputs", "steps", "content")
_ITEMS: Final = ("item", "step", "content_block")


def _call(name: Any, *keys: Any) -> Iterator[ToolUse]:
    """Yield the call if it has a name; the first usable key identifies it."""
    if isinstance(name, str) and name:
        usable = (str(key) for key in keys if isinstance(key, str | int) and key != "")
        yield ToolUse(name, next(usable, None))


def _functions(said: Any, place: str) -> Iterator[ToolUse]:
    """Yield what a message of chat completions asks for, whole or a delta."""
    message = mapping(said)
    asked = message.get("tool_calls")
    for call in map(mapping, [asked] if isinstance(asked, dict) else items(asked)):
        function = mapping(call.get("function") or call.get("custom"))
        index = call.get("index", function.get("index"))
        key = call.get("id") or (None if index is None else f"{place}/{index}")
        yield from _call(function.get("name") or call.get("name"), key)
    yield from _call(mapping(message.get("function_call")).get("name"), f"{place}/function_call")


def _chat(message: Message) -> Iterator[ToolUse]:
    for choice in map(mapping, items(message.get("choices"))):
        place = str(choice.get("index", 0))
        yield from _functions(choice.get("message"), place)
        yield from _functions(choice.get("delta"), place)


def _typed(message: Message) -> Iterator[ToolUse]:
    whole = message.get("response", message.get("interaction"))
    source = mapping(whole) if isinstance(whole, dict) else message
    listed = chain.from_iterable(items(source.get(name)) for name in _ITEM_LISTS)
    alone = (message.get(name) for name in _ITEMS)
    for item in map(mapping, chain(listed, alone, (message,))):
        kind = item.get("type")
        if not isinstance(kind, str):
            continue
        name = _BUILT_IN.get(kind) or (item.get("name") if kind in _TYPED else None)
        yield from _call(name, item.get("call_id"), item.get("tool_call_id"), item.get("id"))


def _gemini(message: Message) -> Iterator[ToolUse]:
    parts: Iterable[Any] = chain.from_iterable(
        items(mapping(mapping(candidate).get("content")).get("parts"))
        for candidate in items(message.get("candidates"))
    )
    for part in map(mapping, parts):
        call = mapping(part.get("functionCall") or part.get("function_call"))
        yield from _call(call.get("name"), call.get("id"))


def _live(message: Message) -> Iterator[ToolUse]:
    asked = mapping(message.get("toolCall") or message.get("tool_call"))
    for call in map(mapping, items(asked.get("functionCalls") or asked.get("function_calls"))):
        yield from _call(call.get("name"), call.get("id"))


def _converse(message: Message) -> Iterator[ToolUse]:
    said = mapping(mapping(message.get("output")).get("message"))
    for block in map(mapping, [*items(said.get("content")), message.get("start")]):
        use = mapping(block.get("toolUse"))
        if use.get("type") != "server_tool_use":
            yield from _call(use.get("name"), use.get("toolUseId"))


def _cohere(message: Message) -> Iterator[ToolUse]:
    yield from _functions(message.get("message"), "message")
    yield from _functions(mapping(message.get("delta")).get("message"), "message")
    # Version 1 gives no ids; a stream repeats the calls, in the same order.
    begun = mapping(message.get("tool_call_delta"))
    yield from _call(begun.get("name"), f"v1/{begun.get('index', 0)}")
    listed = items(message.get("tool_calls") or mapping(message.get("response")).get("tool_calls"))
    for position, call in enumerate(map(mapping, listed)):
        yield from _call(call.get("name"), f"v1/{position}")


def _ollama(message: Message) -> Iterator[ToolUse]:
    for call in map(mapping, items(mapping(message.get("message")).get("tool_calls"))):
        yield from _call(mapping(call.get("function")).get("name"), call.get("id"))


def _runs(message: Message) -> Iterator[ToolUse]:
    required = mapping(message.get("required_action")).get("submit_tool_outputs")
    yield from _functions(required, "run")
    details = message.get("step_details") or mapping(message.get("delta")).get("step_details")
    yield from _functions(details, "run")


def _returned_control(message: Message) -> Iterator[ToolUse]:
    control = mapping(message.get("returnControl", message))
    for number, asked in enumerate(map(mapping, items(control.get("invocationInputs")))):
        function = mapping(asked.get("functionInvocationInput"))
        api = mapping(asked.get("apiInvocationInput"))
        key = f"{text_or_none(control.get('invocationId')) or ''}/{number}"
        yield from _call(function.get("function") or api.get("actionGroup"), key)


def _union(*readers: ToolCallReader) -> ToolCallReader:
    functions = tuple(dict.fromkeys(reader.read for reader in readers))
    markers = tuple(dict.fromkeys(marker for reader in readers for marker in reader.markers))

    def read(message: Message) -> Iterator[ToolUse]:
        inner = mapping(message.get("result"))  # Cloudflare's envelope
        for one in (message, inner) if inner else (message,):
            for function in functions:
                yield from function(one)

    return ToolCallReader(markers, read)


CHAT: Final = ToolCallReader((b'"tool_calls"', b'"function_call"'), _chat)
# `_call"` ends the types of items. It is not in `parallel_tool_calls`, which every answer has.
RESPONSES: Final = ToolCallReader((b'_call"', b'"mcp_approval_request"'), _typed)
ANTHROPIC: Final = ToolCallReader((b'"tool_use"',), _typed)
GEMINI: Final = ToolCallReader((b'"functionCall"', b'"function_call"'), _gemini)
LIVE: Final = ToolCallReader((b'"toolCall"', b'"tool_call"'), _live)
INTERACTIONS: Final = ToolCallReader((b'"function_call"',), _typed)
CONVERSE: Final = ToolCallReader((b'"toolUse"',), _converse)
COHERE: Final = ToolCallReader((b'"tool_calls"', b'"tool_call_delta"'), _cohere)
OLLAMA: Final = ToolCallReader((b'"tool_calls"',), _ollama)
RUNS: Final = ToolCallReader((b'"tool_calls"',), _runs)
RETURNED_CONTROL: Final = ToolCallReader((b'"invocationInputs"',), _returned_control)
_CONVERSATIONS: Final = ToolCallReader((b'"function.call',), _typed)

INVOKE_MODEL: Final = _union(ANTHROPIC, CHAT, CONVERSE, COHERE)
ANY: Final = _union(CHAT, RESPONSES, ANTHROPIC, GEMINI, CONVERSE, COHERE, _CONVERSATIONS)
