"""Fitting the network over traits by Adam (Kingma and Ba 2015), in numpy.

With `portable` arithmetic, so that a fit is the same on every machine.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.meaning import Network
from spamdetect.engine.structure import SCRIPT_COLUMNS
from spamdetect.engine.traits import NAMED, trait_groups
from spamdetect.training import portable

Floats = NDArray[np.float32]
CLIP = 30.0


@attrs.frozen
class NetworkSettings:
    """What a fit depends on besides the data.

    Attributes:
        hidden: the number of hidden units.
        epochs: the number of passes over the rows.
        batch: rows for each step.
        rate: the initial learning rate; it falls to zero.
        decay: share of the weights that each step removes, as a multiple of the rate.
        dropped: share of the structural features that a step does not see, so that no single
            one decides.
        forgotten: the same for concepts, since no lexicon knows all words.
        silenced: share of the texts whose concepts a step does not see at all, since no lexicon
            knows all languages.
        fits: the number of fits, with different seeds, whose mean is taken: what one network
            makes of unseen texts depends on its seed.
    """

    hidden: int = 96
    epochs: int = 18
    batch: int = 256
    rate: float = 3e-3
    decay: float = 0.1
    dropped: float = 0.3
    forgotten: float = 0.05
    silenced: float = 0.1
    fits: int = 2


def fit(
    rows: Floats,
    labels: NDArray[np.bool_],
    weights: NDArray[np.float64],
    concepts: slice,
    settings: NetworkSettings,
    seed: int,
) -> Network:
    """Fit networks and take the mean of their scores, which is a network again.

    Args:
        rows: for each text, 1 where a trait is active.
        labels: which texts are spam.
        weights: how much each text counts; only their ratios matter.
        concepts: the columns of concepts.
        settings: see `NetworkSettings`.
        seed: seeds the initial weights, the order of the rows and what is dropped.
    """
    rows[:, SCRIPT_COLUMNS] = 0.0  # the network must judge scripts that it has not seen
    usual_share = portable.column_sums(rows, weights) / weights.sum()
    fits = [
        fit_one(rows, labels, weights, concepts, settings, np.random.PCG64([seed, number]))
        for number in range(settings.fits)
    ]
    return _rounded(mean_of(fits), usual_share)


def fit_one(
    rows: Floats,
    labels: NDArray[np.bool_],
    weights: NDArray[np.float64],
    concepts: slice,
    settings: NetworkSettings,
    bits: np.random.BitGenerator,
) -> list[Floats]:
    """The values of one network; see `fit`."""
    random = np.random.Generator(bits)
    size, width = rows.shape
    usual = max(1.0, float(rows.sum(axis=1).mean()))
    first = random.standard_normal((width, settings.hidden)) * np.sqrt(0.5 / usual)
    output = random.standard_normal(settings.hidden) / np.sqrt(settings.hidden)
    state = _Adam(
        [
            first.astype(np.float32),
            np.zeros(settings.hidden, np.float32),
            output.astype(np.float32),
            np.zeros(width, np.float32),
            np.zeros(1, np.float32),
        ],
        settings,
    )
    dropped = np.full(width, settings.dropped, np.float32)
    dropped[concepts] = settings.forgotten
    share = (weights / weights.mean()).astype(np.float32)
    target = labels.astype(np.float32)
    batches = -(-size // settings.batch)
    steps = settings.epochs * batches
    order: list[NDArray[np.int64]] = []
    for step in range(steps):
        if step % batches == 0:
            order = np.array_split(random.permutation(size), batches)
        chosen = order[step % batches]
        part = rows[chosen]
        part *= random.random(part.shape, np.float32) >= dropped
        if settings.silenced:
            silent = random.random(len(part)) < settings.silenced
            part[silent, concepts] = 0.0
            part[silent, NAMED] = 0.0
            part[silent, NAMED.start] = 1.0
        gradients = _gradients(state.values, part, target[chosen], share[chosen])
        state.step(gradients, settings.rate * (1.0 - step / steps))
    return state.values


def mean_of(fits: list[list[Floats]]) -> list[Floats]:
    """The values of a network whose score is the mean of the scores of all: it has their units."""
    firsts, biases, outputs, directs, constants = zip(*fits, strict=True)
    share = np.float32(1.0 / len(fits))
    return [
        np.concatenate(firsts, axis=1),
        np.concatenate(biases),
        np.concatenate(outputs) * share,
        np.sum(directs, axis=0) * share,
        np.sum(constants, axis=0) * share,
    ]


def _gradients(values: list[Floats], rows: Floats, target: Floats, share: Floats) -> list[Floats]:
    first, bias, output, direct, constant = values
    reached = portable.of_flags(rows, first) + bias
    active = np.maximum(reached, 0.0)
    score = (active * output).sum(axis=1) + portable.of_flags(rows, direct) + constant
    chance = portable.logistic(score, CLIP).astype(np.float32)
    error = (chance - target) * share / np.float32(len(rows))
    back = np.asarray(np.outer(error, output) * (reached > 0), np.float32)
    return [
        portable.of_flags(rows.T, back),
        back.sum(axis=0),
        (active * error[:, None]).sum(axis=0),
        portable.of_flags(rows.T, error),
        error.sum(keepdims=True),
    ]


class _Adam:
    """The values, and running means of their gradients and of the squared gradients."""

    def __init__(self, values: list[Floats], settings: NetworkSettings) -> None:
        self.values = values
        self._decay = settings.decay
        self._mean = [np.zeros_like(value) for value in values]
        self._square = [np.zeros_like(value) for value in values]
        self._short = self._long = 1.0

    def step(self, gradients: list[Floats], rate: float) -> None:
        self._short *= 0.9
        self._long *= 0.999
        short, long = 1.0 - self._short, 1.0 - self._long
        for value, gradient, mean, square in zip(
            self.values, gradients, self._mean, self._square, strict=True
        ):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            moved = rate * (mean / short) / (np.sqrt(square / long) + 1e-8)
            value -= moved.astype(np.float32)
            value *= np.float32(1.0 - rate * self._decay)


def _rounded(values: list[Floats], usual: NDArray[np.float64]) -> Network:
    """The network as a model file stores it, still without the linear classifier."""
    first, bias, output, direct, constant = values
    columns = np.column_stack([first, direct]).astype(np.float64)
    columns[SCRIPT_COLUMNS] = 0.0
    moved, shift = centred(columns, np.append(bias, constant).astype(np.float64), usual)
    weights, scale = _eight_bits(np.column_stack([moved, np.zeros(len(moved))]))
    return Network(weights, scale, np.append(shift, 0.0), output.astype(np.float64))


def centred(
    columns: NDArray[np.float64], bias: NDArray[np.float64], usual: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centre the weights of traits on the usual text, and adjust the bias to match.

    Each text is in exactly one bucket of each group, so scores stay the same, while the weight
    of a bucket says how far it is from the ordinary; explanations need that.

    Args:
        columns: the weights, one row for each trait.
        bias: the bias of each column.
        usual: how often each trait is active.
    """
    moved, shift = columns.copy(), bias
    for part in trait_groups():
        mean = portable.column_sums(moved[part], usual[part]) / max(1e-9, float(usual[part].sum()))
        moved[part] -= mean
        shift = shift + mean
    return moved, shift


def with_linear(
    network: Network,
    structure: NDArray[np.float64],
    direct: NDArray[np.float64],
    bias: float,
    usual: NDArray[np.float64],
) -> Network:
    """The network with the linear classifier's weights of the traits, and corrected.

    Args:
        network: the network without them.
        structure: the weights of the traits in the linear classifier.
        direct: what is added to their weights to the output of the network.
        bias: the constant term of the linear classifier.
        usual: how often each trait is active.
    """
    own = network.weights[:, -2] * network.scale[-2] + direct
    columns = np.column_stack([own, structure])
    moved, shift = centred(columns, np.array([network.bias[-2], bias]), usual)
    rounded, scale = _eight_bits(moved)
    return Network(
        np.column_stack([network.weights[:, :-2], rounded]),
        np.append(network.scale[:-2], scale),
        np.append(network.bias[:-2], shift),
        network.output,
    )


def _eight_bits(
    columns: NDArray[np.float64],
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-6) / 127.0
    return np.clip(np.rint(columns / scale), -127, 127).astype(np.int8), scale


def scores(network: Network, rows: Floats) -> NDArray[np.float64]:
    """The score of each row."""
    sums = rows @ network.weights[:, :-1].astype(np.float32)  # of small integers, so exact
    reached = sums * network.scale[:-1] + network.bias[:-1]
    active = np.maximum(reached[:, :-1], 0.0)
    return np.asarray((active * network.output).sum(axis=1) + reached[:, -1], np.float64)
