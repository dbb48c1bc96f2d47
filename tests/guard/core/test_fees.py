"""What is charged besides tokens: read from real requests, and from real answers."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import msgspec
import pytest

from guard.core import fees
from guard.core.bounds import InputRatios, bound_of, fees_of, with_output_limit
from guard.core.leases import cost_of, fitting_output, worst_case
from guard.core.request_bound import RequestBound
from guard.core.usage import Call, Usage, find_endpoint, read_body, read_recorded
from guard.core.usage.framing import Recorded
from guard.core.usage.response_format import PENDING, ResponseFormat
from guard.core.wire import ModelRates, RateRow

OPENAI, ANTHROPIC = "api.openai.com", "api.anthropic.com"
GOOGLE = "generativelanguage.googleapis.com"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
OLDER = "/v1beta/models/gemini-2.5-flash:generateContent"
NEWER = "/v1beta/models/gemini-3-pro-preview:generateContent"
PERPLEXITY, SONAR = "api.perplexity.ai", "/chat/completions"
DRAWS = {"type": "image_generation"}
HELLO = [{"role": "user", "content": "Hello?"}]
PARTS = [{"parts": [{"text": "Hello?"}]}]
SEARCH = {"type": "web_search"}
PREVIEW = {"type": "web_search_preview"}
CLAUDES = {"type": "web_search_20250305", "name": "web_search"}
RATES = ModelRates(1, 2, 1, 1, 2, 2, 10**6, 2 * 10**6, context_tokens=1000)


def format_of(host: str, path: str) -> ResponseFormat:
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    return endpoint.format


def bound(host: str, path: str, body: Any) -> RequestBound:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return bound_of(format_of(host, path), path, data, InputRatios())


def test_each_line_has_a_price_and_a_source_with_a_date() -> None:
    for line, fee in fees.FEES.items():
        assert line == line.lower()
        assert 1_000 <= fee.nanousd <= 2 * 10**9, line
        assert fee.source.url.startswith("https://")
        assert re.fullmatch(r"20\d\d-\d\d", fee.source.read)


class TestRequests:
    @pytest.mark.parametrize(
        ("host", "path", "body", "expected"),
        [
            (OPENAI, RESPONSES, {"model": "gpt-5", "max_tool_calls": 3, "tools": [SEARCH]},
             {"openai web search": 3}),
            (OPENAI, RESPONSES, {"model": "gpt-4.1", "max_tool_calls": 3, "tools": [PREVIEW]},
             {"openai web search preview": 3}),
            (OPENAI, RESPONSES, {"model": "o3", "max_tool_calls": 3, "tools": [PREVIEW]},
             {"openai web search": 3}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "max_tool_calls": 4, "tools": [
                {"type": "file_search", "vector_store_ids": ["v"]}, SEARCH]},
             {"openai web search": 4}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "max_tool_calls": 0, "tools": [SEARCH]},
             {"openai web search": 0}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "tools": [
                {"type": "code_interpreter", "container": {"type": "auto"}}]},
             {"openai container 1g": 1}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "max_tool_calls": 2, "tools": [
                {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "4g"}},
                {"type": "shell", "environment": {"type": "container_auto"}},
                {"type": "shell", "environment": {"type": "local"}}, SEARCH]},
             {"openai container 4g": 1, "openai container 1g": 1, "openai web search": 2}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "tools": [
                {"type": "code_interpreter", "container": "cntr_1"}]},
             {"openai container 64g": 1}),
            ("x.openai.azure.com", "/openai/v1/responses",
             {"model": "gpt-5", "max_tool_calls": 3, "tools": [SEARCH]}, {"openai web search": 3}),
            (OPENAI, CHAT, {"model": "gpt-4o-search-preview", "messages": HELLO},
             {"openai web search preview": 1}),
            (OPENAI, CHAT, {"model": "gpt-5-search-api", "messages": HELLO, "n": 2,
                            "web_search_options": {}}, {"openai web search": 2}),
            (ANTHROPIC, MESSAGES, {"model": "c", "max_tokens": 9, "messages": HELLO,
                                   "tools": [{**CLAUDES, "max_uses": 5}]},
             {"anthropic web search": 5}),
            (GOOGLE, OLDER, {"contents": PARTS, "tools": [{"googleSearch": {}}]},
             {"google search prompt": 1}),
            (GOOGLE, OLDER, {"contents": PARTS, "tools": [{"google_search_retrieval": {}}]},
             {"google search prompt": 1}),
            (GOOGLE, OLDER, {"contents": PARTS, "tools": [{"googleMaps": {}, "googleSearch": {}}]},
             {"google maps prompt": 1, "google search prompt": 1}),
            (GOOGLE, OLDER, {"contents": PARTS, "tools": [{"enterpriseWebSearch": {}}]},
             {"google enterprise search prompt": 1}),
            (PERPLEXITY, SONAR, {"model": "sonar", "messages": HELLO},
             {"perplexity request high": 1}),
            (PERPLEXITY, SONAR, {"model": "sonar-pro", "messages": HELLO, "web_search_options": {
                "search_context_size": "low"}}, {"perplexity pro request low": 1}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "input": "a", "max_tool_calls": 2, "tools": [
                {**DRAWS, "model": "gpt-image-1", "quality": "low", "action": "generate"}]},
             {"gpt-image-1 output": 820, "gpt-image-1 text": 64_000}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "input": "a", "max_tool_calls": 2, "tools": [
                {**DRAWS, "model": "gpt-image-1", "quality": "low"}], "previous_response_id": "r"},
             {"gpt-image-1 output": 820, "gpt-image-1 text": 64_000,
              "gpt-image-1 image": 2 * 16 * 7_300}),
        ],
    )  # fmt: skip
    def test_allow_a_number_of_each(
        self, host: str, path: str, body: Any, expected: dict[str, int]
    ) -> None:
        found = bound(host, path, body)
        assert (found.fees, found.unnumbered) == (expected, "")
        assert fees_of(format_of(host, path), path, json.dumps(body).encode()) == expected

    @pytest.mark.parametrize(
        ("host", "path", "body", "says"),
        [
            (OPENAI, RESPONSES, {"model": "gpt-5", "tools": [SEARCH]}, "set max_tool_calls"),
            (OPENAI, RESPONSES, {"model": "gpt-5", "tools": [SEARCH], "max_tool_calls": -1},
             "set max_tool_calls"),
            (ANTHROPIC, MESSAGES, {"model": "c", "max_tokens": 9, "messages": HELLO,
                                   "tools": [{**CLAUDES, "max_uses": 5}, CLAUDES]},
             "set max_uses"),
            (GOOGLE, NEWER, {"contents": PARTS, "tools": [{"google_search": {}}]}, "Google"),
            (GOOGLE, "/v1beta/interactions", {"model": "gemini-3-pro", "input": "a", "tools": [
                {"type": "google_search"}]}, "Google"),
            (GOOGLE, NEWER, {"contents": PARTS, "tools": [{"googleMaps": {}}]}, "Google"),
            (GOOGLE, NEWER, {"contents": PARTS, "tools": [{"enterpriseWebSearch": {}}]}, "Google"),
            (OPENAI, RESPONSES, {"model": "gpt-5", "tools": [DRAWS]}, "set max_tool_calls"),
            (PERPLEXITY, SONAR, {"model": "sonar-deep-research", "messages": HELLO}, "searches"),
        ],
    )  # fmt: skip
    def test_without_a_number_have_no_worst_case(
        self, host: str, path: str, body: Any, says: str
    ) -> None:
        found = bound(host, path, body)
        assert says in found.unnumbered
        assert found.fees
        assert worst_case(RATES, found) is None

    @pytest.mark.parametrize(
        ("host", "path", "body"),
        [
            (OPENAI, CHAT, {"model": "gpt-4o", "messages": HELLO}),
            (OPENAI, CHAT, {"model": "gpt-4o", "messages": HELLO, "n": 2}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "input": "search", "tools": [
                {"type": "function", "name": "web_search"}, {"type": "mcp"}]}),
            (OPENAI, RESPONSES, {"model": "gpt-5", "input": "a", "tools": "nonsense"}),
            (ANTHROPIC, MESSAGES, {"model": "c", "max_tokens": 9, "messages": HELLO, "tools": [
                {"type": "web_fetch_20250910", "name": "web_fetch"}]}),
            (ANTHROPIC, MESSAGES, {"model": "c", "max_tokens": 9, "messages": HELLO, "tools": [
                {"name": "web_search", "input_schema": {}}]}),
            (GOOGLE, NEWER, {"contents": PARTS, "tools": [{"urlContext": {}}]}),
            ("api.x.ai", RESPONSES, {"model": "grok-4", "input": "a", "tools": [SEARCH]}),
        ],
    )  # fmt: skip
    def test_of_others_cost_tokens_only(self, host: str, path: str, body: Any) -> None:
        found = bound(host, path, body)
        assert (found.fees, found.unnumbered) == (None, "")
        assert fees_of(format_of(host, path), path, json.dumps(body).encode()) is None

    def test_what_they_may_cost_is_held_before_any_output(self) -> None:
        asked = RequestBound("openai", "m", 10, 20, least_output=5, fees={"openai web search": 2})
        assert worst_case(RATES, asked) == (10 + 40 + 20_000_000, 20)
        assert fitting_output(RATES, asked, 20_000_000) is None
        assert fitting_output(RATES, asked, 20_000_000 + 10 + 2 * 9) == 8

    def test_a_limit_can_still_be_put_in(self) -> None:
        body = json.dumps({"model": "gpt-5", "tools": [SEARCH], "max_tool_calls": 1}).encode()
        limited = with_output_limit(format_of(OPENAI, RESPONSES), RESPONSES, body, 64)
        assert limited is not None
        assert bound(OPENAI, RESPONSES, limited).output_tokens == 64


def read(host: str, path: str, body: bytes) -> Usage:
    found = read_body(format_of(host, path), body, Call(path))
    assert found is not None
    return found


def response(output: list[Any], **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 7}
    return {"id": "r", "object": "response", "model": "gpt-5", "status": "completed",
            "output": output, "usage": usage, **more}  # fmt: skip


def searched(action: str) -> dict[str, Any]:
    return {"type": "web_search_call", "id": "w", "action": {"type": action}}


DREW = {"type": "image_generation_call", "id": "i", "result": "iVBOR"}
RAN = {"type": "code_interpreter_call", "id": "c", "container_id": "cntr_1", "code": "1"}
GROUNDED = {"webSearchQueries": ["a", "b"], "groundingChunks": [{"web": {"uri": "u"}}]}


class TestAnswers:
    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            (response([searched("search"), searched("open_page"), searched("find_in_page"),
                       searched("search"), {"type": "web_search_call"}]),
             {"openai web search": 3}),
            (response([searched("search")], model="gpt-4.1", tools=[PREVIEW]),
             {"openai web search preview": 1}),
            (response([{"type": "file_search_call"}]), {"openai file search": 1}),
            (response([RAN, RAN, {**RAN, "container_id": "cntr_2"}]), {"openai container 1g": 2}),
            (response([RAN], tools=[{"type": "code_interpreter", "container": {
                "type": "auto", "memory_limit": "16g"}}]), {"openai container 16g": 1}),
            (response([{"type": "shell_call", "environment": {
                "type": "container_reference", "container_id": "c"}}]), {"openai container 1g": 1}),
            (response([{"type": "message", "content": [
                {"type": "output_text", "text": 'say "web_search_call"'}]}]), {}),
            (response([]), {}),
            (response([DREW], tools=[{**DRAWS, "model": "gpt-image-2"}], tool_usage={"image_gen": {
                "input_tokens": 50, "output_tokens": 196,
                "input_tokens_details": {"image_tokens": 20, "text_tokens": 30}}}),
             {"gpt-image-2 output": 196, "gpt-image-2 image": 20, "gpt-image-2 text": 30}),
        ],
    )  # fmt: skip
    def test_of_openais_responses_list_each_call(
        self, message: Any, expected: dict[str, int]
    ) -> None:
        whole = json.dumps(message).encode()
        assert read(OPENAI, RESPONSES, whole).fees == expected
        event = {"type": "response.completed", "response": message}
        created = {"type": "response.created", "response": {"id": "r", "model": "gpt-5"}}
        stream = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in (created, event))
        assert read(OPENAI, RESPONSES, stream).fees == expected

    def test_that_are_too_large_to_be_kept_do_not_say(self) -> None:
        text = {"type": "message", "content": [{"type": "output_text", "text": "x" * 400_000}]}
        whole = json.dumps(response([text, searched("search")])).encode()
        assert read(OPENAI, RESPONSES, whole).fees is None
        created = {"type": "response.created", "response": response([], usage=None)}
        event = {"type": "response.completed", "response": response([text, searched("search")])}
        stream = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in (created, event))
        found = read(OPENAI, RESPONSES, stream)
        assert (found.fees, found.output_tokens) == (None, 7)
        cut = Recorded(stream[:65536], stream[-65536:], len(stream))
        ended = read_recorded(format_of(OPENAI, RESPONSES), cut, "text/event-stream", Call())
        assert ended is not None
        assert (ended.fees, ended.output_tokens) == (None, 7)

    def test_of_drawn_images_do_not_always_say(self) -> None:
        whole = json.dumps(response([searched("search"), DREW])).encode()
        assert read(OPENAI, RESPONSES, whole).fees is None

    def test_of_images_do_not_say(self) -> None:
        body = json.dumps({"usage": {"input_tokens": 1, "output_tokens": 2}, "data": [{}]}).encode()
        assert read(OPENAI, "/v1/images/generations", body).fees is None

    def test_of_anthropic_count_their_searches(self) -> None:
        usage = {"input_tokens": 1, "output_tokens": 2}
        plain = json.dumps({"type": "message", "usage": usage}).encode()
        assert read(ANTHROPIC, MESSAGES, plain).fees == {}
        used = {**usage, "server_tool_use": {"web_search_requests": 4, "web_fetch_requests": 9}}
        whole = json.dumps({"type": "message", "usage": used}).encode()
        assert read(ANTHROPIC, MESSAGES, whole).fees == {"anthropic web search": 4}
        start = {"type": "message_start", "message": {"model": "c", "usage": usage}}
        delta = {"type": "message_delta", "delta": {}, "usage": used}
        stop = {"type": "message_stop"}
        events = [b"data: %b\n\n" % json.dumps(each).encode() for each in (start, delta, stop)]
        assert read(ANTHROPIC, MESSAGES, b"".join(events)).fees == {"anthropic web search": 4}
        cut = read(ANTHROPIC, MESSAGES, events[0])
        assert (cut.fees, cut.estimated) == (None, True)

    @pytest.mark.parametrize(
        ("path", "model", "expected"),
        [
            (OLDER, "gemini-2.5-flash", {"google search prompt": 1}),
            (NEWER, "gemini-3-pro-preview", {"google search query": 2}),
        ],
    )
    def test_of_gemini_name_their_queries(
        self, path: str, model: str, expected: dict[str, int]
    ) -> None:
        usage = {"promptTokenCount": 3, "candidatesTokenCount": 4}
        candidate = {"finishReason": "STOP", "content": {"parts": [{"text": "a"}]}}
        plain = {"modelVersion": model, "usageMetadata": usage, "candidates": [candidate]}
        assert read(GOOGLE, path, json.dumps(plain).encode()).fees == {}
        found = {**plain, "candidates": [{**candidate, "groundingMetadata": GROUNDED}]}
        assert read(GOOGLE, path, json.dumps(found).encode()).fees == expected
        stream = b"".join(
            b"data: %b\r\n\r\n" % json.dumps(each).encode() for each in (plain, found)
        )
        path = path.replace("generate", "streamGenerate")
        assert read(GOOGLE, path, stream).fees == expected

    def test_are_priced_with_their_tokens(self) -> None:
        used = Usage(input_tokens=10, output_tokens=20, fees={"openai web search": 2})
        plain = Usage(input_tokens=10, output_tokens=20)
        assert cost_of(RATES, used) == cost_of(RATES, plain) + 20_000_000
        said = Usage(fees={"openai web search": 2}, cost_nanousd=7)
        assert cost_of(RATES, said) == 7, "what the vendor says holds all of it"


def form(**fields: Any) -> bytes:
    """A form as clients send it; bytes are files."""
    parts = b""
    for name, value in fields.items():
        head = f'--b0\r\nContent-Disposition: form-data; name="{name}"'.encode()
        if isinstance(value, bytes):
            kind = b'; filename="f"\r\nContent-Type: application/octet-stream'
            parts += head + kind + b"\r\n\r\n" + value + b"\r\n"
        else:
            parts += head + b"\r\n\r\n" + str(value).encode() + b"\r\n"
    return parts + b"--b0--\r\n"


def wav(seconds: int) -> bytes:
    head = struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    data = bytes(16_000 * seconds)
    return b"RIFF" + bytes(4) + b"WAVEfmt " + head + b"data" + bytes(4) + data


IMAGES, EDITS, VARIATIONS = "/v1/images/generations", "/v1/images/edits", "/v1/images/variations"
SPEECH, TRANSCRIPTS = "/v1/audio/speech", "/v1/audio/transcriptions"
VIDEOS = "/v1/videos"
MODELS = "/v1beta/models/"


class TestPieces:
    @pytest.mark.parametrize(
        ("host", "path", "body", "expected"),
        [
            (OPENAI, IMAGES, {"model": "dall-e-3", "prompt": "a"}, {"dall-e-3 standard": 1}),
            (OPENAI, IMAGES, {"model": "dall-e-3", "prompt": "a", "size": "1024x1792",
                              "quality": "hd"}, {"dall-e-3 hd wide": 1}),
            (OPENAI, IMAGES, {"model": "dall-e-2", "prompt": "a", "n": 4, "size": "256x256"},
             {"dall-e-2 256x256": 4}),
            (OPENAI, VARIATIONS, form(model="dall-e-2", n=3, image=b"\x89PNG"),
             {"dall-e-2 1024x1024": 3}),
            (OPENAI, SPEECH, {"model": "tts-1", "input": "Hello?", "voice": "a"}, {"tts-1": 6}),
            (OPENAI, SPEECH, {"model": "tts-1-hd-1106", "input": "a" * 4096}, {"tts-1-hd": 4096}),
            (OPENAI, TRANSCRIPTS, form(file=wav(7), model="whisper-1"), {"whisper-1": 8}),
            (OPENAI, "/v1/audio/translations", form(file=b"x" * 8000, model="whisper-1"),
             {"whisper-1": 10}),
            (OPENAI, TRANSCRIPTS, form(model="gpt-transcribe", file=wav(1)),
             {"gpt-transcribe": 2}),
            ("api.groq.com", f"/openai{TRANSCRIPTS}",
             form(model="whisper-large-v3", file=b"x" * 80_000), {"groq whisper": 100}),
            ("api.groq.com", f"/openai{TRANSCRIPTS}",
             form(model="whisper-large-v3-turbo", file=wav(1)), {"groq whisper turbo": 10}),
            ("api.together.xyz", TRANSCRIPTS, form(model="openai/whisper-large-v3", file=wav(7)),
             {"whisper-1": 8}),
            (OPENAI, VIDEOS, {"model": "sora-2", "prompt": "a"}, {"sora-2": 4}),
            (OPENAI, VIDEOS, form(model="sora-2-pro", seconds="12", size="1792x1024", prompt="a"),
             {"sora-2-pro 1024p": 12}),
            (GOOGLE, f"{MODELS}imagen-4.0-fast-generate-001:predict",
             {"instances": [{"prompt": "a"}], "parameters": {"sampleCount": 2}},
             {"imagen-4 fast": 2}),
            (GOOGLE, f"{MODELS}imagen-4.0-generate-001:predict", {"instances": [{}, {}]},
             {"imagen-4": 8}),
            (GOOGLE, f"{MODELS}veo-3.1-generate-preview:predictLongRunning",
             {"instances": [{"prompt": "a"}]}, {"veo-3.1": 8}),
            (GOOGLE, f"{MODELS}veo-3.1-lite-generate-preview:predictLongRunning",
             {"instances": [{}], "parameters": {"durationSeconds": 6, "resolution": "1080p",
                                                "sampleCount": 2}}, {"veo-3.1 lite 1080p": 12}),
        ],
    )  # fmt: skip
    def test_are_counted_from_the_request_and_have_no_tokens(
        self, host: str, path: str, body: Any, expected: dict[str, int]
    ) -> None:
        found = bound(host, path, body)
        assert (found.fees, found.unnumbered, found.output_tokens) == (expected, "", 0)
        assert found.input_tokens is not None
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        assert fees_of(format_of(host, path), path, data) == expected
        free = ModelRates(0, 0, 0, 0, 0, 0, 0, 0)
        assert worst_case(free, found) == (fees.cost(expected), 0)
        answer = read_body(format_of(host, path), b"\xff\xfbsound", Call(path, lambda: data))
        assert answer is not None
        assert (answer.fees, answer.estimated, answer.output_tokens) == (None, False, 0)

    @pytest.mark.parametrize(
        ("host", "path", "body"),
        [
            (OPENAI, SPEECH, {"model": "gpt-4o-mini-tts", "input": "a"}),
            (OPENAI, f"{VIDEOS}/video_1/remix", {"prompt": "a"}),
            (OPENAI, VIDEOS, {"model": "sora-9", "seconds": "4"}),
            (GOOGLE, f"{MODELS}veo-9:predictLongRunning", {"instances": [{}]}),
        ],
    )
    def test_of_a_length_or_price_that_is_not_known_have_no_worst_case(
        self, host: str, path: str, body: Any
    ) -> None:
        found = bound(host, path, body)
        assert found.unnumbered
        assert found.fees is None
        assert worst_case(RATES, found) is None

    @pytest.mark.parametrize(
        ("body", "tokens"),
        [
            ({"model": "gpt-image-1", "quality": "medium", "n": 2}, 2 * 1590),
            ({"model": "gpt-image-1", "partial_images": 3}, 6250 + 300),
            ({"model": "gpt-image-2", "quality": "high", "size": "1536x1024"}, 5488),
            ({"model": "gpt-image-2", "quality": "high", "size": "3584x2048"}, 12_329),
            ({"model": "gpt-image-2", "quality": "low", "size": "1024x1024"}, 196),
            ({"model": "gpt-image-2"}, 23_719),
        ],
    )
    def test_of_models_with_tokens_are_bounded_by_their_size(
        self, body: dict[str, Any], tokens: int
    ) -> None:
        found = bound(OPENAI, IMAGES, {"prompt": "a", **body})
        assert (found.output_tokens, found.fees) == (tokens, None)
        edited = bound(OPENAI, EDITS, form(prompt="a", image=b"\x89PNG", **body))
        assert edited.output_tokens == tokens
        assert 7_300 < (edited.input_tokens or 0) < 7_500

    def test_what_a_transcript_says_of_its_length_counts(self) -> None:
        asked = form(model="whisper-1", file=b"x" * 80_000)
        call = Call(TRANSCRIPTS, lambda: asked)
        kind = format_of(OPENAI, TRANSCRIPTS)
        for answer in (
            {"text": "a", "usage": {"type": "duration", "seconds": 9}},
            {"task": "transcribe", "duration": 8.47, "text": "a"},
        ):
            found = read_body(kind, json.dumps(answer).encode(), call)
            assert found is not None
            assert found.fees == {"whisper-1": 9}
        text = read_body(kind, b"1\n00:00 --> 00:08\na\n", call)
        assert text is not None
        assert text.fees is None

    def test_a_transcript_of_groqs_is_charged_ten_seconds_at_least(self) -> None:
        asked = form(model="whisper-large-v3", file=b"x" * 80_000)
        call = Call(f"/openai{TRANSCRIPTS}", lambda: asked)
        kind = format_of("api.groq.com", f"/openai{TRANSCRIPTS}")
        for seconds, billed in ((3.2, 10), (61.5, 62)):
            found = read_body(kind, json.dumps({"text": "a", "duration": seconds}).encode(), call)
            assert found is not None
            assert found.fees == {"groq whisper": billed}

    @pytest.mark.parametrize(
        "body",
        [{"model": "whisper-large-v3", "url": "https://example.org/a.mp3"},
         form(model="whisper-large-v3", file=b"x", url="https://example.org/a.mp3")],
    )  # fmt: skip
    def test_sound_that_is_only_linked_has_no_known_length(self, body: Any) -> None:
        found = bound("api.groq.com", f"/openai{TRANSCRIPTS}", body)
        assert "send it as a file" in found.unnumbered
        assert worst_case(RATES, found) is None

    def test_of_a_form_that_is_none_nothing_is_known(self) -> None:
        for body in (b"--", b"-", b"--b0\r\nnonsense", b"--b0\r\n" + b"\r\n\r\n--b0" * 9):
            found = bound(OPENAI, EDITS, body)
            assert found.model is None


BATCHES = "/v1/messages/batches"
GEMINIS = f"{MODELS}gemini-2.5-flash:batchGenerateContent"
ASKED: dict[str, Any] = {"model": "c", "max_tokens": 30, "messages": HELLO}


def batch(*requests: Any) -> dict[str, Any]:
    return {"requests": [{"custom_id": "x", "params": request} for request in requests]}


def geminis(*requests: Any) -> dict[str, Any]:
    inline = {"requests": [{"request": request} for request in requests]}
    return {"batch": {"displayName": "b", "inputConfig": {"requests": inline}}}


class TestJobs:
    def test_batches_of_anthropic_are_the_sum_of_their_requests_at_half_price(self) -> None:
        one = bound(ANTHROPIC, MESSAGES, ASKED)
        found = bound(ANTHROPIC, BATCHES, batch(*[ASKED] * 500))
        assert (found.model, found.answers, found.unnumbered) == ("c", 500, "")
        assert (found.input_tokens, found.output_tokens) == (500 * one.input_tokens, 500 * 30)  # type: ignore[operator]
        alone, together = worst_case(RATES, one), worst_case(RATES, found)
        assert alone is not None
        assert together is not None
        assert together[0] == 250 * alone[0], "each within its context, all of them above it"

    def test_batches_of_gemini_may_hold_their_requests(self) -> None:
        request = {"contents": PARTS, "generationConfig": {"maxOutputTokens": 7}}
        found = bound(GOOGLE, GEMINIS, geminis(request, request))
        assert (found.model, found.output_tokens) == ("gemini-2.5-flash", 14)
        assert found.terms.tier == "batch"
        older = {"batch": {"input_config": {"requests": {"requests": [{"request": request}]}}}}
        assert bound(GOOGLE, GEMINIS, older).output_tokens == 7

    def test_their_fees_add_up(self) -> None:
        asked = {**ASKED, "tools": [{**CLAUDES, "max_uses": 2}]}
        found = bound(ANTHROPIC, BATCHES, batch(asked, asked))
        assert found.fees == {"anthropic web search": 4}
        endless = {**ASKED, "tools": [CLAUDES]}
        assert "max_uses" in bound(ANTHROPIC, BATCHES, batch(ASKED, endless)).unnumbered

    @pytest.mark.parametrize(
        ("host", "path", "body", "says"),
        [
            (OPENAI, "/v1/batches", {"input_file_id": "f", "endpoint": CHAT}, "files"),
            (OPENAI, "/v1/fine_tuning/jobs", {"model": "m", "training_file": "f"}, "files"),
            ("api.mistral.ai", "/v1/batch/jobs", {"model": "m", "input_files": ["f"]}, "files"),
            (GOOGLE, GEMINIS, {"batch": {"inputConfig": {"fileName": "files/1"}}}, "files"),
            (ANTHROPIC, BATCHES, b"nonsense", "is not JSON"),
            (ANTHROPIC, BATCHES, batch(), "files"),
            (ANTHROPIC, BATCHES, batch(ASKED, {**ASKED, "mcp_servers": [{"type": "url"}]}),
             "one by one"),
            (ANTHROPIC, BATCHES, batch(*({**ASKED, "model": f"m{n}"} for n in range(66))),
             "a batch for each model"),
        ],
    )  # fmt: skip
    def test_that_nothing_bounds_say_why(self, host: str, path: str, body: Any, says: str) -> None:
        found = bound(host, path, body)
        assert says in found.unnumbered
        assert worst_case(RATES, found) is None

    def test_answers_say_nothing_of_the_cost(self) -> None:
        asked = json.dumps(batch(ASKED)).encode()
        answer = (
            b'{"id": "msgbatch_1", "type": "message_batch", "processing_status": "in_progress"}'
        )
        kind = format_of(ANTHROPIC, BATCHES)
        found = read_body(kind, answer, Call(BATCHES, lambda: asked))
        assert found is not None
        assert (found.response_id, found.estimated, found.fees) == ("msgbatch_1", True, None)
        made = b'{"id": "batch_1", "object": "batch", "status": "validating"}'
        assert read_body(format_of(OPENAI, "/v1/batches"), made, Call("/v1/batches")) is PENDING

    def test_a_batch_that_is_polled_costs_half(self) -> None:
        done = {"id": "batch_1", "object": "batch", "status": "completed", "model": "gpt-5",
                "usage": {"input_tokens": 1000, "output_tokens": 500}}  # fmt: skip
        endpoint = find_endpoint("GET", OPENAI, "/v1/batches/batch_1")
        assert endpoint is not None
        found = read_body(endpoint.format, json.dumps(done).encode(), Call())
        assert found is not None
        rates = msgspec.structs.replace(RATES, rows=[RateRow("", -1, *[10**6] * 7)])
        assert cost_of(rates, found) == (1000 + 500) / 2

    def test_no_request_gets_that_price_by_naming_it(self) -> None:
        for more in ({}, {"n": 2}):
            asked = {"model": "gpt-5", "messages": HELLO, "service_tier": "batch", **more}
            assert bound(OPENAI, CHAT, asked).terms.tier == ""
