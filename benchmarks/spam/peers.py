"""Other classifiers and language detectors under the same tests as ours."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import numpy as np

from benchmarks.spam import baselines, detectors, footprint, seal
from benchmarks.spam.detectors import LanguageScores
from benchmarks.spam.evaluation import (
    SUITE_FOLD,
    SUITE_LENGTH,
    changed_texts,
    mean,
    suite_rows,
)
from spamdetect.engine import language
from spamdetect.training.attacks import ATTACKS
from spamdetect.training.corpus import Progress, labelled
from spamdetect.training.dataset import FOLDS, DataError, SpamRow, read_language, read_spam
from spamdetect.training.evaluate import Scores, scores
from spamdetect.training.left_out import strangers
from spamdetect.training.mirror import MIRROR

REPEATS: Final = 3


@attrs.frozen
class Row:
    """One classifier's figures.

    Attributes:
        name: the name of the classifier.
        folds: how many folds ``in_domain`` covers.
        in_domain: cross-validation.
        by_source: strangers, see `benchmarks.spam.evaluation`.
        attacked: the mean over the disguises.
        link_fpr: share of ham with a link that is taken for spam.
        per_second: short and long texts per second of processor time, one by one.
        size_mb: size of the model as a file.
        sealed: on the sealed messages, see `benchmarks.spam.seal`.
    """

    name: str
    folds: int
    in_domain: Scores
    by_source: Mapping[str, Scores]
    attacked: Scores
    link_fpr: float
    per_second: Mapping[str, float]
    size_mb: float
    sealed: Mapping[str, Scores] = attrs.field(factory=dict)


@attrs.define
class Peers:
    """The scores of others, by name; one run saves them for another.

    Packages that cannot be installed side by side are measured in separate environments.
    """

    detectors: dict[str, LanguageScores] = attrs.field(factory=dict)
    classifiers: dict[str, Row] = attrs.field(factory=dict)

    def save(self, path: Path) -> None:
        """Write a file for `read`."""
        path.write_text(json.dumps(attrs.asdict(self), indent=1), encoding="utf-8")

    def read(self, path: Path) -> None:
        """Add what another run has saved.

        Raises:
            DataError: the file was not written by `save`.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            for name, row in found["detectors"].items():
                self.detectors[name] = LanguageScores(**row)
            for name, row in found["classifiers"].items():
                row["by_source"] = {key: Scores(**part) for key, part in row["by_source"].items()}
                row["sealed"] = {key: Scores(**part) for key, part in row["sealed"].items()}
                for key in ("in_domain", "attacked"):
                    row[key] = Scores(**row[key])
                self.classifiers[name] = Row(**row)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} holds no saved figures: {error}") from None


def measure(
    data: Path,
    seed: int,
    only: str,
    progress: Progress,
    keep: Path | None,
    known: Mapping[str, Row] | None = None,
    *,
    quick: bool,
) -> Peers:
    """Fit and measure the other detectors and classifiers that are installed.

    A package that fails is left out: it must not cost the report.

    Args:
        data: the folder that holds ``spam/`` and ``lang/``.
        seed: seeds the fits.
        only: measure only those whose name contains this.
        progress: receives the progress.
        keep: save the results so far to this file after each measurement.
        known: measure only the speed and size of these classifiers again.
        quick: one fold, and one group of strangers.
    """
    peers = Peers()
    rows, texts = read_spam([data / "spam"]), read_language([data / "lang"], "dev")
    for name, build in detectors.peers().items():
        if only in name:
            with _left_out_if_failing(name, progress):
                progress(f"language detector {name}", 0.0)
                peers.detectors[name] = detectors.score(texts, build())
            if keep:
                peers.save(keep)
    for name, baseline in baselines.available([row.text for row in rows]).items():
        if only in name:
            with _left_out_if_failing(name, progress):
                found = (known or {}).get(name)
                if found is None:
                    found = baseline_row(name, baseline, rows, seed, progress, quick=quick)
                    progress(f"{name}: sealed messages", 0.0)
                    predict = baseline(rows, seed).predict
                    found = attrs.evolve(found, sealed=seal.judged(seal.messages(data), predict))
                progress(f"{name}: speed", 0.0)
                peers.classifiers[name] = timed(found, baseline, rows, seed)
            if keep:
                peers.save(keep)
    return peers


@contextlib.contextmanager
def _left_out_if_failing(name: str, progress: Progress) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        progress(f"{name} is left out: {error}", 1.0)


def baseline_row(
    name: str,
    baseline: baselines.Baseline,
    rows: Sequence[SpamRow],
    seed: int,
    progress: Progress,
    *,
    quick: bool,
) -> Row:
    """A baseline under the same tests as ours, except speed and size; see `timed`."""
    labels = np.array([row.is_spam for row in rows])
    folds = np.array([row.fold for row in rows])
    texts = [row.text for row in rows]
    used = range(1 if quick else FOLDS)
    held = np.isin(folds, used)
    chances = np.zeros(len(rows))
    attacked: list[Scores] = []
    link_fpr = float("nan")
    for fold in used:
        progress(f"{name}: folds", fold / len(used))
        trained = baseline([row for row in rows if row.fold != fold], seed)
        inside = np.flatnonzero(folds == fold)
        chances[inside] = trained.predict([texts[i] for i in inside])
        if fold == SUITE_FOLD:
            sample = suite_rows(rows, seed)
            truth = np.array([row.is_spam for row in sample])
            cut = [row.text[:SUITE_LENGTH] for row in sample]
            for change in ATTACKS.values():
                found = trained.predict(changed_texts(cut, change, seed))
                attacked.append(scores(truth, found))
            linked = trained.predict(changed_texts(cut, MIRROR["a link"], seed))
            link_fpr = float((linked[~truth] >= 0.5).mean())
    by_source: dict[str, Scores] = {}
    left_out = strangers(labelled(rows, language.load()))
    for number, part in enumerate(left_out[:1] if quick else left_out):
        progress(f"{name}: strangers", number / len(left_out))
        trained = baseline([rows[i] for i in np.flatnonzero(part.fitted)], seed)
        for source, group in part.groups.items():
            inside = np.flatnonzero(group)
            found = trained.predict([texts[i] for i in inside])
            by_source[source] = scores(labels[inside], found)
    inside_scores = scores(labels[held], chances[held])
    return Row(name, len(used), inside_scores, by_source, mean(attacked), link_fpr, {}, 0.0)


def timed(found: Row, baseline: baselines.Baseline, rows: Sequence[SpamRow], seed: int) -> Row:
    """A baseline's row with speed and size measured now, on a fit to all folds but one."""
    alone, size = baseline([row for row in rows if row.fold != SUITE_FOLD], seed).alone()
    samples = footprint.samples([row.text for row in rows])
    return attrs.evolve(found, per_second=speeds(alone, samples), size_mb=size)


def speeds(predict: baselines.Predict, samples: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Texts per second of processor time, one text at a time, the best of several runs."""
    found = {}
    for kind, texts in samples.items():
        best = float("inf")
        for _ in range(REPEATS):
            start = time.process_time()
            for text in texts:
                predict([text])
            best = min(best, time.process_time() - start)
        found[kind] = len(texts) / best
    return found
