"""Other people's classifiers, fitted in the same run on the same parts of the data.

They need packages that neither the engine nor its training needs; those not installed are
left out of the report.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine import language
from spamdetect.training import lexicon as lexicons
from spamdetect.training.corpus import read
from spamdetect.training.dataset import SpamRow

Floats = NDArray[np.float64]
Predict = Callable[[Sequence[str]], Floats]
CALIBRATION_FOLD: Final = 4
MEGABYTE: Final = 1e6
TRAIT_VALUE: Final = 0.12


@attrs.frozen
class Trained:
    """A fitted baseline.

    Attributes:
        predict: the probability of spam of each text.
        alone: builds the same classifier as it would be deployed, without the counts that fits
            share, and gives its size as a file in MB.
    """

    predict: Predict
    alone: Callable[[], tuple[Predict, float]]


Baseline = Callable[[Sequence[SpamRow], int], Trained]


def available(texts: Sequence[str]) -> dict[str, Baseline]:
    """The baselines whose packages are installed.

    Args:
        texts: all texts that they will be fitted to, so that n-grams are counted only once.
    """
    found: dict[str, Baseline] = {}
    if importlib.util.find_spec("sklearn"):
        grams = Grams(texts)
        found["word counts + naive Bayes"] = naive_bayes
        found["TF-IDF char+word, logistic"] = functools.partial(tfidf_logistic, grams)
        found["TF-IDF char+word, SVC calibrated"] = functools.partial(tfidf_svc, grams)
        found["TF-IDF and our traits, SVC calibrated"] = functools.partial(
            tfidf_traits, grams, Traits(texts)
        )
    # Other tools bring a package of the same name that only predicts.
    if importlib.util.find_spec("fasttext") and hasattr(
        importlib.import_module("fasttext"), "train_supervised"
    ):
        found["fastText"] = fasttext_model
    return found


def naive_bayes(rows: Sequence[SpamRow], seed: int) -> Trained:
    """Multinomial naive Bayes on word counts."""
    text, bayes = _sklearn("feature_extraction.text"), _sklearn("naive_bayes")
    counter = text.CountVectorizer()
    model = bayes.MultinomialNB()
    model.fit(counter.fit_transform([row.text for row in rows]), _labels(rows))

    def predict(texts: Sequence[str]) -> Floats:
        return np.asarray(model.predict_proba(counter.transform(texts))[:, 1])

    return Trained(predict, lambda: (predict, _pickled(counter, model)))


class Grams:
    """Counts of character 2-5-grams and word 1-2-grams, and TF-IDF for parts of the texts.

    Counting takes most of the time of a fit and is the same for every part. Which n-grams are
    used and how they are weighted is decided separately for each part.
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

    def tfidf(self, texts: Sequence[str]) -> TfIdf:
        """TF-IDF fitted to these texts."""
        text = _sklearn("feature_extraction.text")
        parts = []
        for matrix, least, most in zip(self.counts(texts), (3, 2), (300_000, 200_000), strict=True):
            frequent = np.bincount(matrix.indices, minlength=matrix.shape[1]) >= least
            total = np.where(frequent, np.asarray(matrix.sum(axis=0)).ravel(), 0)
            chosen = np.argsort(-total, kind="stable")[: min(most, int(frequent.sum()))]
            weigher = text.TfidfTransformer(sublinear_tf=True).fit(matrix[:, chosen])
            parts.append((chosen, weigher))
        return TfIdf(self, parts)

    def vectorizer(self, number: int, chosen: NDArray[np.intp], idf: Floats) -> Any:
        """A vectorizer for the chosen n-grams alone, for texts not seen before."""
        names = self._vectorizers[number].get_feature_names_out()[chosen]
        settings = self._vectorizers[number].get_params() | {
            "dtype": np.float32,
            "vocabulary": {name: column for column, name in enumerate(names.tolist())},
        }
        make = _sklearn("feature_extraction.text").TfidfVectorizer
        made = make(**settings, sublinear_tf=True)
        made.idf_ = idf
        return made


class TfIdf:
    """Turns texts into TF-IDF, from the shared counts or as it would be deployed."""

    def __init__(self, grams: Grams, parts: list[tuple[NDArray[np.intp], Any]]) -> None:
        self._grams = grams
        self._parts = parts

    def __call__(self, texts: Sequence[str]) -> Any:
        """The matrix, from the shared counts."""
        return _beside(
            weigher.transform(matrix[:, chosen].astype(np.float32))
            for matrix, (chosen, weigher) in zip(
                self._grams.counts(texts), self._parts, strict=True
            )
        )

    def alone(self) -> list[Any]:
        """Vectorizers that need nothing else."""
        return [
            self._grams.vectorizer(number, chosen, weigher.idf_)
            for number, (chosen, weigher) in enumerate(self._parts)
        ]


def _beside(matrices: Iterable[Any]) -> Any:
    return importlib.import_module("scipy.sparse").hstack(list(matrices), format="csr")


class Traits:
    """The traits of our network (structure and concepts, one-hot) of texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(dict.fromkeys(texts))
        self._rows = {text: row for row, text in enumerate(self._texts)}
        self._lexicon, self._detector = lexicons.shipped(), language.load()

    @functools.cached_property
    def _known(self) -> Any:
        return self.read(self._texts)

    def read(self, texts: Sequence[str]) -> Any:
        """The matrix of texts that may be new."""
        return read(texts, self._lexicon, self._detector).traits

    def __call__(self, texts: Sequence[str]) -> Any:
        """The matrix of texts, from what is known if all of them are."""
        rows = [self._rows.get(text, -1) for text in texts]
        return self._known[rows] if min(rows, default=0) >= 0 else self.read(texts)


def tfidf_logistic(grams: Grams, rows: Sequence[SpamRow], seed: int) -> Trained:
    """Logistic regression on TF-IDF of character 2-5-grams and word 1-2-grams."""
    texts = [row.text for row in rows]
    features = grams.tfidf(texts)
    model = _sklearn("linear_model").LogisticRegression(C=10, solver="liblinear", random_state=seed)
    model.fit(features(texts), _labels(rows))
    return _trained(features, model, lambda found: model.predict_proba(found)[:, 1])


def tfidf_svc(grams: Grams, rows: Sequence[SpamRow], seed: int) -> Trained:
    """Linear SVC on the same features, calibrated by Platt's method on one of the folds."""
    texts = [row.text for row in rows]
    features = grams.tfidf(texts)
    model, answer = _calibrated(features(texts), rows, 1.0, seed)
    return _trained(features, model, answer)


def tfidf_traits(grams: Grams, traits: Traits, rows: Sequence[SpamRow], seed: int) -> Trained:
    """The same with our traits beside the n-grams, at ``TRAIT_VALUE``, and a C of a half."""
    texts = [row.text for row in rows]
    features = grams.tfidf(texts)
    matrix = _beside([features(texts), traits(texts) * TRAIT_VALUE])
    model, answer = _calibrated(matrix, rows, 0.5, seed)

    def predict(texts: Sequence[str]) -> Floats:
        return answer(_beside([features(texts), traits(texts) * TRAIT_VALUE]))

    def alone() -> tuple[Predict, float]:
        vectorizers = features.alone()

        def predict(texts: Sequence[str]) -> Floats:
            found = [v.transform(texts) for v in vectorizers]
            return answer(_beside([*found, traits.read(texts) * TRAIT_VALUE]))

        return predict, _pickled(vectorizers, model)

    return Trained(predict, alone)


def _calibrated(
    matrix: Any, rows: Sequence[SpamRow], strength: float, seed: int
) -> tuple[Any, Callable[[Any], Floats]]:
    """A linear SVC, and what turns features into probabilities by it."""
    labels = _labels(rows)
    held = np.array([row.fold == CALIBRATION_FOLD for row in rows])
    if not held.any() or held.all():
        held = np.arange(len(rows)) % 5 == 0
    svc = _sklearn("svm").LinearSVC
    first = svc(C=strength, random_state=seed).fit(matrix[~held], labels[~held])
    platt = _sklearn("linear_model").LogisticRegression(C=1e6)
    platt.fit(first.decision_function(matrix[held])[:, None], labels[held])
    slope, offset = float(platt.coef_[0, 0]), float(platt.intercept_[0])
    model = svc(C=strength, random_state=seed).fit(matrix, labels)

    def answer(found: Any) -> Floats:
        scores = model.decision_function(found)
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(slope * scores + offset, -60, 60))))

    return model, answer


def _trained(features: TfIdf, model: Any, answer: Callable[[Any], Any]) -> Trained:
    def alone() -> tuple[Predict, float]:
        vectorizers = features.alone()

        def predict(texts: Sequence[str]) -> Floats:
            return np.asarray(answer(_beside(v.transform(texts) for v in vectorizers)))

        return predict, _pickled(vectorizers, model)

    return Trained(lambda texts: np.asarray(answer(features(texts))), alone)


def fasttext_model(rows: Sequence[SpamRow], seed: int) -> Trained:
    """fastText with word pairs and character 2-5-grams."""
    fasttext = importlib.import_module("fasttext")
    with tempfile.TemporaryDirectory() as folder, _silence():
        file = Path(folder) / "train.txt"
        with file.open("w", encoding="utf-8", errors="replace") as out:
            for row in rows:
                label = "spam" if row.is_spam else "ham"
                out.write(f"__label__{label} {' '.join(row.text.lower().split())}\n")
        model = fasttext.train_supervised(
            str(file), epoch=15, lr=0.1, wordNgrams=2, minn=2, maxn=5, dim=16, bucket=200_000,
            thread=1, seed=seed, verbose=0,
        )  # fmt: skip
        saved = Path(folder) / "model.bin"
        model.save_model(str(saved))
        size = saved.stat().st_size / MEGABYTE

    def predict(texts: Sequence[str]) -> Floats:
        out = []
        for text in texts:
            # The end of the line is a token in training, so it must be one here.
            line = " ".join(text.lower().encode("utf-8", "replace").decode().split()) + "\n"
            found = {name: chance for chance, name in model.f.predict(line, 2, 0.0, "strict")}
            out.append(found.get("__label__spam", 0.0))
        return np.asarray(np.clip(np.array(out), 0.0, 1.0))

    return Trained(predict, lambda: (predict, size))


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


def _pickled(*parts: object) -> float:
    return len(pickle.dumps(parts)) / MEGABYTE


def _labels(rows: Sequence[SpamRow]) -> NDArray[np.bool_]:
    return np.array([row.is_spam for row in rows])


def _sklearn(name: str) -> Any:
    return importlib.import_module(f"sklearn.{name}")
