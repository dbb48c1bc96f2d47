"""How good the recipe is on texts that a fit has not seen: folds, strangers, disguised texts.

A stranger is a source that is left out of a fit, of its calibration and of its thresholds,
together with its translations and every text in its languages; see
`spamdetect.training.left_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine import language
from spamdetect.training import calibrate
from spamdetect.training.attacks import ATTACKS, Disguise
from spamdetect.training.calibrate import HeldOut
from spamdetect.training.corpus import Corpus, Progress, corpus, read, silent
from spamdetect.training.dataset import FOLDS, DataError, SpamRow
from spamdetect.training.evaluate import Scores, scores
from spamdetect.training.fit import Signals, fit
from spamdetect.training.mirror import COPIES, MIRROR
from spamdetect.training.trainer import held_out

Floats = NDArray[np.float64]

SEALED: Final = ("india_sms", "scamspot_ig", "tgspam")
"""Sources that were chosen before any fit of version 3 and looked at only when it was finished."""
SUITE_FOLD: Final = 0
SUITE_TEXTS: Final = 2000
SUITE_LENGTH: Final = 1500
THRESHOLD: Final = 0.5
DRAWS: Final = 2000


@attrs.frozen
class Spread:
    """The false alarms of a profile whose threshold was fitted without the source.

    Attributes:
        promised: the share that it promises.
        by_source: the share of each source's ordinary messages that is taken for spam.
        found: the share of each source's spam that is found.
    """

    promised: float
    by_source: Mapping[str, float]
    found: Mapping[str, float]


@attrs.frozen
class Evaluation:
    """The results of one evaluation.

    Attributes:
        in_domain: cross-validation over the folds, on texts that were really sent.
        by_source: strangers.
        notices: made notices in languages of which a fit knows none.
        profiles: of each profile, the spread over strangers.
        without: the figures of strangers without a part of the classifier, and the difference of
            mean F1 with its 95 % range, by paired bootstrap over sources.
        attacks: for each disguise, the figures on disguised texts of a held-out fold.
        clean: the figures on the same texts undisguised.
        mirror: for each harmless addition, the share of ham taken for spam.
        mirror_clean: the same share without additions.
        copies: for each kind of copy, the share of texts whose verdict changes.
    """

    in_domain: Scores
    by_source: Mapping[str, Scores]
    notices: Mapping[str, Scores]
    profiles: Mapping[str, Spread]
    without: Mapping[str, tuple[Scores, tuple[float, float, float]]]
    attacks: Mapping[str, Scores]
    clean: Scores
    mirror: Mapping[str, float]
    mirror_clean: float
    copies: Mapping[str, float]


def mean(parts: Sequence[Scores]) -> Scores:
    """The unweighted mean of each figure, NaN if there are no parts; text counts are summed."""
    names = [field.name for field in attrs.fields(Scores) if field.name != "texts"]
    values = {
        name: float(np.nanmean([getattr(part, name) for part in parts])) if parts else float("nan")
        for name in names
    }
    return Scores(**values, texts=sum(part.texts for part in parts))


def suite_rows(rows: Sequence[SpamRow], seed: int) -> list[SpamRow]:
    """The held-out texts to try disguises on."""
    sample = [row for row in rows if row.fold == SUITE_FOLD]
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
    progress: Progress = silent,
    *,
    jobs: int = 1,
    folds: int = FOLDS,
) -> Evaluation:
    """Evaluate the training recipe, testing each fit on data that it has not seen.

    Args:
        rows: labelled texts.
        seed: seeds the training and the disguises.
        progress: receives the progress.
        jobs: how many processes share the fits.
        folds: how many folds to try.
    """
    data = corpus(rows, seed, progress)
    held = held_out(data, seed, jobs, progress, folds)
    chances = calibrate.judged(data, held)
    inside: list[tuple[NDArray[np.intp], Floats]] = []
    by_source, notices = {}, {}
    for group, chance in zip(held, chances, strict=True):
        labels = data.labels[group.texts]
        if group.part.is_fold:
            sent = ~data.made[group.texts]
            inside.append((group.texts[sent], chance[sent]))
        else:
            of = notices if data.made[group.texts].any() else by_source
            of[group.name] = scores(labels, chance, THRESHOLD)
    texts, said = (np.concatenate(each) for each in zip(*inside, strict=True))
    disguised = changes(data, held, seed, progress)
    return Evaluation(
        scores(data.labels[texts], said, THRESHOLD),
        dict(sorted(by_source.items())),
        notices,
        spreads(data, held, chances),
        {name: without(data, held, by_source, change) for name, change in PARTS.items()},
        *disguised,
    )


def spreads(data: Corpus, held: Sequence[HeldOut], chances: Sequence[Floats]) -> dict[str, Spread]:
    """For each profile, how it keeps its promise on strangers."""
    groups = [
        (group, chance)
        for group, chance in zip(held, chances, strict=True)
        if not group.part.is_fold and not data.made[group.texts].any()
    ]
    found: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    promised: dict[str, float] = {}
    for group, chance in groups:
        others = [each for each in groups if each[0] is not group]
        if not others:
            continue
        fitted = calibrate.profiles(data, *zip(*others, strict=True), THRESHOLD)
        labels = data.labels[group.texts]
        for name, profile in fitted.items():
            refused, caught = found.setdefault(name, ({}, {}))
            refused[group.name] = float((chance[~labels] >= profile.threshold).mean())
            caught[group.name] = float((chance[labels] >= profile.threshold).mean())
    if groups:
        for name, profile in calibrate.profiles(
            data, *zip(*groups, strict=True), THRESHOLD
        ).items():
            promised[name] = profile.false_alarms or 0.0
    return {name: Spread(promised[name], *each) for name, each in found.items()}


def _no_grams(signals: Signals) -> Signals:
    return attrs.evolve(
        signals,
        grams=np.zeros_like(signals.grams),
        parts=signals.parts and _no_grams(signals.parts),
    )


def _no_network(signals: Signals) -> Signals:
    return attrs.evolve(
        signals,
        meaning=np.zeros_like(signals.meaning),
        parts=signals.parts and _no_network(signals.parts),
    )


PARTS: Final[Mapping[str, Callable[[Signals], Signals]]] = {
    "the linear part": _no_grams,
    "the network": _no_network,
}


def without(
    data: Corpus,
    held: Sequence[HeldOut],
    whole: Mapping[str, Scores],
    change: Callable[[Signals], Signals],
) -> tuple[Scores, tuple[float, float, float]]:
    """Strangers judged without a part; see `Evaluation.without`."""
    less = [attrs.evolve(group, signals=change(group.signals)) for group in held]
    found = {
        group.name: scores(data.labels[group.texts], chance, THRESHOLD)
        for group, chance in zip(less, calibrate.judged(data, less), strict=True)
        if group.name in whole
    }
    lost = np.array([whole[name].f1 - less_of.f1 for name, less_of in found.items()])
    draws = np.random.default_rng(0).choice(lost, (DRAWS, lost.size)).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return mean(list(found.values())), (float(lost.mean()), float(low), float(high))


def changes(
    data: Corpus, held: Sequence[HeldOut], seed: int, progress: Progress
) -> tuple[dict[str, Scores], Scores, dict[str, float], float, dict[str, float]]:
    """The figures on texts of a held-out fold that were changed; see `Evaluation`."""
    progress("disguising", 0.0)
    sample = suite_rows(
        [row for row, made in zip(data.texts, data.made, strict=True) if not made], seed
    )
    texts = [row.text[:SUITE_LENGTH] for row in sample]
    labels = np.array([row.is_spam for row in sample])
    first = np.array([row.fold == SUITE_FOLD for row in data.texts])
    fitted, detector = fit(data, ~first, seed), language.load()
    blend = calibrate.blend(data, held, first)

    def chances(changed: Sequence[str]) -> Floats:
        return calibrate.probabilities(blend, fitted.signals(read(changed, data.lexicon, detector)))

    clean = chances(texts)
    attacks = {
        name: scores(labels, chances(changed_texts(texts, attack, seed)), THRESHOLD)
        for name, attack in ATTACKS.items()
    }
    progress("disguising", 0.5)
    ham = [text for text, spam in zip(texts, labels, strict=True) if not spam]
    mirror = {
        name: float((chances(changed_texts(ham, add, seed)) >= THRESHOLD).mean())
        for name, add in MIRROR.items()
    }
    verdicts = clean >= THRESHOLD
    copies = {
        name: float(((chances(changed_texts(texts, copy, seed)) >= THRESHOLD) != verdicts).mean())
        for name, copy in COPIES.items()
    }
    progress("disguising", 1.0)
    of_clean = scores(labels, clean, THRESHOLD)
    return attacks, of_clean, mirror, float(verdicts[~labels].mean()), copies
