"""Training the spam classifier: from labelled texts to a model file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from spamdetect.engine import classifier
from spamdetect.engine.classifier import SpamModel
from spamdetect.engine.container import pack
from spamdetect.training import calibrate
from spamdetect.training.calibrate import HeldOut
from spamdetect.training.corpus import BITS, Corpus, Progress, corpus, silent
from spamdetect.training.dataset import read_spam
from spamdetect.training.fit import POWER, fit, fit_many
from spamdetect.training.generated import made_rows
from spamdetect.training.left_out import folds, strangers

VERSION: Final = "3.1.0"
THRESHOLD: Final = 0.5
FOLDS_TRIED: Final = 2  # for the calibration; more change nothing


def train(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    seed: int = 0,
    progress: Progress = silent,
    *,
    notices: int = 0,
    jobs: int = 1,
) -> SpamModel:
    """Train the classifier on labelled texts and write its model file.

    The same data, seed and versions of this package, numpy, scipy and scikit-learn give the same
    file, byte for byte, on the same kind of machine.

    Args:
        paths: JSONL or CSV files, or folders with such; see `read_spam`.
        out: the file to write.
        seed: seeds everything random.
        progress: receives the stage and the share of it that is done.
        notices: how many notices to add from each template of this package; the shipped model
            has `spamdetect.training.generated.PER_TEMPLATE`.
        jobs: how many processes share the fits for the calibration.

    Raises:
        DataError: the data cannot be used; the message says which file and line.

    Example:
        >>> train(["data/spam"], "spam.model", seed=0)  # doctest: +SKIP
    """
    rows = read_spam(paths)
    if notices:
        rows += made_rows(seed, notices)
    data = corpus(rows, seed, progress)
    with threadpool_limits(1):
        model = finish(data, held_out(data, seed, jobs, progress), seed, progress)
    Path(out).write_bytes(pack(*classifier.dump(model)))
    return model


def held_out(
    data: Corpus, seed: int, jobs: int = 1, progress: Progress = silent, tried: int = FOLDS_TRIED
) -> list[HeldOut]:
    """The signals of fits for texts that they have not seen: strangers, and some of the folds.

    Raises:
        DataError: there are not two folds.
    """
    parts = [*strangers(data), *folds(data, tried)]
    asked = [np.flatnonzero(part.judged) for part in parts]
    found = fit_many(data, [part.fitted for part in parts], asked, seed, jobs, progress)
    return calibrate.split(parts, found)


def finish(
    data: Corpus, held: Sequence[HeldOut], seed: int, progress: Progress = silent
) -> SpamModel:
    """Fit both parts to all texts, and how they are blended to the texts held out."""
    progress("fitting", 0.0)
    found = fit(data, np.ones(len(data.texts), bool), seed)
    progress("fitting", 1.0)
    return SpamModel(
        bits=BITS,
        weights=found.weights,
        scale=found.scale,
        power=POWER,
        lexicon=data.lexicon,
        network=found.network,
        blend=calibrate.blend(data, held),
        threshold=THRESHOLD,
        version=VERSION,
        profiles=calibrate.profiles(data, held, calibrate.judged(data, held), THRESHOLD),
    )
