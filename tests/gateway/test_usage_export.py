"""Exports of vendors, read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guard.gateway.domain.usage_export import BilledRow, ExportError, read
from guard.gateway.domain.windows import DAY_MS, HOUR_MS

HOUR_S = 1_800_000_000
DAY_S = HOUR_S - HOUR_S % 86_400
OPENAI_USAGE = {
    "data": [
        {"start_time": HOUR_S, "end_time": HOUR_S + 3600, "results": [
            {"model": "gpt-4o", "input_tokens": 100, "input_cached_tokens": 60,
             "output_tokens": 5, "num_model_requests": 2},
            {"model": "gpt-4o", "input_tokens": 1, "output_tokens": 1, "input_cached_tokens": 0},
        ]},
    ]
}  # fmt: skip
ANTHROPIC_USAGE = {
    "data": [
        {"starting_at": "2027-01-15T00:00:00Z", "ending_at": "2027-01-16T00:00:00Z", "results": [
            {"model": "claude-sonnet-4-5", "uncached_input_tokens": 40, "output_tokens": 5,
             "cache_creation": {"ephemeral_1h_input_tokens": 7, "ephemeral_5m_input_tokens": 9},
             "cache_read_input_tokens": 60},
        ]},
    ]
}  # fmt: skip
ANTHROPIC_COSTS = {
    "data": [
        {"starting_at": "2027-01-15T00:00:00Z", "ending_at": "2027-01-16T00:00:00Z", "results": [
            {"amount": "123.5", "currency": "USD", "model": "claude-sonnet-4-5"},
            {"amount": "10", "currency": "USD", "model": None, "description": None},
        ]},
    ]
}  # fmt: skip
ANTHROPIC_CSV = (
    "usage_date_utc,model_version,api_key,usage_input_tokens_no_cache,"
    "usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,"
    "usage_input_tokens_cache_read,usage_output_tokens\n"
    "2027-01-15,claude-sonnet-4-5,k,40,9,7,60,5\n"
)
SONNET = BilledRow(
    start_ms=DAY_S * 1000, width_ms=DAY_MS, model="claude-sonnet-4-5", input_tokens=40,
    output_tokens=5, cache_read_tokens=60, cache_write_tokens=16, cache_write_1h_tokens=7,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(OPENAI_USAGE),
         BilledRow(start_ms=HOUR_S * 1000, width_ms=HOUR_MS, model="gpt-4o", input_tokens=41,
                   output_tokens=6, cache_read_tokens=60)),
        (json.dumps(ANTHROPIC_USAGE), SONNET),
        (ANTHROPIC_CSV, SONNET),
        ("\ufeff" + ANTHROPIC_CSV, SONNET),
        (ANTHROPIC_CSV.replace("\n", "\r"), SONNET),
        (json.dumps(ANTHROPIC_COSTS),
         BilledRow(start_ms=DAY_S * 1000, width_ms=DAY_MS, model="claude-sonnet-4-5",
                   cost_nanousd=1_235_000_000)),
    ],
    ids=["openai usage", "anthropic usage", "anthropic csv", "byte order mark", "lines end with CR",
         "anthropic costs"],
)  # fmt: skip
def test_what_is_read(text: str, expected: BilledRow) -> None:
    assert read(text) == [expected]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column for a time"),
        ("hour,cost_usd\n", "no column for a model"),
        ("hour,model,cost_usd\nnow,m,1\n", "line 2: 'now' is no time"),
        ("hour,model,input_tokens\n2027-01-15T08:00Z,m,1.5\n", "'1.5' is no number of tokens"),
        ("hour,model,cost_usd\n2027-01-15T08:00Z,m,nan\n", "'nan' is no amount"),
        ("hour,model,cost_usd,currency\n2027-01-15T08:00Z,m,1,EUR\n", "EUR is not US dollars"),
        ("hour,model,cost_usd\n2027-01-15T08:00Z,m,1\n2027-01-15,m,1\n", "hours and days"),
        ("hour,model,cost_usd\n2027-01-15T08:00Z,m,1e999999999\n", "line 2: .* no amount"),
        (f"hour,model,cost_usd\n2027-01-15T08:00Z,{'m' * 200_000},1\n", "line 2: field larger"),
        (f"hour,model,{'m' * 200_000}\n", "line 1: field larger"),
        ("{", "no JSON"),
        ('{"data": 1}', "'data' is not a list"),
        ('[{"start_time": 1, "end_time": 999999, "model": "m", "cost_usd": 1}]', "than a day"),
    ],
)
def test_what_is_said_of_a_bad_file(text: str, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        read(text)


@example(text="\r0")
@given(st.text(max_size=200) | st.builds(json.dumps, st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["data", "results", "start_time", "model", "amount", "cost_usd"]), inner,
        max_size=4), max_leaves=10)))  # fmt: skip
def test_anything_else_is_refused_or_read(text: str) -> None:
    try:
        found: Any = read(text)
    except ExportError:
        return
    assert all(isinstance(row, BilledRow) for row in found)
