"""What is left out together, how the two parts are blended, and the made texts."""

from __future__ import annotations

from collections import Counter
from random import Random

import attrs
import numpy as np
import pytest

from spamdetect.engine import language
from spamdetect.training import calibrate
from spamdetect.training.calibrate import HeldOut
from spamdetect.training.corpus import Labelled, labelled
from spamdetect.training.dataset import SpamRow
from spamdetect.training.fit import Signals
from spamdetect.training.generated import made_rows
from spamdetect.training.left_out import Part, folds, strangers
from spamdetect.training.letters import LETTER, PER_FOLD, letters

SOURCES = (
    ("en", "uci_sms"), ("en", "chat"), ("ru", "tgspam"), ("de", "uci_sms_mt"), ("de", "forum"),
)  # fmt: skip
SAID = {
    "en": ("win a free prize now", "see you at lunch"),
    "ru": ("приз бесплатно", "до завтра"),
    "de": ("jetzt gewinnen", "bis morgen dann"),
}


def rows() -> list[SpamRow]:
    random = Random(1)
    return [
        SpamRow(f"{SAID[code][not spam]} {random.randint(0, 999)}", spam, source, n % 5, code)
        for code, source in SOURCES
        for spam in (True, False)
        for n in range(40)
    ]


@pytest.fixture(scope="module")
def data() -> Labelled:
    return labelled([*rows(), *made_rows(0, 1)], language.load())


def test_a_stranger_is_left_out_with_its_kin_and_its_languages(data: Labelled) -> None:
    parts = strangers(data)
    by_source = {name: part for part in parts for name in part.groups}
    assert {source for _, source in SOURCES} < by_source.keys()
    assert by_source["chat"] is not by_source["uci_sms"], "it has translations, which go too"
    kin = {"uci_sms": "uci_sms_mt", "uci_sms_mt": "uci_sms"}
    for code, source in SOURCES:
        fitted = by_source[source].fitted
        assert not fitted[data.languages == code].any(), "sent or made"
        assert not fitted[data.sources == source].any()
        assert not fitted[data.sources == kin.get(source, source)].any()
        assert by_source[source].groups[source].sum() == 80
    made = [name for name in by_source if name.startswith("notices")]
    judged = np.sum([by_source[name].groups[name] for name in made], axis=0)
    letter = np.array([row.kind == LETTER for row in data.texts])
    np.testing.assert_array_equal(judged, data.made & ~letter)
    for part in parts:
        assert not (part.judged & part.fitted).any()


def test_in_one_language_a_source_is_left_out_alone() -> None:
    data = labelled([row for row in rows() if row.language == "en"], language.load())
    parts = strangers(data)
    assert [list(part.groups) for part in parts] == [["chat"], ["uci_sms"]]
    for part in parts:
        np.testing.assert_array_equal(part.fitted, ~part.judged)


def test_letters_are_in_no_fold(data: Labelled) -> None:
    letter = np.array([row.kind == LETTER for row in data.texts])
    for part in folds(data):
        assert part.is_fold
        assert not (part.judged & letter).any()
        assert (~part.fitted & letter).any()
    assert len(folds(data, 2)) == 2


def test_letters_are_long_and_composed_of_notices_of_one_label_language_and_fold() -> None:
    made = made_rows(0, 1)
    notices = [row for row in made if row.kind != LETTER]
    found = letters(notices, 0)
    assert made == notices + found
    assert found == letters(notices, 0)
    assert {row.source for row in found} == {row.source for row in notices}
    groups = Counter((row.source, row.is_spam, row.fold) for row in found)
    assert set(groups.values()) == set(PER_FOLD.values())
    lengths = sorted(len(row.text) for row in found)
    assert lengths[len(lengths) // 2] > 3 * sum(len(row.text) for row in notices) / len(notices)
    for row in found[::50]:
        said = {
            word for notice in notices for word in notice.text.split()
            if (notice.source, notice.is_spam, notice.fold) == (row.source, row.is_spam, row.fold)
        }  # fmt: skip
        quoted = [word for word in row.text.split() if word in said]
        assert sum(map(len, quoted)) > 0.5 * len(row.text)


def test_all_texts_of_a_template_lie_in_one_fold() -> None:
    made = made_rows(3, 2)
    assert {row.source for row in made} >= {"notices en", "notices zh"}
    assert len({row.kind for row in made}) >= 40
    again = made_rows(3, 2)
    assert made == again
    by_pattern: dict[str, set[int]] = {}
    from spamdetect.training.notices import generate

    notices = [row for row in made if row.kind != LETTER]
    for row, notice in zip(notices, generate(3, 2), strict=True):
        by_pattern.setdefault(notice.template.partition("/")[2], set()).add(row.fold)
    assert all(len(folds) == 1 for folds in by_pattern.values())


def held(data: Labelled, spread: float) -> list[HeldOut]:
    """Scores that tell spam from ham."""
    random = np.random.default_rng(3)
    found = []
    for part in strangers(data):
        for name, mask in part.groups.items():
            texts = np.flatnonzero(mask)
            truth = np.where(data.labels[texts], 1.0, -1.0)
            grams = truth + random.normal(0, spread, texts.size)
            found.append(HeldOut(name, part, texts, Signals(grams, truth * 0.0)))
    return found


def test_a_group_does_not_calibrate_itself(data: Labelled) -> None:
    """Its scores say the opposite of all others': a blend with them would judge it right."""
    groups = held(data, 0.1)
    odd = next(n for n, group in enumerate(groups) if group.name == "chat")
    turned = attrs.evolve(groups[odd].signals, grams=-groups[odd].signals.grams)
    groups[odd] = attrs.evolve(groups[odd], signals=turned)
    chances = calibrate.judged(data, groups)
    labels = data.labels[groups[odd].texts]
    assert chances[odd][labels].mean() < 0.5 < chances[odd][~labels].mean()
    others = [n for n in range(len(groups)) if n != odd]
    assert all(chances[n][data.labels[groups[n].texts]].mean() > 0.5 for n in others)


def test_folds_weigh_the_same_however_many_are_tried(data: Labelled) -> None:
    """What is evaluated over five folds is then calibrated as what is trained with two."""
    groups = held(data, 1.0)
    part = Part({}, np.ones(len(data.texts), bool), is_fold=True)
    whole = HeldOut("0", part, groups[0].texts, groups[0].signals)
    few = calibrate.blend(data, [*groups, whole])
    many = calibrate.blend(data, [*groups, whole, whole, whole])
    assert attrs.astuple(few) == pytest.approx(attrs.astuple(many), abs=1e-4)


def test_profiles_keep_their_share_of_false_alarms(data: Labelled) -> None:
    groups = held(data, 1.0)
    chances = calibrate.judged(data, groups)
    profiles = calibrate.profiles(data, groups, chances, 0.5)
    assert profiles["strict"].threshold <= profiles["balanced"].threshold == 0.5
    assert profiles["quiet"].threshold >= 0.5
    sent = [
        (chance, data.labels[group.texts])
        for group, chance in zip(groups, chances, strict=True)
        if not group.name.startswith("notices")
    ]
    for name, profile in profiles.items():
        shares = [(np.round(c[~y], 6) >= profile.threshold).mean() for c, y in sent]
        assert profile.false_alarms == round(float(np.mean([*shares, max(shares)])), 4)
        if name in calibrate.FALSE_ALARMS and profile.threshold != 0.5:
            assert profile.false_alarms <= calibrate.FALSE_ALARMS[name]


def test_the_worst_source_counts_twice() -> None:
    ham = [np.array([0.2, 0.2, 0.2, 0.9]), np.array([0.2, 0.2, 0.2, 0.2])]
    assert calibrate.expected(ham, 0.5) == round(0.5 / 3, 4)
    assert calibrate.threshold_of(ham, 0.15) == 0.91
    assert calibrate.threshold_of(ham, 0.17) == 0.21


def test_without_strangers_the_folds_set_the_thresholds() -> None:
    data = labelled([row for row in rows() if row.source == "chat"], language.load())
    texts = np.arange(len(data.texts))
    signals = Signals(np.where(data.labels, 1.0, -1.0), np.zeros(80))
    part = Part({"0": np.ones(80, bool)}, np.zeros(80, bool), True)
    group = HeldOut("0", part, texts, signals)
    found = calibrate.profiles(data, [group], [np.where(data.labels, 0.9, 0.1)], 0.5)
    assert found["balanced"].false_alarms == 0.0
    assert found["balanced"].recall == 1.0
