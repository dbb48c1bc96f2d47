"""The pieces of fitting against plain definitions."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamdetect.engine.characters import code_points
from spamdetect.engine.features import CHAR_NGRAMS, corpus_grams, corpus_tokens, text_buckets
from spamdetect.training import augment, linear, metrics, softmax, spam_fit
from spamdetect.training.attacks import ATTACKS
from spamdetect.training.dataset import SpamRow
from spamdetect.training.matrix import build, join
from spamdetect.training.mirror import COPIES, MIRROR

TEXTS = [
    "free prize now",
    "see you at lunch",
    "claim your prize",
    "lunch tomorrow?",
    "",
    "win win win",
]
LABELS = np.array([True, False, True, False, False, True])


@given(st.lists(st.text("ab c1!д", max_size=30), min_size=1, max_size=6))
@settings(deadline=None)
def test_many_texts_hash_as_one_by_one(texts: list[str]) -> None:
    padded = [f" {text} " for text in texts]
    lengths = np.array([len(text) for text in padded])
    codes = code_points("".join(padded))
    ends = np.cumsum(lengths)
    grams = np.split(corpus_grams(codes, ends - lengths, 12), ends[:-1] * len(CHAR_NGRAMS))
    tokens, owners = corpus_tokens(codes, np.repeat(np.arange(len(texts)), lengths), 12)
    for number, text in enumerate(padded):
        alone = np.sort(text_buckets(code_points(text), 12))
        of_characters = alone < 1 << 12
        np.testing.assert_array_equal(np.unique(grams[number]), np.unique(alone[of_characters]))
        np.testing.assert_array_equal(np.sort(tokens[owners == number]), alone[~of_characters])


def test_select_and_join() -> None:
    matrix = build(TEXTS, 12)
    twice = join([matrix, matrix])
    assert twice.rows == 2 * len(TEXTS)
    picked = twice.select(np.array([7, 0, 4]))
    for row, source in enumerate((1, 0, 4)):
        got = picked.columns[picked.starts[row] : picked.starts[row + 1]]
        np.testing.assert_array_equal(
            got, matrix.columns[matrix.starts[source] : matrix.starts[source + 1]]
        )


def test_fit_separates_what_is_separable() -> None:
    settings_ = linear.Settings(bits=12, min_count=1, l2=1e-4, epochs=30)
    fitted = linear.fit(build(TEXTS, 12), LABELS, np.ones(6), settings_)
    scores = fitted.scores(build(TEXTS, 12))
    assert scores[LABELS].min() > scores[~LABELS].max()


@pytest.mark.parametrize("by_rarity", [False, True])
def test_fit_finds_the_bottom(by_rarity: bool) -> None:
    """At the minimum of the loss its gradient is zero: checked for the structural weights."""
    l2 = {"rarity_l2": 0.05} if by_rarity else {"l2": 0.05}
    settings_ = linear.Settings(bits=12, min_count=1, structure_value=1.0, epochs=4000, **l2)
    matrix, weights = build(TEXTS, 12), np.array([1.0, 2.0, 1.0, 1.0, 0.5, 3.0])
    fitted = linear.fit(matrix, LABELS, weights, settings_, by_rarity=by_rarity)
    sign = np.where(LABELS, 1.0, -1.0)
    short = np.maximum(0.0, 1.0 - sign * fitted.scores(matrix))
    pull = 2.0 * weights / weights.sum() * sign * short
    of = np.repeat(np.arange(len(TEXTS)), np.diff(matrix.structure_starts))
    gradient = np.bincount(matrix.structure, pull[of], minlength=fitted.structure.size)
    np.testing.assert_allclose(gradient, 0.05 * fitted.structure, atol=1e-4)
    assert pull.sum() == pytest.approx(0.05 * fitted.bias, abs=1e-4)


def test_by_rarity_the_rarer_of_two_alike_weighs_more() -> None:
    """The weight of an n-gram grows with the square of its scale, as the multipliers are shared."""
    texts = ["common rare", "common", "other", "other"]
    labels = np.array([True, True, False, False])
    settings_ = linear.Settings(bits=12, min_count=1, prior=0.0, rarity_l2=10.0, word_value=1.0)
    fitted = linear.fit(build(texts, 12), labels, np.ones(4), settings_, by_rarity=True)
    one = [set(build([word], 12).columns.tolist()) for word in ("common", "rare", "other")]
    words = [fitted.weights[sorted(one[n] - one[n - 1] - one[n - 2])] for n in range(3)]
    lengths = np.diff(build(texts, 12).starts)[:2] ** -0.5
    rarity = {n: np.log(5 / (1 + n)) + 1 for n in (1, 2)}
    ratio = lengths[0] / lengths.sum() * (rarity[1] / rarity[2]) ** 2
    assert words[1].mean() / words[0].mean() == pytest.approx(ratio, rel=0.05)
    assert words[2].max() < 0


def test_weights_are_drawn_towards_the_ratio() -> None:
    """With nothing but the penalty to follow, the weights are a multiple of the log ratio."""
    matrix = build(TEXTS, 12)
    settings_ = linear.Settings(bits=12, min_count=1, l2=1e6, prior=0.5, word_value=1.0)
    fitted = linear.fit(matrix, LABELS, np.ones(6), settings_)
    ratio = linear.log_ratio(matrix, LABELS, np.ones(6), fitted.weights.size, 1.0)
    used = np.unique(matrix.columns)
    np.testing.assert_allclose(fitted.weights[used], 0.5 * ratio[used], atol=1e-3)


def test_phrases_and_fragments_are_of_long_texts() -> None:
    text = (
        "The first sentence is about trains. Another one tells of a lake! Is this the third? " * 8
    )
    rows = [SpamRow("short one", True, "s", 0), SpamRow(text, False, "s", 1)]
    for make in (augment.fragments, augment.phrases):
        texts, owners = make(rows, augment.Plan(), 5)
        assert texts
        assert set(owners) == {1}
        assert all(part in " ".join(text.split()) for part in texts)
        assert (texts, owners) == make(rows, augment.Plan(), 5)


def test_of_spam_the_telling_fragments_are_chosen() -> None:
    neutral, telling = "we met at the station there.", "claim your casino bonus prize now!"
    rows = [SpamRow("casino bonus prize claim", True, "s", n % 5) for n in range(30)]
    rows += [SpamRow("we met at the station", False, "s", n % 5) for n in range(30)]
    rows.append(SpamRow(f"{neutral} {telling} " + f"{neutral} " * 14, True, "s", 0))
    settings_ = linear.Settings(bits=12)
    data = spam_fit.corpus(rows, 1, settings_, augment.Plan(disguised=0, ordinary=0, copied=0))
    texts, _ = augment.fragments(rows, data.plan, 1)
    whole = np.arange(data.ends[0])
    offered = np.arange(data.ends[0], data.ends[1])
    chosen = spam_fit.telling(
        data, data.matrix.select(whole), whole, np.ones(whole.size), offered, settings_
    )
    assert len(chosen) <= spam_fit.KEPT_SPAM
    assert any("casino" in texts[row - data.ends[0]] for row in chosen)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=40))
def test_auc_is_the_share_of_right_pairs(pairs: list[tuple[bool, int]]) -> None:
    labels = np.array([label for label, _ in pairs])
    values = np.array([value for _, value in pairs], float)
    found = metrics.auc(labels, values)
    spam, ham = values[labels], values[~labels]
    if not spam.size or not ham.size:
        assert np.isnan(found)
        return
    wins = (spam[:, None] > ham).sum() + 0.5 * (spam[:, None] == ham).sum()
    assert found == pytest.approx(wins / (spam.size * ham.size))


def test_platt_finds_the_sigmoid_that_made_the_labels() -> None:
    random = np.random.Generator(np.random.PCG64(5))
    values = random.normal(size=20_000)
    labels = random.random(20_000) < 1 / (1 + np.exp(-(2.0 * values - 0.5)))
    slope, offset = metrics.platt(labels, values)
    assert (slope, offset) == (pytest.approx(2.0, abs=0.1), pytest.approx(-0.5, abs=0.1))
    chance = 1 / (1 + np.exp(-(slope * values + offset)))
    assert metrics.ece(labels, chance) < 0.02


def test_recall_at_fpr() -> None:
    labels = np.array([False] * 100 + [True] * 4)
    values = np.array([*range(100), 50.0, 98.0, 98.5, 200.0])
    assert metrics.recall_at_fpr(labels, values, 0.01) == 0.5


def test_softmax_learns_and_repeats_itself() -> None:
    texts = [np.array(row, np.uint32) for row in ([1, 2], [1, 3], [4, 5], [4, 6], [7], [7, 8])]
    labels = np.array([0, 0, 1, 1, 2, 2])
    run = [
        softmax.fit(texts, labels, np.ones(6, np.float32), (16, 3),
                    softmax.SoftmaxSettings(epochs=30, batch=4), seed=3)
        for _ in range(2)
    ]  # fmt: skip
    np.testing.assert_array_equal(run[0], run[1])
    assert [int(run[0][text].sum(0).argmax()) for text in texts] == labels.tolist()


@pytest.mark.parametrize("name", [*ATTACKS, *MIRROR, *COPIES])
def test_changes_depend_on_the_seed_alone(name: str) -> None:
    change = (ATTACKS | MIRROR | COPIES)[name]
    text = "Some words of an ordinary message, see https://www.example.com/page for more. Привет"
    assert change(text, Random(4)) == change(text, Random(4))
    assert change("", Random(1)) is not None
    assert any(change(text, Random(seed)) != text for seed in range(20))
