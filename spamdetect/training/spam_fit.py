"""Fitting the n-grams of the spam classifier: texts, their copies, their fragments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.concepts import Lexicon
from spamdetect.engine.features import table_size
from spamdetect.training import lexicon as lexicons
from spamdetect.training import linear, portable
from spamdetect.training.augment import Plan, copies, fragments, phrases
from spamdetect.training.dataset import DataError, SpamRow
from spamdetect.training.linear import Fitted, Settings
from spamdetect.training.matrix import Matrix, Progress, build, join, silent

DEFAULTS: Final = Settings()
DEFAULT_PLAN: Final = Plan()
TEMPER: Final = 0.7
NOTICES: Final = "notices"  # prefix of the names of made sources
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
        owner: for each row of the matrix, the number of the text it belongs to.
        labels: which texts are spam.
        ends: where the copies, the fragments and the phrases end.
        plan: what was added.
        seed: the seed of the additions and of the fits.
        lexicon: the lexicon of concepts.
    """

    rows: Sequence[SpamRow]
    matrix: Matrix
    owner: NDArray[np.intp]
    labels: NDArray[np.bool_]
    ends: tuple[int, ...]
    plan: Plan
    seed: int
    lexicon: Lexicon

    @property
    def folds(self) -> NDArray[np.intp]:
        """The fold of each text."""
        return np.array([row.fold for row in self.rows])

    @property
    def sources(self) -> NDArray[np.str_]:
        """The source of each text."""
        return np.array([row.source for row in self.rows])

    @property
    def made(self) -> set[str]:
        """The sources whose texts were made from templates."""
        return {row.source for row in self.rows if row.source.startswith(NOTICES)}


def corpus(
    rows: Sequence[SpamRow],
    seed: int,
    settings: Settings = DEFAULTS,
    plan: Plan = DEFAULT_PLAN,
    progress: Progress = silent,
) -> Corpus:
    """Compute the features of texts and of their copies."""
    lexicon = lexicons.shipped()
    parts = [build([row.text for row in rows], settings.bits, progress, lexicon)]
    owners = list(range(len(rows)))
    ends = []
    for make in (copies, fragments, phrases):
        texts, of = make(rows, plan, seed)
        if texts:
            parts.append(build(texts, settings.bits, progress, lexicon))
            owners += of
        ends.append(len(owners))
    labels = np.array([row.is_spam for row in rows])
    owner = np.array(owners, np.intp)
    return Corpus(rows, join(parts), owner, labels, tuple(ends), plan, seed, lexicon)


def text_weights(data: Corpus, chosen: NDArray[np.bool_], settings: Settings) -> Floats:
    """How much each text counts in a fit to the chosen ones.

    A source with ``n`` texts weighs ``n ** 0.7``, so that a large one does not decide alone.
    """
    sources = data.sources
    counts = Counter(sources[chosen].tolist())
    worth = {
        source: float(portable.power(count, TEMPER - 1.0))
        * (settings.notices if source in data.made else 1.0)
        for source, count in counts.items()
    }
    return np.array([worth.get(source, 0.0) for source in sources.tolist()])


def whole_rows(
    data: Corpus, chosen: NDArray[np.bool_], settings: Settings
) -> tuple[NDArray[np.intp], Floats]:
    """The rows of some texts and of their copies, and how much each counts."""
    rows = np.flatnonzero(chosen[data.owner[: data.ends[0]]])
    weights = text_weights(data, chosen, settings)[data.owner[rows]]
    weights[rows >= len(data.rows)] *= data.plan.weight
    return rows, weights


def fit_grams(
    data: Corpus,
    chosen: NDArray[np.bool_],
    settings: Settings = DEFAULTS,
    progress: Progress = silent,
) -> Fitted:
    """Fit the linear classifier to some of the texts and their copies.

    Two fits are averaged: one to the texts and their copies, with n-grams scaled by their log-count
    ratios, and one also to the fragments, with n-grams scaled by their rarity. The second knows
    plain short spam and makes other errors than the first; their mean is better than either and
    costs nothing extra at run time.

    Args:
        data: all texts.
        chosen: which of them to fit to.
        settings: the settings of the fit.
        progress: receives the progress.

    Raises:
        DataError: the chosen texts are of one class.
    """
    if data.labels[chosen].all() or not data.labels[chosen].any():
        raise DataError(
            "a part of the data to be fitted holds one class only: add texts of both labels, so "
            "that each of the five folds has some (a few hundred of each at least)"
        )
    whole, weights = whole_rows(data, chosen, settings)
    matrix = data.matrix.select(whole)
    labels = data.labels[data.owner[whole]]
    share = data.plan.fragmented

    def by_ratio() -> Fitted:
        return linear.fit(matrix, labels, weights, settings, data.seed, progress)

    if not share:
        return linear.rounded(by_ratio())
    joined, owner, shares = with_fragments(data, chosen, matrix, whole, weights, settings)
    short = linear.fit(
        joined, data.labels[owner], shares, settings, data.seed, progress, by_rarity=True
    )
    return linear.rounded(linear.between(by_ratio(), short, share) if share < 1.0 else short)


def with_fragments(
    data: Corpus,
    chosen: NDArray[np.bool_],
    matrix: Matrix,
    rows: NDArray[np.intp],
    weights: Floats,
    settings: Settings,
) -> tuple[Matrix, NDArray[np.intp], Floats]:
    """Add the telling fragments: all features, the text each row belongs to, and the weights.

    Args:
        data: all texts.
        chosen: which of them to fit to.
        matrix: the features of these texts and their copies.
        rows: their rows in ``data``.
        weights: how much each of them counts.
        settings: the settings of the fit.
    """
    by_text = text_weights(data, chosen, settings)
    matrices, owners, shares = [matrix], [data.owner[rows]], [weights]
    use = np.flatnonzero(chosen[data.owner])
    parts = np.split(use, np.searchsorted(use, data.ends))[1:-1]
    for offered, weight in zip(
        parts, (data.plan.fragment_weight, data.plan.phrase_weight), strict=True
    ):
        if offered.size and weight:
            told = telling(data, matrix, rows, weights, offered, settings)
            matrices.append(data.matrix.select(told))
            owners.append(data.owner[told])
            shares.append(by_text[data.owner[told]] * weight)
    return join(matrices), np.concatenate(owners), np.concatenate(shares)


def telling(
    data: Corpus,
    matrix: Matrix,
    rows: NDArray[np.intp],
    weights: Floats,
    offered: NDArray[np.intp],
    settings: Settings,
) -> NDArray[np.intp]:
    """The fragments to learn from: the two most telling of each spam text, the first of each ham.

    Not every sentence of an advertisement advertises. The log-count ratios of the texts being
    fitted decide which fragments are telling, so that nothing leaks from held-out texts.

    Args:
        data: all texts.
        matrix: the features of the texts and copies to be fitted to.
        rows: their rows in ``data``.
        weights: how much each of them counts.
        offered: the rows of the fragments.
        settings: the settings of the fit.
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


def table_bits(size: int) -> int:
    """The ``bits`` of a table of this size."""
    return next(bits for bits in range(1, 31) if table_size(bits) == size)
