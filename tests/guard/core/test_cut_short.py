"""Whether the limit on its output has ended an answer, in the words of each vendor."""

from __future__ import annotations

import json

import pytest

from guard.core.usage import Usage
from guard.core.usage.cut_short import is_cut_short
from guard.core.usage.framing import Recorded

CUT = [
    '{"choices": [{"index": 0, "finish_reason": "length"}]}',
    'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n',
    '{"type": "message", "stop_reason": "max_tokens", "usage": {}}',
    '{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}',
    '{"candidates": [{"finishReason": "MAX_TOKENS"}]}',
    '{"message": {}, "finish_reason": "MAX_TOKENS"}',
    '{"done": true, "done_reason": "length"}',
    '{"stopReason": "max_tokens", "usage": {}}',
    '{"choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}]}',
]
ENDED = [
    '{"choices": [{"index": 0, "finish_reason": "stop"}]}',
    '{"stop_reason": "end_turn"}',
    '{"candidates": [{"finishReason": "STOP"}]}',
    '{"status":"incomplete","incomplete_details":{"reason":"content_filter"}}',
]


@pytest.mark.parametrize("body", CUT)
def test_a_limit_has_ended_it(body: str) -> None:
    assert is_cut_short(Recorded(body.encode()), Usage(output_tokens=9), 256)
    assert is_cut_short(Recorded(b"{", body.encode()), Usage(), None)


@pytest.mark.parametrize("body", ENDED)
def test_it_has_ended_otherwise(body: str) -> None:
    """Even with as many tokens as the limit allows."""
    assert not is_cut_short(Recorded(body.encode()), Usage(output_tokens=256), 256)


def test_what_an_answer_quotes_is_no_reason() -> None:
    said = {"content": CUT[0], "finish_reason": "stop"}
    assert not is_cut_short(Recorded(json.dumps(said).encode()), Usage(), 256)


def test_without_a_reason_its_size_decides() -> None:
    unknown = Recorded(b'{"status": "completed"}')
    assert is_cut_short(unknown, Usage(output_tokens=200, reasoning_tokens=56), 256)
    assert not is_cut_short(unknown, Usage(output_tokens=255), 256)
    assert not is_cut_short(unknown, Usage(output_tokens=255), None)
