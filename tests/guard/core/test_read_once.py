"""A request's body is read once, as the vendor's own reader reads it; else it is not read."""

from __future__ import annotations

import base64
import codecs
import gzip
import json
import random
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import brotli
import pytest
import zstandard

from guard.core.bounds import InputRatios, bound_of
from guard.core.request_bound import RequestBound
from guard.core.usage.decoding import plain_body
from guard.core.usage.request_body import UnreadableError, read_request
from guard.core.usage.vendors import find_endpoint

Body = dict[str, Any]
PLACES: Final[dict[str, tuple[str, str, Body]]] = {
    "chat": ("api.openai.com", "/v1/chat/completions", {
        "model": "gpt-5-nano", "max_tokens": 100, "n": 2, "stream": False,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "messages": [{"role": "user", "content": "héllo \U0001f600 there"}],
    }),
    "responses": ("api.openai.com", "/v1/responses", {
        "model": "gpt-5-nano", "max_output_tokens": 100, "tools": [{"type": "local_shell"}],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    }),
    "messages": ("api.anthropic.com", "/v1/messages", {
        "model": "claude-haiku-5", "max_tokens": 100, "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": "hello"}],
    }),
    "gemini": (
        "generativelanguage.googleapis.com", "/v1beta/models/gemini-3-pro:generateContent", {
            "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
            "generationConfig": {"maxOutputTokens": 100, "candidateCount": 2},
        },
    ),
    "elsewhere": ("llm.example", "/v1/chat/completions", {
        "model": "gpt-5-nano", "max_tokens": 100, "messages": [{"role": "user", "content": "a"}],
    }),
}  # fmt: skip
RATIOS: Final = InputRatios()


def bound(place: str, body: bytes) -> RequestBound:
    host, path, _ = PLACES[place]
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    trusted = frozenset[str]() if endpoint.is_vendors else None
    return bound_of(endpoint.format, path, body, RATIOS, trusted)


# --- what is made of a body -----------------------------------------------------------------------

DEAR: Final = {
    "model": "gpt-5-pro", "max_tokens": 90_000, "max_output_tokens": 90_000, "n": 50,
    "maxOutputTokens": 90_000, "candidateCount": 8, "stream": True, "type": "web_search",
    "messages": [{"role": "user", "content": "hello" * 900}],
}  # fmt: skip


def other_spelling(rng: random.Random, name: str) -> str:
    """Return a name as JSON that some readers take for this one."""
    at = rng.randrange(len(name))
    return rng.choice((
        json.dumps(name), f'"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}"',
        json.dumps(name.upper()), json.dumps(name.title()), json.dumps(name.replace("k", "\u212a")),
        json.dumps(name.replace("s", "\u017f")), f'"{name[:at]}\\uD800{name[at:]}"',
        json.dumps(re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name)),
    ))  # fmt: skip


def twice(rng: random.Random, text: str) -> bytes:
    names = [(found.start(), found[1]) for found in re.finditer(r'"(\w+)":', text)]
    at, name = rng.choice([each for each in names if each[1] in DEAR] if rng.random() < 0.8
                          else names)  # fmt: skip
    member = f"{other_spelling(rng, name)}: {json.dumps(DEAR.get(name, 'x'))}"
    if rng.random() < 0.5:
        return f"{text[:at]}{member}, {text[at:]}".encode("utf-8", "surrogatepass")
    return f"{text[:-1]}, {member}}}".encode("utf-8", "surrogatepass")


def odd_number(rng: random.Random, text: str) -> bytes:
    number = rng.choice((
        "NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 30, "9" * 5000, "-1", "-0", "01",
        "0x64", "1e5", "40.0", '"40"', '" 40 "', "true", "null", "[90000]", "4_0", "+40", "40.",
        "1E400", "5e-324", "0.1e3",
    ))  # fmt: skip
    found = rng.choice(list(re.finditer(r": (\d+|false)", text)) or [None])
    return (
        text if found is None else f"{text[: found.start(1)]}{number}{text[found.end(1) :]}"
    ).encode()


def odd_bytes(rng: random.Random, text: str) -> bytes:
    data = text.encode()
    at = rng.randrange(len(data) + 1)
    piece = rng.choice((
        b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\x80", b"\\ud800",
        b"\\u0000", b"\x0b", b"\xc2\xa0", b"\xe2\x80\xa8", b"\x7f", b"\n", b"\\", b'"', b",",
        b"{", b"}", b"/* */", b"//x\n", b"\x1e",
    ))  # fmt: skip
    return data[:at] + piece + data[at:]


def odd_text(rng: random.Random, text: str) -> bytes:
    coding = rng.choice(("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be",
                         "utf-7", "cp037", "latin-1"))  # fmt: skip
    return text.encode(coding, "replace")


def around(rng: random.Random, text: str) -> bytes:
    before = rng.choice(("", " ", "\n\t", "\r\n", "\ufeff", "\x0b", "\u00a0", ")]}',\n", "[", "{}"))
    after = rng.choice(
        ("", " \n", "{}", '{"model": "gpt-5-pro"}', "]", ",", "\0", "\x1a", "// end")
    )
    return f"{before}{text}{after}".encode()


def deep(rng: random.Random, text: str) -> bytes:
    depth = rng.choice((10, 100, 900, 1100, 5000, 20_000))
    open_, close = rng.choice((("[", "]"), ('{"a":', "}")))
    inner = open_ * depth + ("1" if close == "}" else "") + close * depth
    return f'{text[:-1]}, "metadata": {inner}}}'.encode()


def cut(rng: random.Random, text: str) -> bytes:
    return text.encode()[: rng.randrange(len(text))]


MADE: Final[tuple[Callable[[random.Random, str], bytes], ...]] = (
    twice, twice, twice, odd_number, odd_bytes, odd_text, around, deep, cut,
)  # fmt: skip


def made(cases: int) -> Iterator[tuple[str, bytes]]:
    rng = random.Random(20261129)
    for number in range(cases):
        place = rng.choice(list(PLACES))
        text = json.dumps(PLACES[place][2], ensure_ascii=rng.random() < 0.5)
        yield place, MADE[number % len(MADE)](rng, text)


# --- the readers ----------------------------------------------------------------------------------


def by_python(body: bytes) -> Any:
    return json.loads(body)


def by_go(body: bytes) -> Any:
    """Read as ``json.NewDecoder(body).Decode(&request)`` does: names in any case, one value."""
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    said, _ = json.JSONDecoder(object_pairs_hook=list).raw_decode(text)
    fields = {"model", "messages", "max_tokens", "n", "stream", "tools", "input", "thinking"}

    def plainly(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            return {name: plainly(each) for name, each in value}
        return [plainly(each) for each in value] if isinstance(value, list) else value

    found = {}
    for name, value in said:
        folded = name.casefold()
        found[folded if folded in fields else name] = plainly(value)
    return found


JAVASCRIPT: Final = """
const lines = require("fs").readFileSync(0, "utf8").split("\\n");
for (const line of lines) {
  let said = "null";
  try {  // also a stack that is too small for what was read
    const read = JSON.parse(new TextDecoder().decode(Buffer.from(line, "base64")));
    said = JSON.stringify(read, (name, each) => (each === Infinity ? 1e308 : each));
  } catch (error) {}
  console.log(said);
}
"""


def by_javascript(bodies: list[bytes]) -> list[Any]:
    node = shutil.which("node")
    if node is None:
        return []
    sent = b"\n".join(map(base64.b64encode, bodies))
    done = subprocess.run([node, "-e", JAVASCRIPT], input=sent, capture_output=True, check=True)
    return [reading(json.loads, line) for line in done.stdout.splitlines()]


def what_counts(found: RequestBound) -> tuple[Any, ...]:
    return (
        found.model, found.models, found.output_tokens, found.answers, found.streams,
        found.input_tokens is None, found.unknown, found.beside_output, found.fees,
    )  # fmt: skip


def reading(reader: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return reader(body)
    except (ValueError, RecursionError, TypeError):
        return None


@pytest.mark.generator("bodies that two readers read differently")
def test_whoever_reads_a_body_finds_what_was_bounded(count_cases: Callable[[int], None]) -> None:
    cases = list(made(4500))
    by_node = by_javascript([body for _, body in cases])
    read = 0
    for number, (place, body) in enumerate(cases):
        found = bound(place, body)
        if found.unnumbered:
            assert found.model is None or place == "gemini"
            continue
        read += 1
        readings = [reading(by_python, body), reading(by_go, body), *by_node[number : number + 1]]
        for said in readings:
            if not isinstance(said, dict):
                continue
            # As that reader has it, written anew.
            data = json.dumps(said).encode()
            assert what_counts(bound(place, data)) == what_counts(found), (place, body[:500], said)
    assert read > len(cases) // 5, "the rest is refused"
    count_cases(len(cases))


def test_what_clients_write_is_read() -> None:
    def refused(body: bytes) -> str:
        return bound("chat", body).unnumbered

    said = PLACES["chat"][2]
    for ascii_only in (True, False):
        for separators in ((",", ":"), (", ", ": ")):
            for indent in (None, 2):
                text = json.dumps(
                    said, ensure_ascii=ascii_only, separators=separators, indent=indent
                )
                for body in (text.encode(), codecs.BOM_UTF8 + text.encode(), f" {text}\n".encode()):
                    assert refused(body) == ""
                    assert what_counts(bound("chat", body))[:4] == ("gpt-5-nano", (), 200, 2)
    cut_emoji = json.dumps({**said, "messages": [{"role": "user", "content": "\ud83d"}]})
    assert refused(cut_emoji.encode()) == "", "JavaScript writes half of a pair, which is cut"
    # Names that only look alike, in what is the caller's own.
    own = {"userId": {}, "user_id": {}, "USER_ID": {}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": own}}}
    found = bound("chat", json.dumps({**said, "tools": [tool]}).encode())
    assert (found.unnumbered, found.unknown) == ("", ())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"model": "a", "model": "b"}', "names the member 'model' twice"),
        (b'{"model":"a","mod\\u0065l":"b"}', "names the member 'model' twice"),
        (b'{"model": "a", "Model": "b"}', "names the member 'model' twice"),
        (b'{"MODEL": "b"}', "names the member 'model' twice"),
        (b'{"a": [{"b": {"c": 1, "c": 1}}]}', "names the member 'c' twice"),
        (b'{"a": "\xff"}', "is not UTF-8"),
        (b'{"a": 1} {}', "is not JSON"),
        (b"[" * 5000, "is nested too deeply"),
        (b"[{}]", "is no object of JSON"),
        (b"", "is sent in pieces, or in a form that cannot be read before it goes"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(body: bytes, why: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        read_request(body)
    assert str(raised.value) == why
    assert bound("chat", body).unnumbered == f"any model and any answer, since its body {why}"


def test_of_both_spellings_of_a_name_google_reads_one() -> None:
    said = {**PLACES["gemini"][2], "generation_config": {"candidateCount": 8}}
    assert "twice" in bound("gemini", json.dumps(said).encode()).unnumbered


PACKED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": lambda body: zlib.compress(body, wbits=-15),
    "br": brotli.compress,
    "zstd": lambda body: zstandard.compress(body),
    "gzip, br": lambda body: brotli.compress(gzip.compress(body)),
    "identity": lambda body: body,
}


@pytest.mark.parametrize("name", PACKED)
def test_what_is_compressed_is_read_or_refused(name: str) -> None:
    said = PLACES["chat"][2]
    plain = json.dumps(said).encode()
    sent = PACKED[name](plain)
    assert bound("chat", plain_body(sent, name)) == bound("chat", plain)
    # What says that it is packed otherwise, or is broken off, bounds nothing.
    for wrong, header in ((sent, "snappy"), (sent, "lzma, gzip"), (sent[: len(sent) // 2], name)):
        found = bound("chat", plain_body(wrong, header))
        assert found.unnumbered or wrong == plain, (name, header)
