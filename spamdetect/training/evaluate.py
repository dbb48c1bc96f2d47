"""How good a classifier is: cross-validation, unseen sources, disguise, ordinary additions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.core import Engine
from spamdetect.training import metrics, spam_fit
from spamdetect.training.attacks import ATTACKS, Disguise
from spamdetect.training.augment import Plan
from spamdetect.training.dataset import SpamRow, read_spam
from spamdetect.training.linear import Fitted, Settings
from spamdetect.training.matrix import Progress, build, silent
from spamdetect.training.metrics import Scores
from spamdetect.training.mirror import COPIES, MIRROR
from spamdetect.training.spam_fit import Corpus, fit_on, out_of_fold, scores_of

Floats = NDArray[np.float64]
Calibration = Callable[[Floats], Floats]
MIN_CLASS: Final = 20  # a source with fewer texts of a class says nothing of that class
SUITE_FOLD: Final = 0
SUITE_TEXTS: Final = 2000
SUITE_LENGTH: Final = 1500


@attrs.frozen
class Evaluation:
    """What one evaluation found.

    Attributes:
        in_domain: cross-validation over the folds.
        by_source: leave-one-source-out, for each source.
        unseen: the mean of ``by_source``.
        attacks: for each disguise, the figures on disguised texts of a held-out fold.
        clean: the figures on the same texts undisguised.
        mirror: for each harmless addition, the share of ham taken for spam.
        mirror_clean: the same share without addition.
        copies: for each kind of copy, the share of texts whose verdict changes.
        threshold: spam from this probability on.
    """

    in_domain: Scores
    by_source: Mapping[str, Scores]
    unseen: Scores
    attacks: Mapping[str, Scores]
    clean: Scores
    mirror: Mapping[str, float]
    mirror_clean: float
    copies: Mapping[str, float]
    threshold: float

    @property
    def attacked(self) -> Scores:
        """The mean over the disguises."""
        return mean(list(self.attacks.values()))


def mean(parts: Sequence[Scores]) -> Scores:
    """The unweighted mean of each figure; the texts are added up."""
    values = {
        field.name: float(np.nanmean([getattr(part, field.name) for part in parts]))
        for field in attrs.fields(Scores)
        if field.name != "texts"
    }
    return Scores(**values, texts=sum(part.texts for part in parts))


def cross_check(
    rows: Sequence[SpamRow],
    seed: int = 0,
    settings: Settings = spam_fit.DEFAULTS,
    progress: Progress = silent,
    *,
    plan: Plan = spam_fit.DEFAULT_PLAN,
    unseen: bool = True,
) -> Evaluation:
    """Evaluate the training recipe on data that each fit has not seen.

    Args:
        rows: labelled texts.
        seed: of the training and of the disguises.
        settings: of the fits.
        progress: told how far it is.
        plan: the copies to add.
        unseen: also leave out one source at a time.
    """
    data = spam_fit.corpus(rows, seed, settings, plan, progress)
    raw = out_of_fold(data, settings, progress)
    slope, offset = metrics.platt(data.labels, raw)

    def chance(scores: Floats) -> Floats:
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(slope * scores + offset, -60, 60))))

    threshold = 0.5
    by_source = leave_one_source_out(data, settings, chance, threshold, progress) if unseen else {}
    folds = data.folds
    fitted = fit_on(data, folds != SUITE_FOLD, settings)
    sample = [row for row in rows if row.fold == SUITE_FOLD]
    Random(seed).shuffle(sample)
    sample = sample[:SUITE_TEXTS]
    labels = np.array([row.is_spam for row in sample])
    texts = [row.text[:SUITE_LENGTH] for row in sample]

    def judged(change: Disguise | None) -> Floats:
        changed = [
            change(text, Random(f"{seed}:{number}")) if change else text
            for number, text in enumerate(texts)
        ]
        return chance(fitted.scores(build(changed, settings.bits)))

    clean = judged(None)
    progress("disguising", 0.0)
    attacks = {
        name: metrics.scores(labels, judged(change), threshold) for name, change in ATTACKS.items()
    }
    progress("disguising", 1.0)
    mirror = {
        name: float((judged(change)[~labels] >= threshold).mean())
        for name, change in MIRROR.items()
    }
    changed = {
        name: float(((judged(change) >= threshold) != (clean >= threshold)).mean())
        for name, change in COPIES.items()
    }
    return Evaluation(
        in_domain=metrics.scores(data.labels, chance(raw), threshold),
        by_source=by_source,
        unseen=mean(list(by_source.values())) if by_source else metrics.scores(labels, clean),
        attacks=attacks,
        clean=metrics.scores(labels, clean, threshold),
        mirror=mirror,
        mirror_clean=float((clean[~labels] >= threshold).mean()),
        copies=changed,
        threshold=threshold,
    )


def related(source: str, sources: Iterable[str]) -> set[str]:
    """The sources that share texts with one: its translations and what it translates."""
    return {other for other in sources if other.startswith(source) or source.startswith(other)}


def leave_one_source_out(
    data: Corpus,
    settings: Settings,
    chance: Calibration,
    threshold: float,
    progress: Progress = silent,
) -> dict[str, Scores]:
    """For each source, the figures of a fit without it, and without its translations."""
    sources = data.sources
    names = sorted(set(sources.tolist()))
    found = {}
    for number, name in enumerate(names):
        progress("leaving one source out", number / len(names))
        inside = sources == name
        if min(int(data.labels[inside].sum()), int((~data.labels[inside]).sum())) < MIN_CLASS:
            continue
        rest = ~np.isin(sources, sorted(related(name, names)))
        if data.labels[rest].all() or not data.labels[rest].any():
            continue
        fitted = fit_on(data, rest, settings)
        scores = chance(scores_of(data, fitted, inside))
        found[name] = metrics.scores(data.labels[inside], scores, threshold)
    progress("leaving one source out", 1.0)
    return found


def evaluate(
    paths: Iterable[str | os.PathLike[str]],
    engine: Engine | None = None,
    progress: Progress = silent,
) -> Scores:
    """Measure an engine on labelled texts that it has not been trained on.

    Args:
        paths: JSONL or CSV files, or folders with such; see `read_spam`.
        engine: the shipped one by default.
        progress: told how far it is.

    Raises:
        DataError: the data cannot be used.
    """
    engine = engine or Engine.load()
    rows = read_spam(paths)
    chances = np.zeros(len(rows))
    for start in range(0, len(rows), 500):
        progress("classifying", start / len(rows))
        part = rows[start : start + 500]
        found = engine.predict_many([row.text for row in part])
        chances[start : start + 500] = [analysis.prediction.spam_score for analysis in found]
    progress("classifying", 1.0)
    return metrics.scores(np.array([row.is_spam for row in rows]), chances, engine.threshold)


def evaluation_of(
    paths: Iterable[str | os.PathLike[str]], seed: int = 0, progress: Progress = silent
) -> Evaluation:
    """`cross_check` on data files."""
    return cross_check(read_spam(paths), seed, progress=progress)


__all__ = ["Evaluation", "Fitted", "cross_check", "evaluate", "evaluation_of", "mean"]
