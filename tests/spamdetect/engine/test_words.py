"""Words by the default rules of UAX #29."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamdetect.engine.words import count_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("hello world", 2),
        ("don't can’t o'clock", 3),
        ("3.14 and 1,000,000", 3),
        ("example.com", 1),
        ("snake_case __init__ ___", 2),
        ("well-known", 2),
        ("end. Begin", 2),
        ("...!?", 0),
        ("😀 👍🏽 🇩🇪", 0),
        ("e\u0301te\u0301", 1),
        ("\u0301", 0),
        ("你好世界", 4),
        ("ひらがな", 4),
        ("カタカナ", 1),
        ("안녕 하세요", 2),
        ("ไทย", 3),
        ("สวัสดี", 4),
        ("हिन्दी में", 2),
        ('צה"ל', 1),
        ("ａｂｃ １２", 2),
        ("a\u200db", 1),
        ("a\u200bb", 2),
        ("x\ud800y", 2),
    ],
)
def test_count(text: str, words: int) -> None:
    assert count_words(text) == words


@given(st.lists(st.from_regex(r"[a-z]{1,8}[0-9]{0,3}", fullmatch=True), max_size=30))
def test_plain_words(words: list[str]) -> None:
    assert count_words(" ".join(words)) == len(words)
