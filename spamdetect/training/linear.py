"""A regularised linear classifier over a sparse binary matrix, by dual coordinate descent.

The loss is the squared hinge; each n-gram is scaled by its log-count ratio or by its rarity, and
the weights are drawn towards a small multiple of that ratio instead of towards zero (Wang and
Manning 2012, Hsieh and others 2008). It needs only numpy.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.features import table_size
from spamdetect.training import portable
from spamdetect.training.matrix import Matrix, Progress, silent

Floats = NDArray[np.float64]
FULL_EVERY = 4
CLIP = 0.9995


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
        rarity: in a fit by rarity, an n-gram is scaled by its inverse document frequency times
            this instead of by its ratio; 0 keeps the ratio there too.
        rarity_l2: the penalty in such a fit.
        smoothing: added to the counts before the ratio is taken.
        prior: what the weights are drawn towards, as a multiple of the ratio.
        prior_smoothing: added to the counts for that ratio, so that it is small for rare n-grams.
        min_count: n-grams in fewer texts than this are left out.
        epochs: the number of passes over the rows.
        notices: how much a made notice counts; a text that was really sent counts 1.
    """

    bits: int = 21
    power: float = 0.5
    l2: float = 6e-6
    structure_value: float = 0.1
    word_value: float = 2.0
    ratio_power: float = 1.0
    rarity: float = 1 / 3
    rarity_l2: float = 1.7e-5
    smoothing: float = 0.1
    prior: float = 0.03
    prior_smoothing: float = 1.0
    min_count: int = 2
    epochs: int = 10
    notices: float = 0.35


@attrs.frozen
class Fitted:
    """Weights for buckets and for traits, and the bias.

    Attributes:
        weights: one for each bucket.
        structure: one for each trait.
        bias: the constant term.
        power: a row of ``n`` n-grams is divided by ``n ** power``.
        scale: once rounded, the weights are multiples of it by integers of at most 127.
    """

    weights: Floats
    structure: Floats
    bias: float
    power: float
    scale: float = 0.0

    def scores(self, matrix: Matrix) -> Floats:
        """The score of each row."""
        total = row_sums(self.weights[matrix.columns], matrix.starts)
        total *= row_scale(matrix, self.power)
        return (
            total + row_sums(self.structure[matrix.structure], matrix.structure_starts) + self.bias
        )


def rounded(fitted: Fitted) -> Fitted:
    """A fit as a model file stores it: eight-bit n-gram weights, the smallest rounded to zero."""
    used = np.abs(fitted.weights[fitted.weights != 0])
    scale = float(np.quantile(used, CLIP)) / 127.0 if used.size else 1.0
    weights = np.clip(np.rint(fitted.weights / scale), -127, 127) * scale
    return attrs.evolve(fitted, weights=weights, scale=scale)


def between(one: Fitted, other: Fitted, share: float) -> Fitted:
    """The weighted mean of two fits, whose scores are that mean of their scores.

    Args:
        one: the fit with the rest of the mean.
        other: the fit with ``share`` of the mean.
        share: from 0 to 1.
    """

    def mean(mine: Floats, others: Floats) -> Floats:
        return (1.0 - share) * mine + share * others

    bias = (1.0 - share) * one.bias + share * other.bias
    return Fitted(
        mean(one.weights, other.weights), mean(one.structure, other.structure), bias, one.power
    )


def row_sums(values: Floats, starts: NDArray[np.int64]) -> Floats:
    """The sum of each row's values; zero for an empty row."""
    sums = np.add.reduceat(np.append(values, 0.0), starts[:-1])
    return np.where(starts[1:] > starts[:-1], sums, 0.0)


def row_scale(matrix: Matrix, power: float) -> Floats:
    """The factor of each row's n-grams."""
    return portable.power(np.maximum(np.diff(matrix.starts), 1.0), -power)


def log_ratio(matrix: Matrix, labels: NDArray[np.bool_], weights: Floats, size: int,
              smoothing: float) -> Floats:  # fmt: skip
    """The logarithm of how much more frequent each column is in spam than in ham.

    Args:
        matrix: the features.
        labels: which rows are spam.
        weights: how much each row counts.
        size: how many columns there are.
        smoothing: added to the weight of either class.
    """
    lengths = np.diff(matrix.starts)
    counts = [
        np.bincount(matrix.columns, np.repeat(weights * mask, lengths), minlength=size)
        for mask in (labels, ~labels)
    ]
    spam, ham = (count + smoothing for count in counts)
    rest = portable.log(ham.sum() / spam.sum())  # the ratio of columns that occur nowhere
    found = np.full(size, rest)
    used = np.flatnonzero((counts[0] > 0.0) | (counts[1] > 0.0))
    found[used] += portable.log(spam[used] / ham[used])
    return found


def fit(
    matrix: Matrix,
    labels: NDArray[np.bool_],
    weights: Floats,
    settings: Settings,
    seed: int = 0,
    progress: Progress = silent,
    *,
    by_rarity: bool = False,
) -> Fitted:
    """Fit the classifier.

    Args:
        matrix: the features; no row has a column twice.
        labels: which rows are spam.
        weights: how much each row counts; only their ratios matter.
        settings: see `Settings`.
        seed: seeds the order in which rows are visited.
        progress: receives the progress.
        by_rarity: scale n-grams by how rare they are rather than by their ratio.
    """
    size, words = table_size(settings.bits), 1 << settings.bits
    counts = weights / weights.sum() * matrix.rows
    found = np.bincount(matrix.columns, minlength=size)
    active = found >= settings.min_count
    l2 = settings.l2
    if by_rarity and settings.rarity:
        by_count = portable.log((1.0 + matrix.rows) / (1.0 + np.arange(found.max() + 1))) + 1.0
        rarity = by_count[found]
        scale = np.where(active, settings.rarity * rarity, 0.0)
        l2 = settings.rarity_l2
    else:
        ratio = log_ratio(matrix, labels, counts, size, settings.smoothing)
        scale = np.where(active, portable.power(np.abs(ratio), settings.ratio_power), 0.0)
    scale[words:] *= settings.word_value
    start = np.where(active, log_ratio(matrix, labels, counts, size, settings.prior_smoothing), 0.0)
    start[words:] *= settings.word_value
    descent = _Descent(matrix, labels, counts / matrix.rows / l2, settings, scale)
    descent.weights[:] = settings.prior * start
    descent.run(settings.epochs, seed, progress)
    return Fitted(
        descent.weights.astype(np.float64), descent.structure, descent.bias, settings.power
    )


class _Descent:
    """Dual coordinate descent: finds the best multiplier of one row at a time.

    The primal weights are kept in the scale of the raw features, so that a score is a plain sum.
    """

    def __init__(
        self,
        matrix: Matrix,
        labels: NDArray[np.bool_],
        costs: Floats,
        settings: Settings,
        scale: Floats,
    ) -> None:
        self.weights = np.zeros(scale.size, np.float32)
        self.structure = np.zeros(matrix.width)
        self.bias = 0.0
        self._squares = (scale**2).astype(np.float32)
        self._value = settings.structure_value**2
        self._rows = np.split(matrix.columns, matrix.starts[1:-1])
        self._structures = np.split(matrix.structure, matrix.structure_starts[1:-1])
        self._scales = row_scale(matrix, settings.power)
        self._signs = np.where(labels, 1.0, -1.0)
        self._softness = 0.5 / costs
        norms = row_sums(self._squares[matrix.columns].astype(np.float64), matrix.starts)
        self._norms = (
            norms * self._scales**2
            + np.diff(matrix.structure_starts) * self._value
            + 1.0
            + self._softness
        )
        self._multipliers = np.zeros(matrix.rows)

    def run(self, epochs: int, seed: int, progress: Progress) -> None:
        """Run the epochs; every fourth one, and the first three, visit rows without influence."""
        random = np.random.Generator(np.random.PCG64(seed))
        for epoch in range(epochs):
            progress("fitting", epoch / epochs)
            full = epoch < 3 or epoch % FULL_EVERY == 0
            rows = np.arange(self._signs.size) if full else np.flatnonzero(self._multipliers)
            for row in random.permutation(rows).tolist():
                self._visit(row)
        progress("fitting", 1.0)

    def _visit(self, row: int) -> None:
        columns, structure = self._rows[row], self._structures[row]
        held = self.weights.take(columns)
        scale, sign = self._scales[row], self._signs[row]
        score = float(np.add.reduce(held)) * scale + self.bias
        score += float(np.add.reduce(self.structure.take(structure)))
        before = self._multipliers[row]
        slope = sign * score - 1.0 + before * self._softness[row]
        after = max(before - slope / self._norms[row], 0.0)
        if after == before:
            return
        self._multipliers[row] = after
        step = float((after - before) * sign)
        held += self._squares.take(columns) * np.float32(step * scale)
        self.weights[columns] = held
        self.structure[structure] += step * self._value
        self.bias += step


__all__ = ["Fitted", "Settings", "fit", "log_ratio", "row_scale", "row_sums"]
