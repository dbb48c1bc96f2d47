"""What is left out, how the two parts are blended, and the network."""

from __future__ import annotations

from collections import Counter
from random import Random

import attrs
import numpy as np
import pytest
from numpy.typing import NDArray

from spamdetect.engine.classifier import Blend, familiarity
from spamdetect.engine.counts import count
from spamdetect.engine.normalise import normalise
from spamdetect.engine.structure import SCRIPT_COLUMNS, structure
from spamdetect.engine.traits import traits_size
from spamdetect.training import blending, judge, metrics, network, spam_fit
from spamdetect.training.augment import Plan
from spamdetect.training.blending import Mixture, Signals
from spamdetect.training.dataset import SpamRow
from spamdetect.training.families import families
from spamdetect.training.letters import LETTER, PER_FOLD, letters
from spamdetect.training.linear import Settings
from spamdetect.training.made import made_rows
from spamdetect.training.matrix import dense
from spamdetect.training.trainer import finish

SETTINGS = Settings(bits=12)
WIDTH = traits_size(4)
Floats = NDArray[np.float32]
QUIET = Plan(disguised=0, ordinary=0, copied=0, fragmented=0)


def rows() -> list[SpamRow]:
    random = Random(1)
    said = {
        "en": ("win a free prize now", "see you at lunch"),
        "ru": ("приз бесплатно", "до завтра"),
    }
    return [
        SpamRow(f"{said[code][not spam]} {random.randint(0, 999)}", spam, source, n % 5, code)
        for code, source in (("en", "uci_sms"), ("ru", "tgspam"))
        for spam in (True, False)
        for n in range(40)
    ]


@pytest.fixture(scope="module")
def data() -> spam_fit.Corpus:
    return spam_fit.corpus([*rows(), *made_rows(0, 1)[::8]], 0, SETTINGS, QUIET)


def test_parts_are_whole(data: spam_fit.Corpus) -> None:
    parts = judge.parts(data, ["fold", "family", "kind", "domain"])
    ways = {
        way: [part for part in parts if part.way == way] for way in ("fold", "family", "domain")
    }
    letter = np.array([row.kind == LETTER for row in data.rows])
    assert letter.any()
    assert np.sum([part.inside for part in ways["fold"]], axis=0).tolist() == (~letter).tolist()
    assert {"Germanic"} in [set(part.groups) for part in ways["family"]]
    assert {"Slavic"} in [set(part.groups) for part in ways["family"]]
    assert {name for part in ways["domain"] for name in part.groups} == {"SMS", "chat"}
    by_family = families(data.rows)
    for part in ways["family"]:
        for name, mask in part.groups.items():
            same = [family == name for family in by_family]
            assert mask.tolist() == (~letter & same).tolist()


def test_letters_are_left_out_with_what_they_may_quote(data: spam_fit.Corpus) -> None:
    letter = np.array([row.kind == LETTER for row in data.rows])
    parts = judge.parts(data, ["fold", "family", "kind", "domain"])
    by_family = np.array(families(data.rows))
    for part in parts:
        names = list(part.groups)
        if part.way == "fold":
            related = data.folds == int(names[0])
        elif part.way == "family":
            related = np.isin(by_family, names)
        else:
            related = np.full(len(data.rows), part.way == "kind")
        assert part.aside.tolist() == (letter & related).tolist()
        assert not (part.inside & letter).any()
        assert part.fitted.tolist() == (~part.inside & ~part.aside).tolist()


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


def test_a_fit_knows_what_it_has_seen() -> None:
    settings = Settings(bits=16)
    data = spam_fit.corpus(rows(), 0, settings, QUIET)
    russian = np.array([row.language == "ru" for row in data.rows])
    fitted = judge.fit_judge(data, ~russian, settings)
    known = fitted.signals(data.matrix.select(np.arange(len(data.rows)))).known
    assert known[~russian].mean() > 0.5 > 0.2 > known[russian].mean()
    assert 0.0 <= known.min() <= known.max() <= 1.0


def test_familiarity_discounts_chance() -> None:
    assert familiarity(30, 100, 0.3) == 0.0
    assert familiarity(100, 100, 0.3) == 1.0
    assert familiarity(65, 100, 0.3) == pytest.approx(0.5**4)
    assert familiarity(0, 0, 0.3) == 0.0


def test_the_blend_corrects_the_spread_of_what_is_unknown() -> None:
    """Scores that shrink with familiarity are stretched again, so that all are calibrated."""
    random = np.random.Generator(np.random.PCG64(2))
    odds = random.normal(0, 2, 20_000)
    labels = random.random(odds.size) < 1 / (1 + np.exp(-odds))
    known = random.random(odds.size).round()
    scores = odds * np.where(known == 1, 1.0, 0.2)
    signals = Signals(scores, np.zeros(odds.size), known, np.zeros((odds.size, WIDTH), bool))
    found = blending.fit(signals, labels, np.ones(odds.size))
    chance = signals.probabilities(found)
    for share in (0.0, 1.0):
        assert metrics.ece(labels[known == share], chance[known == share]) < 0.03
    assert not found.traits.any()
    _, slope, _ = found.blend.slopes(0.0)
    assert slope == pytest.approx(5.0, rel=0.25)


def corrupted(size: int = 6000) -> tuple[Signals, NDArray[np.bool_]]:
    """Scores that take one trait for spam which is none, and a script that is always spam."""
    random = np.random.Generator(np.random.PCG64(6))
    traits = random.random((size, WIDTH)) < 0.1
    odds = random.normal(0, 2, size)
    labels = random.random(size) < 1 / (1 + np.exp(-odds))
    traits[labels, SCRIPT_COLUMNS.start] = True
    misled = odds + 3.0 * traits[:, -1]
    return Signals(misled, odds, random.uniform(0.6, 1.0, size), traits), labels


def test_the_correction_takes_back_what_misleads() -> None:
    signals, labels = corrupted()
    alone = attrs.evolve(signals, meaning=np.zeros(labels.size))
    found = blending.fit(alone, labels, np.ones(labels.size))
    assert -3.0 * found.blend.slopes(0.8)[1] < found.traits[-1] < -1.0
    assert np.abs(found.traits[:-1]).max() < 0.3
    assert not found.traits[SCRIPT_COLUMNS].any()
    plain = attrs.evolve(found, traits=np.zeros(WIDTH))
    aucs = [metrics.auc(labels, alone.probabilities(mixed)) for mixed in (plain, found)]
    assert aucs[1] > aucs[0] + 0.01
    again = blending.fit(alone, labels, np.ones(labels.size), plain)
    np.testing.assert_allclose(again.traits, found.traits, atol=1e-8)


def test_the_fit_is_at_the_bottom() -> None:
    """The gradient of the weighted loss and the penalty is zero there."""
    signals, labels = corrupted(2000)
    weights = np.random.Generator(np.random.PCG64(8)).random(labels.size)
    found = blending.fit(signals, labels, weights)
    error = weights / weights.sum() * (signals.probabilities(found) - labels)
    pull = (error * signals.known) @ signals.traits + blending.TRAIT_PENALTY * found.traits
    pull[SCRIPT_COLUMNS] = 0.0
    np.testing.assert_allclose(pull, 0.0, atol=1e-9)
    for column, (least, more) in (
        (np.ones(labels.size), found.blend.offset),
        (signals.grams, found.blend.grams),
        (signals.meaning, found.blend.meaning),
    ):
        assert error @ column == pytest.approx(-blending.PENALTY * least, abs=1e-9)
        assert error @ (column * signals.known) == pytest.approx(-blending.PENALTY * more, abs=1e-9)


@pytest.mark.parametrize("known", [0.0, 0.4, 1.0])
def test_both_scores_together_add_the_correction(known: float) -> None:
    traits = np.random.Generator(np.random.PCG64(7)).normal(size=WIDTH)
    mixed = Mixture(Blend((0.1, 0.2), (3.4, 1.0), (0.36, -0.19)), traits)
    grams, meaning = mixed.shares()
    _, slope, worth = mixed.blend.slopes(known)
    np.testing.assert_allclose(
        slope * grams + worth * meaning, known * traits, rtol=1e-3, atol=1e-3
    )


def test_one_text_and_many_are_blended_alike() -> None:
    blend = Blend((-1.0, 0.5), (2.0, -1.0), (0.3, 0.2))
    traits = np.zeros((2, WIDTH), bool)
    traits[1, 3:5] = True
    mixed = Mixture(blend, np.arange(WIDTH) / 10.0)
    signals = Signals(np.array([0.4, -2.0]), np.array([1.0, 3.0]), np.array([0.0, 0.7]), traits)
    one = [
        blend.probability(*row)
        for row in zip(signals.grams, signals.meaning, signals.known, strict=True)
    ]
    one[1] = 1 / (1 + np.exp(-np.log(one[1] / (1 - one[1])) - 0.7 * 0.7))
    np.testing.assert_allclose(signals.probabilities(mixed), one)


def test_a_model_says_what_its_signals_say() -> None:
    """The correction is part of the network's weights, rounded to eight bits."""
    settings = Settings(bits=14)
    data = spam_fit.corpus(rows(), 0, settings, QUIET)
    fitted = judge.fit_judge(data, np.ones(len(data.rows), bool), settings)
    random = np.random.Generator(np.random.PCG64(9))
    traits = random.normal(0, 0.5, data.matrix.width)
    traits[SCRIPT_COLUMNS] = 0.0
    mixed = Mixture(Blend((0.1, 0.2), (3.4, 1.0), (0.36, -0.19)), traits)
    model = finish(data, mixed, fitted, data.labels.astype(float))
    texts = np.arange(len(data.rows))
    expected = fitted.signals(data.matrix.select(texts)).probabilities(mixed)
    found = []
    for row in data.rows:
        normalised = normalise(row.text)
        on = structure(normalised, count(row.text), len(row.text))
        found.append(model.probability(normalised.readable, model.traits(on, normalised.marked)))
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert np.ptp(expected) > 0.5


def test_the_network_learns_what_no_sum_can(data: spam_fit.Corpus) -> None:
    """Two concepts of which exactly one makes spam."""
    width, first = data.matrix.width, traits_size(0)
    random = np.random.Generator(np.random.PCG64(3))
    table = np.zeros((2000, width), np.float32)
    table[:, first : first + 2] = random.random((2000, 2)) < 0.5
    labels = table[:, first] != table[:, first + 1]
    settings = network.NetworkSettings(hidden=16, epochs=40, forgotten=0.0, silenced=0.0)
    fitted = network.fit(table.copy(), labels, np.ones(2000), slice(first, width), settings, 0)
    assert metrics.auc(labels, network.scores(fitted, table)) > 0.99
    again = network.fit(table.copy(), labels, np.ones(2000), slice(first, width), settings, 0)
    np.testing.assert_array_equal(fitted.weights, again.weights)


def test_the_network_is_the_mean_of_its_fits() -> None:
    random = np.random.Generator(np.random.PCG64(4))
    table = (random.random((400, traits_size(4))) < 0.2).astype(np.float32)
    labels = table[:, -1] > table[:, -2]
    concepts = slice(traits_size(0), traits_size(4))
    settings = network.NetworkSettings(hidden=8, epochs=4)
    fits = [
        network.fit_one(
            table, labels, np.ones(400), concepts, settings, np.random.PCG64([0, number])
        )
        for number in range(3)
    ]

    def said(
        first: Floats, bias: Floats, output: Floats, direct: Floats, constant: Floats
    ) -> Floats:
        return np.maximum(table @ first + bias, 0.0) @ output + table @ direct + constant

    mean = network.mean_of(fits)
    assert mean[0].shape == (traits_size(4), 3 * 8)
    each = [said(*values) for values in fits]
    assert np.abs(each[0] - each[1]).max() > 0.1
    np.testing.assert_allclose(said(*mean), np.mean(each, axis=0), rtol=1e-4, atol=1e-4)


def test_the_engine_reads_the_network_as_the_training_does(data: spam_fit.Corpus) -> None:
    fitted = judge.fit_judge(data, np.ones(len(data.rows), bool), SETTINGS)
    matrix = data.matrix.select(np.arange(50))
    usual = dense(matrix).mean(axis=0).astype(float)
    whole = network.with_linear(
        fitted.network,
        fitted.grams.structure,
        np.zeros(usual.size),
        fitted.grams.bias,
        usual,
    )
    on = [part.tolist() for part in np.split(matrix.structure, matrix.structure_starts[1:-1])]
    one = [whole.scores(whole.sums(part)) for part in on]
    many = whole.scores_many(whole.sums_many(on))
    np.testing.assert_allclose([meaning for meaning, _ in one], many[0])
    np.testing.assert_allclose([structural for _, structural in one], many[1])
    expected = network.scores(fitted.network, dense(matrix))
    np.testing.assert_allclose(many[0], expected, rtol=1e-3, atol=1e-3)
