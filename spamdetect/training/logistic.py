"""Regularised logistic regression over a sparse binary matrix, by L-BFGS, in numpy alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.features import table_size
from spamdetect.engine.structure import STRUCTURE_SIZE
from spamdetect.training.matrix import Matrix, Progress, silent

Floats = NDArray[np.float64]
MEMORY = 10


@attrs.frozen
class Settings:
    """What a fit depends on besides the data.

    Attributes:
        bits: logarithm of the number of n-gram buckets.
        power: a row of ``n`` n-grams has entries of ``n ** -power``.
        l2: strength of the penalty on the weights.
        structure_value: the value of a structural feature that is on.
        word_value: the same for words and pairs of words, beside 1 for character n-grams.
        ratio_power: exponent of the log-count ratio that scales each n-gram; 0 for none.
        ratio_floor: added to that scale.
        smoothing: added to the counts that the ratio is taken of.
        min_count: n-grams of fewer texts than this are left out.
        iterations: of the optimiser, at most.
        hinge: squared hinge loss rather than logistic loss.
    """

    bits: int = 20
    power: float = 0.5
    l2: float = 2e-6
    structure_value: float = 0.1
    word_value: float = 2.0
    ratio_power: float = 1.0
    ratio_floor: float = 0.0
    smoothing: float = 0.1
    min_count: int = 2
    iterations: int = 60
    hinge: bool = True


@attrs.frozen
class Fitted:
    """Weights for buckets, for structural features, and the bias."""

    weights: Floats
    structure: Floats
    bias: float
    power: float

    def scores(self, matrix: Matrix) -> Floats:
        """The score of each row."""
        total = row_sums(self.weights[matrix.columns], matrix.starts)
        total *= row_scale(matrix, self.power)
        return (
            total + row_sums(self.structure[matrix.structure], matrix.structure_starts) + self.bias
        )


def row_sums(values: Floats, starts: NDArray[np.int64]) -> Floats:
    """The sum of each row's values; zero for an empty row."""
    sums = np.add.reduceat(np.append(values, 0.0), starts[:-1])
    return np.where(starts[1:] > starts[:-1], sums, 0.0)


def row_scale(matrix: Matrix, power: float) -> Floats:
    """What each row's n-grams are multiplied with."""
    return np.maximum(np.diff(matrix.starts), 1.0) ** -power


def fit(
    matrix: Matrix,
    labels: NDArray[np.bool_],
    weights: Floats,
    settings: Settings,
    progress: Progress = silent,
) -> Fitted:
    """Fit the classifier.

    Args:
        matrix: the features.
        labels: which rows are spam.
        weights: how much each row counts; only their ratios matter.
        settings: see there.
        progress: told how far it is.
    """
    size = table_size(settings.bits)
    lengths = np.diff(matrix.starts)
    present = np.bincount(matrix.columns, minlength=size)
    active = np.flatnonzero(present >= settings.min_count)
    place = np.full(size, -1, np.int32)
    place[active] = np.arange(active.size, dtype=np.int32)
    columns = place[matrix.columns]
    kept = columns >= 0
    columns = columns[kept]
    row_of = np.repeat(np.arange(matrix.rows), lengths)[kept]
    starts = np.searchsorted(row_of, np.arange(matrix.rows + 1)).astype(np.int64)
    scale = row_scale(matrix, settings.power)
    weights = weights / weights.sum()
    ratio = _ratio(columns, row_of, labels, weights * matrix.rows, active.size, settings)
    ratio[active >= 1 << settings.bits] *= settings.word_value
    sign = np.where(labels, 1.0, -1.0)
    structure_lengths = np.diff(matrix.structure_starts)
    value = settings.structure_value

    def loss(point: Floats) -> tuple[float, Floats]:
        grams, rest, bias = point[: active.size], point[active.size : -1], point[-1]
        scores = row_sums((grams * ratio)[columns], starts) * scale
        scores += row_sums(rest[matrix.structure], matrix.structure_starts) * value + bias
        margins = sign * scores
        if settings.hinge:
            short = np.maximum(0.0, 1.0 - margins)
            total = float((weights * short**2).sum())
            slope = -2.0 * weights * sign * short
        else:
            total = float((weights * np.logaddexp(0.0, -margins)).sum())
            slope = -weights * sign / (1.0 + np.exp(np.clip(margins, -500, 500)))
        total += 0.5 * settings.l2 * float((point[:-1] ** 2).sum())
        gradient = np.empty_like(point)
        gradient[: active.size] = ratio * np.bincount(
            columns, (slope * scale)[row_of], minlength=active.size
        )
        gradient[active.size : -1] = value * np.bincount(
            matrix.structure, np.repeat(slope, structure_lengths), minlength=STRUCTURE_SIZE
        )
        gradient[:-1] += settings.l2 * point[:-1]
        gradient[-1] = slope.sum()
        return total, gradient

    start = np.zeros(active.size + STRUCTURE_SIZE + 1)
    point = minimise(loss, start, settings.iterations, progress)
    dense = np.zeros(size)
    dense[active] = point[: active.size] * ratio
    return Fitted(dense, point[active.size : -1] * value, float(point[-1]), settings.power)


def _ratio(
    columns: NDArray[np.int32],
    row_of: NDArray[np.int64],
    labels: NDArray[np.bool_],
    weights: Floats,
    size: int,
    settings: Settings,
) -> Floats:
    """How far the classes differ in their use of each n-gram, as a scale (Wang, Manning 2012)."""
    if not settings.ratio_power:
        return np.ones(size)
    spam = np.bincount(columns, (weights * labels)[row_of], minlength=size) + settings.smoothing
    ham = np.bincount(columns, (weights * ~labels)[row_of], minlength=size) + settings.smoothing
    ratio = np.abs(np.log((spam / spam.sum()) / (ham / ham.sum())))
    return np.asarray(ratio**settings.ratio_power + settings.ratio_floor)


def minimise(
    loss: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    iterations: int,
    progress: Progress = silent,
    tolerance: float = 1e-5,
) -> Floats:
    """L-BFGS with a backtracking line search (Nocedal, Wright, chapter 7).

    Args:
        loss: value and gradient at a point.
        start: where to begin.
        iterations: at most this many steps.
        progress: told how far it is.
        tolerance: stop when a step gains less than this share of the value.
    """
    point, (value, gradient) = start, loss(start)
    history: deque[tuple[Floats, Floats, float]] = deque(maxlen=MEMORY)
    for iteration in range(iterations):
        progress("fitting", iteration / iterations)
        direction = -_two_loops(gradient, history)
        slope = float((direction * gradient).sum())
        if slope >= 0:
            history.clear()
            direction, slope = -gradient, -float((gradient**2).sum())
        step = 1.0 if history else min(1.0, 1.0 / max(float(np.abs(gradient).sum()), 1e-12)) * 10
        for _ in range(30):
            moved = point + step * direction
            next_value, next_gradient = loss(moved)
            if next_value <= value + 1e-4 * step * slope:
                break
            step *= 0.5
        else:
            break
        change, bend = moved - point, next_gradient - gradient
        curvature = float((change * bend).sum())
        if curvature > 1e-12:
            history.append((change, bend, 1.0 / curvature))
        gain = value - next_value
        point, value, gradient = moved, next_value, next_gradient
        if gain < tolerance * abs(value):
            break
    progress("fitting", 1.0)
    return point


def _two_loops(gradient: Floats, history: deque[tuple[Floats, Floats, float]]) -> Floats:
    direction = gradient.copy()
    factors = []
    for change, bend, inverse in reversed(history):
        factor = inverse * float((change * direction).sum())
        direction -= factor * bend
        factors.append(factor)
    if history:
        change, bend, inverse = history[-1]
        direction /= inverse * float((bend**2).sum())
    for (change, bend, inverse), factor in zip(history, reversed(factors), strict=True):
        direction += (factor - inverse * float((bend * direction).sum())) * change
    return direction
