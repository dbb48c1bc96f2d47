"""The bound of a text by its bytes: what was measured, and what it must not miss."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.bounds.input_factors import _RARE as RARE
from guard.core.bounds.input_factors import FACTORS, SHORT_BYTES, kind, text_tokens

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "input_factors.json"


def reference(data: bytes) -> float:
    """The sum of the factors, byte by byte."""
    total = sum(FACTORS.get(kind(byte), 0.0) for byte in data)
    vowels = sum(kind(a) == "vowels" and kind(b) == "consonants" for a, b in pairwise(data))
    total += len(RARE.findall(data.decode("utf-8", "ignore"))) * 29 / 16
    total += data.count(b'\\"') * 10 / 16 + data.count(b"\\\\") / 2
    return total - 0.6 * vowels


KINDS = [
    first
    for start, end in ((0x2800, 0x2FD0), (0x3100, 0x33D0), (0x3400, 0x4D90), (0xA000, 0xABD0))
    for first in range(start, end, 0x30)
]
"""Where kinds of text begin of which four tokenisers (o200k, Llama 3, Gemini, Claude's published
one) were measured to make up to a token of each byte."""


@pytest.mark.parametrize("first", KINDS)
def test_rare_characters_have_a_token_for_each_byte(first: int) -> None:
    assert len(KINDS) > 230
    text = "".join(chr(first + i * 7 % 0x30) for i in range(700))
    assert text_tokens("m", text.encode()) >= 3 * 700 * 0.99


@pytest.mark.parametrize(
    ("depth", "tokens"), list(enumerate((500, 542, 798, 1053, 1566, 2579, 4607)))
)  # fmt: skip
def test_json_in_json_is_bounded(depth: int, tokens: int) -> None:
    """The tokens are those of Gemini's tokeniser, which makes most of them."""
    text = json.dumps({"name": "x", "path": "/a/b", "items": [{"k": "v", "n": 1}] * 40})
    for level in range(depth):
        text = json.dumps([text] if level % 2 else {"a": text})
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert tokens <= text_tokens("m", body) <= 2 * tokens


@given(st.text(min_size=1, max_size=60), st.integers(20, 300))
def test_it_is_the_sum_of_its_bytes_rounded_up(text: str, times: int) -> None:
    data = (text * times).encode("utf-8", "replace")
    if len(data) <= SHORT_BYTES or b"\\u" in data:
        return
    found, exact = text_tokens("m", data), reference(data)
    if len(data) <= 1024:  # pairs are not counted
        assert found >= min(len(data), exact - 1)
        return
    assert found >= min(len(data), exact - 1)
    assert found <= max(exact * 1.3 + len(data) * 0.2 + 10, SHORT_BYTES)
    assert found <= len(data), "no token is shorter than a byte"


def test_a_short_text_has_at_most_a_token_for_each_byte() -> None:
    assert text_tokens("m", b"a" * SHORT_BYTES) == SHORT_BYTES


def test_an_escape_counts_as_its_character() -> None:
    text = "Größe und Übermaß, naïve Façade. " * 60
    escaped, plain = (json.dumps([text], ensure_ascii=a).encode() for a in (True, False))
    assert text_tokens("m", escaped) == pytest.approx(text_tokens("m", plain), rel=0.02)
    assert text_tokens("m", b'\\ud800 "' * 400) <= 8 * 400, "what is no JSON counts as it is"


@pytest.mark.parametrize("model", ["claude-opus-4-7", "claude-sonnet-5", "anthropic.claude-opus-5"])
def test_claudes_newer_tokeniser_makes_more(model: str) -> None:
    data = b"To be, or not to be. " * 100
    assert text_tokens(model, data) >= 1.34 * text_tokens("claude-opus-4-5", data)


def test_what_was_measured_holds() -> None:
    """The fit's own texts; ``benchmarks/input_factors.py`` makes the file."""
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    assert results["all"]["above"] <= 0.001
    assert len(results) > 80
    for name, found in results.items():
        assert found["above"] <= 0.02, name
        assert found["median"] < 3.0, name
    for name in ("language en", "Python", "JavaScript", "prose (licences)"):
        assert results[name]["median"] < 1.4 * results[name]["before_median"], "not much worse"
