"""The engine's surface: statistics, verdicts, error codes, hostile texts."""

from __future__ import annotations

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamdetect.engine import Analysis, Engine, Language, Preprocessed, Verdict
from spamdetect.engine.core import MAX_READ


def test_statistics(engine: Engine) -> None:
    text = "Hello,  wörld 👍🏽!"
    found = engine.preprocess(text)
    assert found == Preprocessed(text, "hello, world 👍🏽!", 17, 2, found.language)
    assert found.text_length == len(text)


def test_predict_holds_what_preprocess_holds(engine: Engine) -> None:
    text = "Dinner at eight? I can bring the wine."
    analysis, cleaned = engine.predict(text), engine.preprocess(text)
    assert {name: getattr(analysis, name) for name in attrs.fields_dict(Preprocessed)} == {
        name: getattr(cleaned, name) for name in attrs.fields_dict(Preprocessed)
    }
    assert analysis.error_code == ""


def test_results_are_frozen_and_slotted(engine: Engine) -> None:
    found = engine.predict("some text")
    for value, name in (
        (found, "error_code"),
        (found.prediction, "is_spam"),
        (found.language, "language"),
    ):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, "changed")
        assert not hasattr(value, "__dict__")


@given(st.text(st.characters(codec=None), max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text(text: str) -> None:
    found = shared().predict(text)
    verdict = found.prediction
    assert found.input_text == text
    assert 0.0 <= verdict.spam_score <= 1.0
    assert verdict.ham_score + verdict.spam_score == pytest.approx(1.0, abs=1e-9)
    assert verdict.is_spam == (verdict.spam_score >= shared().threshold)
    assert 0.0 <= found.language.probability <= 1.0
    assert found.error_code in {"", "TEXT_EMPTY", "LANGUAGE_UNKNOWN"}
    assert (found.language.language == "und") == (found.language.probability == 0.0)


_ENGINE: list[Engine] = []


def shared() -> Engine:
    """The engine for tests that Hypothesis drives, which cannot share a fixture's scope."""
    if not _ENGINE:
        _ENGINE.append(Engine.load())
    return _ENGINE[0]


@pytest.mark.parametrize(
    "text", ["", "   ", "\n\t\r", "\u200b\ufeff", "\x00\x00", "\u0301", "\ud800"]
)
def test_empty(engine: Engine, text: str) -> None:
    found = engine.predict(text)
    assert found.error_code == "TEXT_EMPTY"
    assert found.prediction == Verdict(is_spam=False, ham_score=1.0, spam_score=0.0)
    assert found.language == Language("und", 0.0, is_reliable=False)
    assert found.processed_text == ""
    assert found.text_length == len(text)


@pytest.mark.parametrize("text", ["12345", "😀😀", "!!!", "https://example.com/x"])
def test_language_unknown(engine: Engine, text: str) -> None:
    found = engine.predict(text)
    assert found.error_code == "LANGUAGE_UNKNOWN"
    assert found.language == Language("und", 0.0, is_reliable=False)


def test_truncated(engine: Engine) -> None:
    ham = "We will meet at the library and talk about the book that we read. "
    exactly = (ham * 2000)[:MAX_READ]
    assert engine.predict(exactly).error_code == ""
    longer = engine.predict(exactly + "x")
    assert longer.error_code == "TEXT_TRUNCATED"
    assert longer.text_length == MAX_READ + 1
    # Padding does not hide what stands at the end.
    tail = engine.preprocess(" " * 2 * MAX_READ + "the very end")
    assert tail.processed_text == "the very end"


def test_threshold() -> None:
    text = "Call now to claim your prize"
    assert Engine.load(threshold=0.0).predict("see you").prediction.is_spam
    score = Engine.load().predict(text).prediction.spam_score
    assert not Engine.load(threshold=1.0).predict(text).prediction.is_spam or score == 1.0
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="threshold"):
            Engine.load(threshold=wrong)


def test_predict_many_equals_predict(engine: Engine) -> None:
    texts = [
        "", "hello there", "Привет, как дела?", "WIN £1000 now!! www.example.com", "你好", "\x00",
        "a" * 5000, "see https://example.com/", "f r e e", "12345", "ok",
        "\ufdfa " * 30 + "این یک متن فارسی است که " * 8,
    ] * 7  # fmt: skip
    assert engine.predict_many(texts) == [engine.predict(text) for text in texts]
    assert engine.predict_many([]) == []


def test_one_text_is_not_many(engine: Engine) -> None:
    with pytest.raises(TypeError, match=r"pass \[text\]"):
        engine.predict_many("abc")


@given(st.lists(st.text(st.characters(codec=None), max_size=60), max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_texts_together(texts: list[str]) -> None:
    assert shared().predict_many(texts) == [shared().predict(text) for text in texts]


def test_threads_share_an_engine(engine: Engine) -> None:
    texts = [f"message number {number} " * (number % 7 + 1) for number in range(200)]
    expected = [engine.predict(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(engine.predict, texts)) == expected


def test_a_verdict_does_not_depend_on_what_came_before() -> None:
    first, second = Engine.load(), Engine.load()
    for text in ("one", "x" * 9000, "Я здесь"):
        first.predict(text)
    assert first.predict("the same text") == second.predict("the same text")


HOSTILE = {
    "a megabyte": "word " * 200_000, "marks": "\u0301" * 10**6, "zero width": "\u200b" * 10**6,
    "surrogates": "\ud800" * 10**6, "NUL": "\x00" * 10**6, "spaces": " " * 10**6,
    "one letter": "a" * 10**6, "thai marks": "\u0e31" * 10**6, "emoji": "👩‍👩‍👧" * 10**5,
    "ideographs": "好" * 10**6, "addresses": "http://a.co/ " * 77_000, "dots": "a." * 500_000,
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_megabyte_of_anything(engine: Engine, text: str) -> None:
    found = engine.predict(text)
    assert found.text_length == len(text)
    assert found.error_code in {"TEXT_TRUNCATED", "TEXT_EMPTY"}


def test_analysis_can_be_copied(engine: Engine) -> None:
    found: Analysis = engine.predict("hello")
    assert copy.deepcopy(found) == found
