"""The compiled inner loops and their twins in Python give the same results, bit by bit."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamdetect.engine import Analysis, Engine, native, normalise, odd
from spamdetect.engine.characters import CODE_POINTS, code_points, in_ranges
from spamdetect.engine.concepts import Matcher
from spamdetect.engine.core import MAX_READ
from spamdetect.engine.naming import BETWEEN_WORDS, DENSE, DENSE_RANGES, WORD
from spamdetect.training.dataset import read_spam
from tests.spamdetect.engine.messages import HAM, SPAM

compiled = native.compiled
pytestmark = pytest.mark.skipif(
    compiled is None, reason="NOT TESTED: the compiled parts are not here, or switched off"
)
EVERY_CHARACTER = "".join(map(chr, range(CODE_POINTS)))

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


@pytest.fixture(scope="module")
def twin() -> Engine:
    with in_python():
        return Engine.load()


def differing(engine: Engine, twin: Engine, texts: Sequence[str]) -> list[str]:
    """The texts of which the twins say different things."""
    found = engine.predict_many(texts)
    with in_python():
        expected: list[Analysis] = [twin.predict(text) for text in texts]
        many = twin.predict_many(texts)
    return [
        text
        for text, *said in zip(texts, found, expected, many, strict=True)
        if said[0] != said[1] or said[0] != said[2]
    ]


@given(st.one_of(MADE, ANY))
@settings(max_examples=300)
def test_any_text(engine: Engine, twin: Engine, text: str) -> None:
    assert differing(engine, twin, [text]) == []


@pytest.mark.long
@given(st.one_of(MADE, ANY))
@settings(max_examples=5000)
def test_any_of_many_texts(engine: Engine, twin: Engine, text: str) -> None:
    assert differing(engine, twin, [text]) == []


@given(st.text("a1@$.l 3!б\u0e01é", max_size=12))
@settings(max_examples=1000)
def test_no_step_of_normalising_is_left_out(text: str) -> None:
    found = normalise.normalise(text)
    with in_python():
        assert normalise.normalise(text) == found


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
def test_extreme_text(engine: Engine, twin: Engine, text: str) -> None:
    assert differing(engine, twin, [text]) == []


def test_messages_of_many_languages(engine: Engine, twin: Engine) -> None:
    texts = [*HAM, *(text for kind in SPAM.values() for text in kind)]
    assert differing(engine, twin, [*texts, *map(str.upper, texts)]) == []


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_real_messages(engine: Engine, twin: Engine, count: int) -> None:
    if not (place := os.environ.get("SPAMDETECT_DATA")):
        pytest.skip("NOT TESTED: SPAMDETECT_DATA does not name the training data")
    texts = [row.text for row in read_spam([Path(place) / "spam"])]
    Random(0).shuffle(texts)
    assert differing(engine, twin, texts[:count]) == []


def test_scores_have_the_same_bits(engine: Engine, twin: Engine) -> None:
    """Before they are rounded."""
    random = Random(1)
    network, other = engine._model.network, twin._model.network
    script, same_script = engine._detector.scripts["LATIN"], twin._detector.scripts["LATIN"]
    for _ in range(500):
        on = sorted(random.sample(range(len(network.weights)), random.randint(1, 60)))
        words = [random.choice(PIECES[60:]) for _ in range(random.randint(1, 20))]
        letters = code_points(f" {' '.join(words)} "[:400])
        found = network.judge(on), script.best_of(letters.tobytes())
        with in_python():
            assert (other.judge(on), same_script.best(letters)) == found


@pytest.mark.parametrize(
    ("ranges", "pattern"),
    [
        (DENSE_RANGES, DENSE),
        (odd.MARKS, re.compile(odd.TOO_MANY_MARKS.pattern.partition("{")[0][1:])),
        (odd.ODD, odd.TO_CLEAN),
    ],
    ids=["dense", "marks", "cleaned"],
)
def test_tables_have_what_the_patterns_match(
    ranges: Sequence[str], pattern: re.Pattern[str]
) -> None:
    matched = np.zeros(CODE_POINTS, bool)
    matched[[match.start() for match in pattern.finditer(EVERY_CHARACTER)]] = True
    table = in_ranges(ranges)
    if ranges is odd.ODD:
        assert not np.any(matched & ~table)
        finished = np.array([bool(odd.TO_FINISH.match(c)) for c in EVERY_CHARACTER])
        assert not np.any(table & ~finished)
    else:
        assert np.array_equal(matched, table)


def test_the_table_of_words_is_that_of_the_pattern() -> None:
    matched = np.zeros(CODE_POINTS, bool)
    for match in WORD.finditer(EVERY_CHARACTER):
        matched[match.start() : match.end()] = True
    assert np.array_equal(matched, ~in_ranges(BETWEEN_WORDS))
    assert not any(map(str.isspace, WORD.findall(EVERY_CHARACTER)))


WORDS = st.sampled_from(["a", "b", "ab", "abc", "ba", "é", "x" * 41])
PARTS = st.tuples(st.sampled_from(["", "*"]), WORDS, st.sampled_from(["", "*"])).map("".join)
PHRASES = st.lists(PARTS, min_size=1, max_size=4).map(" ".join)


@given(st.lists(st.lists(PHRASES, max_size=5), max_size=4), st.lists(WORDS, max_size=12))
@settings(max_examples=500)
def test_any_lexicon(patterns: list[list[str]], words: list[str]) -> None:
    text = " ".join(words)
    found = Matcher(patterns).find(text)
    with in_python():
        assert Matcher(patterns).find(text) == found


def calls(engine: Engine) -> list[Callable[[], object]]:
    c: Any = compiled
    tables, model = native.tables(), engine._model
    script = engine._detector.scripts["LATIN"]
    network = model.network._arrays
    return [
        c.Arrays, lambda: c.Arrays("text"), lambda: c.Arrays(*[b"8 bytes."] * 5),
        lambda: c.Arrays(memoryview(bytearray(64))[1:]),
        lambda: c.Lexicon(3), lambda: c.Lexicon([3]), lambda: c.Lexicon([["a", 1]]),
        lambda: c.hints(b"bytes"), lambda: c.hints(), lambda: c.count(3, "text"),
        lambda: c.count(network, "text"), lambda: c.count(tables, 3), lambda: c.shape(tables, None),
        lambda: c.gram_sums(tables, tables, "text"), lambda: c.gram_sums(tables, network, "text"),
        lambda: c.read_letters(tables, tables, "text"),
        lambda: c.best_language(tables, b"    "), lambda: c.best_language(script._arrays, b""),
        lambda: c.best_language(script._arrays, b" \0\0\0" * 402),
        lambda: c.best_language(script._arrays, "text"),
        lambda: c.scores(network, [len(model.network.weights)]), lambda: c.scores(network, [-1]),
        lambda: c.scores(network, (1,)), lambda: c.scores(network, ["a"]),
        lambda: c.scores(tables, [1]), lambda: c.features(tables, (1.0,)),
        lambda: c.features(native.arrays(np.ones(3), np.ones(1, np.int64)), [1.0]),
        lambda: model.lexicon._matcher._compiled.find(network, "text"),
    ]  # fmt: skip


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
            Matcher([["b c", "d*"]])
        gc.collect()
        return sys.getallocatedblocks()

    work()
    first = work()
    # Each block that a call forgets would be there 200 times.
    assert min(work(), work()) - first < 150


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
