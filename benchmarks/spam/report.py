"""The evaluation report: ``python -m benchmarks.spam.report DATA_DIR``.

Prints, as Markdown, the figures of the classifier beside baselines fitted in the same run, of
the language detector beside others, and what the engine costs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.spam import detectors, footprint, peers, seal
from benchmarks.spam.card import card
from benchmarks.spam.evaluation import cross_check
from benchmarks.spam.tables import (
    OURS,
    classifier_table,
    detail_tables,
    footprint_table,
    language_table,
    our_row,
    parts_table,
    spread_table,
    strangers_table,
)
from benchmarks.spam.targets import targets_table
from spamdetect.engine import Engine, classifier, language
from spamdetect.training.dataset import FOLDS, DataError, read_language, read_spam
from spamdetect.training.generated import PER_TEMPLATE, made_rows

QUIET_S: Final = 20.0
QUICK_FOLDS: Final = 2


class Log:
    """Progress on the error stream: each new stage, and long ones again from time to time."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._stage = ""
        self._said = 0.0

    def __call__(self, stage: str, share: float) -> None:
        """Log the stage and how much of it is done."""
        now = time.monotonic() - self._started
        if stage == self._stage and now - self._said < QUIET_S:
            return
        self._stage, self._said = stage, now
        sys.stderr.write(f"[{now:6.0f} s] {stage}{f' {share:.0%}' if share else ''}\n")
        sys.stderr.flush()


def parser() -> argparse.ArgumentParser:
    """The arguments of the report."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.spam.report")
    made.add_argument("data", type=Path, help="a folder that holds spam/ and lang/")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument(
        "--quick", action="store_true", help="two folds; of the others, one and few strangers"
    )
    made.add_argument("--no-baselines", action="store_true", help="fit and measure no others")
    made.add_argument(
        "--notices", type=int, default=PER_TEMPLATE, help="made notices of each template to add"
    )
    made.add_argument("--jobs", type=int, default=1, help="processes that share our fits")
    made.add_argument("--card", type=Path, help="also write the model card to this file")
    made.add_argument(
        "--seal", action="store_true", help="fail if the model loses to the one before"
    )
    made.add_argument(
        "--save", type=Path, help="measure only the others, and save their figures in this file"
    )
    made.add_argument("--only", default="", help="of the others, those whose name holds this")
    made.add_argument(
        "--join",
        type=Path,
        action="append",
        default=[],
        help="a file of saved figures to show; of its classifiers only the speed is measured anew",
    )
    return made


def report(chosen: argparse.Namespace, progress: Log) -> bool:
    """Measure and print; false if the seal was asked and the model loses to the one before.

    Raises:
        DataError: the data cannot be used.
    """
    others = peers.Peers()
    for path in chosen.join:
        others.read(path)
    if not chosen.no_baselines:
        found = peers.measure(
            chosen.data,
            chosen.seed,
            chosen.only,
            progress,
            chosen.save,
            others.classifiers,
            quick=chosen.quick,
        )
        others.detectors |= found.detectors
        others.classifiers |= found.classifiers
    if chosen.save:
        others.save(chosen.save)
        return True
    sent = read_spam([chosen.data / "spam"])
    rows = [*sent, *made_rows(chosen.seed, chosen.notices)]
    sections: dict[str, str] = {}

    def show(title: str, body: str) -> None:
        sections[title] = body
        sys.stdout.write(f"## {title}\n\n{body}\n\n")
        sys.stdout.flush()

    folds = QUICK_FOLDS if chosen.quick else FOLDS
    evaluation = cross_check(rows, chosen.seed, progress, jobs=chosen.jobs, folds=folds)
    show("Strangers", strangers_table(evaluation))
    show("Profiles", spread_table(evaluation))
    show("Parts", parts_table(evaluation))
    show("Details", detail_tables(evaluation))
    keeps = True
    engine = Engine.load()
    sealed = seal.sealed(evaluation, engine, chosen.data)
    if chosen.seal:
        table, keeps = seal.compare(sealed, engine.model_version)
        show("Seal", table)
    progress("our detector", 0.0)
    texts = read_language([chosen.data / "lang"], "dev")
    detector = detectors.score(texts, detectors.ours(language.load()))
    show("Language", language_table({OURS: detector} | others.detectors))
    progress("cost", 0.0)
    cost = footprint.measure([row.text for row in sent])
    show("Cost", footprint_table(cost))
    ours = our_row(evaluation, cost, folds, sealed)
    show("Classifier", classifier_table([ours, *others.classifiers.values()]))
    show("Targets", targets_table(evaluation, cost, detector))
    if chosen.card:
        text = card(rows, classifier.load(), language.load(), sections)
        chosen.card.write_text(text, encoding="utf-8")
    return keeps


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 1 when the model loses to the one before, 2 when data cannot be used."""
    progress = Log()
    try:
        keeps = report(parser().parse_args(arguments), progress)
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    progress("done", 0.0)
    return 0 if keeps else 1


if __name__ == "__main__":
    sys.exit(main())
