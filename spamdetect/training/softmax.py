"""Softmax regression over hashed n-grams for many classes, with numpy alone."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.training.corpus import Progress, silent

Singles = NDArray[np.float32]


@attrs.frozen
class SoftmaxSettings:
    """What a fit depends on besides the data.

    Attributes:
        epochs: passes over the data.
        batch: texts for each step.
        rate: step size of Adagrad, falling linearly to a tenth.
        power: a text of ``n`` n-grams divides their sum by ``n ** power``.
        shrink: the L2 penalty.
    """

    epochs: int = 5
    batch: int = 256
    rate: float = 0.3
    power: float = 0.5
    shrink: float = 0.0


def fit(
    texts: Sequence[NDArray[np.uint32]],
    labels: NDArray[np.intp],
    weights: Singles,
    shape: tuple[int, int],
    settings: SoftmaxSettings,
    seed: int,
    progress: Progress = silent,
) -> Singles:
    """Fit one weight for each bucket and class by Adagrad.

    Args:
        texts: the buckets of each text, with repetitions.
        labels: the class of each text.
        weights: how much each text counts.
        shape: how many buckets and classes.
        settings: see `SoftmaxSettings`.
        seed: seeds the order of the texts.
        progress: receives the progress.
    """
    table = np.zeros(shape, np.float32)
    squares = np.full(shape, 1e-4, np.float32)
    order = np.random.Generator(np.random.PCG64(seed))
    steps = -(-len(texts) // settings.batch) * settings.epochs
    step = 0
    for _ in range(settings.epochs):
        shuffled = order.permutation(len(texts))
        for start in range(0, len(texts), settings.batch):
            rows = shuffled[start : start + settings.batch]
            rate = settings.rate * (1.0 - 0.9 * step / steps)
            _step(
                table,
                squares,
                [texts[row] for row in rows],
                labels[rows],
                weights[rows],
                settings,
                rate,
            )
            step += 1
            if step % 50 == 0:
                progress("fitting", step / steps)
    progress("fitting", 1.0)
    return table


def _step(
    table: Singles,
    squares: Singles,
    texts: list[NDArray[np.uint32]],
    labels: NDArray[np.intp],
    weights: Singles,
    settings: SoftmaxSettings,
    rate: float,
) -> None:
    lengths = np.array([text.size for text in texts])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    buckets = np.concatenate(texts)
    scale = (lengths**-settings.power).astype(np.float32)[:, None]
    logits = np.add.reduceat(table[buckets], starts, axis=0) * scale
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    logits[np.arange(len(texts)), labels] -= 1.0
    errors = logits * scale * weights[:, None]
    by_bucket = np.argsort(buckets, kind="stable")
    ordered = buckets[by_bucket]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    owner = np.repeat(np.arange(len(texts)), lengths)[by_bucket]
    gradient = np.add.reduceat(errors[owner], first, axis=0)
    touched = ordered[first]
    if settings.shrink:
        gradient += settings.shrink * table[touched]
    sums = squares[touched] + gradient * gradient
    squares[touched] = sums
    table[touched] -= rate * gradient / np.sqrt(sums)
