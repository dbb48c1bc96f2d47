"""How good a classifier is on texts unlike any it has seen: left-out parts, disguised texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.concepts import Lexicon
from spamdetect.engine.core import Engine
from spamdetect.training import metrics, spam_fit
from spamdetect.training.attacks import ATTACKS, Disguise
from spamdetect.training.augment import Plan
from spamdetect.training.blending import Mixture, Signals
from spamdetect.training.dataset import FOLDS, DataError, SpamRow, read_spam
from spamdetect.training.fits import ALONE, Fits, Wanted
from spamdetect.training.judge import tells
from spamdetect.training.linear import Settings
from spamdetect.training.matrix import Matrix, Progress, build, join, silent
from spamdetect.training.metrics import Scores
from spamdetect.training.mirror import COPIES, MIRROR
from spamdetect.training.spam_fit import Corpus
from spamdetect.training.trainer import WAYS, HeldOut, held_out, mixture

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
SUITE_FOLD: Final = 0
SUITE_TEXTS: Final = 2000
SUITE_LENGTH: Final = 1500
THRESHOLD: Final = 0.5
SENT, MADE = "sent", "notices"


@attrs.frozen
class Evaluation:
    """The results of one evaluation.

    Attributes:
        in_domain: cross-validation over the folds, on texts that were really sent.
        by_fold: the same for each fold alone.
        by_source: leave-one-source-out, for each source.
        left_out: for each way of leaving parts out, and separately for texts that were sent and
            for made notices, the figures of each part.
        attacks: for each disguise, the figures on disguised texts of a held-out fold.
        clean: the figures on the same texts undisguised.
        mirror: for each harmless addition, the share of ham taken for spam.
        mirror_clean: the same share without additions.
        copies: for each kind of copy, the share of texts whose verdict changes.
    """

    in_domain: Scores
    by_fold: Mapping[int, Scores]
    by_source: Mapping[str, Scores]
    left_out: Mapping[tuple[str, str], Mapping[str, Scores]]
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

    def without(self, way: str, of: str = SENT) -> Scores:
        """The mean over the parts that were left out in one way."""
        return mean(list(self.left_out.get((way, of), {}).values()))


def mean(parts: Sequence[Scores]) -> Scores:
    """The unweighted mean of each figure, NaN if there are no parts; text counts are summed."""
    names = [field.name for field in attrs.fields(Scores) if field.name != "texts"]
    values = {
        name: float(np.nanmean([getattr(part, name) for part in parts])) if parts else float("nan")
        for name in names
    }
    return Scores(**values, texts=sum(part.texts for part in parts))


@attrs.frozen
class Suite:
    """The features of a held-out fold's texts, unchanged and changed in many ways.

    Attributes:
        labels: which of them are spam.
        clean: unchanged.
        changed: by the kind of change and its name.
    """

    labels: NDArray[np.bool_]
    clean: Matrix
    changed: Mapping[str, Mapping[str, Matrix]]

    def matrix(self) -> Matrix:
        """All of them: the unchanged ones, then those of each change in turn."""
        return join(
            [self.clean, *(each for kind in self.changed.values() for each in kind.values())]
        )


def suite(
    rows: Sequence[SpamRow],
    seed: int,
    bits: int,
    progress: Progress = silent,
    lexicon: Lexicon | None = None,
) -> Suite:
    """Change texts of the held-out fold.

    Args:
        rows: labelled texts.
        seed: seeds the choice of texts and the changes.
        bits: the logarithm of the number of n-gram buckets.
        progress: receives the progress.
        lexicon: the lexicon of concepts.

    Raises:
        DataError: that fold has no texts.
    """
    sample = suite_rows(rows, seed)
    texts = [row.text[:SUITE_LENGTH] for row in sample]
    kinds = {"attacks": ATTACKS, "mirror": MIRROR, "copies": COPIES}
    changed: dict[str, dict[str, Matrix]] = {}
    for number, (kind, changes) in enumerate(kinds.items()):
        progress("disguising", number / len(kinds))
        changed[kind] = {
            name: build(changed_texts(texts, change, seed), bits, silent, lexicon)
            for name, change in changes.items()
        }
    progress("disguising", 1.0)
    clean = build(texts, bits, silent, lexicon)
    return Suite(np.array([row.is_spam for row in sample]), clean, changed)


def suite_rows(rows: Sequence[SpamRow], seed: int) -> list[SpamRow]:
    """The held-out texts to try disguises on."""
    sample = [
        row for row in rows
        if row.fold == SUITE_FOLD and not row.source.startswith(spam_fit.NOTICES)
    ]  # fmt: skip
    if not sample:
        raise DataError(f"no text is in fold {SUITE_FOLD}, which disguises are tried on")
    Random(seed).shuffle(sample)
    return sample[:SUITE_TEXTS]


def changed_texts(texts: Sequence[str], change: Disguise, seed: int) -> list[str]:
    """Change each text with its own random generator."""
    return [change(text, Random(f"{seed}:{number}")) for number, text in enumerate(texts)]


def cross_check(
    rows: Sequence[SpamRow],
    seed: int = 0,
    settings: Settings = spam_fit.DEFAULTS,
    progress: Progress = silent,
    *,
    plan: Plan = spam_fit.DEFAULT_PLAN,
    sources: Sequence[str] | None = None,
    fits: Fits = ALONE,
) -> Evaluation:
    """Evaluate the training recipe, testing each fit on data that it has not seen.

    Args:
        rows: labelled texts.
        seed: seeds the training and the disguises.
        settings: the settings of the fits.
        progress: receives the progress.
        plan: the copies to add.
        sources: left out one at a time; all by default.
        fits: makes the fits.
    """
    data = spam_fit.corpus(rows, seed, settings, plan, progress)
    tests = suite(rows, seed, settings.bits, progress, data.lexicon)
    return check(data, tests, settings, progress, sources, fits=fits)


def check(
    data: Corpus,
    tests: Suite,
    settings: Settings = spam_fit.DEFAULTS,
    progress: Progress = silent,
    sources: Sequence[str] | None = None,
    most_folds: int = FOLDS,
    ways: Sequence[str] = WAYS,
    fits: Fits = ALONE,
) -> Evaluation:
    """`cross_check` on features already computed.

    Args:
        data: the texts and their copies.
        tests: changed texts.
        settings: the settings of the fits.
        progress: receives the progress.
        sources: left out one at a time; all by default.
        most_folds: cross-validate over at most this many folds.
        ways: the ways of leaving parts out.
        fits: makes the fits.
    """
    found = held_out(data, settings, progress, ways, most_folds, fits)
    chances, left_out = judged(data, found)
    names = sorted(set(data.sources.tolist()) - data.made) if sources is None else sources
    first = data.folds == SUITE_FOLD
    wanted = Wanted(~first, tests.matrix())
    (signals,) = fits.signals(data, [wanted], settings, progress, "fitting for the disguises")
    disguised = Changes.of(tests, signals, mixture(data, found, first))
    sent = ~np.isin(data.sources, sorted(data.made))
    held = ~np.isnan(chances) & sent
    return Evaluation(
        in_domain=metrics.scores(data.labels[held], chances[held], THRESHOLD),
        by_fold={int(name): scores for name, scores in left_out["fold", SENT].items()},
        by_source=leave_one_source_out(data, settings, found, names, progress, fits),
        left_out=left_out,
        attacks=disguised.attacks,
        clean=disguised.clean,
        mirror=disguised.mirror,
        mirror_clean=disguised.mirror_clean,
        copies=disguised.copies,
    )


def judged(
    data: Corpus, found: Sequence[HeldOut]
) -> tuple[Floats, dict[tuple[str, str], dict[str, Scores]]]:
    """Judge the texts of each part by fits and a mixture that have not seen them.

    Args:
        data: the texts.
        found: the signals of fits for texts that they have not seen.

    Returns:
        The probability of each text from the folds, NaN if its fold was not tried; and the figures
        by way of leaving out, by whether the texts were sent or made, and by part.
    """
    chances = np.full(len(data.rows), np.nan)
    of_all = mixture(data, found)
    made = np.isin(data.sources, sorted(data.made))
    scores: dict[tuple[str, str], dict[str, Scores]] = {}
    for held in found:
        for name, inside in held.part.groups.items():
            here = inside[held.texts]
            texts = held.texts[here]
            said = held.signals.select(here).probabilities(mixture(data, found, inside, of_all))
            if held.part.way == "fold":
                chances[texts] = said
            for of, mask in ((SENT, ~made[texts]), (MADE, made[texts])):
                if tells(data.labels[texts[mask]]):
                    figures = metrics.scores(data.labels[texts[mask]], said[mask], THRESHOLD)
                    scores.setdefault((held.part.way, of), {})[name] = figures
    return chances, scores


@attrs.frozen
class Changes:
    """Figures on changed texts; see `Evaluation`."""

    attacks: dict[str, Scores]
    clean: Scores
    mirror: dict[str, float]
    mirror_clean: float
    copies: dict[str, float]

    @classmethod
    def of(cls, tests: Suite, signals: Signals, mixed: Mixture) -> Changes:
        """Judge the texts by signals of a fit, and by a mixture, that have not seen them.

        Args:
            tests: the texts.
            signals: those of the rows of `Suite.matrix`.
            mixed: the mixture.
        """
        labels = tests.labels
        clean, *rest = np.split(
            signals.probabilities(mixed), 1 + sum(map(len, tests.changed.values()))
        )
        chances = iter(rest)
        said = {
            kind: {name: next(chances) for name in changed}
            for kind, changed in tests.changed.items()
        }
        verdict = clean >= THRESHOLD
        return cls(
            attacks={
                name: metrics.scores(labels, chance, THRESHOLD)
                for name, chance in said["attacks"].items()
            },
            clean=metrics.scores(labels, clean, THRESHOLD),
            mirror={
                name: float((chance[~labels] >= THRESHOLD).mean())
                for name, chance in said["mirror"].items()
            },
            mirror_clean=float(verdict[~labels].mean()),
            copies={
                name: float(((chance >= THRESHOLD) != verdict).mean())
                for name, chance in said["copies"].items()
            },
        )


def related(source: str, sources: Iterable[str]) -> set[str]:
    """The sources that share texts with this one: its translations and its originals."""
    return {other for other in sources if other.startswith(source) or source.startswith(other)}


def leave_one_source_out(
    data: Corpus,
    settings: Settings,
    found: Sequence[HeldOut],
    left_out: Sequence[str],
    progress: Progress = silent,
    fits: Fits = ALONE,
) -> dict[str, Scores]:
    """For each source named, the figures of a fit without it, and without its translations.

    Args:
        data: the texts and their copies.
        settings: the settings of the fits.
        found: signals for the calibration, which leaves the source out too.
        left_out: the names.
        progress: receives the progress.
        fits: makes the fits.
    """
    sources = data.sources
    names = sorted(set(sources.tolist()))
    inside = {name: np.flatnonzero(sources == name) for name in left_out}
    kin = {name: np.isin(sources, sorted(related(name, names))) for name in left_out}
    told = [
        name for name in left_out
        if tells(data.labels[inside[name]])
        and not data.labels[~kin[name]].all()
        and data.labels[~kin[name]].any()
    ]  # fmt: skip
    wanted = [Wanted(~kin[name], inside[name]) for name in told]
    signals = fits.signals(data, wanted, settings, progress, "leaving one source out")
    return {
        name: metrics.scores(
            data.labels[inside[name]],
            of.probabilities(mixture(data, found, kin[name])),
            THRESHOLD,
        )
        for name, of in zip(told, signals, strict=True)
    }


def evaluate(
    paths: Iterable[str | os.PathLike[str]],
    engine: Engine | None = None,
    progress: Progress = silent,
) -> Scores:
    """Measure an engine on labelled texts that it has not been trained on.

    Args:
        paths: JSONL or CSV files, or folders with such; see `read_spam`.
        engine: the shipped one by default.
        progress: receives the progress.

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


__all__ = ["Evaluation", "check", "cross_check", "evaluate", "mean", "suite"]
