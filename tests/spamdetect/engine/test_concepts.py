"""Finding concepts in texts: whole words, stems, phrases, scripts without spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamdetect.engine import concepts, word_characters
from spamdetect.engine.concepts import Lexicon, Matcher
from spamdetect.engine.normalise import normalise
from spamdetect.training import lexicon
from spamdetect.training.dataset import DataError
from spamdetect.training.notices import generate


def lexicon_of(patterns: Mapping[str, Sequence[str]]) -> Lexicon:
    return Lexicon({(name, ""): found for name, found in patterns.items()})


WORDS = lexicon_of(
    {
        "free": ["free", "gratis*", "*مجاني", "免费", "ฟรี"],
        "parcel": ["parcel*", "your package", "пакет* почт*"],
        "account": ["*hesab*", "account"],
    }
)


def found(text: str, words: Lexicon = WORDS, language: str = "") -> set[str]:
    return {words.names[number] for number in words.find(normalise(text).marked, language)}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("It is FREE, really", {"free"}),
        ("freedom and carefree", set()),
        ("Gratisprobe!", {"free"}),
        ("بالمجاني اليوم", {"free"}),
        ("点击免费领取", {"free"}),
        ("รับฟรีวันนี้", {"free"}),
        ("Collect your package, please", {"parcel"}),
        ("Your big package", set()),
        ("your\npackage", {"parcel"}),
        ("пакеты на почте", set()),
        ("Пакетом почтовым", {"parcel"}),
        ("parcels for my account", {"parcel", "account"}),
        ("", set()),
    ],
)
def test_patterns(text: str, named: set[str]) -> None:
    assert found(text) == named


def test_a_disguised_word_is_found() -> None:
    assert found("f r e e p\u200barcel") == {"parcel"} | found("free")


def test_phrases_overlap() -> None:
    words = lexicon_of({"a": ["one two three"], "b": ["two three four"], "c": ["three four*"]})
    assert found("one two three fours", words) == {"a", "c"}
    assert found("one two three four", words) == {"a", "b", "c"}


@given(st.text("ab fre免费 ", max_size=60))
@settings(deadline=None)
def test_what_was_seen_before_changes_nothing(text: str) -> None:
    fresh = Lexicon(WORDS.cells)
    assert WORDS.find(text) == fresh.find(text) == sorted(set(WORDS.find(text)))


def matches(word: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return word.startswith(pattern.strip("*"))
    return word.endswith(pattern[1:]) if pattern[0] == "*" else word == pattern


def plainly(text: str, words: Lexicon) -> list[int]:
    """Each pattern is tried everywhere, one after the other."""
    tokens = concepts.words_of(text)
    joined = " ".join(tokens)
    runs = word_characters.DENSE_RUN.findall(text)
    named = set()
    for number, name in enumerate(words.names):
        for pattern in (
            form for cell in words.cells if cell[0] == name for form in words.cells[cell]
        ):
            parts = pattern.split()
            if word_characters.DENSE.search(pattern):
                if any(pattern.replace("*", "") in run for run in runs):
                    named.add(number)
            elif all(part.strip("*") in joined for part in parts) and any(
                all(map(matches, tokens[start:], parts))
                for start in range(len(tokens) - len(parts) + 1)
            ):
                named.add(number)
    return sorted(named)


TANGLED = lexicon_of(
    {
        "a": ["a*", "ab a*", "*b", "ab b ab", "免 费"],
        "b": ["b", "b b", "abab*", "费免"],
        "c": ["a b*", "b* a", "ba", "a ab b* ba"],
    }
)


@given(st.text("ab ab 免费", max_size=40))
@settings(deadline=None)
def test_the_same_is_found_as_by_trying_every_pattern(text: str) -> None:
    assert TANGLED.find(text) == plainly(text, TANGLED)
    assert WORDS.find(text) == plainly(text, WORDS)


@pytest.mark.parametrize("language", ["en", "ru", "th", "zh", "tr"])
def test_the_same_is_found_in_notices_as_by_trying_every_pattern(language: str) -> None:
    shipped = lexicon.shipped()
    texts = [notice.text for notice in generate(0, 1) if notice.language == language]
    for text in texts[::12]:
        marked = normalise(text).marked
        assert shipped.find(marked) == plainly(marked, shipped)


def test_the_model_holds_the_lexicon_for_wheels_that_lack_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = lexicon.shipped()
    monkeypatch.setattr(lexicon, "FILE_NAME", "missing.tsv")
    assert lexicon.shipped().cells == written.cells


def test_a_form_counts_in_its_language_and_an_english_one_everywhere() -> None:
    lines = ["code\thr\tkod", "free\ten\tfree", "bill\ten-only\tbill", "bill\tkl\takiligassaq"]
    words = lexicon.read(lines, {"en", "hr", "is"})
    assert found("free kod bill", words) == {"free", "code", "bill"}
    assert found("free kod bill", words, "is") == {"free"}
    assert found("free kod bill", words, "hr") == {"free", "code"}
    assert found("free kod bill", words, "en") == {"free", "bill"}
    assert found("akiligassaq", words, "is") == {"bill"}, "the detector does not know its language"


def test_memory_of_words_is_bounded() -> None:
    words = Matcher([["free*"]])
    assert words.find(" ".join(f"w{n:x}z" for n in range(40_000)) + " free") == [0]
    assert max(len(words._known), len(words._known._older)) <= concepts._REMEMBERED


def test_a_lexicon_survives_the_model_file() -> None:
    again = concepts.load(concepts.dump(WORDS))
    assert again.names == WORDS.names
    assert again.cells == WORDS.cells


def test_patterns_are_normalised_as_texts_are() -> None:
    words = lexicon.read(
        ["# a comment", "", "win\tfr\tGagné|félicitation*|000", "time\ten\t24 hours"], {"en", "fr"}
    )
    assert words.names == ("time", "win")
    assert words.cells["win", "fr"] == ("gagne", "felicitation*")
    assert found("Félicitations, vous avez GAGNÉ en 48 hours", words) == {"win", "time"}


def test_a_line_of_the_lexicon_has_three_columns() -> None:
    with pytest.raises(DataError, match="line 2"):
        lexicon.read(["win\ten\twon", "win en won"], set())


def test_the_shipped_lexicon_names_concepts_in_many_languages() -> None:
    words = lexicon.shipped()
    for text, name in (
        ("Your parcel is waiting", "parcel"),
        ("Ваша посылка ждёт", "parcel"),
        ("Paketiniz bekliyor", "parcel"),
        ("Bạn đã trúng giải thưởng", "prize"),
        ("您的包裹", "parcel"),
    ):
        assert name in found(text, words), text
