"""Every answer shape, and what can be odd about one: what changes its bytes and what its usage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from guard.core.usage import Usage
from tests.guard.instrumentation.recorded_streams import said, streams
from tests.guard.instrumentation.standin import anthropic, bedrock, cohere, google, ollama, openai
from tests.guard.instrumentation.standin.reply import Reply

_ASK: dict[str, Any] = {"model": "m", "input": ["a", "b"], "texts": ["a"], "documents": ["a"]}


@attrs.frozen
class Answer:
    """An answer on its way.

    Attributes:
        path: of the URL.
        data: the body.
        usage: what it says.
        is_stream: whether it is a stream of messages.
        headers: of the answer.
    """

    path: str
    data: bytes
    usage: Usage
    is_stream: bool
    headers: Mapping[str, str]

    @property
    def asked_model(self) -> str:
        """The model of the request; transcripts do not name it."""
        return (self.usage.model or "m") if "/audio/" in self.path else "m"

    @property
    def content_type(self) -> str:
        return self.headers["content-type"]

    @property
    def is_binary(self) -> bool:
        return "amazon.eventstream" in self.content_type

    @property
    def is_sse(self) -> bool:
        return "event-stream" in self.content_type and not self.is_binary

    def with_data(self, data: bytes, **headers: str) -> Answer:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return attrs.evolve(self, data=data, headers={**self.headers, **more})


def _answer(path: str, reply: Reply, is_stream: bool) -> Answer:
    data = b"".join(reply.events) if is_stream else reply.body
    headers = {"content-type": reply.content_type, **reply.headers}
    return Answer(path, data, said(reply), is_stream, headers)


def answers() -> dict[str, Answer]:
    """Return every shape, whole and streamed, by name."""
    model = "/v1beta/models/m"
    whole: dict[str, tuple[str, Reply]] = {
        "chat": ("/v1/chat/completions", openai.chat(21, _ASK)),
        "completions": ("/v1/completions", openai.completion(22, _ASK)),
        "embeddings": ("/v1/embeddings", openai.embeddings(23, _ASK)),
        "responses": ("/v1/responses", openai.responses(24, _ASK)),
        "images": ("/v1/images/generations", openai.images(25, _ASK)),
        "anthropic": ("/v1/messages", anthropic.messages(26, _ASK)),
        "gemini": (
            f"{model}:generateContent", google.generate(27, "m", stream=False, as_sse=False),
        ),
        "cohere": ("/v2/chat", cohere.chat(28, _ASK)),
        "cohere embeddings": ("/v2/embed", cohere.embed(29, _ASK)),
        "cohere reranking": ("/v2/rerank", cohere.rerank(30, _ASK)),
        "ollama": ("/api/chat", ollama.answer(31, {"model": "m", "stream": False}, "chat")),
        "ollama embeddings": ("/api/embed", ollama.embed(32, _ASK)),
        "converse": ("/model/m/converse", bedrock.converse(33, "m", stream=False)),
        "invoke": ("/model/m/invoke", bedrock.invoke(34, "m", stream=False)),
    }  # fmt: skip
    found = {name: _answer(path, reply, False) for name, (path, reply) in whole.items()}
    for name, (path, reply) in streams().items():
        found[f"{name}, streamed"] = _answer(path, reply, True)
    return found


# -- what changes the bytes, and nothing that they say ---------------------------------------------


def _utf8_bom(answer: Answer) -> Answer:
    return answer.with_data(b"\xef\xbb\xbf" + answer.data)


def _encoded(codec: str, bom: bytes = b"") -> Callable[[Answer], Answer]:
    def change(answer: Answer) -> Answer:
        return answer.with_data(bom + answer.data.decode().encode(codec))

    return change


def _blank_lines_first(answer: Answer) -> Answer:
    return answer.with_data(
        b"\n \r\n" + answer.data if not answer.is_sse else b"\n\n" + answer.data
    )


def _line_ends(ending: bytes) -> Callable[[Answer], Answer]:
    return lambda answer: answer.with_data(answer.data.replace(b"\n", ending))


def _objects(change: Callable[[Any], str]) -> Callable[[Answer], Answer]:
    """Write each JSON object of an answer anew."""

    def changed(answer: Answer) -> Answer:
        if not answer.is_stream:
            return answer.with_data(
                change(json.loads(answer.data)).encode("utf-8", "surrogatepass")
            )
        lines = []
        for line in answer.data.decode().split("\n"):
            start = line.find("{")
            if start < 0:
                lines.append(line)
                continue
            text = line[start:].rstrip(",]\r")
            after = line[start + len(text) :]
            written = change(json.loads(text)).replace("\n", "\n" + line[:start])
            lines.append(line[:start] + written + after)
        return answer.with_data("\n".join(lines).encode("utf-8", "surrogatepass"))

    return changed


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _with_member(member: str) -> Callable[[Any], str]:
    return lambda value: "{" + member + "," + _compact(value)[1:]


def _typed(content_type: str) -> Callable[[Answer], Answer]:
    return lambda answer: answer.with_data(answer.data, content_type=content_type)


def _with_comments(answer: Answer) -> Answer:
    return answer.with_data(
        b": hello\nid: 1\nretry: 5\n\n" + answer.data.replace(b"\n\n", b"\n\n: still here\n\n")
    )


_ANY = ("whole", "sse", "lines", "array")
READABLE: dict[str, tuple[Callable[[Answer], Answer], tuple[str, ...]]] = {
    "as it is": (lambda answer: answer, (*_ANY, "binary")),
    "a byte order mark": (_utf8_bom, _ANY),
    "UTF-16, little end first": (_encoded("utf-16-le", b"\xff\xfe"), _ANY),
    "UTF-16, big end first": (_encoded("utf-16-be", b"\xfe\xff"), _ANY),
    "UTF-16 without a mark": (_encoded("utf-16-le"), _ANY),
    "UTF-32": (_encoded("utf-32-le", b"\xff\xfe\0\0"), _ANY),
    "blank lines first": (_blank_lines_first, _ANY),
    "blank lines last": (lambda answer: answer.with_data(answer.data + b"\n\n\r\n"), _ANY),
    "CRLF": (_line_ends(b"\r\n"), ("sse", "lines", "array")),
    "CR": (_line_ends(b"\r"), ("sse",)),
    "written over many lines": (_objects(lambda value: json.dumps(value, indent=1)),
                                ("whole", "sse")),
    "no space after data:": (
        lambda answer: answer.with_data(answer.data.replace(b"data: ", b"data:")), ("sse",)),
    "comments and other fields": (_with_comments, ("sse",)),
    "a lone surrogate": (_objects(_with_member(r'"odd":"\ud83d"')), _ANY),
    "the other lone surrogate": (_objects(_with_member(r'"odd":"x\udc00x"')), _ANY),
    "a surrogate in raw bytes": (_objects(_with_member('"odd":"\ud83d"')), _ANY),
    "bytes that are no text": (
        lambda answer: answer.with_data(answer.data.replace(b"{", b'{"odd":"\xff",', 1)), _ANY),
    "a number that is none": (_objects(_with_member('"odd":[NaN,Infinity]')), _ANY),
    "called text": (_typed("text/plain"), _ANY),
    "called nothing": (_typed(""), _ANY),
    "called JSON": (_typed("application/json; charset=utf-8"), _ANY),
    "called a stream": (_typed("text/event-stream"), _ANY),
    "an age of zero": (lambda answer: answer.with_data(answer.data, age="0"), (*_ANY, "binary")),
}  # fmt: skip
"""By name: the change, and the kinds of answer that it is made to."""


def kind_of(answer: Answer) -> str:
    """Return how an answer's messages are framed."""
    if not answer.is_stream:
        return "whole"
    if answer.is_binary:
        return "binary"
    if answer.is_sse:
        return "sse"
    return "array" if answer.data[:1] == b"[" else "lines"


# -- what changes what it says of its usage --------------------------------------------------------

_COUNT = re.compile(
    r'("(?:[a-z_]*(?:input|output|prompt|completion|total|cached|reasoning|thinking|cache_\w+)'
    r'_tokens|tokens|(?:prompt_)?eval_count|(?:prompt|candidates|thoughts|total|cachedContent)'
    r'TokenCount|(?:input|output|total|cacheReadInput|cacheWriteInput)(?:Tokens|TokenCount)'
    r'|ephemeral_\w+_input_tokens)":)(\d+(?:\.0)?)'
)  # fmt: skip


def counts_as(form: str) -> Callable[[Answer], Answer]:
    """Return what writes each count in another form; ``{}`` in it stands for the number."""

    def change(answer: Answer) -> Answer:
        text = answer.data.decode()
        return answer.with_data(
            _COUNT.sub(
                lambda it: it[1] + form.replace("{}", it[2].removesuffix(".0")), text
            ).encode()
        )

    return change


STRANGE_COUNTS = [
    "-5",
    "true",
    "[]",
    "{}x",
    '"a lot"',
    '"-3"',
    "2e9",
    "99999999999999999999",
    "NaN",
    "null",
]
"""Forms of a count that cannot be read: the request costs its bound."""
