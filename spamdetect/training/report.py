"""The evaluation report: ``python -m spamdetect.training.report DATA_DIR``.

Prints, as Markdown, the figures of the classifier beside baselines fitted in the same run, of
the language detector beside others, and what the engine costs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import attrs
import numpy as np

from spamdetect.engine import classifier, language
from spamdetect.training import baselines, footprint, language_report, metrics
from spamdetect.training.attacks import ATTACKS
from spamdetect.training.augment import Plan
from spamdetect.training.card import card
from spamdetect.training.dataset import FOLDS, DataError, SpamRow, read_language, read_spam
from spamdetect.training.evaluate import (
    MIN_CLASS,
    SUITE_FOLD,
    SUITE_LENGTH,
    SUITE_TEXTS,
    Evaluation,
    cross_check,
    mean,
    related,
)
from spamdetect.training.linear import Settings
from spamdetect.training.metrics import Scores
from spamdetect.training.mirror import MIRROR
from spamdetect.training.spam_fit import DEFAULT_PLAN, DEFAULTS
from spamdetect.training.targets import targets_table

Note = Callable[[str], None]
Detectors = Mapping[str, Callable[[], language_report.Detect]]
OURS: Final = "spamdetect"
QUICK_SOURCES: Final = 5
QUICK_REMARK: Final = (
    "`in` is the mean of all folds for ours and the first fold for the others; left out were the "
    "largest sources."
)


@attrs.frozen
class Row:
    """One line of the classifier's table."""

    name: str
    in_domain: Scores
    unseen: Scores
    attacked: Scores
    link_fpr: float


def baseline_row(
    name: str, baseline: baselines.Baseline, rows: Sequence[SpamRow], seed: int, *, quick: bool
) -> Row:
    """A baseline under the same tests as ours: folds, left-out sources, disguises, links."""
    labels = np.array([row.is_spam for row in rows])
    folds = np.array([row.fold for row in rows])
    sources = np.array([row.source for row in rows])
    texts = [row.text for row in rows]
    parts = []
    attacked: list[Scores] = []
    link_fpr = 0.0
    for fold in range(1 if quick else FOLDS):
        predict = baseline([row for row in rows if row.fold != fold], seed)
        inside = np.flatnonzero(folds == fold)
        parts.append(metrics.scores(labels[inside], predict([texts[i] for i in inside])))
        if fold == SUITE_FOLD:
            sample = [row for row in rows if row.fold == fold]
            Random(seed).shuffle(sample)
            sample = sample[:SUITE_TEXTS]
            truth = np.array([row.is_spam for row in sample])
            for change in ATTACKS.values():
                changed = [
                    change(row.text[:SUITE_LENGTH], Random(f"{seed}:{n}"))
                    for n, row in enumerate(sample)
                ]
                attacked.append(metrics.scores(truth, predict(changed)))
            linked = [
                MIRROR["a link"](row.text[:SUITE_LENGTH], Random(f"{seed}:{n}"))
                for n, row in enumerate(sample)
            ]
            link_fpr = float((predict(linked)[~truth] >= 0.5).mean())
    names = sorted(set(sources.tolist()))
    unseen = []
    for source in tested_sources(rows, quick=quick):
        inside = np.flatnonzero(sources == source)
        if min(int(labels[inside].sum()), int((~labels[inside]).sum())) < MIN_CLASS:
            continue
        apart = related(source, names)
        predict = baseline([row for row in rows if row.source not in apart], seed)
        unseen.append(metrics.scores(labels[inside], predict([texts[i] for i in inside])))
    return Row(name, mean(parts), mean(unseen), mean(attacked), link_fpr)


def tested_sources(rows: Sequence[SpamRow], *, quick: bool) -> list[str]:
    """The sources that baselines are tested on without: all, or the largest."""
    sizes = Counter(row.source for row in rows)
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return sorted(names[:QUICK_SOURCES] if quick else names)


def our_row(evaluation: Evaluation, sources: Sequence[str]) -> Row:
    """The line of the engine's own recipe, over the same sources as the baselines."""
    parts = [evaluation.by_source[name] for name in sources if name in evaluation.by_source]
    return Row(
        OURS,
        evaluation.in_domain,
        mean(parts),
        evaluation.attacked,
        evaluation.mirror["a link"],
    )


def classifier_table(rows: Sequence[Row], sources: int) -> str:
    """The classifiers side by side.

    Args:
        rows: one for each classifier.
        sources: over how many left-out sources the third column is the mean.
    """
    lines = [
        f"| Model | in | unseen source (mean of {sources}) | disguised | ham with a link |",
        "| | F1 / AUC / recall at 1 % FPR / ECE | F1 / AUC / recall / FPR / ECE | F1 / AUC | FPR |",
    ]
    lines.insert(1, "|---|---|---|---|---|")
    for row in rows:
        a, b, c = row.in_domain, row.unseen, row.attacked
        lines.append(
            f"| {row.name} | {a.f1:.3f} / {a.auc:.3f} / {a.recall_at_1:.3f} / {a.ece:.3f} "
            f"| {b.f1:.3f} / {b.auc:.3f} / {b.recall:.3f} / {b.fpr:.3f} / {b.ece:.3f} "
            f"| {c.f1:.3f} / {c.auc:.3f} | {row.link_fpr:.3f} |"
        )
    return "\n".join(lines)


def detail_tables(evaluation: Evaluation) -> str:
    """Each source, disguise and harmless addition."""
    lines = [
        "| left-out source | F1 | AUC | recall | FPR | ECE | texts |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {s.f1:.3f} | {s.auc:.3f} | {s.recall:.3f} | {s.fpr:.3f} | {s.ece:.3f} "
        f"| {s.texts} |"
        for name, s in evaluation.by_source.items()
    ]
    lines += ["", "| disguise | F1 | change | AUC |", "|---|---|---|---|"]
    lines.append(f"| none | {evaluation.clean.f1:.3f} | | {evaluation.clean.auc:.3f} |")
    lines += [
        f"| {name} | {s.f1:.3f} | {s.f1 - evaluation.clean.f1:+.3f} | {s.auc:.3f} |"
        for name, s in evaluation.attacks.items()
    ]
    lines += [
        "",
        "| ham with | FPR |",
        "|---|---|",
        f"| nothing added | {evaluation.mirror_clean:.3f} |",
    ]
    lines += [f"| {name} | {share:.3f} |" for name, share in evaluation.mirror.items()]
    lines += ["", "| copy | verdicts changed |", "|---|---|"]
    lines += [f"| {name} | {share:.3f} |" for name, share in evaluation.copies.items()]
    return "\n".join(lines)


def language_rows(folder: Path, detectors: Detectors) -> dict[str, str]:
    """For each detector its line, over the common languages of the development texts."""
    rows = read_language([folder], "dev")
    lines = {}
    for name, build in detectors.items():
        found = language_report.score(rows, build())
        kinds = " | ".join(f"{found.by_kind.get(kind, 0):.3f}" for kind in language_report.KINDS)
        lines[name] = (
            f"| {name} | {kinds} | {found.average:.3f} | {found.chat:.3f} "
            f"| {found.reliable:.3f} at {found.coverage:.3f} | {found.ece:.3f} "
            f"| {found.per_second:,.0f} |"
        )
    return lines


def language_table(lines: Mapping[str, str]) -> str:
    """The detectors side by side."""
    head = "| Detector | words | pairs | sentences | mean | chat | reliable at | ECE | texts/s |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|---|", *lines.values()])


def ablation_table(
    rows: Sequence[SpamRow], seed: int, settings: Settings = DEFAULTS, plan: Plan = DEFAULT_PLAN
) -> str:
    """The recipe without each of its ingredients, over the folds and under disguise."""
    variants = {
        "as shipped": (settings, plan),
        "no structural features": (attrs.evolve(settings, structure_value=0.0), plan),
        "no words": (attrs.evolve(settings, word_value=0.0), plan),
        "no log-count ratio": (attrs.evolve(settings, ratio_power=0.0), plan),
        "drawn towards zero": (attrs.evolve(settings, prior=0.0), plan),
        "no fragments": (settings, attrs.evolve(plan, fragments=0, phrases=0)),
        "no disguised or ordinary copies": (
            settings,
            attrs.evolve(plan, disguised=0.0, ordinary=0.0, copied=0.0),
        ),
    }
    lines = [
        "| variant | in: F1 / AUC / recall at 1 % FPR | disguised: F1 | ham with a link, FPR |",
        "|---|---|---|---|",
    ]
    for name, (changed, copies) in variants.items():
        found = cross_check(rows, seed, changed, plan=copies, unseen=False)
        s = found.in_domain
        lines.append(
            f"| {name} | {s.f1:.3f} / {s.auc:.3f} / {s.recall_at_1:.3f} "
            f"| {found.attacked.f1:.3f} | {found.mirror['a link']:.3f} |"
        )
    return "\n".join(lines)


def _our_detector() -> language_report.Detect:
    return language_report.ours(language.load())


def footprint_table(cost: footprint.Footprint) -> str:
    """What the engine costs."""
    lines = ["| Cost | |", "|---|---|", f"| import and load | {cost.load_ms:.0f} ms |"]
    lines.append(f"| resident memory, engine | {cost.rss_mb:.0f} MB |")
    lines.append(f"| resident memory, detector alone | {cost.detector_rss_mb:.0f} MB |")
    lines += [f"| {name} | {size:.0f} kB |" for name, size in cost.model_kb.items()]
    lines += [
        f"| {name}, texts/s on one core | {rate:,.0f} |" for name, rate in cost.per_second.items()
    ]
    return "\n".join(lines)


@attrs.define
class Peers:
    """What others have scored: lines of the tables, by name; saved by one run for another.

    Packages that cannot be installed side by side are measured in environments of their own.
    """

    detectors: dict[str, str] = attrs.field(factory=dict)
    classifiers: dict[str, Row] = attrs.field(factory=dict)
    joined: list[str] = attrs.field(factory=list)

    def save(self, path: Path) -> None:
        """Write a file for `read`."""
        path.write_text(json.dumps(attrs.asdict(self), indent=1), encoding="utf-8")

    def read(self, path: Path) -> None:
        """Add what another run has saved.

        Raises:
            DataError: not such a file.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            self.detectors.update(found["detectors"])
            self.joined += [*found["detectors"], *found["classifiers"]]
            for name, row in found["classifiers"].items():
                parts = {key: Scores(**row[key]) for key in ("in_domain", "unseen", "attacked")}
                self.classifiers[name] = Row(row["name"], link_fpr=row["link_fpr"], **parts)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} holds no saved figures: {error}") from None


def measure_peers(data: Path, seed: int, only: str, note: Note, *, quick: bool) -> Peers:
    """Fit and measure the other detectors and classifiers that are installed.

    Args:
        data: the folder that holds ``spam/`` and ``lang/``.
        seed: of the fits.
        only: names to be measured hold this.
        note: told what is being done.
        quick: fewer folds and sources.
    """
    peers = Peers()
    rows = read_spam([data / "spam"])
    detectors = {name: build for name, build in language_report.peers().items() if only in name}
    note("language detectors")
    peers.detectors = language_rows(data / "lang", detectors)
    for name, baseline in baselines.available([row.text for row in rows]).items():
        if only not in name:
            continue
        note(name)
        try:
            peers.classifiers[name] = baseline_row(name, baseline, rows, seed, quick=quick)
        except Exception as error:  # noqa: BLE001 - what another package does must not cost the report
            note(f"{name} is left out: {error}")
    return peers


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 2 when the data cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m spamdetect.training.report")
    parser.add_argument("data", type=Path, help="a folder that holds spam/ and lang/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="fewer folds and sources for baselines"
    )
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--ablation", action="store_true", help="also without each ingredient")
    parser.add_argument("--card", type=Path, help="also write the model card to this file")
    parser.add_argument(
        "--save", type=Path, help="measure only the others, and save their figures in this file"
    )
    parser.add_argument("--only", default="", help="of the others, those whose name holds this")
    parser.add_argument(
        "--join", type=Path, action="append", default=[], help="a file of saved figures to show"
    )
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    sections: dict[str, str] = {}

    def note(stage: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - started:6.0f} s] {stage}\n")

    def show(title: str, body: str) -> None:
        sections[title] = body
        sys.stdout.write(f"## {title}\n\n{body}\n\n")
        sys.stdout.flush()

    try:
        peers = Peers()
        if not chosen.no_baselines:
            peers = measure_peers(chosen.data, chosen.seed, chosen.only, note, quick=chosen.quick)
        if chosen.save:
            peers.save(chosen.save)
            return 0
        for path in chosen.join:
            peers.read(path)
        rows = read_spam([chosen.data / "spam"])
        note("our detector")
        ours = language_rows(chosen.data / "lang", {OURS: _our_detector})
        show("Language", language_table(ours | peers.detectors))
        note("cost")
        cost = footprint.measure([row.text for row in rows])
        show("Cost", footprint_table(cost))
        note("our classifier")
        evaluation = cross_check(rows, chosen.seed)
        show("Targets", targets_table(evaluation, cost))
        show("Details", detail_tables(evaluation))
        sources = tested_sources(rows, quick=chosen.quick)
        table = [our_row(evaluation, sources), *peers.classifiers.values()]
        remark = f"\n\n{QUICK_REMARK}" if chosen.quick else ""
        if peers.joined:
            remark += f"\n\nMeasured in runs of their own: {', '.join(peers.joined)}."
        show("Classifier", classifier_table(table, len(sources)) + remark)
        if chosen.ablation:
            note("ablation")
            show("Ablation", ablation_table(rows, chosen.seed))
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if chosen.card:
        text = card(rows, classifier.load(), language.load(), sections)
        chosen.card.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
