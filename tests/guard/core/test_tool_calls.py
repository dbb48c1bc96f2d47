"""The names of the tools that answers ask for, in every format, however the bytes are cut."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.usage import find_endpoint, tool_calls
from guard.core.usage.response_format import ToolCallReader
from guard.core.usage.tool_scan import ToolScanner
from tests.support.tool_answers import SHAPES, answer

READERS: dict[str, ToolCallReader] = {
    "chat": tool_calls.CHAT, "function_call": tool_calls.CHAT,
    "responses": tool_calls.RESPONSES, "anthropic": tool_calls.ANTHROPIC,
    "gemini": tool_calls.GEMINI, "interactions": tool_calls.INTERACTIONS,
    "converse": tool_calls.CONVERSE, "invoke": tool_calls.INVOKE_MODEL,
    "cohere": tool_calls.COHERE, "ollama": tool_calls.OLLAMA,
}  # fmt: skip
TWO = ["read_file", "delete_files"]


def wanted(shape: str) -> list[str]:
    return TWO[:1] if shape == "function_call" else TWO


def scan(reader: ToolCallReader, chunks: Any, kind: str, encoding: str = "") -> list[list[str]]:
    scanner = ToolScanner(reader, lambda: kind, encoding)
    return [*(scanner.feed(chunk) for chunk in chunks), scanner.end()]


def flat(found: list[list[str]]) -> list[str]:
    return [name for names in found for name in names]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_whole_answer(shape: str) -> None:
    reply = answer(shape, TWO)
    scanner = ToolScanner(READERS[shape], lambda: reply.content_type)
    assert scanner.whole(reply.body) == wanted(shape)
    assert flat(scan(READERS[shape], [reply.body], reply.content_type)) == wanted(shape)
    streamed = answer(shape, TWO, stream=True)
    scanner = ToolScanner(READERS[shape], lambda: streamed.content_type)
    assert scanner.whole(b"".join(streamed.events)) == wanted(shape)


def test_a_whole_answer_of_any_size() -> None:
    image = b"x" * (20 * 1024 * 1024)
    body = answer("responses", TWO).body.replace(b'"resp_t"', b'"%s"' % image)
    assert ToolScanner(tool_calls.RESPONSES, lambda: "").whole(body) == TWO
    assert ToolScanner(tool_calls.RESPONSES, lambda: "").whole(body[:-1]) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_stream_names_each_call_once(shape: str, encoding: str) -> None:
    reply = answer(shape, TWO, stream=True)
    chunks: Any = reply.events
    if encoding:
        packed = gzip.compress(b"".join(chunks))
        chunks = [packed[start : start + 7] for start in range(0, len(packed), 7)]
    assert flat(scan(READERS[shape], chunks, reply.content_type, encoding)) == wanted(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_name_is_found_in_the_chunk_that_completes_its_first_mention(shape: str) -> None:
    reply = answer(shape, ["only"], stream=True)
    found = scan(READERS[shape], reply.events, reply.content_type)
    first = next(n for n, names in enumerate(found) if names)
    if shape != "invoke":  # there the name is inside base64
        mentions = [n for n, event in enumerate(reply.events) if b'"only"' in event]
        assert first == mentions[0]
    # However it is cut: nothing is found before that message is complete, all of it then.
    data = b"".join(reply.events)
    complete = len(b"".join(reply.events[: first + 1]))
    for cut in range(1, len(data)):
        before, *rest = scan(READERS[shape], [data[:cut], data[cut:]], reply.content_type)
        assert flat([before, *rest]) == ["only"]
        if before:
            assert cut >= complete - 2  # the line's end is enough, without the empty one
        if cut >= complete:
            assert before == ["only"]


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_one_by_one(shape: str) -> None:
    reply = answer(shape, TWO, stream=True)
    data = b"".join(reply.events)
    single = [data[n : n + 1] for n in range(len(data))]
    assert flat(scan(READERS[shape], single, reply.content_type)) == wanted(shape)


def test_geminis_array_is_read_element_by_element() -> None:
    reply = answer("gemini", TWO, stream=True, array=True)
    found = scan(tool_calls.GEMINI, reply.events, reply.content_type)
    assert found[:3] == [[], ["read_file"], ["delete_files"]]


def test_a_stream_that_ends_within_a_line() -> None:
    body = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"rm"}}]}}]}'
    assert scan(tool_calls.CHAT, [body], "text/event-stream") == [[], ["rm"]]
    assert scan(tool_calls.CHAT, [body, b"\r\n"], "text/event-stream") == [[], ["rm"], []]


def test_calls_with_the_same_name_are_different_calls() -> None:
    for shape in set(SHAPES) - {"function_call"}:
        reply = answer(shape, ["pay", "pay"], stream=True)
        assert flat(scan(READERS[shape], reply.events, reply.content_type)) == ["pay", "pay"]


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ({"type": "custom_tool_call", "call_id": "c", "name": "grep", "input": "x"}, "grep"),
        ({"type": "mcp_approval_request", "id": "m", "name": "pay", "server_label": "s"}, "pay"),
        ({"type": "computer_call", "call_id": "c", "action": {}}, "computer"),
        ({"type": "local_shell_call", "call_id": "c", "action": {}}, "local_shell"),
        ({"type": "shell_call", "call_id": "c", "action": {}}, "shell"),
        ({"type": "apply_patch_call", "call_id": "c", "operation": {}}, "apply_patch"),
        ({"type": "mcp_call", "id": "m", "name": "done_by_the_vendor"}, None),
        ({"type": "web_search_call", "id": "w", "action": {}}, None),
    ],
)
def test_items_of_responses(item: dict[str, Any], name: str | None) -> None:
    found = [call.name for call in tool_calls.RESPONSES.read({"output": [item]})]
    assert found == ([] if name is None else [name])


def test_other_shapes() -> None:
    def names(reader: ToolCallReader, message: Any) -> list[str]:
        return [call.name for call in reader.read(message)]

    function = {"function": {"name": "rm", "arguments": "{}"}, "id": "call_1", "type": "function"}
    action = {"required_action": {"submit_tool_outputs": {"tool_calls": [function]}}}
    assert names(tool_calls.RUNS, action) == ["rm"]
    step = {"delta": {"step_details": {"type": "tool_calls", "tool_calls": [function]}}}
    assert names(tool_calls.RUNS, step) == ["rm"]
    custom = {"type": "custom", "id": "c", "custom": {"name": "sql", "input": "select"}}
    message = {"choices": [{"index": 0, "message": {"tool_calls": [custom]}}]}
    assert names(tool_calls.CHAT, message) == ["sql"]
    assert names(tool_calls.COHERE, {"tool_calls": [{"name": "rm", "parameters": {}}]}) == ["rm"]
    event = {"type": "function.call.delta", "name": "rm", "tool_call_id": "t", "arguments": "{}"}
    assert names(tool_calls.ANY, event) == ["rm"]
    assert names(tool_calls.ANY, {"result": {"tool_calls": [{"name": "rm"}]}}) == ["rm"]
    control = {"invocationId": "i", "invocationInputs": [
        {"functionInvocationInput": {"actionGroup": "g", "function": "rm", "parameters": []}},
        {"apiInvocationInput": {"actionGroup": "shop", "apiPath": "/buy"}},
    ]}  # fmt: skip
    assert names(tool_calls.RETURNED_CONTROL, control) == ["rm", "shop"]
    server = {"content": [{"type": "server_tool_use", "id": "s", "name": "web_search"}]}
    assert names(tool_calls.ANTHROPIC, server) == []


def test_endpoints_whose_answers_repeat_what_was_stored_are_not_read() -> None:
    def named(method: str, path: str) -> bool:
        endpoint = find_endpoint(method, "api.openai.com", path)
        assert endpoint is not None
        return endpoint.names_tools

    assert named("POST", "/v1/chat/completions")
    assert named("POST", "/v1/responses")
    assert named("GET", "/v1/responses/resp_1")
    assert named("GET", "/v1/threads/t/runs/r")
    assert not named("POST", "/v1/conversations/c/items")
    assert not named("POST", "/v1/responses/compact")


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from([
            "choices", "message", "delta", "tool_calls", "function", "function_call", "name", "id",
            "output", "item", "type", "content", "candidates", "parts", "functionCall", "toolUse",
            "start", "response", "step", "required_action", "submit_tool_outputs", "result",
        ]), inner, max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["choices", "output", "message", "delta", "item", "start",
    "content", "candidates", "response", "tool_calls", "result"]), JSON))  # fmt: skip
def test_no_message_breaks_a_reader(message: Any) -> None:
    for reader in {*READERS.values(), tool_calls.ANY, tool_calls.RUNS, tool_calls.RETURNED_CONTROL}:
        assert all(isinstance(call.name, str) for call in reader.read(message))


@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from(["", "gzip", "br", "zz"]))
def test_no_bytes_break_a_scanner(chunks: list[bytes], encoding: str) -> None:
    for kind in (
        "",
        "text/event-stream",
        "application/x-ndjson",
        "application/vnd.amazon.eventstream",
    ):
        assert flat(scan(tool_calls.ANY, chunks, kind, encoding)) == []


def test_a_message_that_never_ends_is_given_up() -> None:
    scanner = ToolScanner(tool_calls.CHAT, lambda: "text/event-stream")
    for _ in range(40):
        assert scanner.feed(b"data: " + b"x" * 1024 * 1024) == []
    assert len(scanner._carry) <= 16 * 1024 * 1024
    assert scanner.is_blind


@pytest.mark.parametrize(
    ("encoding", "chunk"),
    [("zz", b"?"), ("gzip", b"not gzip"), ("gzip", gzip.compress(bytes(17 << 20)))],
    ids=["unknown", "corrupt", "bomb"],
)
def test_what_cannot_be_decoded_is_said(encoding: str, chunk: bytes) -> None:
    scanner = ToolScanner(tool_calls.CHAT, lambda: "text/event-stream", encoding)
    assert scanner.feed(chunk) == []
    assert scanner.is_blind


def test_a_compressed_stream_is_read_however_long_it_is() -> None:
    reply = answer("chat", ["last"], stream=True)
    pack = zlib.compressobj(wbits=31)
    events = [b": " + b"x" * (1 << 20) + b"\n\n"] * 40
    chunks = [pack.compress(each) + pack.flush(zlib.Z_SYNC_FLUSH) for each in events]
    chunks.append(pack.compress(b"".join(reply.events)) + pack.flush())
    assert flat(scan(tool_calls.CHAT, chunks, reply.content_type, "gzip")) == ["last"]


def test_a_whole_answer_that_only_looks_readable_is_said() -> None:
    scanner = ToolScanner(tool_calls.CHAT, lambda: "application/json")
    assert scanner.whole(answer("chat", TWO).body[:-1]) == []
    assert scanner.is_blind
