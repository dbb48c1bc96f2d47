"""OpenAI's chat-completions format: disjoint buckets, streams, estimates, hostile bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.usage import Call, Usage, find_endpoint, find_format, read_body, read_recorded
from guard.core.usage.framing import Recorded

FORMAT = find_format("api.openai.com", "/v1/chat/completions")
assert FORMAT is not None

counts = st.integers(0, 10_000)


def body(usage: object, **fields: object) -> bytes:
    return json.dumps({"id": "chatcmpl-1", "model": "gpt-x", "usage": usage} | fields).encode()


def from_body(raw: bytes) -> Usage | None:
    assert FORMAT is not None
    return read_body(FORMAT, raw, Call(header={"content-type": "application/json"}.get))


def from_stream(head: bytes, tail: bytes = b"", request: bytes = b"") -> Usage | None:
    """Read a stream of which a beginning and, behind a gap, an end were recorded."""
    assert FORMAT is not None
    recorded = Recorded(head, tail, len(head) + len(tail))
    return read_recorded(FORMAT, recorded, "text/event-stream", Call(request=lambda: request))


def read(usage: object, **fields: object) -> Usage | None:
    return from_body(body(usage, **fields))


def test_a_whole_response() -> None:
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 300,
        "total_tokens": 1300,
        "prompt_tokens_details": {"cached_tokens": 600, "audio_tokens": 50},
        "completion_tokens_details": {"reasoning_tokens": 200, "audio_tokens": 30},
    }
    assert read(usage) == Usage(
        model="gpt-x",
        input_tokens=350,
        output_tokens=70,
        cache_read_tokens=600,
        reasoning_tokens=200,
        audio_tokens=80,
        audio_input_tokens=50,
        response_id="chatcmpl-1",
    )


@given(counts, counts, counts, counts, counts, counts)
def test_the_buckets_are_disjoint_and_add_up(
    plain: int, cached: int, written: int, audio: int, visible: int, reasoning: int
) -> None:
    """Cached, reasoning and audio tokens are subsets there; here each token is in one bucket."""
    found = read(
        {
            "prompt_tokens": plain + cached + written + audio,
            "completion_tokens": visible + reasoning,
            "prompt_tokens_details": {
                "cached_tokens": cached, "cache_write_tokens": written, "audio_tokens": audio,
            },
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
    )  # fmt: skip
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (plain, visible)
    assert (found.cache_read_tokens, found.cache_write_tokens) == (cached, written)
    assert (found.reasoning_tokens, found.audio_tokens) == (reasoning, audio)
    assert not found.estimated


def test_usage_null_is_not_usage_of_zero() -> None:
    """Zero is not missing: null says nothing, 0 says zero."""
    assert read(None) is None
    assert read({"prompt_tokens": None, "completion_tokens": None}) is None
    zero = read({"prompt_tokens": 0, "completion_tokens": 0})
    assert zero is not None
    assert (zero.input_tokens, zero.output_tokens, zero.estimated) == (0, 0, False)


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}, [], "x", 5])
def test_details_that_are_null_or_strange_count_as_nothing(details: object) -> None:
    found = read(
        {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": details,
         "completion_tokens_details": details}
    )  # fmt: skip
    assert found is not None
    assert (found.input_tokens, found.output_tokens, found.cache_read_tokens) == (9, 4, 0)


@pytest.mark.parametrize(
    ("count", "read_as"), [("12", 12), (" 12 ", 12), ("12.0", 12), (12.0, 12), (1.5, 2), (None, 0)]
)
def test_a_count_in_another_form_is_read(count: object, read_as: int) -> None:
    found = read({"prompt_tokens": count, "completion_tokens": 4})
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (read_as, 4)


@pytest.mark.parametrize("strange", [-5, "-5", True, [], {}, "", "many", "1e3", 2e9, 10**9 + 1])
def test_a_count_that_is_none_makes_the_usage_unreadable(strange: object) -> None:
    """It is not zero: the request costs its bound."""
    assert read({"prompt_tokens": strange, "completion_tokens": 4}) is None
    assert read({"prompt_tokens": 4, "completion_tokens": strange}) is None


def test_more_cached_than_prompted_is_never_negative() -> None:
    found = read({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 50}})
    assert found is not None
    assert (found.input_tokens, found.cache_read_tokens) == (0, 50)


@pytest.mark.parametrize("model", [None, "", 5, [], {}])
def test_a_model_that_is_no_name_is_none(model: object) -> None:
    found = read({"prompt_tokens": 1}, model=model, id=model)
    assert found is not None
    assert found.model is None
    assert found.response_id is None


@pytest.mark.parametrize(
    "hostile",
    [
        b"", b"null", b"[]", b"5", b'"usage"', b"<html>usage</html>", b'{"usage": [1]}',
        b'{"usage": "a lot"}', b'{"usage": 7}', b'{"error": {"message": "no"}}',
        b'{"usage": {"prompt_tokens": 1}', b"\xff\xfe\x00", b"[" * 100_000, b'{"usage":' * 50_000,
        b'{"usage": {"prompt_tokens": NaN}}', b'{"usage": {"prompt_tokens": 1e999}}',
    ],
)  # fmt: skip
def test_hostile_bodies_have_no_usage_and_raise_nothing(hostile: bytes) -> None:
    assert from_body(hostile) is None
    from_stream(hostile, hostile, hostile)
    from_stream(b"data: " + hostile + b"\n\n", b"", hostile)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["usage", "prompt_tokens", "completion_tokens", "prompt_tokens_details",
             "completion_tokens_details", "cached_tokens", "model", "id", "messages", "content",
             "text"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=15,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["usage", "model", "id", "messages"]), json_values))
def test_any_json_gives_sane_numbers_or_nothing(document: dict[str, Any]) -> None:
    raw = json.dumps(document).encode()
    for found in (
        from_body(raw),
        from_stream(b"data: " + raw + b"\n\n", b"", raw),
    ):
        if found is None:
            continue
        for name in ("input", "output", "cache_read", "cache_write", "reasoning", "audio"):
            number = getattr(found, f"{name}_tokens")
            assert type(number) is int
            assert number >= 0
        assert found.model is None or (isinstance(found.model, str) and found.model)


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=100))
def test_any_bytes_raise_nothing(head: bytes, tail: bytes, request: bytes) -> None:
    from_stream(head, tail, request)


REQUEST = json.dumps(
    {
        "model": "gpt-asked",
        "stream": True,
        "messages": [
            {"role": "system", "content": "x" * 100},
            {"role": "user", "content": [{"type": "text", "text": "y" * 60}, {"type": "image"}]},
        ],
    }
).encode()


def chunk(content: str | None = None, **fields: object) -> dict[str, object]:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    return {"id": "chatcmpl-2", "model": "gpt-answered", "choices": choices, "usage": None} | fields


def stream(*chunks: dict[str, object], newline: bytes = b"\n") -> bytes:
    lines = [b"data: " + json.dumps(each).encode() for each in chunks] + [b"data: [DONE]"]
    return b": a comment" + newline * 2 + (newline * 2).join(lines) + newline * 2


ANSWER = [chunk(word) for word in ("the", " quick", " brown", " fox")]
LAST = chunk(
    usage={
        "prompt_tokens": 40,
        "completion_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
)
SAID = Usage(
    model="gpt-answered",
    input_tokens=30,
    output_tokens=20,
    cache_read_tokens=10,
    reasoning_tokens=5,
    response_id="chatcmpl-2",
)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_a_stream_that_says_its_usage(newline: bytes) -> None:
    data = stream(*ANSWER, LAST, newline=newline)
    assert from_stream(data, b"", REQUEST) == SAID


def test_a_stream_cut_at_any_byte_says_the_same_or_is_flagged() -> None:
    """The observer keeps a head and a tail; wherever they are cut, no number may be invented."""
    data = stream(*ANSWER, LAST)
    usage_line = data.index(b"data: " + json.dumps(LAST).encode())
    for cut in range(1, len(data)):
        found = from_stream(data[:200], data[-cut:], REQUEST)
        if len(data) - cut <= usage_line:
            assert found == SAID
        else:
            # Cut inside the line: its end may still hold the whole of `usage`.
            assert found is not None
            assert found == SAID or found.estimated


def test_a_stream_broken_off_anywhere_is_the_usage_or_an_estimate() -> None:
    data = stream(*ANSWER, LAST)
    said_at = data.index(b"data: [DONE]") - 2
    for end in range(len(data)):
        found = from_stream(data[:end], b"", REQUEST)
        if end >= said_at:
            assert found == SAID
        else:
            assert found is None or found.estimated


def test_the_last_chunk_that_says_usage_wins() -> None:
    """Some vendors repeat it, growing, in every chunk."""
    early = chunk("the", usage={"prompt_tokens": 40, "completion_tokens": 1})
    assert from_stream(stream(early, LAST), b"", REQUEST) == SAID
    assert from_stream(stream(LAST, chunk(" fox")), b"", REQUEST) == SAID


def test_text_that_speaks_of_usage_is_not_usage() -> None:
    quoting = chunk('{"usage": {"prompt_tokens": 999999}}')
    found = from_stream(stream(quoting), b"", REQUEST)
    assert found is not None
    assert found.estimated
    assert found.input_tokens < 1000


def test_without_a_word_of_usage_it_is_estimated_and_flagged() -> None:
    """Tokens from the texts: 160 bytes of prompt, at four each; 19 of answer, at three."""
    found = from_stream(stream(*ANSWER), b"", REQUEST)
    assert found == Usage(
        model="gpt-answered",
        input_tokens=40,
        output_tokens=7,
        response_id="chatcmpl-2",
        estimated=True,
    )


@pytest.mark.parametrize("request_body", [b"", b"{}", b"no json", b'{"messages": {"a": 1}}', b"[]"])
def test_an_estimate_without_a_readable_request_counts_the_answer(request_body: bytes) -> None:
    found = from_stream(stream(*ANSWER), b"", request_body)
    assert found is not None
    assert (found.input_tokens, found.output_tokens, found.estimated) == (0, 7, True)


def test_what_is_no_event_stream_has_no_usage() -> None:
    assert from_stream(b"<html></html>", b"", REQUEST) is None
    assert from_stream(b"", b"", REQUEST) is None


@pytest.mark.parametrize(
    ("host", "path", "provider"),
    [
        ("api.openai.com", "/v1/chat/completions", "openai"),
        ("x.openai.azure.com", "/openai/deployments/d/chat/completions", "azure"),
        ("api.deepseek.com", "/chat/completions", "deepseek"),
        ("127.0.0.1", "/v1/chat/completions", "openai"),
        ("openrouter.ai", "/api/v1/chat/completions", "openrouter"),
    ],
)
def test_who_speaks_the_format(host: str, path: str, provider: str) -> None:
    found = find_format(host, path)
    assert found is not None
    assert found.provider == provider


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("api.openai.com", "/v1/models"),
        ("api.openai.com", "/v1/chat/completions/chatcmpl-1/messages"),
        ("example.com", "/"),
        ("example.com", ""),
    ],
)
def test_who_does_not(host: str, path: str) -> None:
    """At a vendor's host anything is looked at for usage, and nothing is taken for granted."""
    found = find_endpoint("POST", host, path)
    assert (found is None) is (host == "example.com")
    assert found is None or not (found.asks or found.certain)
