"""Fits how the classifier's two parts are mixed to scores of unseen texts.

A mixture is the blend of a model and a correction: what each trait adds to the log-odds of a text
whose n-grams are known. The parts are fitted to texts that they know, the correction to texts whose
fold, family of languages or kind they have not seen, so it takes back what misleads there.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.classifier import Blend
from spamdetect.engine.structure import SCRIPT_COLUMNS
from spamdetect.training import portable

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
PENALTY: Final = 1e-5
TRAIT_PENALTY: Final = 0.008
_SLACK: Final = 1e-6


@attrs.frozen
class Mixture:
    """How the parts are mixed.

    Attributes:
        blend: the blend of their scores.
        traits: what each trait adds to the log-odds, times the known share of the n-grams.
    """

    blend: Blend
    traits: Floats

    def shares(self) -> tuple[Floats, Floats]:
        """The correction as weights of the traits in the n-grams' score and in the network's.

        Blended, both together add the correction, whatever is known of a text; only nearly if the
        slopes of both scores change alike with what is known.
        """
        slopes = np.array([self.blend.grams, self.blend.meaning])
        products = (slopes[:, None] * slopes).sum(axis=2)
        slack = _SLACK * max(1e-9, float(np.trace(products))) * np.eye(2)
        grams, meaning = portable.solved(products + slack, slopes[:, 1])
        return grams * self.traits, meaning * self.traits


@attrs.frozen
class Signals:
    """The scores that a fit gives some texts.

    Attributes:
        grams: the scores of n-grams and structure.
        meaning: the scores of the network.
        known: the share of each text's n-grams that the fit knows.
        traits: which traits each text has.
    """

    grams: Floats
    meaning: Floats
    known: Floats
    traits: Flags

    def select(self, chosen: Flags | NDArray[np.intp]) -> Signals:
        """The signals of some of the texts."""
        return Signals(
            self.grams[chosen], self.meaning[chosen], self.known[chosen], self.traits[chosen]
        )

    def probabilities(self, mixture: Mixture) -> Floats:
        """The calibrated probabilities of spam."""
        blend = mixture.blend
        offset, grams, meaning = (
            least + more * self.known for least, more in (blend.offset, blend.grams, blend.meaning)
        )
        odds = offset + grams * self.grams + meaning * self.meaning
        correction = self.known * portable.flag_rows(self.traits, mixture.traits)
        return portable.logistic(odds + correction)


def joined(parts: list[Signals]) -> Signals:
    """Concatenate signals."""
    return Signals(
        *(np.concatenate([getattr(part, field.name) for part in parts])
          for field in attrs.fields(Signals))
    )  # fmt: skip


def fit(signals: Signals, labels: Flags, weights: Floats, start: Mixture | None = None) -> Mixture:
    """The mixture whose probabilities fit the labels best, by Newton's method.

    The correction is drawn towards zero. Scripts have none, like in the network.

    Args:
        signals: the signals of texts that the fits behind them have not seen.
        labels: which of them are spam.
        weights: how much each of them counts.
        start: a mixture that is near, which saves time.
    """
    known = signals.known
    ones = np.ones(known.size)
    columns = np.stack(
        [ones, known, signals.grams, signals.grams * known, signals.meaning,
         signals.meaning * known], axis=1,
    )  # fmt: skip
    traits = signals.traits.copy()
    traits[:, SCRIPT_COLUMNS] = False
    share = weights / weights.sum()
    size, width = columns.shape[1], traits.shape[1]
    penalty = np.append(np.full(size, PENALTY), np.full(width, TRAIT_PENALTY))
    found = np.zeros(size + width) if start is None else _values(start)
    target = labels.astype(float)
    for _ in range(100):
        odds = (columns * found[:size]).sum(axis=1)
        chance = portable.logistic(odds + known * portable.flag_rows(traits, found[size:]))
        error = share * (chance - target)
        gradient = penalty * found
        gradient[:size] += portable.column_sums(columns, error)
        gradient[size:] += portable.flag_sums(traits, (error * known)[:, None])[:, 0]
        worth = share * chance * (1.0 - chance)
        bend = _bend(columns, traits, known, worth)
        step = portable.solved(bend + np.diag(penalty), gradient)
        found = found - step
        if np.abs(step).max() < 1e-9:
            break
    a, b, c, d, e, f = (float(value) for value in found[:size])
    return Mixture(Blend((a, b), (c, d), (e, f)), found[size:])


def _values(mixture: Mixture) -> Floats:
    blend = mixture.blend
    return np.concatenate([blend.offset, blend.grams, blend.meaning, mixture.traits])


def _bend(columns: Floats, traits: Flags, known: Floats, worth: Floats) -> Floats:
    """The second derivatives: weighted sums of the products of all pairs of columns and traits."""
    weighted = columns * worth[:, None]
    own = np.stack([portable.column_sums(weighted, column) for column in columns.T])
    mixed = portable.flag_sums(traits, weighted * known[:, None])
    return np.block([[own, mixed.T], [mixed, portable.flag_pairs(traits, worth * known * known)]])
