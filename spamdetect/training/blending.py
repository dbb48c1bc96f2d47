"""Fits the blend of the classifier's two parts to scores of unseen texts."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.classifier import Blend
from spamdetect.training import portable

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
PENALTY = 1e-5


@attrs.frozen
class Signals:
    """The scores that a fit gives some texts.

    Attributes:
        grams: the scores of n-grams and structure.
        meaning: the scores of the network.
        known: the share of each text's n-grams that the fit knows.
    """

    grams: Floats
    meaning: Floats
    known: Floats

    def select(self, chosen: Flags | NDArray[np.intp]) -> Signals:
        """The signals of some of the texts."""
        return Signals(self.grams[chosen], self.meaning[chosen], self.known[chosen])

    def probabilities(self, blend: Blend) -> Floats:
        """The calibrated probabilities of spam."""
        offset, grams, meaning = (
            least + more * self.known for least, more in (blend.offset, blend.grams, blend.meaning)
        )
        odds = offset + grams * self.grams + meaning * self.meaning
        return portable.logistic(odds)


def joined(parts: list[Signals]) -> Signals:
    """Concatenate signals."""
    return Signals(
        *(np.concatenate([getattr(part, name) for part in parts])
          for name in ("grams", "meaning", "known"))
    )  # fmt: skip


def fit(signals: Signals, labels: Flags, weights: Floats) -> Blend:
    """The blend whose probabilities fit the labels best, by Newton's method.

    Args:
        signals: the signals of texts that the fits behind them have not seen.
        labels: which of them are spam.
        weights: how much each of them counts.
    """
    known = signals.known
    ones = np.ones(known.size)
    columns = np.stack(
        [ones, known, signals.grams, signals.grams * known, signals.meaning,
         signals.meaning * known], axis=1,
    )  # fmt: skip
    share = weights / weights.sum()
    found = np.zeros(columns.shape[1])
    target = labels.astype(float)
    for _ in range(100):
        chance = portable.logistic((columns * found).sum(axis=1))
        gradient = portable.column_sums(columns, share * (chance - target)) + PENALTY * found
        weighted = columns * (share * chance * (1.0 - chance))[:, None]
        bend = np.stack([portable.column_sums(weighted, column) for column in columns.T])
        step = portable.solved(bend + PENALTY * np.eye(found.size), gradient)
        found = found - step
        if np.abs(step).max() < 1e-10:
            break
    a, b, c, d, e, f = (float(value) for value in found)
    return Blend((a, b), (c, d), (e, f))
