"""Training the spam classifier: from labelled texts to a model file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine import classifier
from spamdetect.engine.classifier import SpamModel
from spamdetect.engine.container import pack
from spamdetect.engine.features import table_size
from spamdetect.engine.structure import bucket_groups
from spamdetect.training import linear, metrics
from spamdetect.training.augment import Plan, copies, fragments, phrases
from spamdetect.training.dataset import FOLDS, DataError, SpamRow, read_spam
from spamdetect.training.linear import Fitted, Settings
from spamdetect.training.matrix import Matrix, Progress, build, join, silent
from spamdetect.training.profiles import measured_profiles

VERSION: Final = "1.2.0"
DEFAULTS: Final = Settings()
DEFAULT_PLAN: Final = Plan()
TEMPER: Final = 0.7
CLIP: Final = 0.9995
KEPT_SPAM: Final = 2
KEPT_HAM: Final = 1
THRESHOLD: Final = 0.5

Floats = NDArray[np.float64]


@attrs.frozen
class Corpus:
    """Texts with their features and those of their copies.

    Attributes:
        rows: the texts.
        matrix: the features of the texts, then of the copies, of the fragments, of the phrases.
        owner: for each row of the matrix, the number of the text it is of.
        labels: which texts are spam.
        ends: where the copies, the fragments and the phrases end.
        plan: what was added.
        seed: of what was drawn, and of the fits.
    """

    rows: Sequence[SpamRow]
    matrix: Matrix
    owner: NDArray[np.intp]
    labels: NDArray[np.bool_]
    ends: tuple[int, ...]
    plan: Plan
    seed: int

    @property
    def folds(self) -> NDArray[np.intp]:
        """The fold of each text."""
        return np.array([row.fold for row in self.rows])

    @property
    def sources(self) -> NDArray[np.str_]:
        """The source of each text."""
        return np.array([row.source for row in self.rows])


def corpus(
    rows: Sequence[SpamRow],
    seed: int,
    settings: Settings = DEFAULTS,
    plan: Plan = DEFAULT_PLAN,
    progress: Progress = silent,
) -> Corpus:
    """Compute the features of texts and of their copies."""
    parts = [build([row.text for row in rows], settings.bits, progress)]
    owners = list(range(len(rows)))
    ends = []
    for make in (copies, fragments, phrases):
        texts, of = make(rows, plan, seed)
        if texts:
            parts.append(build(texts, settings.bits, progress))
            owners += of
        ends.append(len(owners))
    labels = np.array([row.is_spam for row in rows])
    return Corpus(rows, join(parts), np.array(owners, np.intp), labels, tuple(ends), plan, seed)


def fit_on(
    data: Corpus,
    chosen: NDArray[np.bool_],
    settings: Settings = DEFAULTS,
    progress: Progress = silent,
) -> Fitted:
    """Fit to some of the texts and their copies.

    A source with ``n`` texts weighs ``n ** 0.7``, so that a large one does not decide alone.

    Two fits are averaged: one to the texts and their copies, with n-grams scaled by their log-count
    ratios, and one also to the fragments, with n-grams scaled by their rarity. The second knows
    plain short spam and errs elsewhere than the first; their mean is better than either, and costs
    nothing more at run time.

    Args:
        data: all texts.
        chosen: which of them to fit to.
        settings: of the fit.
        progress: told how far it is.

    Raises:
        DataError: the chosen texts are of one class.
    """
    if data.labels[chosen].all() or not data.labels[chosen].any():
        raise DataError(
            "a part of the data to be fitted holds one class only: add texts of both labels, so "
            "that each of the five folds has some (a few hundred of each at least)"
        )
    use = np.flatnonzero(chosen[data.owner])
    sources = data.sources
    counts = Counter(sources[chosen].tolist())
    worth = {source: count ** (TEMPER - 1.0) for source, count in counts.items()}
    by_text = np.array([worth.get(source, 0.0) for source in sources.tolist()])
    whole = use[use < data.ends[0]]
    weights = by_text[data.owner[whole]]
    weights[whole >= len(data.rows)] *= data.plan.weight
    matrix = data.matrix.select(whole)
    labels = data.labels[data.owner[whole]]
    share = data.plan.fragmented if data.plan.fragments or data.plan.phrases else 0.0
    if not share:
        return linear.fit(matrix, labels, weights, settings, data.seed, progress)
    matrices, rows, shares = [matrix], [whole], [weights]
    parts = np.split(use, np.searchsorted(use, data.ends))[1:-1]
    for offered, weight in zip(
        parts, (data.plan.fragment_weight, data.plan.phrase_weight), strict=True
    ):
        if offered.size:
            told = telling(data, matrix, whole, weights, offered, settings)
            matrices.append(data.matrix.select(told))
            rows.append(told)
            shares.append(by_text[data.owner[told]] * weight)
    told_labels = data.labels[data.owner[np.concatenate(rows)]]
    joined, share_of = join(matrices), np.concatenate(shares)
    short = linear.fit(joined, told_labels, share_of, settings, data.seed, progress, by_rarity=True)
    if share == 1.0:
        return short
    plain = linear.fit(matrix, labels, weights, settings, data.seed, progress)
    return linear.between(plain, short, share)


def telling(
    data: Corpus,
    matrix: Matrix,
    rows: NDArray[np.intp],
    weights: Floats,
    offered: NDArray[np.intp],
    settings: Settings,
) -> NDArray[np.intp]:
    """The fragments to learn from: of spam the two that tell most, of ham the first.

    Not every sentence of an advertisement advertises. What tells is judged by the log-count
    ratios of the texts to be fitted to, so that nothing is known of held-out ones.

    Args:
        data: all texts.
        matrix: the features of the texts and copies to be fitted to.
        rows: their rows in ``data``.
        weights: how much each of them counts.
        offered: the rows of the fragments.
        settings: of the fit.
    """
    size = table_size(settings.bits)
    labels = data.labels[data.owner[rows]]
    ratio = linear.log_ratio(matrix, labels, weights / weights.mean(), size, 1.0)
    fragment = data.matrix.select(offered)
    scores = linear.row_sums(ratio[fragment.columns], fragment.starts)
    scores *= linear.row_scale(fragment, settings.power)
    owner = data.owner[offered]
    spam = data.labels[owner]
    order = np.lexsort((np.where(spam, -scores, 0.0), owner))
    first = np.flatnonzero(np.append(True, np.diff(owner[order]) != 0))
    place = np.arange(order.size) - np.repeat(first, np.diff(np.append(first, order.size)))
    return np.sort(offered[order[place < np.where(spam[order], KEPT_SPAM, KEPT_HAM)]])


def scores_of(data: Corpus, fitted: Fitted, chosen: NDArray[np.bool_]) -> Floats:
    """The raw scores of some of the texts themselves."""
    return fitted.scores(data.matrix.select(np.flatnonzero(chosen)))


def fits_by_fold(
    data: Corpus,
    settings: Settings = DEFAULTS,
    progress: Progress = silent,
    most: int = FOLDS,
) -> dict[int, Fitted]:
    """For each of the first folds, a fit that has not seen it.

    Raises:
        DataError: there are not two folds, which calibration needs.
    """
    folds = data.folds
    present = sorted(set(folds.tolist()))[:most]
    if len(present) < 2:
        raise DataError(
            "the texts lie in one fold and calibration needs two: number the folds 0 to 4, or "
            "leave fold out of the rows"
        )
    found = {}
    for number, fold in enumerate(present):
        progress("cross-validating", number / len(present))
        found[fold] = fit_on(data, folds != fold, settings)
    progress("cross-validating", 1.0)
    return found


def out_of_fold(data: Corpus, fits: Mapping[int, Fitted]) -> Floats:
    """A raw score for each text from the fit that has not seen its fold; NaN without one."""
    folds = data.folds
    found = np.full(len(data.rows), np.nan)
    for fold, fitted in fits.items():
        inside = folds == fold
        found[inside] = scores_of(data, fitted, inside)
    return found


def train(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    seed: int = 0,
    progress: Progress = silent,
) -> SpamModel:
    """Train the classifier on labelled texts and write its model file.

    The same data, seed and version give the same file, byte for byte, on the same kind of
    machine.

    Args:
        paths: JSONL or CSV files, or folders with such; see `read_spam`.
        out: the file to write.
        seed: of everything that is drawn.
        progress: told the stage and the share of it that is done.

    Raises:
        DataError: the data cannot be used; the text says which file and line.

    Example:
        >>> train(["data/spam"], "spam.model", seed=0)  # doctest: +SKIP
    """
    data = corpus(read_spam(paths), seed, progress=progress)
    held_out = out_of_fold(data, fits_by_fold(data, progress=progress))
    model = finish(data, held_out, fit_on(data, np.ones(len(data.rows), bool), progress=progress))
    Path(out).write_bytes(pack(*classifier.dump(model)))
    return model


def finish(data: Corpus, held_out: Floats, fitted: Fitted) -> SpamModel:
    """Calibrate, choose the threshold, and round the weights to eight bits."""
    slope, offset = metrics.platt(data.labels, held_out)
    chances = 1.0 / (1.0 + np.exp(-(slope * held_out + offset)))
    used = np.abs(fitted.weights[fitted.weights != 0])
    scale = float(np.quantile(used, CLIP)) / 127.0 if used.size else 1.0
    weights = np.clip(np.rint(fitted.weights / scale), -127, 127).astype(np.int8)
    structure, shift = centred(data, fitted.structure)
    return SpamModel(
        bits=table_bits(weights.size),
        weights=weights,
        scale=scale,
        structure=structure.astype(np.float32),
        bias=fitted.bias + shift,
        slope=slope,
        offset=offset,
        power=fitted.power,
        threshold=THRESHOLD,
        version=VERSION,
        profiles=measured_profiles(data.labels, chances, THRESHOLD),
    )


def centred(data: Corpus, weights: Floats) -> tuple[Floats, float]:
    """The structural weights less what the usual text has, and that sum for the bias.

    Each text is in exactly one bucket of each group, so that scores stay the same, while the
    weight of a bucket says how far it is from the ordinary; explanations need that.
    """
    last = int(data.matrix.structure_starts[len(data.rows)])
    used = np.bincount(data.matrix.structure[:last], minlength=weights.size)
    moved, shift = weights.copy(), 0.0
    for part in bucket_groups():
        usual = float((weights[part] * used[part]).sum() / max(1, used[part].sum()))
        moved[part] -= usual
        shift += usual
    return moved, shift


def table_bits(size: int) -> int:
    """The ``bits`` of a table of this size."""
    return next(bits for bits in range(1, 31) if table_size(bits) == size)


__all__ = [
    "FOLDS", "Corpus", "corpus", "finish", "fit_on", "fits_by_fold", "out_of_fold", "scores_of",
    "train",
]  # fmt: skip
