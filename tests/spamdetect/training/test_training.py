"""From data to a model file: reproducible, usable, honest about bad data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spamdetect.engine import Engine, classifier, language
from spamdetect.training import evaluate, language_fit, train, train_language
from spamdetect.training.corpus import corpus
from spamdetect.training.dataset import DataError, read_spam
from spamdetect.training.fit import fit
from spamdetect.training.generated import made_rows


@pytest.mark.long
@pytest.mark.timeout(400)
def test_train_is_reproducible_and_the_engine_reads_it(small_spam: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    first, second, other = (tmp_path / name for name in ("a.model", "b.model", "c.model"))
    train([small_spam], first, seed=3, progress=lambda stage, share: seen.append((stage, share)))
    train([small_spam], second, seed=3, jobs=2)
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


def test_shipped_classifier_has_learnt_its_data(data_dir: Path) -> None:
    rows = read_spam([data_dir / "spam"])[::10]
    engine = Engine.load()
    right = [engine.predict(row.text).prediction.is_spam == row.is_spam for row in rows]
    assert sum(right) / len(right) > 0.97


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_shipped_classifier_is_what_training_gives(data_dir: Path) -> None:
    """The n-grams, on the versions that it was trained with; other versions may round elsewhere."""
    rows = [*read_spam([data_dir / "spam"]), *made_rows(0)]
    data = corpus(rows, 0)
    shipped = classifier.load()
    found = fit(data, np.ones(len(rows), bool), 0)
    assert (found.weights != shipped.weights).mean() < 0.001
    np.testing.assert_allclose(found.scale, shipped.scale, rtol=1e-3)
    assert found.network.weights.shape == shipped.network.weights.shape
