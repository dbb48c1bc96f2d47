"""Requests and answers of every vendor's shapes, for the test of exact forwarding."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any, Final

import attrs

from tests.guard.instrumentation.standin.reply import aws_frame, sse
from tests.support.raw_upstream import Headers, RawAnswer

LLM: Final = (
    ("openai", "/v1/chat/completions"),
    ("openai", "/v1/responses"),
    ("openai", "/v1/embeddings"),
    ("anthropic", "/v1/messages"),
    ("anthropic", "/v1/messages?beta=true"),
    ("anthropic", "/v1/messages/count_tokens"),
    ("gemini", "/v1beta/models/gemini-2.5-pro:generateContent"),
    ("gemini", "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"),
    ("bedrock", "/model/us.anthropic.claude-sonnet-4%3A0/converse-stream"),
    ("ollama", "/api/chat"),
)
OTHER: Final = (
    ("GET", "openai", "/v1/models"), ("GET", "anthropic", "/v1/models?limit=%31&x="),
    ("POST", "openai", "/v1/files"), ("DELETE", "openai", "/v1/files/f%2F1"),
    ("GET", "gemini", "//v1beta//models/%E4%B8%AD?a=b&a=c&&=%20+"), ("PUT", "openai", "/x;y=1,2"),
    ("HEAD", "openai", "/v1/models"), ("POST", "anthropic", "/api/event_logging/batch"),
)  # fmt: skip
_MODELS: Final = {"openai": "gpt-4o", "anthropic": "claude-sonnet-4-5", "ollama": "llama3.2"}


@attrs.frozen
class Case:
    """A request through the proxy, and what upstream answers.

    Attributes:
        vendor, method, target: of the request; the target upstream.
        headers, body, parts: of the request.
        chunked: whether its body is sent in chunks of HTTP.
        answer: of upstream.
    """

    vendor: str
    method: str
    target: bytes
    headers: Headers
    body: bytes
    parts: list[bytes]
    chunked: bool
    answer: RawAnswer

    @property
    def asks_for_usage(self) -> bool:
        """Whether guard asks for the usage of the stream, which its program has not done."""
        is_chat = self.target == b"/v1/chat/completions" and b'"stream"' in self.body
        return is_chat and b"include_usage" not in self.body


def case_of(seed: int) -> Case:
    """Return the case with a number; each number is always the same case."""
    rng = random.Random(seed)
    if rng.random() < 0.75:
        method = "POST"
        vendor, target = rng.choice(LLM)
        stream = rng.random() < 0.6
        body = _llm_body(rng, vendor, stream)
    else:
        method, vendor, target = rng.choice(OTHER)
        stream = False
        body = rng.randbytes(rng.choice((0, 1, 100, 70_000))) if method in ("POST", "PUT") else b""
    chunked = bool(body) and rng.random() < 0.3
    headers = _request_headers(rng, body, chunked=chunked)
    answer = _answer(rng, vendor, stream=stream, empty=method == "HEAD")
    parts = _cut(rng, body)
    return Case(vendor, method, target.encode(), headers, body, parts, chunked, answer)


def _llm_body(rng: random.Random, vendor: str, stream: bool) -> bytes:
    text = _text(rng, rng.choice((1, 40, 3000)))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "zz": 1.10, "n2": None}
    if vendor in _MODELS:
        body["model"] = _MODELS[vendor]
    if vendor == "gemini":
        body = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    if vendor == "anthropic":
        body["max_tokens"] = 64
    if stream and vendor not in ("gemini", "bedrock"):
        body["stream"] = True
        if rng.random() < 0.6:
            body["stream_options"] = {"include_usage": True}
    items = list(body.items())
    rng.shuffle(items)
    separators = rng.choice(((",", ":"), (", ", ": "), (" ,\n", " :\t")))
    written = json.dumps(
        dict(items), ensure_ascii=rng.random() < 0.5, separators=separators
    ).encode()
    # Numbers that a parser would write in another way, and a name that is given twice.
    return written.replace(b"1.1", b"1.10e0").replace(b"null", b'null, "n2":  -0.0')


def _text(rng: random.Random, size: int) -> str:
    letters = 'abc "\\\n\t/é中😀\u2028'
    return "".join(rng.choice(letters) for _ in range(size))


def _request_headers(rng: random.Random, body: bytes, *, chunked: bool) -> Headers:
    found: Headers = [
        (b"Host", b"127.0.0.1"),
        (b"Authorization", b"Bearer sk-%d" % rng.randrange(10**9)),
        (
            b"User-Agent",
            rng.choice((b"claude-cli/2.0.1 (external, cli)", b"codex_cli_rs/0.4", b"x")),
        ),
        (b"Accept-Encoding", rng.choice((b"gzip, deflate, br, zstd", b"identity", b"gzip;q=0.5"))),
        (b"anthropic-beta", b"a-2025-01-01,b"),
        (b"X-Stainless-Lang", b"js"),
        (b"x-twice", b"one"),
        (b"X-Twice", b"two"),
        (b"Cookie", b"a=b; c=d"),
        (b"x-bytes", "größer".encode("latin-1")),
        (b"x-empty", b""),
        (b"X-Hop", b"1"),
        (b"Connection", b"keep-alive, X-Hop"),
        (b"TE", b"trailers"),
    ]
    rng.shuffle(found)
    found = found[: rng.randrange(6, len(found) + 1)]
    found.append((b"Content-Type", b"application/json; charset=utf-8"))
    if chunked:
        found.append((b"Transfer-Encoding", b"chunked"))
    elif body or rng.random() < 0.3:
        found.insert(rng.randrange(len(found)), (b"Content-Length", b"%d" % len(body)))
    if not any(name == b"Host" for name, _ in found):
        found.insert(0, (b"Host", b"127.0.0.1"))
    return found


def _answer(rng: random.Random, vendor: str, *, stream: bool, empty: bool) -> RawAnswer:
    status = rng.choice((200, 200, 200, 200, 201, 400, 404, 429, 500, 529))
    kind, body = _answer_body(rng, vendor, stream)
    headers: Headers = [
        (b"Content-Type", kind),
        (b"X-Request-Id", b"req_%d" % rng.randrange(10**6)),
        (b"Set-Cookie", b"a=%d; Path=/" % rng.randrange(100)),
        (b"set-cookie", b"b=2"),
        (b"x-bytes", "Größe".encode("latin-1")),
        (b"anthropic-ratelimit-tokens-remaining", b"1"),
        (b"Date", b"Tue, 24 Nov 2026 10:00:00 GMT"),
        (b"Server", b"cloudflare"),
        (b"Retry-After", b"3"),
        (b"Keep-Alive", b"timeout=5"),
    ]
    rng.shuffle(headers)
    if rng.random() < 0.25:
        body = gzip.compress(body, mtime=0)
        headers.append((b"Content-Encoding", b"gzip"))
    if empty:
        body = b""
    if not stream and rng.random() < 0.6:
        headers.append((b"Content-Length", b"%d" % len(body)))
    return RawAnswer(status, headers, _cut(rng, body))


def _answer_body(rng: random.Random, vendor: str, stream: bool) -> tuple[bytes, bytes]:
    text = _text(rng, rng.choice((1, 60, 2000)))
    usage = {"input_tokens": 3, "output_tokens": 2}
    if vendor == "bedrock":
        payload = json.dumps({"delta": {"text": text}}).encode()
        frames = [aws_frame("contentBlockDelta", payload) for _ in range(3)]
        return b"application/vnd.amazon.eventstream", b"".join(frames)
    if vendor == "ollama" and stream:
        lines = [json.dumps({"message": {"content": text}, "done": False}) for _ in range(3)]
        return b"application/x-ndjson", "\n".join(lines).encode() + b"\n"
    if stream:
        events = [{"type": "content_block_delta", "delta": {"text": text}} for _ in range(3)]
        name = None if vendor == "openai" else "type"
        return b"text/event-stream; charset=utf-8", b"".join(
            sse(*events, {"type": "message_delta", "usage": usage}, name=name)
        )
    return b"application/json", json.dumps({"content": text, "usage": usage}, indent=1).encode()


def _cut(rng: random.Random, body: bytes) -> list[bytes]:
    """Return a body in parts, as the network may cut it."""
    if not body:
        return []
    if len(body) < 300 and rng.random() < 0.2:
        return [body[at : at + 1] for at in range(len(body))]
    ends = sorted({rng.randrange(1, len(body) + 1) for _ in range(rng.randrange(6))} | {len(body)})
    return [body[a:b] for a, b in zip([0, *ends], ends, strict=False)]
