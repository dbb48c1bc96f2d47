"""The fits, as the engine reads them, and the changes to texts."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from spamdetect.engine import Engine, classifier, language
from spamdetect.engine.results import Language
from spamdetect.training import calibrate, fit, softmax, trainer
from spamdetect.training.attacks import ATTACKS
from spamdetect.training.corpus import Corpus, corpus, silent
from spamdetect.training.dataset import DataError, SpamRow
from spamdetect.training.evaluate import ece, scores
from spamdetect.training.mirror import COPIES, MIRROR

SAID = "win a free prize, call now", "see you at lunch in the garden"


def rows() -> list[SpamRow]:
    random = Random(2)
    return [
        SpamRow(f"{SAID[n % 2]} {random.choice('abcdefgh')}", n % 2 == 0, f"s{n % 3}", n % 5, "en")
        for n in range(120)
    ] + [SpamRow(f"до завтра {n}", n % 2 == 0, "ru", n % 5, "ru") for n in range(60)]


def long_rows() -> list[SpamRow]:
    texts = ("\n\n".join([SAID[n % 2] * 9, f"bye {n} ", "more words " * 300]) for n in range(12))
    return [SpamRow(text, n % 3 == 0, "s0", n % 5, "en") for n, text in enumerate(texts)]


@pytest.fixture(scope="module")
def data() -> Corpus:
    return corpus(rows(), 0)


def test_the_engine_scores_as_the_fit_does() -> None:
    """Whatever the number of threads that a fit finds: those of folds are made by one each."""
    data = corpus([*rows(), *long_rows()], 0)
    held = trainer.held_out(data, 0)
    with threadpool_limits(2):
        model = trainer.finish(data, held, 0)
    again = classifier.SpamModel(**{name: getattr(model, name) for name in (
        "bits", "weights", "scale", "power", "lexicon", "network", "blend", "threshold", "version",
        "profiles",
    )})  # fmt: skip
    everything, texts = np.ones(len(data.texts), bool), np.arange(len(data.texts))
    signals = fit.fit_many(data, [everything], [texts], 0, 1, silent)[0]
    assert set(signals.owner.tolist()) == set(range(180, 192))
    expected = calibrate.probabilities(model.blend, signals)
    engine = Engine(again, language.load())
    found = [engine.predict(row.text).prediction.spam_score for row in data.texts]
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_a_fit_separates_and_repeats_itself(data: Corpus) -> None:
    english = data.sources != "ru"
    one, other = (fit.fit(data, english, 7) for _ in range(2))
    np.testing.assert_array_equal(one.weights, other.weights)
    np.testing.assert_array_equal(one.network.weights, other.network.weights)
    signals = one.signals(data.features.rows(np.flatnonzero(english)))
    labels = data.labels[english]
    assert signals.grams[labels].min() > signals.grams[~labels].max()
    assert signals.meaning[labels].mean() > signals.meaning[~labels].mean()


def test_one_class_alone_is_refused(data: Corpus) -> None:
    with pytest.raises(DataError, match="one class only"):
        fit.fit(data, data.labels, 0)


def test_large_sources_do_not_decide_alone(data: Corpus) -> None:
    weights = fit.text_weights(data, np.arange(data.owner.size))
    first = weights[: len(data.texts)]
    totals = {name: first[data.sources == name].sum() for name in ("s0", "ru")}
    assert totals["ru"] / totals["s0"] == pytest.approx(1.5**0.7)
    copies = weights[len(data.texts) :]
    np.testing.assert_allclose(copies, 0.5 * first[data.owner[len(data.texts) :]])


def test_the_language_of_a_text_is_stated_detected_or_that_of_its_source() -> None:
    said = [
        SpamRow("ok 123", False, "mixed", 0),
        SpamRow("Wir sehen uns morgen am Bahnhof in der Stadt", False, "mixed", 1),
        SpamRow("see you at the station in the city tomorrow", True, "mixed", 2, "fr"),
        SpamRow("ok 12", True, "nothing", 3),
    ]
    found = corpus(said, 0).languages.tolist()
    assert isinstance(language.load().detect(said[0].text), Language)
    assert found[1:] == ["de", "fr", "und"]
    assert found[0] in {"de", "fr"}


def test_figures_of_merit() -> None:
    labels = np.array([False] * 100 + [True] * 4)
    chances = np.array([*np.arange(100) / 200, 0.25, 0.49, 0.4925, 0.9])
    found = scores(labels, chances, 0.5)
    assert (found.recall, found.fpr, found.texts) == (0.25, 0.0, 104)
    assert found.recall_at_1 == 0.5
    assert found.f1 == pytest.approx(0.4)
    wins = (chances[labels][:, None] > chances[~labels]).mean()
    ties = (chances[labels][:, None] == chances[~labels]).mean()
    assert found.auc == pytest.approx(wins + ties / 2)
    assert ece(np.array([True, False]), np.array([0.9, 0.1])) == pytest.approx(0.1)
    assert np.isnan(scores(labels[:5], chances[:5]).auc)


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
