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
from spamdetect.training.dataset import FOLDS, DataError, SpamRow, read_spam
from spamdetect.training.linear import Fitted, Settings
from spamdetect.training.matrix import Matrix, Progress, build, silent
from spamdetect.training.metrics import Scores
from spamdetect.training.mirror import COPIES, MIRROR
from spamdetect.training.spam_fit import Corpus, fit_on, out_of_fold, scores_of

Floats = NDArray[np.float64]
Calibration = Callable[[Floats], Floats]
MIN_CLASS: Final = 20  # a source with fewer texts of a class says nothing of that class
SUITE_FOLD: Final = 0
SUITE_TEXTS: Final = 2000
SUITE_LENGTH: Final = 1500
THRESHOLD: Final = 0.5


@attrs.frozen
class Evaluation:
    """What one evaluation found.

    Attributes:
        in_domain: cross-validation over the folds.
        by_fold: the same for each fold alone.
        by_source: leave-one-source-out, for each source.
        attacks: for each disguise, the figures on disguised texts of a held-out fold.
        clean: the figures on the same texts undisguised.
        mirror: for each harmless addition, the share of ham taken for spam.
        mirror_clean: the same share without addition.
        copies: for each kind of copy, the share of texts whose verdict changes.
    """

    in_domain: Scores
    by_fold: Mapping[int, Scores]
    by_source: Mapping[str, Scores]
    attacks: Mapping[str, Scores]
    clean: Scores
    mirror: Mapping[str, float]
    mirror_clean: float
    copies: Mapping[str, float]

    @property
    def unseen(self) -> Scores:
        """The mean over the left-out sources."""
        return mean(list(self.by_source.values()))

    @property
    def attacked(self) -> Scores:
        """The mean over the disguises."""
        return mean(list(self.attacks.values()))


def mean(parts: Sequence[Scores]) -> Scores:
    """The unweighted mean of each figure, NaN of none; the texts are added up."""
    names = [field.name for field in attrs.fields(Scores) if field.name != "texts"]
    values = {
        name: float(np.nanmean([getattr(part, name) for part in parts])) if parts else float("nan")
        for name in names
    }
    return Scores(**values, texts=sum(part.texts for part in parts))


@attrs.frozen
class Suite:
    """Texts of a held-out fold, as they are and changed in many ways, as features.

    Attributes:
        labels: which of them are spam.
        clean: unchanged.
        changed: by the kind of change and its name.
    """

    labels: NDArray[np.bool_]
    clean: Matrix
    changed: Mapping[str, Mapping[str, Matrix]]


def suite(rows: Sequence[SpamRow], seed: int, bits: int, progress: Progress = silent) -> Suite:
    """Change texts of the held-out fold.

    Args:
        rows: labelled texts.
        seed: of the choice of texts and of the changes.
        bits: of the features.
        progress: told how far it is.

    Raises:
        DataError: no text is in that fold.
    """
    sample = suite_rows(rows, seed)
    texts = [row.text[:SUITE_LENGTH] for row in sample]
    kinds = {"attacks": ATTACKS, "mirror": MIRROR, "copies": COPIES}
    changed: dict[str, dict[str, Matrix]] = {}
    for number, (kind, changes) in enumerate(kinds.items()):
        progress("disguising", number / len(kinds))
        changed[kind] = {
            name: build(changed_texts(texts, change, seed), bits)
            for name, change in changes.items()
        }
    progress("disguising", 1.0)
    return Suite(np.array([row.is_spam for row in sample]), build(texts, bits), changed)


def suite_rows(rows: Sequence[SpamRow], seed: int) -> list[SpamRow]:
    """The held-out texts that disguises are tried on."""
    sample = [row for row in rows if row.fold == SUITE_FOLD]
    if not sample:
        raise DataError(f"no text is in fold {SUITE_FOLD}, which disguises are tried on")
    Random(seed).shuffle(sample)
    return sample[:SUITE_TEXTS]


def changed_texts(texts: Sequence[str], change: Disguise, seed: int) -> list[str]:
    """Each text changed, by a generator of its own."""
    return [change(text, Random(f"{seed}:{number}")) for number, text in enumerate(texts)]


def cross_check(
    rows: Sequence[SpamRow],
    seed: int = 0,
    settings: Settings = spam_fit.DEFAULTS,
    progress: Progress = silent,
    *,
    plan: Plan = spam_fit.DEFAULT_PLAN,
    sources: Sequence[str] | None = None,
) -> Evaluation:
    """Evaluate the training recipe on data that each fit has not seen.

    Args:
        rows: labelled texts.
        seed: of the training and of the disguises.
        settings: of the fits.
        progress: told how far it is.
        plan: the copies to add.
        sources: left out one at a time; all where this is not given.
    """
    data = spam_fit.corpus(rows, seed, settings, plan, progress)
    return check(data, suite(rows, seed, settings.bits, progress), settings, progress, sources)


def check(
    data: Corpus,
    tests: Suite,
    settings: Settings = spam_fit.DEFAULTS,
    progress: Progress = silent,
    sources: Sequence[str] | None = None,
    most_folds: int = FOLDS,
) -> Evaluation:
    """`cross_check` on features already computed.

    Args:
        data: the texts and their copies.
        tests: changed texts.
        settings: of the fits.
        progress: told how far it is.
        sources: left out one at a time; all where this is not given.
        most_folds: cross-validate over no more than the first ones.
    """
    fits = spam_fit.fits_by_fold(data, settings, progress, most_folds)
    raw = out_of_fold(data, fits)
    folds = data.folds
    chances, by_fold = np.zeros(raw.size), {}
    for fold in fits:
        inside = folds == fold
        chances[inside] = calibration(data, raw, ~inside)(raw[inside])
        by_fold[fold] = metrics.scores(data.labels[inside], chances[inside], THRESHOLD)
    held = ~np.isnan(raw)
    names = sorted(set(data.sources.tolist())) if sources is None else sources
    by_source = leave_one_source_out(data, settings, raw, names, progress)
    fitted, chance = fits[SUITE_FOLD], calibration(data, raw, folds != SUITE_FOLD)
    labels = tests.labels
    clean = chance(fitted.scores(tests.clean))
    judged = {
        kind: {name: chance(fitted.scores(matrix)) for name, matrix in changed.items()}
        for kind, changed in tests.changed.items()
    }
    said = clean >= THRESHOLD
    return Evaluation(
        in_domain=metrics.scores(data.labels[held], chances[held], THRESHOLD),
        by_fold=by_fold,
        by_source=by_source,
        attacks={
            name: metrics.scores(labels, found, THRESHOLD)
            for name, found in judged["attacks"].items()
        },
        clean=metrics.scores(labels, clean, THRESHOLD),
        mirror={
            name: float((found[~labels] >= THRESHOLD).mean())
            for name, found in judged["mirror"].items()
        },
        mirror_clean=float(said[~labels].mean()),
        copies={
            name: float(((found >= THRESHOLD) != said).mean())
            for name, found in judged["copies"].items()
        },
    )


def calibration(data: Corpus, raw: Floats, chosen: NDArray[np.bool_]) -> Calibration:
    """From scores to probabilities, by what is known of some of the texts."""
    known = chosen & ~np.isnan(raw)
    slope, offset = metrics.platt(data.labels[known], raw[known])

    def chance(scores: Floats) -> Floats:
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(slope * scores + offset, -60, 60))))

    return chance


def related(source: str, sources: Iterable[str]) -> set[str]:
    """The sources that share texts with one: its translations and what it translates."""
    return {other for other in sources if other.startswith(source) or source.startswith(other)}


def tells(labels: NDArray[np.bool_]) -> bool:
    """Whether a source holds enough texts of both classes to say something of each."""
    return min(int(labels.sum()), int((~labels).sum())) >= MIN_CLASS


def leave_one_source_out(
    data: Corpus,
    settings: Settings,
    raw: Floats,
    left_out: Sequence[str],
    progress: Progress = silent,
) -> dict[str, Scores]:
    """For each source named, the figures of a fit without it, and without its translations.

    Args:
        data: the texts and their copies.
        settings: of the fits.
        raw: scores of held-out texts, for the calibration, from which the source is left out too.
        left_out: the names.
        progress: told how far it is.
    """
    sources = data.sources
    names = sorted(set(sources.tolist()))
    found = {}
    for number, name in enumerate(left_out):
        progress("leaving one source out", number / len(left_out))
        inside = sources == name
        if not tells(data.labels[inside]):
            continue
        rest = ~np.isin(sources, sorted(related(name, names)))
        if data.labels[rest].all() or not data.labels[rest].any():
            continue
        fitted = fit_on(data, rest, settings)
        scores = calibration(data, raw, rest)(scores_of(data, fitted, inside))
        found[name] = metrics.scores(data.labels[inside], scores, THRESHOLD)
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


__all__ = ["Evaluation", "Fitted", "check", "cross_check", "evaluate", "mean", "suite"]
