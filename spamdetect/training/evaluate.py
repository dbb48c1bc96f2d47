"""Figures of merit, and how good an engine is on labelled texts."""

from __future__ import annotations

import os
from collections.abc import Iterable

import attrs
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, roc_auc_score, roc_curve

from spamdetect.engine.core import Engine
from spamdetect.training.corpus import Progress, silent
from spamdetect.training.dataset import read_spam

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
BINS = 15


@attrs.frozen
class Scores:
    """The figures of one test, each in [0, 1].

    Attributes:
        f1: of the spam class at the threshold.
        auc: area under the ROC curve.
        recall_at_1: recall where 1 % of ham is refused.
        recall: at the threshold.
        fpr: share of ham refused at the threshold.
        ece: expected calibration error over 15 bins.
        texts: how many.
    """

    f1: float
    auc: float
    recall_at_1: float
    recall: float
    fpr: float
    ece: float
    texts: int


def scores(labels: Flags, probabilities: Floats, threshold: float = 0.5) -> Scores:
    """All figures at once; those that need both classes are NaN where there is one."""
    said = probabilities >= threshold
    found = {"auc": float("nan"), "recall_at_1": float("nan")}
    if labels.any() and not labels.all():
        found["auc"] = float(roc_auc_score(labels, probabilities))
        refused, caught, _ = roc_curve(labels, probabilities, drop_intermediate=False)
        found["recall_at_1"] = float(caught[refused <= 0.01].max())
    return Scores(
        f1=float(f1_score(labels, said)) if said.any() or labels.any() else 0.0,
        recall=float(said[labels].mean()) if labels.any() else 0.0,
        fpr=float(said[~labels].mean()) if not labels.all() else 0.0,
        ece=ece(labels, probabilities),
        texts=int(labels.size),
        **found,
    )


def ece(labels: Flags, probabilities: Floats) -> float:
    """Mean distance between stated probability and observed frequency, over equal-width bins."""
    place = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    stated = np.bincount(place, probabilities, minlength=BINS)
    seen = np.bincount(place, labels.astype(float), minlength=BINS)
    return float(np.abs(stated - seen).sum() / max(1, labels.size))


def evaluate(
    paths: Iterable[str | os.PathLike[str]],
    engine: Engine | None = None,
    progress: Progress = silent,
) -> Scores:
    """Measure an engine on labelled texts that it has not been trained on.

    Args:
        paths: JSONL or CSV files, or folders with such; see `read_spam`.
        engine: the shipped one by default.
        progress: receives the progress.

    Raises:
        DataError: the data cannot be used.
    """
    engine = engine or Engine.load()
    rows = read_spam(paths)
    chances = np.zeros(len(rows))
    for start in range(0, len(rows), 500):
        progress("classifying", start / len(rows))
        part = rows[start : start + 500]
        found = engine.predict_many([row.text for row in part])
        chances[start : start + 500] = [analysis.prediction.spam_score for analysis in found]
    progress("classifying", 1.0)
    return scores(np.array([row.is_spam for row in rows]), chances, engine.threshold)
