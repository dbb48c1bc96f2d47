"""From data to a model file: reproducible, usable, honest about bad data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spamdetect.engine import Engine, classifier, language
from spamdetect.training import evaluate, language_fit, train, train_language
from spamdetect.training.blending import Mixture
from spamdetect.training.dataset import DataError, read_language, read_spam
from spamdetect.training.evaluate import cross_check
from spamdetect.training.fits import Fits
from spamdetect.training.judge import fit_judge
from spamdetect.training.made import made_rows
from spamdetect.training.spam_fit import corpus
from spamdetect.training.trainer import finish


@pytest.mark.long
@pytest.mark.timeout(400)
def test_train_is_reproducible_and_the_engine_reads_it(small_spam: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    first, second, other = (tmp_path / name for name in ("a.model", "b.model", "c.model"))
    train([small_spam], first, seed=3, progress=lambda stage, share: seen.append((stage, share)))
    train([small_spam], second, seed=3, fits=Fits(tmp_path / "fits", jobs=2))
    train([small_spam], other, seed=4)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()
    assert {stage for stage, _ in seen} == {"reading texts", "cross-validating", "fitting"}
    assert all(0.0 <= share <= 1.0 for _, share in seen)
    engine = Engine.load(first)
    assert engine.predict("urgent winner claim your casino bonus cash prize").prediction.is_spam
    assert not engine.predict("lunch tomorrow after the walk, thanks").prediction.is_spam
    found = evaluate([small_spam], engine)
    assert found.f1 > 0.95
    assert found.texts == 400


def test_cross_check_holds_out(small_spam: Path) -> None:
    found = cross_check(read_spam([small_spam]))
    assert found.in_domain.auc > 0.95
    assert set(found.by_source) == {"s0", "s1", "s2"}
    assert sum(scores.texts for scores in found.by_fold.values()) == found.in_domain.texts == 400
    assert found.attacks
    assert all(0.0 <= share <= 1.0 for share in (*found.mirror.values(), *found.copies.values()))


def test_data_in_one_fold_cannot_be_calibrated(tmp_path: Path) -> None:
    path = tmp_path / "spam.jsonl"
    rows = [
        {"text": f"text {n}", "label": "spam" if n % 2 else "ham", "fold": 1} for n in range(20)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(DataError, match="one fold"):
        train([path], tmp_path / "out.model")
    assert not (tmp_path / "out.model").exists()


def test_language_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_fit, "MIN_TEXTS", 20)
    monkeypatch.setattr(language_fit, "MIN_TEXTS_ALONE", 20)
    said = {
        "en": "the house where we live is on the other side of the street",
        "de": "das haus in dem wir wohnen steht auf der anderen seite der strasse",
        "el": "το σπίτι που μένουμε είναι στην άλλη πλευρά του δρόμου",
    }
    path = tmp_path / "lang_train.jsonl"
    rows = [
        {"text": " ".join(text.split()[n % 5 : n % 5 + 6]), "lang": name, "kind": "sentence"}
        for name, text in said.items()
        for n in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    out = tmp_path / "language.model"
    train_language([tmp_path], out, seed=1)
    again = tmp_path / "again.model"
    train_language([tmp_path], again, seed=1)
    assert out.read_bytes() == again.read_bytes()
    model = language.load(out)
    for name, text in said.items():
        assert model.detect(text).language == name


def test_shipped_detector_on_the_development_texts(data_dir: Path) -> None:
    from spamdetect.training import language_report

    found = language_report.score(
        read_language([data_dir / "lang"], "dev"), language_report.ours(language.load())
    )
    assert found.average >= 0.90
    assert found.chat >= 0.96
    assert found.reliable >= 0.975
    assert found.coverage >= 0.87


def test_shipped_classifier_has_learnt_its_data(data_dir: Path) -> None:
    rows = read_spam([data_dir / "spam"])[::10]
    engine = Engine.load()
    right = [engine.predict(row.text).prediction.is_spam == row.is_spam for row in rows]
    assert sum(right) / len(right) > 0.97


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_shipped_classifier_is_what_training_gives(data_dir: Path) -> None:
    """The n-grams and hidden units exactly, the direct weights of traits but for the correction.

    Blend and correction are not fitted again, which would take twenty-four more fits. The
    correction moves the two direct weights of each trait by the same proportion, so that one sum
    of both stays as it was.
    """
    rows = [*read_spam([data_dir / "spam"]), *made_rows(0)]
    data = corpus(rows, 0)
    shipped = classifier.load()
    judge = fit_judge(data, np.ones(len(rows), bool))
    width = data.matrix.width
    plain = Mixture(shipped.blend, np.zeros(width))
    model = finish(data, plain, judge, data.labels.astype(float))
    np.testing.assert_array_equal(model.weights, shipped.weights)
    assert (model.scale, model.version) == (shipped.scale, shipped.version)
    ours, theirs = model.network, shipped.network
    np.testing.assert_array_equal(ours.output, theirs.output)
    for name in ("weights", "scale", "bias"):
        hidden = [getattr(network, name)[..., :-2] for network in (ours, theirs)]
        np.testing.assert_array_equal(*hidden)
    to_grams, to_meaning = Mixture(shipped.blend, np.ones(width)).shares()
    sums = [
        to_meaning * network.weights[:, -1] * network.scale[-1]
        - to_grams * network.weights[:, -2] * network.scale[-2]
        for network in (ours, theirs)
    ]
    half = 0.5 * (ours.scale[-2:] + theirs.scale[-2:])  # what rounding may change
    limit = abs(to_meaning[0]) * half[1] + abs(to_grams[0]) * half[0]
    np.testing.assert_allclose(*sums, rtol=0, atol=limit * 1.001)
    assert np.ptp(sums[0]) > 20 * limit
