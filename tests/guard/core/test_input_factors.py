"""The bound of a text by its bytes: what was measured, and what it must not miss."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.bounds.input_factors import SHORT_BYTES, text_tokens
from tests.support import kinds_of_text

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "input_factors.json"


BELOW = {
    "syllables, between letters": 0.95,
    "syllables, in lines": 0.97,
    "records, between letters": 0.94,
    "quotes and backslashes, between letters": 0.89,
}
"""What lies below: text whose every other character is a letter, and open syllables in lines of
seven. An answer that says so raises the bound of its model."""

COUNTED: dict[str, dict[str, int]] = json.loads(kinds_of_text.COUNTED.read_text())


def ratios(name: str, texts: dict[str, str]) -> dict[str, float]:
    """How many times the tokens of the dearest of nine tokenisers each bound is."""
    counted = COUNTED[name]
    assert counted.keys() == texts.keys()
    return {
        kind: text_tokens("m", kinds_of_text.body(text)) / counted[kind]
        for kind, text in texts.items()
    }


def test_no_kind_of_text_has_more_tokens_than_its_bound() -> None:
    found = ratios("kinds", dict(kinds_of_text.kinds()))
    assert len(found) > 1000
    below = {kind: ratio for kind, ratio in found.items() if ratio < 1}
    assert below.keys() <= BELOW.keys()
    assert all(ratio >= BELOW[kind] for kind, ratio in below.items())
    print(f"excess: {statistics.median(found.values()):.2f} at the median, "
          f"{max(found.values()):.1f} at most")  # fmt: skip
    assert statistics.median(found.values()) < 1.3
    assert statistics.quantiles(found.values(), n=20)[-1] < 3


def test_no_block_of_characters_has_more_tokens_than_its_bound() -> None:
    """Each of the rare scripts, of the Han and Hangul characters, and of the symbols."""
    found = ratios("blocks", dict(kinds_of_text.blocks()))
    assert len(found) > 3000
    assert {block for block, ratio in found.items() if ratio < 1} == set()
    assert statistics.median(found.values()) < 1.15
    assert max(found.values()) < 1.6


@pytest.mark.parametrize(
    ("depth", "tokens"), list(enumerate((500, 542, 798, 1053, 1566, 2579, 4607)))
)  # fmt: skip
def test_json_in_json_is_bounded(depth: int, tokens: int) -> None:
    """The tokens are those of Gemini's tokeniser, which makes most of them."""
    text = json.dumps({"name": "x", "path": "/a/b", "items": [{"k": "v", "n": 1}] * 40})
    for level in range(depth):
        text = json.dumps([text] if level % 2 else {"a": text})
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert tokens <= text_tokens("m", body) <= 3 * tokens


@given(st.text(st.characters(max_codepoint=0x7F), min_size=1), st.integers(20, 300))
def test_no_token_is_shorter_than_a_byte(text: str, times: int) -> None:
    data = (text * times).encode()
    if b"\\u" not in data:
        assert text_tokens("m", data) <= max(len(data), SHORT_BYTES)


@given(st.text(min_size=70), st.text(max_size=70))
def test_a_longer_text_beyond_ascii_has_no_lower_bound(text: str, more: str) -> None:
    long = "".join(char for char in text + more if ord(char) > 0x7F)
    short = "".join(char for char in text if ord(char) > 0x7F)
    assert text_tokens("m", long.encode()) >= text_tokens("m", short.encode())


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
        assert results[name]["median"] < 1.6 * results[name]["before_median"], "not much worse"
