"""Answers of models to coding agents: a text, calls of tools, in each vendor's format.

Every answer is a sequence of pieces with the output tokens that are billed once a piece is sent, so
that a vendor which is cut off can bill what it has said.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from tests.guard.instrumentation.standin.reply import encoded, sse

SHAPES: Final = ("anthropic", "responses", "chat", "gemini")


@attrs.frozen
class Call:
    """A call of a tool that a model asks for."""

    name: str
    arguments: Mapping[str, Any]


@attrs.frozen
class Turn:
    """What a model answers.

    Attributes:
        text: what it says.
        calls: the tools that it asks for.
        thought: output tokens that are billed besides the words.
        goes_on: says ``text`` again and again until it is told to end, or nobody listens.
        first_s, between_s: seconds before its first byte, and before each word, with a ping.
    """

    text: str = "Done."
    calls: tuple[Call, ...] = ()
    thought: int = 0
    goes_on: bool = False
    first_s: float = 0.0
    between_s: float = 0.0


@attrs.frozen
class Counts:
    """Tokens of one answer: disjoint, but for ``output`` all of the prompt."""

    fresh: int
    cached: int
    output: int


def whole(shape: str, turn: Turn, number: int, model: str, counts: Counts) -> bytes:
    """Return an answer in one piece."""
    make = {"anthropic": _message, "responses": _response, "chat": _completion,
            "gemini": _candidate}[shape]  # fmt: skip
    return encoded(make(turn, number, model, counts))


def begin(shape: str, number: int, model: str, counts: Counts) -> bytes:
    """Return what a stream begins with."""
    if shape == "anthropic":
        started = {**_message(Turn(""), number, model, counts), "content": [], "stop_reason": None}
        started["usage"] = {**started["usage"], "output_tokens": 1}
        return _events({"type": "message_start", "message": started}) + _events(
            {"type": "content_block_start", "index": 0,
             "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
        )  # fmt: skip
    if shape == "responses":
        response = _begun(number, model)
        item = _text_item(number, "") | {"status": "in_progress", "content": []}
        return _events(
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.content_part.added", **_place(number), "part": _part("")},
        )
    if shape == "chat":
        return b"".join(sse(_chunk(number, model, {"role": "assistant", "content": ""})))
    return b""


def word(shape: str, text: str, number: int, model: str, counts: Counts) -> bytes:
    """Return the piece of a stream that says some of the text."""
    if shape == "anthropic":
        delta = {"type": "text_delta", "text": text}
        return _events({"type": "content_block_delta", "index": 0, "delta": delta})
    if shape == "responses":
        return _events({"type": "response.output_text.delta", **_place(number), "delta": text})
    if shape == "chat":
        return b"".join(sse(_chunk(number, model, {"content": text})))
    return b"".join(sse(_said([{"text": text}], None, number, model, counts)))


def ping(shape: str) -> bytes:
    """Return what a vendor sends meanwhile, if it does."""
    if shape == "anthropic":
        return _events({"type": "ping"})
    return b": PROCESSING\n\n" if shape == "chat" else b""


def end(shape: str, turn: Turn, said: str, number: int, model: str, counts: Counts) -> bytes:
    """Return what a stream ends with: its calls, why it ends, its usage."""
    make = {"anthropic": _anthropic_end, "responses": _responses_end, "chat": _chat_end,
            "gemini": _gemini_end}[shape]  # fmt: skip
    return b"".join(make(turn, said, number, model, counts))


# -- Anthropic's messages --------------------------------------------------------------------------


def _message(turn: Turn, number: int, model: str, counts: Counts) -> dict[str, Any]:
    uses = [{"type": "tool_use", "id": _call_id(number, at), "name": call.name,
             "input": dict(call.arguments)} for at, call in enumerate(turn.calls)]  # fmt: skip
    return {
        "id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": model,
        "content": [{"type": "text", "text": turn.text}, *uses],
        "stop_reason": "tool_use" if uses else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": counts.fresh, "cache_read_input_tokens": counts.cached,
                  "cache_creation_input_tokens": 0, "output_tokens": counts.output},
    }  # fmt: skip


def _anthropic_end(
    turn: Turn, said: str, number: int, model: str, counts: Counts
) -> Iterator[bytes]:
    message = _message(turn, number, model, counts)
    yield _events({"type": "content_block_stop", "index": 0})
    for at, use in enumerate(message["content"][1:], 1):
        delta = {"type": "input_json_delta", "partial_json": encoded(use["input"]).decode()}
        yield _events(
            {"type": "content_block_start", "index": at, "content_block": {**use, "input": {}}},
            {"type": "content_block_delta", "index": at, "delta": delta},
            {"type": "content_block_stop", "index": at},
        )
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _events(
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": counts.output}},
        {"type": "message_stop"},
    )


# -- OpenAI's responses ----------------------------------------------------------------------------


def _begun(number: int, model: str) -> dict[str, Any]:
    return {
        "id": f"resp_{number:04}", "object": "response", "created_at": 1_800_000_000,
        "model": model, "status": "in_progress", "output": [], "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None,
        "usage": None,
    }  # fmt: skip


def _response(turn: Turn, number: int, model: str, counts: Counts) -> dict[str, Any]:
    calls = [
        {"id": f"fc_{number:04}_{at}", "type": "function_call", "status": "completed",
         "call_id": _call_id(number, at), "name": call.name,
         "arguments": encoded(dict(call.arguments)).decode()}
        for at, call in enumerate(turn.calls)
    ]  # fmt: skip
    prompt = counts.fresh + counts.cached
    usage = {
        "input_tokens": prompt, "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + counts.output,
    }  # fmt: skip
    output = [_text_item(number, turn.text), *calls]
    return _begun(number, model) | {"status": "completed", "output": output, "usage": usage}


def _text_item(number: int, text: str) -> dict[str, Any]:
    return {"id": f"msg_{number:04}", "type": "message", "role": "assistant",
            "status": "completed", "content": [_part(text)]}  # fmt: skip


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _place(number: int) -> dict[str, Any]:
    return {"item_id": f"msg_{number:04}", "output_index": 0, "content_index": 0}


def _responses_end(
    turn: Turn, said: str, number: int, model: str, counts: Counts
) -> Iterator[bytes]:
    response = _response(attrs.evolve(turn, text=said), number, model, counts)
    yield _events(
        {"type": "response.output_text.done", **_place(number), "text": said},
        {"type": "response.content_part.done", **_place(number), "part": _part(said)},
    )
    for at, item in enumerate(response["output"]):
        if at:
            added = {**item, "status": "in_progress", "arguments": ""}
            yield _events({"type": "response.output_item.added", "output_index": at, "item": added})
        yield _events({"type": "response.output_item.done", "output_index": at, "item": item})
    yield _events({"type": "response.completed", "response": response})


# -- OpenAI's chat completions ---------------------------------------------------------------------


def _chunk(number: int, model: str, delta: Mapping[str, Any], finish: str | None = None) -> Any:
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish}
    return {"id": f"chatcmpl-{number:04}", "object": "chat.completion.chunk",
            "created": 1_800_000_000, "model": model, "choices": [choice]}  # fmt: skip


def _chat_calls(turn: Turn, number: int) -> list[dict[str, Any]]:
    return [
        {"index": at, "id": _call_id(number, at), "type": "function",
         "function": {"name": call.name, "arguments": encoded(dict(call.arguments)).decode()}}
        for at, call in enumerate(turn.calls)
    ]  # fmt: skip


def _chat_usage(counts: Counts) -> dict[str, Any]:
    prompt = counts.fresh + counts.cached
    return {"prompt_tokens": prompt, "completion_tokens": counts.output,
            "total_tokens": prompt + counts.output,
            "prompt_tokens_details": {"cached_tokens": counts.cached}}  # fmt: skip


def _completion(turn: Turn, number: int, model: str, counts: Counts) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.calls:
        message["tool_calls"] = _chat_calls(turn, number)
    choice = {"index": 0, "message": message,
              "finish_reason": "tool_calls" if turn.calls else "stop"}  # fmt: skip
    return {"id": f"chatcmpl-{number:04}", "object": "chat.completion", "created": 1_800_000_000,
            "model": model, "choices": [choice], "usage": _chat_usage(counts)}  # fmt: skip


def _chat_end(turn: Turn, said: str, number: int, model: str, counts: Counts) -> Iterator[bytes]:
    if turn.calls:
        delta = {"tool_calls": _chat_calls(turn, number)}
        yield from sse(_chunk(number, model, delta))
    finish = "tool_calls" if turn.calls else "stop"
    last = {**_chunk(number, model, {}), "choices": [], "usage": _chat_usage(counts)}
    yield from sse(_chunk(number, model, {}, finish), last, done=True)


# -- Gemini ----------------------------------------------------------------------------------------


def _said(
    parts: list[dict[str, Any]], finish: str | None, number: int, model: str, counts: Counts
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    prompt = counts.fresh + counts.cached
    usage = {"promptTokenCount": prompt, "cachedContentTokenCount": counts.cached,
             "candidatesTokenCount": counts.output,
             "totalTokenCount": prompt + counts.output}  # fmt: skip
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model,
            "responseId": f"gem-{number:04}"}  # fmt: skip


def _gemini_calls(turn: Turn) -> list[dict[str, Any]]:
    return [{"functionCall": {"name": each.name, "args": dict(each.arguments)}}
            for each in turn.calls]  # fmt: skip


def _candidate(turn: Turn, number: int, model: str, counts: Counts) -> dict[str, Any]:
    return _said([{"text": turn.text}, *_gemini_calls(turn)], "STOP", number, model, counts)


def _gemini_end(turn: Turn, said: str, number: int, model: str, counts: Counts) -> Iterator[bytes]:
    parts = _gemini_calls(turn) or [{"text": ""}]
    yield from sse(_said(parts, "STOP", number, model, counts))


# --------------------------------------------------------------------------------------------------


_numbers: Final = itertools.count()
"""Of the events of responses: each is greater than those before it in its stream."""


def _events(*messages: dict[str, Any]) -> bytes:
    numbered = [
        {**each, "sequence_number": next(_numbers)}
        if each["type"].startswith("response.")
        else each
        for each in messages
    ]
    return b"".join(sse(*numbered, name="type"))


def _call_id(number: int, at: int) -> str:
    return f"call_{number:04}_{at}"
