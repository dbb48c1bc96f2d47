"""The pieces of fitting against plain definitions."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamdetect.engine.characters import code_points
from spamdetect.engine.features import corpus_buckets, text_buckets
from spamdetect.training import logistic, metrics, softmax
from spamdetect.training.attacks import ATTACKS
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
    owner = np.repeat(np.arange(len(texts)), [len(text) for text in padded])
    buckets, owners = corpus_buckets(code_points("".join(padded)), owner, 12)
    for number, text in enumerate(padded):
        alone = np.sort(text_buckets(code_points(text), 12))
        np.testing.assert_array_equal(np.sort(buckets[owners == number]), alone)


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


@pytest.mark.parametrize("hinge", [True, False])
def test_fit_separates_what_is_separable(hinge: bool) -> None:
    settings_ = logistic.Settings(bits=12, min_count=1, l2=1e-4, hinge=hinge)
    fitted = logistic.fit(build(TEXTS, 12), LABELS, np.ones(6), settings_)
    scores = fitted.scores(build(TEXTS, 12))
    assert scores[LABELS].min() > scores[~LABELS].max()


def test_minimise_finds_the_bottom_of_a_bowl() -> None:
    scale, goal = np.array([1.0, 30.0, 0.1, 5.0]), np.array([3.0, -1.0, 0.5, 0.0])

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        away = point - goal
        return float((scale * away**2).sum()), 2 * scale * away

    found = logistic.minimise(loss, np.zeros(4), 200, tolerance=1e-14)
    np.testing.assert_allclose(found, goal, atol=1e-3)


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
    np.testing.assert_array_equal(*run)
    assert [int(run[0][text].sum(0).argmax()) for text in texts] == labels.tolist()


@pytest.mark.parametrize("name", [*ATTACKS, *MIRROR, *COPIES])
def test_changes_depend_on_the_seed_alone(name: str) -> None:
    change = (ATTACKS | MIRROR | COPIES)[name]
    text = "Some words of an ordinary message, see https://www.example.com/page for more. Привет"
    assert change(text, Random(4)) == change(text, Random(4))
    assert change("", Random(1)) is not None
    assert any(change(text, Random(seed)) != text for seed in range(20))
