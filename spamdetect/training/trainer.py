"""Training the spam classifier: from labelled texts to a model file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine import classifier
from spamdetect.engine.classifier import SILENT, SpamModel
from spamdetect.engine.container import pack
from spamdetect.training import blending, network
from spamdetect.training.blending import Mixture, Signals
from spamdetect.training.dataset import FOLDS, read_spam
from spamdetect.training.fits import ALONE, Fits, Wanted
from spamdetect.training.judge import Judge, Part, fit_judge, parts, tells
from spamdetect.training.linear import Settings
from spamdetect.training.made import made_rows
from spamdetect.training.matrix import Progress, silent
from spamdetect.training.profiles import measured_profiles
from spamdetect.training.spam_fit import DEFAULTS, Corpus, corpus, table_bits

VERSION: Final = "2.3.0"
THRESHOLD: Final = 0.5
WAYS: Final = ("fold", "family", "kind", "domain")
WAYS_OF_BLEND: Final = ("fold", "family", "kind")
SHARES: Final = {"fold": 1.0, "family": 1.0, "kind": 1.0, "domain": 0.0}
PRIOR: Final = 0.275
# The weight, in texts of the folds, of a family or domain of sent texts, of one of notices, and
# of all notices of a fold.
SENT_SHARE: Final = 125.0
NOTICE_SHARE: Final = 200.0
NOTICES_OF_FOLD: Final = 300.0

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@attrs.frozen
class HeldOut:
    """The signals of a fit for the texts of a part that it has not seen."""

    part: Part
    texts: NDArray[np.intp]
    signals: Signals


def held_out(
    data: Corpus,
    settings: Settings = DEFAULTS,
    progress: Progress = silent,
    ways: Sequence[str] = WAYS,
    most_folds: int = FOLDS,
    fits: Fits = ALONE,
) -> list[HeldOut]:
    """For each part of the data, the signals for its texts of a fit without that part.

    These fits leave fragments out: they take a third of the time and score about the same.

    Args:
        data: the texts.
        settings: the settings of the fits.
        progress: receives the progress.
        ways: the ways of leaving parts out.
        most_folds: leave out at most this many folds.
        fits: makes the fits.

    Raises:
        DataError: there are not two folds, which calibration needs.
    """
    left_out = parts(data, ways, most_folds)
    plan = attrs.evolve(data.plan, fragment_weight=0.0, phrase_weight=0.0)
    data = attrs.evolve(data, plan=plan)
    wanted = [Wanted(part.fitted, np.flatnonzero(part.inside)) for part in left_out]
    found = fits.signals(data, wanted, settings, progress)
    return [
        HeldOut(part, np.flatnonzero(part.inside), signals)
        for part, signals in zip(left_out, found, strict=True)
    ]


def mixture(
    data: Corpus,
    found: Sequence[HeldOut],
    without: Flags | None = None,
    start: Mixture | None = None,
) -> Mixture:
    """Fit the best mixture of the classifier's two parts.

    Each text of a held-out fold counts once, made notices together as a fixed share. A family, kind
    or domain counts as much as any other, whatever its size, and spam as `PRIOR` of it, whatever
    its share: the mixture must learn what scores mean there, not how much spam somebody collected.

    Args:
        data: the texts.
        found: the signals of fits for texts that they have not seen.
        without: texts to leave out here too.
        start: a mixture that is near, which saves time.
    """
    made = np.isin(data.sources, sorted(data.made))
    signals, texts, weights = [], [], []

    def add(held: HeldOut, chosen: Flags, worth: float, total: float = 0.0) -> None:
        of = held.texts[chosen]
        spam = data.labels[of]
        if total:
            if not tells(spam):
                return
            worths = np.where(spam, PRIOR / spam.sum(), (1.0 - PRIOR) / (~spam).sum()) * total
        else:
            worths = np.full(of.size, worth)
        signals.append(held.signals.select(chosen))
        texts.append(of)
        weights.append(worths)

    for held in found:
        keep = np.ones(held.texts.size, bool) if without is None else ~without[held.texts]
        of_notice = made[held.texts]
        if held.part.way == "fold":
            add(held, keep & ~of_notice, 1.0)
            add(held, keep & of_notice, 0.0, NOTICES_OF_FOLD)
            continue
        for group in held.part.groups.values():
            inside = keep & group[held.texts]
            for mask, total in ((~of_notice, SENT_SHARE), (of_notice, NOTICE_SHARE)):
                if share := SHARES[held.part.way] * total:
                    add(held, inside & mask, 0.0, share)
    of = np.concatenate(texts)
    return blending.fit(blending.joined(signals), data.labels[of], np.concatenate(weights), start)


def train(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    seed: int = 0,
    progress: Progress = silent,
    *,
    notices: int = 0,
    fits: Fits = ALONE,
) -> SpamModel:
    """Train the classifier on labelled texts and write its model file.

    The same data, seed and versions of this package, Python and numpy give the same file, byte
    for byte, on every machine.

    Args:
        paths: JSONL or CSV files, or folders with such; see `read_spam`.
        out: the file to write.
        seed: seeds everything random.
        progress: receives the stage and the share of it that is done.
        notices: how many notices to add from each template of this package; the shipped model
            has `spamdetect.training.made.PER_TEMPLATE`.
        fits: makes the fits for the calibration.

    Raises:
        DataError: the data cannot be used; the message says which file and line.

    Example:
        >>> train(["data/spam"], "spam.model", seed=0)  # doctest: +SKIP
    """
    rows = read_spam(paths)
    if notices:
        rows += made_rows(seed, notices)
    data = corpus(rows, seed, progress=progress)
    found = held_out(data, progress=progress, ways=WAYS_OF_BLEND, fits=fits)
    judge = fit_judge(data, np.ones(len(data.rows), bool), progress=progress)
    mixed = mixture(data, found)
    model = finish(data, mixed, judge, chances_by_fold(data, found, mixed))
    Path(out).write_bytes(pack(*classifier.dump(model)))
    return model


def chances_by_fold(data: Corpus, found: Sequence[HeldOut], start: Mixture) -> Floats:
    """The probability of each text that was really sent, from fits and a mixture without its fold.

    NaN where no fold was tried, and for made notices: their content is not typical.
    """
    chances = np.full(len(data.rows), np.nan)
    for held in found:
        if held.part.way == "fold":
            mixed = mixture(data, found, held.part.inside, start)
            chances[held.texts] = held.signals.probabilities(mixed)
    chances[np.isin(data.sources, sorted(data.made))] = np.nan
    return chances


def finish(data: Corpus, mixed: Mixture, judge: Judge, chances: Floats) -> SpamModel:
    """Build the model from a fit.

    Args:
        data: the texts.
        mixed: how its parts are mixed.
        judge: the fit to all texts.
        chances: probabilities of texts from fits that have not seen them, for the profiles.
    """
    fitted = judge.grams
    last = int(data.matrix.structure_starts[len(data.rows)])
    used = np.bincount(data.matrix.structure[:last], minlength=data.matrix.width)
    usual = used / len(data.rows)
    structure, direct = mixed.shares()
    weights = np.rint(fitted.weights / fitted.scale).astype(np.int8)
    weights[(weights == 0) & judge.met] = SILENT
    return SpamModel(
        bits=table_bits(weights.size),
        weights=weights,
        scale=fitted.scale,
        power=fitted.power,
        lexicon=data.lexicon,
        network=network.with_linear(
            judge.network, fitted.structure + structure, direct, fitted.bias, usual
        ),
        blend=mixed.blend,
        threshold=THRESHOLD,
        version=VERSION,
        profiles=measured_profiles(data.labels, chances, THRESHOLD),
    )
