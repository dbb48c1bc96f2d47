"""Both parts of the classifier, fitted to some texts and tried on others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.classifier import STEEPNESS
from spamdetect.engine.meaning import Network
from spamdetect.engine.traits import traits_size
from spamdetect.training import linear, network, portable
from spamdetect.training.blending import Signals
from spamdetect.training.dataset import FOLDS, DataError
from spamdetect.training.families import domain, families
from spamdetect.training.letters import LETTER
from spamdetect.training.linear import Fitted, Settings
from spamdetect.training.matrix import Matrix, Progress, dense, silent
from spamdetect.training.network import NetworkSettings
from spamdetect.training.spam_fit import DEFAULTS, Corpus, fit_grams, whole_rows

Flags = NDArray[np.bool_]
MIN_CLASS: Final = 20  # a part with fewer texts of a class says nothing about that class
KIND_GROUPS: Final = 11
FAMILY_GROUPS: Final = 3
NETWORK: Final = NetworkSettings()


@attrs.frozen
class Judge:
    """A fit of both parts.

    Attributes:
        grams: the fit of the n-grams.
        network: the fit of the traits.
        met: for each bucket, whether it occurs more than once in the texts or their copies.
    """

    grams: Fitted
    network: Network
    met: Flags

    def signals(self, matrix: Matrix) -> Signals:
        """The signals of some texts."""
        traits = dense(matrix)
        return Signals(
            self.grams.scores(matrix),
            network.scores(self.network, traits),
            familiarities(matrix, self.met),
            traits > 0,
        )


def familiarities(matrix: Matrix, met: Flags) -> NDArray[np.float64]:
    """`spamdetect.engine.classifier.familiarity` of each row.

    Args:
        matrix: the features.
        met: for each bucket, whether training has seen it.
    """
    chance = min(float(met.mean()), 0.999)
    sizes = np.maximum(np.diff(matrix.starts), 1)
    share = linear.row_sums(met[matrix.columns].astype(float), matrix.starts) / sizes
    return np.asarray(
        portable.power(np.clip((share - chance) / (1.0 - chance), 0.0, 1.0), STEEPNESS)
    )


def met_buckets(matrix: Matrix, fitted: Fitted, least: int) -> Flags:
    """The buckets that occur in at least this many rows or have a weight."""
    counts = np.bincount(matrix.columns, minlength=fitted.weights.size)
    return np.asarray((counts >= least) | (fitted.weights != 0))


def fit_judge(
    data: Corpus,
    chosen: Flags,
    settings: Settings = DEFAULTS,
    progress: Progress = silent,
    of_network: NetworkSettings = NETWORK,
) -> Judge:
    """Fit both parts to some of the texts and their copies.

    Raises:
        DataError: the chosen texts are of one class.
    """
    grams = fit_grams(data, chosen, settings, progress)
    rows, weights = whole_rows(data, chosen, settings)
    matrix = data.matrix.select(rows)
    found = network.fit(
        dense(matrix),
        data.labels[data.owner[rows]],
        weights,
        slice(traits_size(0), data.matrix.width),
        of_network,
        data.seed,
    )
    return Judge(grams, found, met_buckets(matrix, grams, settings.min_count))


@attrs.frozen
class Part:
    """Texts that are left out together.

    Attributes:
        way: what it is: a ``fold``, ``family`` of languages, ``kind`` of message or ``domain``.
        groups: which texts belong to each fold, family, kind or domain among them.
        aside: letters, which are left out too because they are composed of such texts; they are
            not judged.
    """

    way: str
    groups: dict[str, Flags]
    aside: Flags

    @property
    def inside(self) -> Flags:
        """Which texts are left out and judged."""
        found: Flags = np.any(list(self.groups.values()), axis=0)
        return found

    @property
    def fitted(self) -> Flags:
        """Which texts are not left out."""
        return ~(self.inside | self.aside)


def parts(data: Corpus, ways: Sequence[str], most_folds: int = FOLDS) -> list[Part]:
    """The parts that are left out in turn.

    Kinds are left out several at a time, and so are families that the data contain only in
    notices: this takes fewer fits and is a harder test than one by one.

    Args:
        data: the texts.
        ways: see `Part`.
        most_folds: leave out at most this many folds.

    Raises:
        DataError: there are not two folds, which calibration needs.
    """
    found: list[Part] = []
    letter = np.array([row.kind == LETTER for row in data.rows])
    if "fold" in ways:
        folds = data.folds
        present = sorted(set(folds.tolist()))[:most_folds]
        if len(present) < 2:
            raise DataError("the texts lie in one fold; at least two are needed for calibration")
        found += [_part("fold", {str(fold): folds == fold}, letter) for fold in present]
    made = np.isin(data.sources, sorted(data.made))
    if "family" in ways:
        masks = _masks(families(data.rows))
        sent = [name for name, mask in masks.items() if _tells(data, mask & ~made)]
        found += [_part("family", {name: masks[name]}, letter) for name in sent]
        rest = [name for name, mask in masks.items() if name not in sent and _tells(data, mask)]
        found += _dealt("family", masks, rest, FAMILY_GROUPS, letter)
    if "kind" in ways:
        masks = _masks([row.kind for row in data.rows])
        kinds = [
            name for name, mask in masks.items() if name not in ("", LETTER) and _tells(data, mask)
        ]
        hands = _dealt("kind", masks, kinds, KIND_GROUPS, letter)
        found += [attrs.evolve(hand, aside=letter) for hand in hands]  # of all kinds
    if "domain" in ways:
        masks = _masks([domain(row) for row in data.rows])
        domains = [name for name, mask in masks.items() if _tells(data, mask & ~made)]
        found += [_part("domain", {name: masks[name]}, letter) for name in domains]
    return [part for part in found if part.way == "fold" or _leaves_both(data, part.fitted)]


def _masks(names: Sequence[str]) -> dict[str, Flags]:
    array = np.array(names)
    return {name: array == name for name in sorted(set(names))}


def _part(way: str, masks: dict[str, Flags], letter: Flags) -> Part:
    """A part that judges all texts but letters."""
    groups = {name: mask & ~letter for name, mask in masks.items()}
    return Part(way, groups, np.any(list(masks.values()), axis=0) & letter)


def _dealt(
    way: str, masks: dict[str, Flags], names: list[str], groups: int, letter: Flags
) -> list[Part]:
    dealt = [names[start::groups] for start in range(groups)]
    return [_part(way, {name: masks[name] for name in hand}, letter) for hand in dealt if hand]


def tells(labels: Flags) -> bool:
    """Whether there are enough texts of both classes to say something about each."""
    return min(int(labels.sum()), int((~labels).sum())) >= MIN_CLASS


def _tells(data: Corpus, mask: Flags) -> bool:
    return tells(data.labels[mask])


def _leaves_both(data: Corpus, fitted: Flags) -> bool:
    rest = data.labels[fitted]
    return bool(rest.any() and not rest.all())
