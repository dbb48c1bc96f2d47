"""The compiled inner loops and their twins in Python give the same results, bit by bit."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamdetect.engine import Analysis, Engine, native
from spamdetect.engine.characters import code_points
from spamdetect.engine.classifier import unique_buckets
from spamdetect.engine.core import MAX_READ
from spamdetect.engine.features import in_words, text_buckets
from spamdetect.training.dataset import read_spam
from tests.spamdetect.engine.messages import HAM, SPAM

compiled = native.compiled
pytestmark = pytest.mark.skipif(
    compiled is None, reason="NOT TESTED: the compiled parts are not here, or switched off"
)

PIECES = (
    *"abl 0159$!|@€.,-_*·~/&#;:()[]%'\n\t\x00\x85\xa0\u3000",
    "www.", "http://a.b/", "x@y.org", "@name", "1.2.3.4/", "bit.ly/x", "&amp;", "[dot]", "f r e e",
    "v1agra", "ca$h", "7he", "5ale", "o0o", "rs. 0", "£ 12", "12 usd", "+0 (12) 345-67.89", "50%",
    "Привет", "рrize", "йё", "Καλη", "ΝΥΗΜ", "aаα", "Σς", "漢字", "かな", "한국어", "각", "ก็ดี",
    "שלום", 'א"ב', "مرحبا ١٢", "नमस्ते", "👍🏽", "🅰", "ᴀ", "ß", "İ", "ﬁ", "é", "e\u0301",
    "\u0301", "\u05b0", "\u0e48" * 31, "\u200b", "\u202e", "\ud800", "\udfff", "\U0001d173",
    "\U0010ffff", "free", "parcel", "your account", "one time code", "congratulations you won",
)  # fmt: skip
MADE = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
ANY = st.text(st.characters(exclude_categories=()), max_size=80)


@contextmanager
def in_python() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "compiled", None)
        yield


def differing(engine: Engine, texts: Sequence[str]) -> list[str]:
    """The texts of which the twins say different things."""
    found = engine.predict_many(texts)
    with in_python():
        expected: list[Analysis] = [engine.predict(text) for text in texts]
        many = engine.predict_many(texts)
    return [
        text
        for text, *said in zip(texts, found, expected, many, strict=True)
        if said[0] != said[1] or said[0] != said[2]
    ]


@given(st.one_of(MADE, ANY))
@settings(max_examples=300)
def test_any_text(engine: Engine, text: str) -> None:
    assert differing(engine, [text]) == []


@pytest.mark.long
@given(st.one_of(MADE, ANY))
@settings(max_examples=5000)
def test_any_of_many_texts(engine: Engine, text: str) -> None:
    assert differing(engine, [text]) == []


@pytest.mark.parametrize(
    "text",
    [
        "", "\x00", "\x00" * 700, " " * 700, "l" * 9_000, "\ud800" * 600, "😀" * 513, "a " * 5_000,
        "x" * 400, "x" * 398 + " yz", "ab " * 133 + "c", "é" * 400, "1 " * 300, "字" * 801,
        "." * 900 + "late letters", "0" * 700, "rs.0" * 300, "free " * 2000, "\u0e48" * 100,
        "one two " * 12_499 + "one twoX!", "é" * (MAX_READ + 1), "\x00" * (MAX_READ + 1),
    ],
    ids=range(22),
)  # fmt: skip
def test_extreme_text(engine: Engine, text: str) -> None:
    assert differing(engine, [text]) == []


def test_messages_of_many_languages(engine: Engine) -> None:
    texts = [*HAM, *(text for kind in SPAM.values() for text in kind)]
    assert differing(engine, [*texts, *map(str.upper, texts)]) == []


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_real_messages(engine: Engine, count: int) -> None:
    if not (place := os.environ.get("SPAMDETECT_DATA")):
        pytest.skip("NOT TESTED: SPAMDETECT_DATA does not name the training data")
    texts = [row.text for row in read_spam([Path(place) / "spam"])]
    Random(0).shuffle(texts)
    assert differing(engine, texts[:count]) == []


def test_scores_have_the_same_bits(engine: Engine) -> None:
    """Before they are rounded."""
    random = Random(1)
    script = engine._detector.scripts["LATIN"]
    for _ in range(500):
        words = [random.choice(PIECES[60:]) for _ in range(random.randint(1, 20))]
        text = f" {' '.join(words)} "[:400]
        found = engine._model.gram_sums(text), script.best(code_points(text))
        with in_python():
            assert (engine._model.gram_sums(text), script.best(code_points(text))) == found


def calls(engine: Engine) -> list[Callable[[], object]]:
    c: Any = compiled
    words, weights, seen = in_words(), engine._model.weights, engine._model._seen
    text, script = code_points(" text "), engine._detector.scripts["LATIN"]
    numbers = (script.scale, script.power, *script.temperature)
    return [
        c.gram_sums, lambda: c.gram_sums(words, weights, seen, "text"),
        lambda: c.gram_sums(words, weights, b"read only", text),
        lambda: c.gram_sums(words, weights[1:], seen, text),
        lambda: c.gram_sums(words, weights, seen[1:-1], text),
        lambda: c.gram_sums(words, weights[::2], seen, text),
        c.best_language, lambda: c.best_language(script.weights, script.bias, text),
        lambda: c.best_language(script.weights, script.bias, "text", *numbers),
        lambda: c.best_language(script.weights, script.bias, b"", *numbers),
        lambda: c.best_language(script.weights, script.bias[1:], text, *numbers),
        lambda: c.best_language(script.weights[1:], script.bias, text, *numbers),
        lambda: c.best_language(script.weights, script.bias, text, *numbers[1:], "text"),
    ]  # fmt: skip


def test_code_points_beyond_the_table_are_no_words(engine: Engine) -> None:
    c: Any = compiled
    text = code_points(" a b ")
    few = c.gram_sums(in_words()[:10], engine._model.weights, engine._model._seen, text)
    assert few[1] == len(unique_buckets(text_buckets(text, engine._model.bits))) - 3


def test_wrong_arguments_are_errors(engine: Engine) -> None:
    for call in calls(engine):
        with pytest.raises((TypeError, ValueError, IndexError)):
            call()


def test_nothing_is_leaked(engine: Engine) -> None:
    texts = ["Free prize! 0800 123 456 http://a.com/x", "йё " * 400, "漢字", ""]

    def work() -> int:
        for _ in range(200):
            for text in texts:
                engine.predict(text)
            for call in calls(engine):
                with pytest.raises((TypeError, ValueError, IndexError)):
                    call()
        gc.collect()
        return sys.getallocatedblocks()

    work()
    counts = [work() for _ in range(5)]
    # Each block that a call forgets would be there 200 times after each run. Threads that others
    # have left behind make blocks too, but not as many in every run.
    assert min(after - before for before, after in itertools.pairwise(counts)) < 150


@pytest.mark.parametrize(
    ("value", "wanted"), [("0", False), (" 0 ", False), ("1", True), ("", True)]
)
def test_the_switch(value: str, wanted: bool) -> None:
    assert native.wanted({"SPAMDETECT_SPEEDUPS": value}) is wanted
    assert native.wanted({})
    script = "from spamdetect.engine import native; print(native.compiled is not None)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "SPAMDETECT_SPEEDUPS": value},
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.strip() == str(wanted)


def test_a_module_of_other_sources_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native._load() is compiled
    monkeypatch.setattr(compiled, "VERSION", native.VERSION - 1)
    assert native._load() is None
