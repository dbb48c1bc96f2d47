"""The tables of the report, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spamdetect.training.dataset import FOLDS
from spamdetect.training.evaluate import MADE, SENT, Evaluation, mean
from spamdetect.training.footprint import Footprint
from spamdetect.training.language_report import KINDS, LanguageScores
from spamdetect.training.metrics import Scores
from spamdetect.training.peers import Row

OURS: Final = "spamdetect"
LEFT_OUT: Final = {
    "family": "a family of languages",
    "kind": "a kind of message",
    "domain": "a domain",
}


def our_row(evaluation: Evaluation, cost: Footprint) -> Row:
    """The engine's own line; its speed is for a whole answer, including the language."""
    files = ("spam.model", "characters.model")
    return Row(
        OURS,
        FOLDS,
        evaluation.in_domain,
        evaluation.by_source,
        evaluation.attacked,
        evaluation.mirror["a link"],
        {kind: cost.per_second[f"{kind} one"] for kind in ("short", "long")
         if f"{kind} one" in cost.per_second},
        sum(cost.model_kb.get(file, 0.0) for file in files) / 1000.0,
    )  # fmt: skip


def classifier_table(rows: Sequence[Row]) -> str:
    """The classifiers side by side, over the left-out sources on which all were tested."""
    common = sorted(set.intersection(*(set(row.by_source) for row in rows)))
    unseen = f"unseen source (mean of {len(common)})"
    inside = "F1 / AUC / recall at 1 % FPR / ECE"
    lines = [
        f"| Model | in | {unseen} | disguised | ham with a link | texts/s | MB |",
        "|---|---|---|---|---|---|---|",
        f"| | {inside} | F1 / AUC / recall / FPR / ECE | F1 / AUC | FPR | short / long | |",
    ]
    for row in rows:
        a, b, c = row.in_domain, mean([row.by_source[name] for name in common]), row.attacked
        speed = " / ".join(f"{rate:,.0f}" for rate in row.per_second.values())
        lines.append(
            f"| {row.name} | {_inside(a)} / {a.ece:.3f} | {b.f1:.3f} / {b.auc:.3f} "
            f"/ {b.recall:.3f} / {b.fpr:.3f} / {b.ece:.3f} | {c.f1:.3f} / {c.auc:.3f} "
            f"| {row.link_fpr:.3f} | {speed} | {row.size_mb:.1f} |"
        )
    partial = [row.name for row in rows if row.folds < FOLDS]
    if partial:
        lines += ["", f"Not over all {FOLDS} folds: {', '.join(partial)}."]
    if len(common) < max(len(row.by_source) for row in rows):
        lines += ["", f"The unseen sources are those that all were tested on: {', '.join(common)}."]
    return "\n".join(lines)


def _inside(scores: Scores) -> str:
    return f"{scores.f1:.3f} / {scores.auc:.3f} / {scores.recall_at_1:.3f}"


def left_out_table(evaluation: Evaluation) -> str:
    """Whole families, kinds and domains left out: mean, worst by F1, and each."""
    lines = [
        "| left out | texts are | F1 | AUC | recall | FPR | ECE | texts |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def line(title: str, of: str, s: Scores) -> str:
        return (
            f"| {title} | {of} | {s.f1:.3f} | {s.auc:.3f} | {s.recall:.3f} | {s.fpr:.3f} "
            f"| {s.ece:.3f} | {s.texts} |"
        )

    for way, title in LEFT_OUT.items():
        for of in (SENT, MADE):
            parts = evaluation.left_out.get((way, of), {})
            if not parts:
                continue
            worst = min(parts, key=lambda name: parts[name].f1)
            lines.append(line(f"**{title}**, mean of {len(parts)}", of, mean(list(parts.values()))))
            lines.append(line(f"the worst: {worst}", of, parts[worst]))
            lines += [line(name, of, scores) for name, scores in parts.items() if name != worst]
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


def language_table(detectors: Mapping[str, LanguageScores]) -> str:
    """The detectors side by side, over the common languages of the development texts."""
    lines = [
        "| Detector | words | pairs | sentences | mean | chat | reliable at | ECE | texts/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in detectors.items():
        kinds = " | ".join(f"{found.by_kind.get(kind, 0):.3f}" for kind in KINDS)
        lines.append(
            f"| {name} | {kinds} | {found.average:.3f} | {found.chat:.3f} "
            f"| {found.reliable:.3f} at {found.coverage:.3f} | {found.ece:.3f} "
            f"| {found.per_second:,.0f} |"
        )
    return "\n".join(lines)


def ablation_table(variants: Mapping[str, Evaluation], sources: Sequence[str]) -> str:
    """The recipe without each of its ingredients.

    Args:
        variants: the evaluations by name.
        sources: the left-out sources that the mean covers.
    """
    unseen = f"unseen source (mean of {len(sources)})"
    lines = [
        f"| variant | in (mean of folds) | {unseen} | disguised | ham with a link |",
        "|---|---|---|---|---|",
        "| | F1 / AUC / recall at 1 % FPR | F1 / AUC / FPR | F1 | FPR |",
    ]
    folds = sorted(set.intersection(*(set(found.by_fold) for found in variants.values())))
    for name, found in variants.items():
        inside = mean([found.by_fold[fold] for fold in folds])
        s = mean([found.by_source[source] for source in sources])
        lines.append(
            f"| {name} | {_inside(inside)} "
            f"| {s.f1:.3f} / {s.auc:.3f} / {s.fpr:.3f} "
            f"| {found.attacked.f1:.3f} | {found.mirror['a link']:.3f} |"
        )
    of = f"Over {len(folds)} of {FOLDS} folds; left out in turn: {', '.join(sources)}."
    return "\n".join([*lines, "", of])


def footprint_table(cost: Footprint) -> str:
    """What the engine costs."""
    lines = ["| Cost | |", "|---|---|", f"| import and load | {cost.load_ms:.0f} ms |"]
    lines.append(f"| resident memory, engine | {cost.rss_mb:.0f} MB |")
    lines.append(f"| resident memory, detector alone | {cost.detector_rss_mb:.0f} MB |")
    lines += [f"| {name} | {size:.0f} kB |" for name, size in cost.model_kb.items()]
    lines += [
        f"| {name}, texts/s on one core | {rate:,.0f} |" for name, rate in cost.per_second.items()
    ]
    return "\n".join(lines)
