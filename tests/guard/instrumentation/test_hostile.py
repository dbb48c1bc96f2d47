"""Hostile answers neither hurt the user nor grow memory."""

from __future__ import annotations

import gzip
import os
import random
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import brotli
import httpx
import pytest
import zstandard

from guard.core.usage import Call, Recording, read_body, read_recorded
from guard.core.usage.framing import Recorded
from tests.guard.instrumentation.recorded_streams import format_of
from tests.guard.instrumentation.standin.reply import Reply
from tests.guard.instrumentation.standin.server import StandIn

CHAT = "/v1/chat/completions"
KEPT_BYTES_MAX = 4 * 1024 * 1024
ZSTD_KEPT_BYTES_MAX = 24 * 1024 * 1024  # its window, and what 256 bytes of input can become


def peak_of(encoding: str, chunks: Iterable[bytes]) -> int:
    """Return the most memory that a recording needs, in bytes."""
    tracemalloc.start()
    try:
        recording = Recording(encoding)
        for chunk in chunks:
            recording.feed(chunk)
        recording.recorded()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def never_ending() -> Iterator[bytes]:
    event = b'data: {"choices":[{"delta":{"content":"on and on"}}]}\n\n' * 20
    for _ in range(60_000):  # 60 MB
        yield event[:] + b""


def test_a_stream_without_end() -> None:
    assert peak_of("", never_ending()) < KEPT_BYTES_MAX


def test_a_line_of_10_megabytes() -> None:
    line = b"data: " + b"x" * 65_530
    assert peak_of("", (line for _ in range(160))) < KEPT_BYTES_MAX


@pytest.mark.parametrize(
    ("encoding", "limit"),
    [("gzip", KEPT_BYTES_MAX), ("deflate", KEPT_BYTES_MAX), ("br", KEPT_BYTES_MAX),
     ("zstd", ZSTD_KEPT_BYTES_MAX)],
)  # fmt: skip
def test_a_decompression_bomb(encoding: str, limit: int) -> None:
    zeros = bytes(300 * 1024 * 1024)
    pack: Any = {
        "gzip": lambda d: gzip.compress(d, 1),
        "deflate": lambda d: zlib.compress(d, 1),
        "br": lambda d: brotli.compress(d, quality=1),
        "zstd": zstandard.ZstdCompressor(level=1).compress,
    }[encoding]
    bomb = pack(zeros)
    del zeros
    pieces = [bomb[i : i + 65_536] for i in range(0, len(bomb), 65_536)]
    assert peak_of(encoding, pieces) < limit + len(bomb)
    recording = Recording(encoding)
    for piece in pieces:
        recording.feed(piece)
    assert recording.recorded().cut


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "nonsense"])
def test_damaged_encodings_are_let_be(encoding: str) -> None:
    recording = Recording(encoding)
    noise = random.Random(7)
    for _ in range(50):
        recording.feed(noise.randbytes(10_000))
    found = recording.recorded()
    assert found.cut or encoding == "br"  # any bits may be brotli
    assert read_recorded(format_of(CHAT), found, "text/event-stream", Call()) is None


@pytest.mark.parametrize(
    "path",
    [CHAT, "/v1/responses", "/v1/messages", "/v2/chat", "/api/chat", "/model/m/converse-stream",
     "/model/m/invoke-with-response-stream", "/v1beta/models/m:streamGenerateContent"],
)  # fmt: skip
@pytest.mark.parametrize(
    "data",
    [b"\xff\xfe" * 500, b"data: {" + b"[" * 200_000, b'{"usage":' * 100_000, b"\0" * 5000,
     b"data: null\n\n" * 50, b'data: {"usage": [], "choices": 5, "delta": 7}\n\n' * 9,
     b"[" + b'{"usageMetadata":{"promptTokenCount":1e400}},' * 3 + b"{}]",
     b'{"usage": {"prompt_tokens": 99999999999999999999999, "input_tokens": -4}}'],
    ids=range(8),
)  # fmt: skip
def test_any_format_takes_any_bytes(path: str, data: bytes) -> None:
    for kind in ("text/event-stream", "application/json", "application/vnd.amazon.eventstream"):
        for recorded in (Recorded(data, size=len(data)), Recorded(data, data, 9 * len(data))):
            usage = read_recorded(format_of(path), recorded, kind, Call(path))
            assert usage is None or 0 <= usage.input_tokens <= 2**40
        read_body(format_of(path), data * 3, Call(path, header={"content-type": kind}.get))


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_the_user_gets_every_byte(standin: StandIn, observed: Any, encoding: str) -> None:
    junk = (b"\xff\xfe{" * 700, b"data: \xff\n\n", b"x" * 3_000_000, os.urandom(5000))
    headers = {"content-encoding": encoding} if encoding else {}
    standin.instead = Reply(None, events=junk, content_type="text/event-stream", headers=headers)
    with (
        httpx.Client() as client,
        client.stream("POST", standin.url + CHAT, json={"stream": True}) as response,
    ):
        assert b"".join(response.iter_raw()) == b"".join(junk)
    assert observed.events == []
    assert observed.instrumentation.unseen_hosts() == ("127.0.0.1",)


def test_a_broken_observer_does_not_reach_the_user(
    standin: StandIn, observed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("guard.instrumentation.answer.read_body", broken)
    monkeypatch.setattr("guard.core.usage.recording.Recording.recorded", broken)
    answer = httpx.post(standin.url + CHAT, json={"model": "m"})
    assert answer.json()["choices"]
    with httpx.stream("POST", standin.url + CHAT, json={"model": "m", "stream": True}) as response:
        assert len(list(response.iter_lines())) > 5
    assert not observed.events
    assert observed.instrumentation.failures >= 2
