"""The notices: complete in every language, filled, without repetition, and the same each time."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from spamdetect.training import notices
from spamdetect.training.dataset import DataError
from spamdetect.training.notices import KINDS, SLOTS, Notice, Template, collection, generate

# What its letters are called in Unicode; all other languages are written in Latin letters.
SCRIPTS = {
    "ar": ("ARABIC",), "bg": ("CYRILLIC",), "bn": ("BENGALI",), "el": ("GREEK",),
    "fa": ("ARABIC",), "he": ("HEBREW",), "hi": ("DEVANAGARI",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
    "ko": ("HANGUL",), "ru": ("CYRILLIC",), "th": ("THAI",), "uk": ("CYRILLIC",),
    "ur": ("ARABIC",), "zh": ("CJK",), "zh-hant": ("CJK",),
}  # fmt: skip
COMPUTED = {"link", "mail", "code", "ref", "time", "n", "last"}


@pytest.fixture(scope="module")
def made() -> list[Notice]:
    return list(generate(seed=1, per_template=3))


@pytest.mark.parametrize("language", notices.languages())
def test_a_language_has_every_kind_in_both_labels_and_every_slot(language: str) -> None:
    found = collection(language)
    have = {(template.kind, template.label) for template in found.templates}
    assert have == {(kind, label) for kind in KINDS for label in ("spam", "ham")}
    assert set(found.slots) == set(SLOTS)
    assert all(value for values in found.slots.values() for value in values)
    named = {
        slot
        for text in [*(t.pattern for t in found.templates), *sum(found.slots.values(), ())]
        for slot in re.findall(r"<([^<>]*)>", text)
    }
    assert named <= set(SLOTS) | COMPUTED


def test_nothing_of_the_patterns_is_left(made: list[Notice]) -> None:
    for notice in made:
        assert notice.text.strip()
        assert not re.search(r"[{}|<#~¶]| :: |  |^[ \n]|[ \n]$", notice.text), notice


def test_no_text_is_made_twice_and_nearly_every_template_makes_many(made: list[Notice]) -> None:
    texts = Counter(notice.text for notice in made)
    assert max(texts.values()) == 1
    per_template = Counter(notice.template for notice in made)
    full = sum(count == 3 for count in per_template.values())
    assert full >= 0.97 * len(per_template)
    many = Counter(notice.template for notice in generate(seed=2, per_template=12))
    assert sum(many.values()) >= 9 * len(per_template)


def test_the_seed_decides(made: list[Notice]) -> None:
    assert list(generate(seed=1, per_template=3)) == made
    other = {notice.text for notice in generate(seed=2, per_template=3)}
    shared = sum(notice.text in other for notice in made)
    assert shared < 0.3 * len(made)


def test_both_labels_carry_links_and_telephone_numbers(made: list[Notice]) -> None:
    def share(label: str, pattern: str) -> float:
        texts = [notice.text for notice in made if notice.label == label]
        return sum(bool(re.search(pattern, text)) for text in texts) / len(texts)

    for pattern in (r"\w\.[a-z]{2,}\b", r"\d"):
        assert share("ham", pattern) > 0.15
    # A notice is not fraud because it holds a number, nor ordinary because it holds none.
    assert abs(share("ham", r"\d") - share("spam", r"\d")) < 0.25


@pytest.mark.parametrize("language", notices.languages())
def test_the_letters_are_those_of_the_language(language: str, made: list[Notice]) -> None:
    own = SCRIPTS.get(language, ("LATIN",))
    counts: Counter[bool] = Counter()
    for notice in made:
        if notice.language == language:
            words = re.sub(r"\S*[./@]\S*", " ", notice.text)
            scripts = [unicodedata.name(sign, "").split()[0] for sign in words if sign.isalpha()]
            counts.update(script in own for script in scripts)
            if own == ("LATIN",):
                assert all(script in {"LATIN", "FEMININE", "MASCULINE"} for script in scripts), (
                    notice
                )
    assert counts[True] > 0.85 * counts.total()


def test_a_language_that_is_missing_and_a_line_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "FOLDER", tmp_path)
    with pytest.raises(DataError, match=r"xx\.txt does not exist"):
        collection("xx")
    (tmp_path / "xy.txt").write_text("[parcel]\n- {open\n", "utf-8")
    with pytest.raises(DataError, match=r"xy.txt, line 2: neither a slot"):
        collection("xy")


def test_an_unknown_slot_is_named() -> None:
    template = Template("en/parcel/ham/1", "parcel", "ham", "Hello <nobody>")
    with pytest.raises(DataError, match="unknown slot <nobody>"):
        notices.write(template, {"tld": ("com",), "tail": ("",)}, Random(0))
