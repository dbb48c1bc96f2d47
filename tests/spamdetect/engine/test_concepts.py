"""Finding concepts in texts: whole words, stems, phrases, scripts without spaces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamdetect.engine import concepts
from spamdetect.engine.concepts import Lexicon
from spamdetect.engine.normalise import normalise
from spamdetect.training import lexicon
from spamdetect.training.dataset import DataError

WORDS = Lexicon(
    {
        "free": ["free", "gratis*", "*مجاني", "免费", "ฟรี"],
        "parcel": ["parcel*", "your package", "пакет* почт*"],
        "account": ["*hesab*", "account"],
    }
)


def found(text: str, words: Lexicon = WORDS) -> set[str]:
    return {words.names[number] for number in words.find(normalise(text).marked)}


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
    words = Lexicon({"a": ["one two three"], "b": ["two three four"], "c": ["three four*"]})
    assert found("one two three fours", words) == {"a", "c"}
    assert found("one two three four", words) == {"a", "b", "c"}


@given(st.text("ab fre免费 ", max_size=60))
@settings(deadline=None)
def test_what_was_seen_before_changes_nothing(text: str) -> None:
    fresh = Lexicon(WORDS.patterns)
    assert WORDS.find(text) == fresh.find(text) == sorted(set(WORDS.find(text)))


def test_memory_of_words_is_bounded() -> None:
    words = Lexicon({"free": ["free*"]})
    assert words.find(" ".join(f"w{n:x}z" for n in range(40_000)) + " free") == [0]
    assert len(words._known) <= concepts._REMEMBERED


def test_a_lexicon_survives_the_model_file() -> None:
    again = concepts.load(concepts.dump(WORDS))
    assert again.names == WORDS.names
    assert again.patterns == WORDS.patterns


def test_patterns_are_normalised_as_texts_are() -> None:
    words = lexicon.read(
        ["# a comment", "", "win\tfr\tGagné|félicitation*|000", "time\ten\t24 hours"]
    )
    assert words.names == ("time", "win")
    assert words.patterns["win"] == ("gagne", "felicitation*")
    assert found("Félicitations, vous avez GAGNÉ en 48 hours", words) == {"win", "time"}


def test_a_line_of_the_lexicon_has_three_columns() -> None:
    with pytest.raises(DataError, match="line 2"):
        lexicon.read(["win\ten\twon", "win en won"])


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
