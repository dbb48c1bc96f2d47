"""Other people's classifiers, fitted in the same run on the same parts of the data.

They need packages that neither the engine nor its training needs; what is not installed is
left out of the report.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spamdetect.training import metrics
from spamdetect.training.dataset import SpamRow

Floats = NDArray[np.float64]
Predict = Callable[[Sequence[str]], Floats]
Baseline = Callable[[Sequence[SpamRow], int], Predict]
CALIBRATION_FOLD: Final = 4


def available(texts: Sequence[str]) -> dict[str, Baseline]:
    """The baselines whose packages are installed.

    Args:
        texts: all that they will be fitted to, so that n-grams are counted only once.
    """
    found: dict[str, Baseline] = {}
    if importlib.util.find_spec("sklearn"):
        grams = Grams(texts)
        found["word counts + naive Bayes"] = naive_bayes
        found["TF-IDF char+word, logistic"] = functools.partial(tfidf_logistic, grams)
        found["TF-IDF char+word, SVC calibrated"] = functools.partial(tfidf_svc, grams)
    # A package of the same name, for prediction only, comes with other tools.
    if importlib.util.find_spec("fasttext") and hasattr(
        importlib.import_module("fasttext"), "train_supervised"
    ):
        found["fastText"] = fasttext_model
    return found


def naive_bayes(rows: Sequence[SpamRow], seed: int) -> Predict:
    """Multinomial naive Bayes on word counts."""
    text, bayes = _sklearn("feature_extraction.text"), _sklearn("naive_bayes")
    counter = text.CountVectorizer()
    model = bayes.MultinomialNB()
    model.fit(counter.fit_transform([row.text for row in rows]), _labels(rows))
    return lambda texts: np.asarray(model.predict_proba(counter.transform(texts))[:, 1])


class Grams:
    """Counts of character 2-5-grams and word 1-2-grams, and TF-IDF for parts of the texts.

    The counting takes most of the time of a fit, and is the same for every part. Which n-grams
    are used and how they are weighted is decided anew for each part.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(dict.fromkeys(texts))
        self._rows = {text: row for row, text in enumerate(self._texts)}
        self._seen: tuple[tuple[str, ...], list[Any]] = ((), [])

    @functools.cached_property
    def _vectorizers(self) -> list[Any]:
        text = _sklearn("feature_extraction.text")
        return [
            text.CountVectorizer(analyzer="char_wb", ngram_range=(2, 5), dtype=np.int32),
            text.CountVectorizer(ngram_range=(1, 2), dtype=np.int32),
        ]

    @functools.cached_property
    def _counts(self) -> list[Any]:
        return [vectorizer.fit_transform(self._texts) for vectorizer in self._vectorizers]

    def counts(self, texts: Sequence[str]) -> list[Any]:
        """The counts of some texts, a matrix for each kind of n-gram."""
        known = self._counts
        rows = [self._rows.get(text, -1) for text in texts]
        if min(rows, default=0) >= 0:
            return [matrix[rows] for matrix in known]
        if self._seen[0] != tuple(texts):
            self._seen = tuple(texts), [v.transform(texts) for v in self._vectorizers]
        return self._seen[1]

    def tfidf(self, texts: Sequence[str]) -> Callable[[Sequence[str]], Any]:
        """A function from texts to their TF-IDF, with what it needs taken from these texts."""
        text, sparse = _sklearn("feature_extraction.text"), importlib.import_module("scipy.sparse")
        parts = []
        for matrix, least, most in zip(self.counts(texts), (3, 2), (300_000, 200_000), strict=True):
            frequent = np.bincount(matrix.indices, minlength=matrix.shape[1]) >= least
            total = np.where(frequent, np.asarray(matrix.sum(axis=0)).ravel(), 0)
            chosen = np.argsort(-total, kind="stable")[: min(most, int(frequent.sum()))]
            weigher = text.TfidfTransformer(sublinear_tf=True).fit(matrix[:, chosen])
            parts.append((chosen, weigher))

        def transform(texts: Sequence[str]) -> Any:
            return sparse.hstack(
                [
                    weigher.transform(matrix[:, chosen].astype(np.float32))
                    for matrix, (chosen, weigher) in zip(self.counts(texts), parts, strict=True)
                ],
                format="csr",
            )

        return transform


def tfidf_logistic(grams: Grams, rows: Sequence[SpamRow], seed: int) -> Predict:
    """Logistic regression on TF-IDF of character 2-5-grams and word 1-2-grams."""
    texts = [row.text for row in rows]
    features = grams.tfidf(texts)
    model = _sklearn("linear_model").LogisticRegression(C=10, solver="liblinear", random_state=seed)
    model.fit(features(texts), _labels(rows))
    return lambda texts: np.asarray(model.predict_proba(features(texts))[:, 1])


def tfidf_svc(grams: Grams, rows: Sequence[SpamRow], seed: int) -> Predict:
    """A linear SVC on the same features, calibrated on a held-out fold (Platt)."""
    training = [row.text for row in rows]
    features = grams.tfidf(training)
    matrix = features(training)
    labels = _labels(rows)
    held = np.array([row.fold == CALIBRATION_FOLD for row in rows])
    if not held.any() or held.all():
        held = np.arange(len(rows)) % 5 == 0
    svc = _sklearn("svm").LinearSVC
    first = svc(C=1.0, random_state=seed).fit(matrix[~held], labels[~held])
    slope, offset = metrics.platt(labels[held], first.decision_function(matrix[held]))
    model = svc(C=1.0, random_state=seed).fit(matrix, labels)

    def predict(texts: Sequence[str]) -> Floats:
        scores = model.decision_function(features(texts))
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(slope * scores + offset, -60, 60))))

    return predict


def fasttext_model(rows: Sequence[SpamRow], seed: int) -> Predict:
    """fastText with word pairs and character 2-5-grams."""
    fasttext = importlib.import_module("fasttext")
    with tempfile.TemporaryDirectory() as folder, _silence():
        file = Path(folder) / "train.txt"
        with file.open("w", encoding="utf-8", errors="replace") as out:
            for row in rows:
                label = "spam" if row.is_spam else "ham"
                out.write(f"__label__{label} {' '.join(row.text.lower().split())}\n")
        model = fasttext.train_supervised(
            str(file), epoch=15, lr=0.5, wordNgrams=2, minn=2, maxn=5, dim=16, bucket=200_000,
            thread=1, seed=seed, verbose=0,
        )  # fmt: skip

    def predict(texts: Sequence[str]) -> Floats:
        out = []
        for text in texts:
            line = " ".join(text.lower().encode("utf-8", "replace").decode().split())
            found = {name: chance for chance, name in model.f.predict(line, 2, 0.0, "strict")}
            out.append(found.get("__label__spam", 0.0))
        return np.asarray(np.clip(np.array(out), 0.0, 1.0))

    return predict


@contextlib.contextmanager
def _silence() -> Any:
    """Drop what native code writes to the error stream."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _labels(rows: Sequence[SpamRow]) -> NDArray[np.bool_]:
    return np.array([row.is_spam for row in rows])


def _sklearn(name: str) -> Any:
    return importlib.import_module(f"sklearn.{name}")
