"""A stream that is cut at any bytes, in any content encoding, says the same usage."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Sequence

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.core.usage import Recording, Usage, read_recorded
from guard.core.usage.response_format import replaced
from tests.guard.instrumentation.recorded_streams import call_of, format_of, said, streams
from tests.guard.instrumentation.standin.reply import Reply

STREAMS = streams()


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


ENCODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "identity": ("", bytes),
    "gzip": ("gzip", gzip.compress),
    "gzip in members": (
        "gzip", lambda d: gzip.compress(d[: len(d) // 2]) + gzip.compress(d[len(d) // 2 :]),
    ),
    "deflate": ("deflate", zlib.compress),
    "deflate without header": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "gzip of deflate": ("deflate, gzip", lambda d: gzip.compress(zlib.compress(d))),
}  # fmt: skip


def read(path: str, reply: Reply, encoding: str, chunks: Sequence[bytes]) -> Usage | None:
    recording = Recording(encoding)
    for chunk in chunks:
        recording.feed(chunk)
    call = call_of(path, reply)
    found = read_recorded(format_of(path), recording.recorded(), reply.content_type, call)
    # Whether it says something of fees is another subject.
    return None if found is None else replaced(found, fees=None)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.floats(0, 1), max_size=12))
def test_cut_anywhere(name: str, encoding: str, cuts: list[float]) -> None:
    path, reply = STREAMS[name]
    header, pack = ENCODINGS[encoding]
    data = pack(b"".join(reply.events))
    places = [0, *sorted(int(cut * len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(places)]
    assert read(path, reply, header, chunks) == said(reply)


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "images"])
def test_byte_by_byte(name: str) -> None:
    path, reply = STREAMS[name]
    data = b"".join(reply.events)
    assert read(path, reply, "", [data[i : i + 1] for i in range(len(data))]) == said(reply)


@pytest.mark.parametrize("name", [n for n in STREAMS if n not in ("gemini array", "images")])
def test_a_stream_much_longer_than_what_is_kept(name: str) -> None:
    """The middle is let go; beginning and end say the usage."""
    path, reply = STREAMS[name]
    middle = len(reply.events) // 2
    filler = [reply.events[middle]] * (600_000 // len(reply.events[middle]))
    chunks = [*reply.events[:middle], *filler, *reply.events[middle:]]
    assert read(path, reply, "", chunks) == said(reply)


@pytest.mark.parametrize("name", [n for n in STREAMS if n not in ("gemini array", "images")])
def test_broken_off_anywhere_is_the_truth_or_an_estimate(name: str) -> None:
    path, reply = STREAMS[name]
    data = b"".join(reply.events)
    truth = said(reply)
    for end in range(0, len(data), 7):
        found = read(path, reply, "", [data[:end]])
        assert found is None or found.estimated or found == truth


@pytest.mark.parametrize("name", ["chat", "responses", "converse"])
def test_an_estimate_of_a_long_stream_is_scaled(name: str) -> None:
    """What was let go in the middle counts too, by its size."""
    path, reply = STREAMS[name]
    word = next(e for e in reply.events if b"buckets" in e)
    count = 1_000_000 // len(word)
    found = read(path, reply, "", [reply.events[0], *[word] * count])
    assert found is not None
    assert found.estimated
    expected = len("buckets, ") * count / 3
    assert 0.8 * expected < found.output_tokens < 1.2 * expected
