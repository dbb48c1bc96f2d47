"""Streams of every vendor as the stand-in speaks them, with the usage that each stands for."""

from __future__ import annotations

from guard.core.usage import Call, Usage, find_endpoint
from guard.core.usage.response_format import ResponseFormat
from tests.guard.instrumentation.standin import anthropic, bedrock, cohere, google, ollama, openai
from tests.guard.instrumentation.standin.reply import Reply, encoded

ASK = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def streams() -> dict[str, tuple[str, Reply]]:
    """Return path and answer by name."""
    return {
        "chat": ("/v1/chat/completions", openai.chat(1, ASK)),
        "groq": ("/v1/chat/completions", openai.chat(2, {"model": "m", "stream": True}, groq=True)),
        "responses": ("/v1/responses", openai.responses(3, ASK)),
        "images": ("/v1/images/generations", openai.images(4, ASK)),
        "transcription": ("/v1/audio/transcriptions", openai.transcription(5, b'name="stream"')),
        "anthropic": ("/v1/messages", anthropic.messages(6, ASK)),
        "gemini": (
            "/v1beta/models/m:streamGenerateContent",
            google.generate(7, "m", stream=True, as_sse=True),
        ),
        "gemini array": (
            "/v1beta/models/m:streamGenerateContent",
            google.generate(8, "m", stream=True, as_sse=False),
        ),
        "cohere": ("/v2/chat", cohere.chat(9, ASK)),
        "ollama": ("/api/chat", ollama.answer(10, {"model": "m"}, "chat")),
        "converse": ("/model/m/converse-stream", bedrock.converse(11, "m", stream=True)),
        "invoke": ("/model/m/invoke-with-response-stream", bedrock.invoke(12, "m", stream=True)),
    }


def format_of(path: str) -> ResponseFormat:
    endpoint = find_endpoint("POST", "127.0.0.1", path)
    assert endpoint is not None
    return endpoint.format


def call_of(path: str, reply: Reply) -> Call:
    model = reply.usage.model if reply.usage is not None else None
    return Call(path, lambda: encoded({"model": model}), reply.headers.get)


def said(reply: Reply) -> Usage:
    assert reply.usage is not None
    return reply.usage
