"""The two parts of the classifier, fitted with scikit-learn to some texts and tried on others.

A linear support vector machine reads n-grams and traits; a network with one hidden layer reads the
traits alone, without scripts, so that it can judge a script that it has not seen.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from spamdetect.engine.network import Network
from spamdetect.engine.structure import SCRIPT_COLUMNS
from spamdetect.engine.traits import NAMED, trait_groups
from spamdetect.training.corpus import BITS, Corpus, Features, Flags, Progress
from spamdetect.training.dataset import DataError

Floats = NDArray[np.float64]

TEMPER: Final = 0.7  # a source with n texts weighs n ** 0.7, so that a large one does not decide
NOTICE_WEIGHT: Final = 0.35  # of a made notice, beside 1 for a text that was really sent
COPY_WEIGHT: Final = 0.5
POWER: Final = 0.5  # a text of n n-grams divides their sum by n ** POWER
LEAST: Final = 2  # n-grams in fewer texts than this are left out
WORD_VALUE: Final = 2.0  # of words and pairs of words, beside 1 for character n-grams
SMOOTHING: Final = 0.1  # of the counts whose logarithmic ratio scales each n-gram
TRAIT_VALUE: Final = 0.1
STRENGTH: Final = 2.8  # LinearSVC's C
HIDDEN: Final = 96
NETWORKS: Final = 2  # their mean is taken: what one makes of unseen texts depends on its seed
MASKS: Final = 3  # copies of each text that the network sees, each without other traits
EPOCHS: Final = 6
SHRUNK: Final = 0.1  # MLPClassifier's alpha
DROPPED, FORGOTTEN, SILENCED = 0.3, 0.05, 0.1
"""Shares of the structural features and of the concepts that a network does not see in a copy, so
that no single one decides, and of the copies whose concepts it does not see at all, since no
lexicon knows all languages."""
CLIP: Final = 0.9995


@attrs.frozen
class Signals:
    """The scores that a fit gives some texts, or parts of texts.

    Attributes:
        grams: of n-grams and traits.
        meaning: of the network.
        parts: of the parts of long texts.
        owner: for each part, the place of its text here.
    """

    grams: Floats
    meaning: Floats
    parts: Signals | None = None
    owner: NDArray[np.intp] = attrs.field(factory=lambda: np.zeros(0, np.intp))

    def rows(self, chosen: Flags) -> Signals:
        """The signals of some of the texts."""
        kept = chosen[self.owner]
        return Signals(
            self.grams[chosen],
            self.meaning[chosen],
            self.parts and self.parts.rows(kept),
            (np.cumsum(chosen) - 1)[self.owner[kept]],
        )


@attrs.frozen
class Fit:
    """Both parts, with the weights of n-grams rounded as a model file stores them.

    Attributes:
        weights: of each bucket, an integer of at most 127 in size.
        scale: the value of one unit of ``weights``.
        network: the network, whose last column is the weight of each trait beside the n-grams.
    """

    weights: NDArray[np.int8]
    scale: float
    network: Network

    def signals(self, features: Features) -> Signals:
        """The signals of some texts."""
        grams = features.grams
        sizes = np.maximum(np.diff(grams.indptr), 1)
        network = self.network
        sums = features.traits @ network.weights.astype(np.float32)
        reached = sums * network.scale + network.bias
        total = grams @ self.weights.astype(np.float64) * self.scale / sizes**POWER
        return Signals(
            total + reached[:, -1],
            np.maximum(reached[:, :-1], 0.0) @ network.output,
        )


def fit(data: Corpus, chosen: Flags, seed: int) -> Fit:
    """Fit both parts to some of the texts and to their copies.

    Raises:
        DataError: the chosen texts are of one class.
    """
    if data.labels[chosen].all() or not data.labels[chosen].any():
        raise DataError(
            "a part of the data to be fitted holds one class only: add texts of both labels, so "
            "that each of the five folds has some (a few hundred of each at least)"
        )
    with threadpool_limits(1):  # the order in which threads add decides the last bits
        return _fitted(data, np.flatnonzero(chosen[data.owner]), seed)


def _fitted(data: Corpus, rows: NDArray[np.intp], seed: int) -> Fit:
    features, labels = data.features.rows(rows), data.labels[data.owner[rows]]
    weights = text_weights(data, rows)
    counts = np.bincount(features.grams.indices, minlength=features.grams.shape[1])
    met = counts >= LEAST
    found, trait_weights, bias = fit_linear(features, labels, weights, met, seed)
    used = np.abs(found[found != 0])
    scale = float(np.quantile(used, CLIP)) / 127.0 if used.size else 1.0
    rounded = np.clip(np.rint(found / scale), -127, 127).astype(np.int8)
    dense = features.traits.toarray()
    networks = [
        fit_network(dense, labels, weights, np.random.SeedSequence([seed, number]))
        for number in range(NETWORKS)
    ]
    network = joined(networks, trait_weights, bias, np.average(dense, axis=0, weights=weights))
    return Fit(rounded, scale, network)


def fit_many(
    data: Corpus, chosen: Sequence[Flags], asked: Sequence[NDArray[np.intp]], seed: int, jobs: int,
    progress: Progress,
) -> list[Signals]:  # fmt: skip
    """For each choice of texts to fit to, the signals of other texts.

    Args:
        data: the texts.
        chosen: for each fit, which texts it is made of.
        asked: for each fit, the texts that it judges, ascending.
        seed: seeds the fits.
        jobs: how many processes share them.
        progress: receives the progress.
    """
    made = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(_signals)(data, *each, seed) for each in zip(chosen, asked, strict=True)
    )
    found = []
    for signals in made:
        found.append(signals)
        progress("cross-validating", len(found) / len(chosen))
    return found


def _signals(data: Corpus, chosen: Flags, asked: NDArray[np.intp], seed: int) -> Signals:
    with threadpool_limits(1):  # judges as ``fit`` fits
        fitted = fit(data, chosen, seed)
        inside = np.flatnonzero(np.isin(data.part_owner, asked))
        return attrs.evolve(
            fitted.signals(data.features.rows(asked)),
            parts=fitted.signals(data.parts.rows(inside)),
            owner=np.searchsorted(asked, data.part_owner[inside]),
        )


def text_weights(data: Corpus, rows: NDArray[np.intp]) -> Floats:
    """How much each row counts in a fit to these rows."""
    owner = data.owner[rows]
    counts = Counter(data.sources[owner[rows < len(data.texts)]].tolist())
    worth = np.array([counts[source] ** (TEMPER - 1.0) for source in data.sources[owner].tolist()])
    worth[data.made[owner]] *= NOTICE_WEIGHT
    worth[rows >= len(data.texts)] *= COPY_WEIGHT
    return np.asarray(worth / worth.mean())


def fit_linear(
    features: Features, labels: Flags, weights: Floats, met: Flags, seed: int
) -> tuple[Floats, Floats, float]:
    """The weights of the buckets and of the traits, and the constant term.

    Each n-gram is scaled by its log-count ratio (Wang and Manning 2012).
    """
    grams = features.grams
    spam, ham = (grams.T @ (weights * mask) + SMOOTHING for mask in (labels, ~labels))
    value = np.abs(np.log(spam / spam.sum()) - np.log(ham / ham.sum()))
    value[1 << BITS :] *= WORD_VALUE
    kept = np.flatnonzero(met)
    place = np.full(met.size, -1, np.int32)
    place[kept] = np.arange(kept.size)
    sizes = np.diff(grams.indptr)
    inside = met[grams.indices]
    columns = grams.indices[inside]
    entries = value[columns] * np.repeat(np.maximum(sizes, 1) ** -POWER, sizes)[inside]
    starts = np.concatenate([[0], np.cumsum(inside, dtype=np.int32)])[grams.indptr]
    scaled = csr_array((entries, place[columns], starts), (len(labels), kept.size))
    both: Any = hstack([scaled, features.traits * TRAIT_VALUE], format="csr")
    both.indices, both.indptr = (each.astype(np.int32) for each in (both.indices, both.indptr))
    machine: Any = LinearSVC(C=STRENGTH, tol=0.03, max_iter=60, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine.fit(both, labels, sample_weight=weights)
    found = np.zeros(met.size)
    found[kept] = machine.coef_[0, : kept.size] * value[kept]
    return found, machine.coef_[0, kept.size :] * TRAIT_VALUE, float(machine.intercept_[0])


def fit_network(
    traits: NDArray[np.float32], labels: Flags, weights: Floats, seed: np.random.SeedSequence
) -> Any:
    """One network over the traits."""
    random = np.random.default_rng(seed)
    shown = np.tile(traits, (MASKS, 1))
    dropped = np.full(traits.shape[1], FORGOTTEN, np.float32)
    dropped[: NAMED.stop] = DROPPED
    shown *= random.random(shown.shape, np.float32) >= dropped
    silenced = random.random(len(shown)) < SILENCED
    shown[silenced, NAMED.start :] = 0.0
    shown[silenced, NAMED.start] = 1.0
    shown[:, SCRIPT_COLUMNS] = 0.0
    make: Any = MLPClassifier
    network = make(
        (HIDDEN,), alpha=SHRUNK, batch_size=min(256, len(shown)), learning_rate_init=2e-3,
        max_iter=EPOCHS, random_state=int(random.integers(2**31)),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(shown, np.tile(labels, MASKS), sample_weight=np.tile(weights, MASKS))
    return network


def joined(networks: Sequence[Any], trait_weights: Floats, bias: float, usual: Floats) -> Network:
    """The mean of networks, which is a network, beside the weights of the linear part; rounded.

    Weights of traits are centred on the usual text, and the constants adjusted to match. Each text
    is in exactly one bucket of each group, so scores stay the same, while the weight of a bucket
    says how far it is from the ordinary; explanations need that.

    Args:
        networks: the networks.
        trait_weights: of the traits beside the n-grams.
        bias: the constant term of the linear part.
        usual: how often each trait is active.
    """
    first = [network.coefs_[0].astype(np.float64) for network in networks]
    for layer in first:
        layer[SCRIPT_COLUMNS] = 0.0
    columns = np.column_stack([*first, trait_weights])
    shift = np.concatenate([*(network.intercepts_[0] for network in networks), [bias]])
    for group in trait_groups():
        mean = np.average(columns[group], axis=0, weights=usual[group] + 1e-12)
        columns[group] -= mean
        shift += mean
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-6) / 127.0
    output = np.concatenate([network.coefs_[1][:, 0] for network in networks]) / len(networks)
    return Network(
        np.clip(np.rint(columns / scale), -127, 127).astype(np.int8),
        scale,
        shift.astype(np.float64),
        output.astype(np.float64),
    )
