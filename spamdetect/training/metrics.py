"""Figures of merit for binary scores and for calibrated probabilities."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


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
    """All figures at once."""
    said = probabilities >= threshold
    hits = int((said & labels).sum())
    wrong = int((said & ~labels).sum())
    spam, ham = int(labels.sum()), int((~labels).sum())
    return Scores(
        f1=2 * hits / max(1, hits + wrong + spam),
        auc=auc(labels, probabilities),
        recall_at_1=recall_at_fpr(labels, probabilities, 0.01),
        recall=hits / max(1, spam),
        fpr=wrong / max(1, ham),
        ece=ece(labels, probabilities),
        texts=int(labels.size),
    )


def auc(labels: Flags, values: Floats) -> float:
    """The chance that a spam text scores above a ham text; ties count half."""
    spam, ham = int(labels.sum()), int((~labels).sum())
    if not spam or not ham:
        return float("nan")
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    return float((ranks[inverse][labels].sum() - spam * (spam + 1) / 2.0) / (spam * ham))


def recall_at_fpr(labels: Flags, values: Floats, fpr: float) -> float:
    """The recall of spam above the value that a share of ``fpr`` of ham exceeds."""
    ham = np.sort(values[~labels])
    if not ham.size or not labels.any():
        return float("nan")
    limit = ham[max(0, ham.size - 1 - int(fpr * ham.size))]
    return float((values[labels] > limit).mean())


def ece(labels: Flags, probabilities: Floats, bins: int = 15) -> float:
    """Mean distance between stated probability and observed frequency, over equal-width bins."""
    place = np.minimum((probabilities * bins).astype(int), bins - 1)
    size = np.bincount(place, minlength=bins)
    stated = np.bincount(place, probabilities, minlength=bins)
    seen = np.bincount(place, labels.astype(float), minlength=bins)
    return float(np.abs(stated - seen).sum() / max(1, size.sum()))


def platt(labels: Flags, values: Floats, weights: Floats | None = None) -> tuple[float, float]:
    """Slope and offset of the sigmoid that fits scores best (Platt 1999), by Newton's method."""
    weight = np.ones(values.size) if weights is None else weights
    slope, offset = 1.0, 0.0
    spam, ham = float(labels.sum()), float((~labels).sum())
    target = np.where(labels, (spam + 1) / (spam + 2), 1 / (ham + 2))
    for _ in range(100):
        chance = 1.0 / (1.0 + np.exp(-np.clip(slope * values + offset, -60, 60)))
        error = weight * (chance - target)
        bend = weight * chance * (1 - chance) + 1e-12
        gradient = np.array([(error * values).sum(), error.sum()])
        cross = (bend * values).sum()
        hessian = np.array([[(bend * values**2).sum(), cross], [cross, bend.sum()]])
        hessian[0, 0] += 1e-9
        step = np.linalg.solve(hessian, gradient)
        slope, offset = slope - float(step[0]), offset - float(step[1])
        if np.abs(step).max() < 1e-10:
            break
    return slope, offset
