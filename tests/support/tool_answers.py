"""Answers that ask for tools, in every vendor's format: whole, or as the chunks of a stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Final

from tests.guard.instrumentation.standin.reply import Reply, aws_frame, encoded, lines, sse

ARGUMENT: Final = "canary-argument-7f3a"
"""In the arguments of every call; it must never be anywhere else."""

SSE: Final = "text/event-stream"
AWS: Final = "application/vnd.amazon.eventstream"
ARGUMENTS: Final = json.dumps({"path": ARGUMENT})

SHAPES: Final = (
    "chat", "function_call", "responses", "anthropic", "gemini", "interactions", "converse",
    "invoke", "cohere", "ollama",
)  # fmt: skip


def answer(shape: str, tools: Sequence[str], *, stream: bool = False, array: bool = False) -> Reply:
    """Return an answer that asks for tools.

    Args:
        shape: one of ``SHAPES``.
        tools: their names.
        stream: as a stream.
        array: Gemini's stream as one JSON array.
    """
    make = globals()[f"_{shape}"]
    if shape == "gemini":
        return make(list(tools), stream, array)  # type: ignore[no-any-return]
    return make(list(tools), stream)  # type: ignore[no-any-return]


def _chat(tools: list[str], stream: bool) -> Reply:
    usage = {"prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59}
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}
        for n, name in enumerate(tools)
    ]
    base = {"id": "chatcmpl-t", "created": 1, "model": "gpt-5"}
    if not stream:
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        kind = {"object": "chat.completion"}
        return Reply(None, encoded({**base, **kind, "choices": [choice], "usage": usage}))

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**base, "object": "chat.completion.chunk", "choices": [choice]}

    deltas = [chunk({"role": "assistant", "content": ""})]
    for number, call in enumerate(calls):
        begun = {**call, "index": number, "function": {"name": tools[number], "arguments": ""}}
        deltas.append(chunk({"tool_calls": [begun]}))
        for piece in (ARGUMENTS[:5], ARGUMENTS[5:]):
            more = {"index": number, "function": {"arguments": piece}}
            deltas.append(chunk({"tool_calls": [more]}))
    deltas += [chunk({}, "tool_calls"), {**chunk({}), "choices": [], "usage": usage}]
    return Reply(None, events=sse(*deltas, done=True), content_type=SSE)


def _function_call(tools: list[str], stream: bool) -> Reply:
    said = {"role": "assistant", "content": None,
            "function_call": {"name": tools[0], "arguments": ARGUMENTS}}  # fmt: skip
    place = "delta" if stream else "message"
    body = {"id": "c", "model": "gpt-4", "choices": [{"index": 0, place: said}],
            "usage": {"prompt_tokens": 50, "completion_tokens": 9}}  # fmt: skip
    if stream:
        return Reply(None, events=sse(body, done=True), content_type=SSE)
    return Reply(None, encoded(body))


def _responses(tools: list[str], stream: bool) -> Reply:
    output = [
        {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": name,
         "arguments": ARGUMENTS, "status": "completed"}
        for n, name in enumerate(tools)
    ]  # fmt: skip
    usage = {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59,
             "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
             "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
    whole: dict[str, Any] = {
        "id": "resp_t", "object": "response", "created_at": 1.0, "output": output,
        "model": "gpt-5", "status": "completed", "usage": usage, "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {},
        "tools": [{"type": "function", "name": "not_asked_for", "parameters": {}, "strict": True}],
        "parallel_tool_calls": True, "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip
    if not stream:
        return Reply(None, encoded(whole))
    begun = {**whole, "output": [], "status": "in_progress", "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for number, item in enumerate(output):
        about = {"output_index": number, "item_id": item["id"]}
        empty = {**item, "arguments": "", "status": "in_progress"}
        events += [
            {"type": "response.output_item.added", "output_index": number, "item": empty},
            {"type": "response.function_call_arguments.delta", **about, "delta": ARGUMENTS},
            {"type": "response.function_call_arguments.done", **about, "arguments": ARGUMENTS,
             "name": item["name"]},
            {"type": "response.output_item.done", "output_index": number, "item": item},
        ]  # fmt: skip
    events.append({"type": "response.completed", "response": whole})
    numbered = [{**event, "sequence_number": n} for n, event in enumerate(events)]
    return Reply(None, events=sse(*numbered, name="type"), content_type=SSE)


def _anthropic(tools: list[str], stream: bool) -> Reply:
    blocks = [
        {"type": "tool_use", "id": f"toolu_{n}", "name": name, "input": {"path": ARGUMENT}}
        for n, name in enumerate(tools)
    ]
    usage = {"input_tokens": 50, "output_tokens": 9}
    base = {"id": "msg_t", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    ending = {"stop_reason": "tool_use", "stop_sequence": None}
    if not stream:
        return Reply(None, encoded({**base, "content": blocks, **ending, "usage": usage}))
    begun = {**base, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for number, block in enumerate(blocks):
        part = {"type": "input_json_delta", "partial_json": ARGUMENTS}
        events += [
            {
                "type": "content_block_start",
                "index": number,
                "content_block": {**block, "input": {}},
            },
            {"type": "content_block_delta", "index": number, "delta": part},
            {"type": "content_block_stop", "index": number},
        ]
    events += [{"type": "message_delta", "delta": ending, "usage": {"output_tokens": 9}},
               {"type": "message_stop"}]  # fmt: skip
    return Reply(None, events=sse(*events, name="type"), content_type=SSE)


def _gemini(tools: list[str], stream: bool, array: bool = False) -> Reply:
    def message(parts: list[Any], finish: str | None = None) -> dict[str, Any]:
        candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        usage = {"promptTokenCount": 50, "candidatesTokenCount": 9, "totalTokenCount": 59}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5"}

    calls = [{"functionCall": {"name": name, "args": {"path": ARGUMENT}}} for name in tools]
    if not stream:
        return Reply(None, encoded(message(calls, "STOP")))
    messages = [message([{"text": "I will."}]), *(message([c]) for c in calls), message([], "STOP")]
    if not array:
        return Reply(None, events=sse(*messages), content_type=SSE)
    pieces = [b"[" + encoded(messages[0]), *(b"\n,\r\n" + encoded(m) for m in messages[1:]), b"]"]
    return Reply(None, events=tuple(pieces))


def _interactions(tools: list[str], stream: bool) -> Reply:
    steps = [
        {"type": "function_call", "id": f"fc{n}", "name": name, "arguments": {"path": ARGUMENT}}
        for n, name in enumerate(tools)
    ]
    whole = {"id": "i", "status": "requires_action", "steps": steps,
             "usage": {"total_input_tokens": 50, "total_output_tokens": 9}}  # fmt: skip
    if not stream:
        return Reply(None, encoded(whole))
    events: list[dict[str, Any]] = [
        {"event_type": "interaction.created", "interaction": {"id": "i", "model": "gemini-2.5"}}
    ]
    for number, step in enumerate(steps):
        begun = {**step, "arguments": {}}
        events.append({"event_type": "step.start", "index": number, "step": begun})
    events.append({"event_type": "interaction.completed", "interaction": whole})
    return Reply(None, events=sse(*events), content_type=SSE)


def _converse(tools: list[str], stream: bool) -> Reply:
    usage = {"inputTokens": 50, "outputTokens": 9, "totalTokens": 59}
    uses = [{"toolUseId": f"t{n}", "name": name} for n, name in enumerate(tools)]
    if not stream:
        content = [{"toolUse": {**use, "input": {"path": ARGUMENT}}} for use in uses]
        body = {"output": {"message": {"role": "assistant", "content": content}},
                "stopReason": "tool_use", "usage": usage, "metrics": {"latencyMs": 5}}  # fmt: skip
        return Reply(None, encoded(body))
    messages: list[tuple[str, Any]] = [("messageStart", {"role": "assistant"})]
    for number, use in enumerate(uses):
        place = {"contentBlockIndex": number}
        messages += [
            ("contentBlockStart", {**place, "start": {"toolUse": use}}),
            ("contentBlockDelta", {**place, "delta": {"toolUse": {"input": ARGUMENTS}}}),
            ("contentBlockStop", place),
        ]
    messages += [("messageStop", {"stopReason": "tool_use"}),
                 ("metadata", {"usage": usage, "metrics": {"latencyMs": 5}})]  # fmt: skip
    frames = tuple(aws_frame(name, encoded(message)) for name, message in messages)
    return Reply(None, events=frames, content_type=AWS)


def _invoke(tools: list[str], stream: bool) -> Reply:
    """A model of Anthropic behind InvokeModel; its stream comes in frames of base64."""
    inner = _anthropic(tools, stream)
    if not stream:
        return inner
    events = [event.partition(b"data: ")[2].strip() for event in inner.events]
    frames = (encoded({"bytes": base64.b64encode(event).decode()}) for event in events)
    return Reply(None, events=tuple(aws_frame("chunk", f) for f in frames), content_type=AWS)


def _cohere(tools: list[str], stream: bool) -> Reply:
    usage = {"billed_units": {"input_tokens": 50, "output_tokens": 9}}
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}
        for n, name in enumerate(tools)
    ]
    if not stream:
        message = {"role": "assistant", "tool_plan": "I will.", "tool_calls": calls}
        return Reply(None, encoded({"id": "co", "finish_reason": "TOOL_CALL", "message": message,
                                    "usage": usage}))  # fmt: skip
    events: list[dict[str, Any]] = [
        {"id": "co", "type": "message-start", "delta": {"message": {"role": "assistant"}}}
    ]
    for number, call in enumerate(calls):
        begun = {**call, "function": {"name": tools[number], "arguments": ""}}
        part = {"tool_calls": {"function": {"arguments": ARGUMENTS}}}
        events += [
            {
                "type": "tool-call-start",
                "index": number,
                "delta": {"message": {"tool_calls": begun}},
            },
            {"type": "tool-call-delta", "index": number, "delta": {"message": part}},
            {"type": "tool-call-end", "index": number},
        ]
    events.append({"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": usage}})
    return Reply(None, events=sse(*events, name="type"), content_type=SSE)


def _ollama(tools: list[str], stream: bool) -> Reply:
    calls = [{"function": {"name": name, "arguments": {"path": ARGUMENT}}} for name in tools]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    ended = {"done": True, "prompt_eval_count": 50, "eval_count": 9}
    if not stream:
        return Reply(None, encoded({"model": "llama3", "message": said, **ended}))
    first = {"model": "llama3", "message": said, "done": False}
    last = {"model": "llama3", "message": {"role": "assistant", "content": ""}, **ended}
    return Reply(None, events=lines(first, last), content_type="application/x-ndjson")
