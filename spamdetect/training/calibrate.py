"""How the scores become a probability, and the named thresholds: from texts of strangers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from spamdetect.engine.classifier import Blend
from spamdetect.engine.long_texts import with_parts
from spamdetect.engine.profiles import Profile
from spamdetect.training.corpus import Corpus, Flags
from spamdetect.training.fit import Floats, Signals
from spamdetect.training.left_out import Part, related

PRIOR: Final = 0.25  # the share of spam that is assumed of strangers
SENT_SHARE: Final = 300.0  # the weight of a source, in texts, whatever its size
NOTICE_SHARE: Final = 200.0  # of a group of notices
FOLDS_SHARE: Final = 3000.0  # of all folds, however many are tried
FALSE_ALARMS: Final = {"strict": 0.15, "quiet": 0.01}
"""Share of ordinary messages that may be taken for spam, see `expected`; ``balanced`` is the
model's own threshold."""


@attrs.frozen
class HeldOut:
    """The signals of a fit for a group of texts that it has not seen.

    Attributes:
        name: of the group.
        part: what the fit was made without.
        texts: the numbers of the texts.
        signals: theirs.
    """

    name: str
    part: Part
    texts: NDArray[np.intp]
    signals: Signals


def split(parts: Sequence[Part], found: Sequence[Signals]) -> list[HeldOut]:
    """The groups of each part with their signals.

    Args:
        parts: what was left out of each fit.
        found: the signals of its `Part.judged` texts.
    """
    out = []
    for part, signals in zip(parts, found, strict=True):
        texts = np.flatnonzero(part.judged)
        for name, mask in part.groups.items():
            inside = mask[texts]
            out.append(HeldOut(name, part, texts[inside], signals.rows(inside)))
    return out


def blend(data: Corpus, held: Sequence[HeldOut], without: Flags | None = None) -> Blend:
    """The blend that fits held-out texts best.

    Each source, and each group of notices, counts the same whatever its size, and spam as `PRIOR`
    of it: the blend must learn what scores mean among strangers, not how much spam somebody
    collected there.

    Args:
        data: the texts.
        held: signals of fits for texts that they have not seen.
        without: texts to leave out here too.
    """
    columns, labels, weights = [], [], []
    folds = sum(group.part.is_fold for group in held)
    for group in held:
        kept = np.ones(group.texts.size, bool) if without is None else ~without[group.texts]
        spam = data.labels[group.texts[kept]]
        if not spam.any() or spam.all():
            continue
        signals = group.signals.rows(kept)
        columns.append(np.stack([signals.grams, signals.meaning], axis=1))
        labels.append(spam)
        if group.part.is_fold:
            weights.append(np.full(spam.size, FOLDS_SHARE / folds / spam.size))
            continue
        total = NOTICE_SHARE if data.made[group.texts[kept]].any() else SENT_SHARE
        share = np.where(spam, PRIOR / spam.sum(), (1.0 - PRIOR) / (~spam).sum())
        weights.append(share * total)
    logistic: Any = LogisticRegression(C=1.0, max_iter=1000, tol=1e-8)
    logistic.fit(
        np.concatenate(columns), np.concatenate(labels), sample_weight=np.concatenate(weights)
    )
    grams, meaning = logistic.coef_[0].tolist()
    return Blend(float(logistic.intercept_[0]), grams, meaning)


def probabilities(mixed: Blend, signals: Signals) -> Floats:
    """The calibrated probabilities of spam, of long texts with their parts."""
    odds = mixed.odds(signals.grams, signals.meaning)
    if signals.parts is not None:
        of_parts = mixed.odds(signals.parts.grams, signals.parts.meaning)
        for text in np.unique(signals.owner).tolist():
            odds[text] = with_parts(float(odds[text]), of_parts[signals.owner == text].tolist())
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(odds, -60.0, 60.0))))


def judged(data: Corpus, held: Sequence[HeldOut]) -> list[Floats]:
    """The probabilities of each group of texts, from a fit and a blend without them and their kin.

    A fold's are from a blend without the fold.
    """
    names = set(data.sources.tolist())
    out = []
    for group in held:
        without = np.zeros(len(data.texts), bool)
        without[group.texts] = True
        if not group.part.is_fold:
            without |= np.isin(data.sources, sorted(related(group.name, names)))
        out.append(probabilities(blend(data, held, without), group.signals))
    return out


def profiles(
    data: Corpus, held: Sequence[HeldOut], chances: Sequence[Floats], threshold: float
) -> dict[str, Profile]:
    """The named thresholds, with their shares of false alarms and of spam found among strangers.

    Args:
        data: the texts.
        held: the groups of texts; of these, the sources that were sent count, each the same, and
            the folds where there is none.
        chances: their probabilities from fits and blends without them, see `judged`.
        threshold: the model's own.
    """
    ham, spam = [], []
    strangers = [not (group.part.is_fold or data.made[group.texts].any()) for group in held]
    for group, chance, counts in zip(held, chances, strangers, strict=True):
        if counts or not any(strangers):
            labels, rounded = data.labels[group.texts], np.round(chance, 6)  # like verdicts
            ham.append(rounded[~labels])
            spam.append(rounded[labels])
    thresholds = {
        "strict": min(threshold, threshold_of(ham, FALSE_ALARMS["strict"])),
        "balanced": threshold,
        "quiet": max(threshold, threshold_of(ham, FALSE_ALARMS["quiet"])),
    }
    return {
        name: Profile(value, expected(ham, value) if ham else None, _found(spam, value))
        for name, value in thresholds.items()
    }


def threshold_of(ham: Sequence[Floats], share: float) -> float:
    """The lowest threshold in steps of .01, above .99 of .0001, that at most this share reaches.

    Args:
        ham: the probabilities of the ordinary messages of each source.
        share: see `expected`.
    """
    steps = np.concatenate((np.arange(0.01, 0.99, 0.01), np.arange(0.99, 0.9999, 0.0001)))
    for step in steps.round(4).tolist():
        if not ham or expected(ham, step) <= share:
            return float(step)
    return 1.0


def expected(ham: Sequence[Floats], threshold: float) -> float:
    """The share of the next stranger's ordinary messages that is expected to reach a threshold.

    It is the mean over the known sources with the worst counted twice: a threshold fits the sources
    that it was chosen by, and the next may be like the worst of them.

    Args:
        ham: the probabilities of the ordinary messages of each source.
        threshold: spam from this probability on.
    """
    shares = [float((each >= threshold).mean()) for each in ham]
    return round((sum(shares) + max(shares)) / (len(shares) + 1), 4)


def _found(spam: Sequence[Floats], threshold: float) -> float | None:
    if not spam:
        return None
    return round(float(np.mean([(each >= threshold).mean() for each in spam])), 4)
