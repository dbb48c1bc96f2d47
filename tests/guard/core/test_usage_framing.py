"""An event stream is split only as far as asked, and says what splitting all of it would say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.usage.framing import EventStream, Recorded, events_of
from guard.core.usage.message import parse

MARKER = b'"usage"'
LINE = st.sampled_from([
    b"data: {}", b'data: {"usage":1}', b'data:{"usage":null}  ', b'event: "usage"', b"", b"data:",
    b': "usage"', b"data: [DONE]", b'a: 1, "usage": 2}', b'data: {"usage":{"a":"\xc3\xa9"}}',
    b'data: "usage" "usage"', b"data", b" data: 1", b'data: {"a":', b'data: "usage"}',
])  # fmt: skip
ENDING = st.sampled_from([b"\n", b"\n\n", b"\r\n", b"\r", b"\r\n\r\n"])


def split(data: bytes) -> list[bytes]:
    """Split all of it, the plain way."""
    found: list[bytes] = []
    for event in data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line[5:].strip() for line in event.split(b"\n") if line[:5] == b"data:"]
        joined = b"\n".join(lines)
        is_one = len(lines) > 1 and parse(lines[0]) is None and parse(joined) is not None
        found += [joined] if is_one else lines
    return found


@given(st.lists(st.tuples(LINE, ENDING), max_size=12), st.integers(0, 30), st.booleans())
def test_says_what_splitting_all_of_it_says(
    lines: list[tuple[bytes, bytes]], cut: int, closed: bool
) -> None:
    data = b"".join(line + ending for line, ending in lines)
    data = data[cut:] if closed else data[cut:].rstrip(b"\r\n")
    stream, wanted = EventStream(data), split(data)
    assert list(stream) == wanted
    assert bool(stream) is bool(wanted)
    assert list(stream.newest(MARKER)) == [one for one in reversed(wanted) if MARKER in one]


@pytest.mark.parametrize("tail", [b"", b'cut","usage":{"a":1}}\n\ndata: {"usage":{"b":2}}\n\n'])
def test_the_newest_message_comes_first(tail: bytes) -> None:
    head = b'data: {"usage":{"c":3}}\n\ndata: {"usage":{"d":4}}\n\n'
    found = [m["usage"] for m in events_of("sse", Recorded(head, tail)).newest(MARKER)]
    assert found == ([{"b": 2}] if tail else []) + [{"d": 4}, {"c": 3}]
