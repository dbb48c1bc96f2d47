"""OpenAI's formats: chat, completions, responses, embeddings, images, transcription."""

from __future__ import annotations

from typing import Any

from guard.core.usage import Usage
from tests.guard.instrumentation.standin.reply import TEXT, WORDS, Reply, encoded, sse


def chat(
    number: int, request: dict[str, Any], *, groq: bool = False, mistral: bool = False
) -> Reply:
    identity, model = f"chatcmpl-{number}", f"{request['model']}-2026"
    usage = Usage(
        model=model,
        input_tokens=1000 + number,
        output_tokens=200 + number,
        cache_read_tokens=64,
        reasoning_tokens=33,
        response_id=identity,
    )
    said = {
        "prompt_tokens": usage.input_tokens + 64,
        "completion_tokens": usage.output_tokens + 33,
        "total_tokens": usage.input_tokens + usage.output_tokens + 97,
        "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 33, "audio_tokens": 0},
    }
    base = {"id": identity, "created": 1_800_000_000, "model": model}
    if not request.get("stream"):
        message = {"role": "assistant", "content": TEXT}
        choices = [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}]
        return Reply(
            usage, encoded({**base, "object": "chat.completion", "choices": choices, "usage": said})
        )
    asked = (request.get("stream_options") or {}).get("include_usage")
    base["object"] = "chat.completion.chunk"

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]
        return {**base, "choices": choices, **({"usage": None} if asked else {})}

    messages = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": word}) for word in WORDS),
        chunk({}, "stop"),
    ]
    if groq:
        messages[-1]["x_groq"] = {"id": "req_1", "usage": said}
    if mistral:  # sent without being asked for, in the last chunk
        messages[-1]["usage"] = said
    if asked:
        messages.append({**base, "choices": [], "usage": said})
    return Reply(usage, events=sse(*messages, done=True), content_type="text/event-stream")


def completion(number: int, request: dict[str, Any]) -> Reply:
    identity, model = f"cmpl-{number}", request["model"]
    usage = Usage(
        model=model, input_tokens=31 + number, output_tokens=17 + number, response_id=identity
    )
    said = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    base = {"id": identity, "object": "text_completion", "created": 1, "model": model}

    def choice(text: str, finish: str | None) -> list[dict[str, Any]]:
        return [{"index": 0, "text": text, "finish_reason": finish, "logprobs": None}]

    if not request.get("stream"):
        return Reply(usage, encoded({**base, "choices": choice(TEXT, "stop"), "usage": said}))
    messages: list[dict[str, Any]] = [{**base, "choices": choice(w, None)} for w in WORDS]
    messages += [{**base, "choices": choice("", "stop")}, {**base, "choices": [], "usage": said}]
    return Reply(usage, events=sse(*messages, done=True), content_type="text/event-stream")


def responses(number: int, request: dict[str, Any]) -> Reply:
    identity, model = f"resp_{number}", f"{request['model']}-2026"
    usage = Usage(
        model=model,
        input_tokens=700 + number,
        output_tokens=90 + number,
        cache_read_tokens=128,
        cache_write_tokens=16,
        reasoning_tokens=40,
        response_id=identity,
    )
    said = {
        "input_tokens": usage.input_tokens + 144,
        "input_tokens_details": {"cached_tokens": 128, "cache_write_tokens": 16},
        "output_tokens": usage.output_tokens + 40,
        "output_tokens_details": {"reasoning_tokens": 40},
        "total_tokens": usage.input_tokens + usage.output_tokens + 184,
    }
    part = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
    item = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    }  # fmt: skip
    begun = {
        "id": identity, "object": "response", "created_at": 1_800_000_000.0, "model": model,
        "status": "in_progress", "output": [], "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [], "error": None, "incomplete_details": None, "instructions": None,
        "metadata": {}, "temperature": 1.0, "top_p": 1.0, "usage": None,
    }  # fmt: skip
    ended = {**begun, "status": "completed", "output": [item], "usage": said}
    if not request.get("stream"):
        if request.get("background"):
            return Reply(None, encoded({**begun, "status": "queued"}))
        return Reply(usage, encoded(ended))
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    messages = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0,
         "item": {**item, "status": "in_progress", "content": []}},
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **where, "delta": word, "logprobs": []}
          for word in WORDS),
        {"type": "response.output_text.done", **where, "text": TEXT, "logprobs": []},
        {"type": "response.content_part.done", **where, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": ended},
    ]  # fmt: skip
    numbered = [{**message, "sequence_number": n} for n, message in enumerate(messages)]
    return Reply(usage, events=sse(*numbered, name="type"), content_type="text/event-stream")


def polled(number: int, path: str) -> Reply:
    """A background response that is finished: its usage comes with the poll, and every poll."""
    whole = responses(0, {"model": "gpt-5"})
    identity = path.rsplit("/", 1)[-1]
    body = whole.body.replace(b'"id":"resp_0"', b'"id":"' + identity.encode() + b'"')
    return Reply(None, body)


def embeddings(number: int, request: dict[str, Any], *, mistral: bool = False) -> Reply:
    model = request["model"]
    identity = f"embd-{number}" if mistral else None
    usage = Usage(model=model, input_tokens=11 + number, response_id=identity)
    texts = request["input"] if isinstance(request["input"], list) else [request["input"]]
    vectors = [
        {"object": "embedding", "index": i, "embedding": [0.125] * 1536} for i in range(len(texts))
    ]
    said = {"prompt_tokens": usage.input_tokens, "total_tokens": usage.input_tokens}
    body = {"object": "list", "data": vectors, "model": model, "usage": said}
    if mistral:
        body["id"] = identity
        said["completion_tokens"] = 0
    if request.get("encoding_format") == "base64":
        for vector in vectors:
            vector["embedding"] = "AAAAPgAAAD4="
    return Reply(usage, encoded(body))


def images(number: int, request: dict[str, Any]) -> Reply:
    usage = Usage(model=request.get("model"), input_tokens=50 + number, output_tokens=4160 + number)
    said = {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"text_tokens": usage.input_tokens, "image_tokens": 0},
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    picture = "iVBORw0KGgo" * 40_000  # 440 kB: the usage stands behind it
    if not request.get("stream"):
        return Reply(usage, encoded({"created": 1, "data": [{"b64_json": picture}], "usage": said}))
    about = {
        "created_at": 1, "size": "1024x1024", "quality": "high", "background": "opaque",
        "output_format": "png",
    }  # fmt: skip
    messages = [
        {"type": "image_generation.partial_image", "b64_json": picture[:1000],
         "partial_image_index": 0, **about},
        {"type": "image_generation.completed", "b64_json": picture, **about, "usage": said},
    ]  # fmt: skip
    return Reply(usage, events=sse(*messages, name="type"), content_type="text/event-stream")


def transcription(number: int, form: bytes) -> Reply:
    model = "gpt-4o-transcribe"
    if b"whisper-1" in form:
        usage = Usage(model="whisper-1", units={"audio_seconds": 12.0})
        return Reply(usage, encoded({"text": TEXT, "usage": {"type": "duration", "seconds": 12}}))
    heard = 100 + number
    usage = Usage(
        model=model, input_tokens=5, audio_tokens=heard, output_tokens=22, audio_input_tokens=heard
    )
    said = {
        "type": "tokens",
        "input_tokens": 105 + number,
        "input_token_details": {"text_tokens": 5, "audio_tokens": 100 + number},
        "output_tokens": 22,
        "total_tokens": 127 + number,
    }
    if b'name="stream"' not in form:
        return Reply(usage, encoded({"text": TEXT, "usage": said}))
    messages = [
        *({"type": "transcript.text.delta", "delta": word} for word in WORDS),
        {"type": "transcript.text.done", "text": TEXT, "usage": said},
    ]
    return Reply(usage, events=sse(*messages, name="type"), content_type="text/event-stream")
