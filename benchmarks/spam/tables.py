"""The tables of the report, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from benchmarks.spam.detectors import KINDS, LanguageScores
from benchmarks.spam.evaluation import SEALED, Evaluation, mean
from benchmarks.spam.footprint import Footprint
from benchmarks.spam.peers import Row
from spamdetect.training.dataset import FOLDS
from spamdetect.training.evaluate import Scores

OURS: Final = "spamdetect"
INSIDE: Final = "F1 / AUC / recall at 1 % FPR / ECE"
SEALED_MESSAGES: Final = ("invented", "own hundreds")
STRANGERS: Final = "F1 / AUC / recall / FPR / ECE"


def our_row(
    evaluation: Evaluation, cost: Footprint, folds: int, sealed: Mapping[str, Scores]
) -> Row:
    """The engine's own line; its speed is for a whole answer, including the language."""
    files = ("spam.model", "characters.model")
    return Row(
        OURS,
        folds,
        evaluation.in_domain,
        evaluation.by_source,
        mean(list(evaluation.attacks.values())),
        evaluation.mirror["a link"],
        {kind: cost.per_second[f"{kind} one"] for kind in ("short", "long")
         if f"{kind} one" in cost.per_second},
        sum(cost.model_kb.get(file, 0.0) for file in files) / 1000.0,
        {name: sealed[name] for name in SEALED_MESSAGES},
    )  # fmt: skip


def classifier_table(rows: Sequence[Row]) -> str:
    """The classifiers side by side, over the strangers on which all were tested."""
    common = sorted(set.intersection(*(set(row.by_source) for row in rows)))
    strangers = f"strangers (mean of {len(common)})"
    messages = " | ".join(SEALED_MESSAGES)
    lines = [
        f"| Model | in | {strangers} | disguised | {messages} | ham with a link | texts/s | MB |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| | {INSIDE} | {STRANGERS} | F1 / AUC | F1 / AUC | F1 / AUC | FPR | short / long | |",
    ]
    for row in rows:
        a, b, c = row.in_domain, mean([row.by_source[name] for name in common]), row.attacked
        messages = " | ".join(
            f"{row.sealed[name].f1:.3f} / {row.sealed[name].auc:.3f}" for name in SEALED_MESSAGES
        )
        speed = " / ".join(f"{rate:,.0f}" for rate in row.per_second.values())
        lines.append(
            f"| {row.name} | {a.f1:.3f} / {a.auc:.3f} / {a.recall_at_1:.3f} / {a.ece:.3f} "
            f"| {b.f1:.3f} / {b.auc:.3f} / {b.recall:.3f} / {b.fpr:.3f} / {b.ece:.3f} "
            f"| {c.f1:.3f} / {c.auc:.3f} | {messages} | {row.link_fpr:.3f} | {speed} "
            f"| {row.size_mb:.1f} |"
        )
    partial = [f"{row.name} ({row.folds})" for row in rows if row.folds < FOLDS]
    if partial:
        lines += ["", f"Over fewer than {FOLDS} folds: {', '.join(partial)}."]
    if len(rows) == 1:
        lines += ["", "The others were not measured in this run."]
    if len(common) < max(len(row.by_source) for row in rows):
        lines += ["", f"The strangers are those that all were tested on: {', '.join(common)}."]
    return "\n".join(lines)


def strangers_table(evaluation: Evaluation) -> str:
    """Each source left out with its languages, their mean, and made notices."""
    lines = [
        "| left out with its languages | F1 | AUC | recall | FPR | ECE | texts |",
        "|---|---|---|---|---|---|---|",
    ]

    def line(name: str, s: Scores) -> str:
        return (
            f"| {name} | {s.f1:.3f} | {s.auc:.3f} | {s.recall:.3f} | {s.fpr:.3f} | {s.ece:.3f} "
            f"| {s.texts} |"
        )

    found = evaluation.by_source
    lines.append(line(f"**sources**, mean of {len(found)}", mean(list(found.values()))))
    lines += [line(f"{name}{' (sealed)' * (name in SEALED)}", of) for name, of in found.items()]
    if notices := evaluation.notices:
        lines.append(line(f"**made notices**, mean of {len(notices)}", mean([*notices.values()])))
    return "\n".join(lines)


def spread_table(evaluation: Evaluation) -> str:
    """How the profiles keep their promises on strangers."""
    lines = [
        "| profile | promised | mean | median | worst | spam found, mean |",
        "|---|---|---|---|---|---|",
    ]
    for name, of in evaluation.profiles.items():
        shares = of.by_source
        if not shares:
            continue
        worst = max(shares, key=lambda source: shares[source])
        lines.append(
            f"| `{name}` | {of.promised:.3f} | {sum(shares.values()) / len(shares):.3f} "
            f"| {median(shares.values()):.3f} | {shares[worst]:.3f} ({worst}) "
            f"| {sum(of.found.values()) / len(of.found):.3f} |"
        )
    return "\n".join(lines)


def parts_table(evaluation: Evaluation) -> str:
    """Strangers without each part."""
    whole = mean(list(evaluation.by_source.values()))
    lines = [
        "| without | F1 | AUC | FPR | F1 that it adds (95 %) |",
        "|---|---|---|---|---|",
        f"| nothing | {whole.f1:.3f} | {whole.auc:.3f} | {whole.fpr:.3f} | |",
    ]
    for name, (s, (lost, low, high)) in evaluation.without.items():
        gain = f"{lost:+.3f} ({low:+.3f} to {high:+.3f})"
        lines.append(f"| {name} | {s.f1:.3f} | {s.auc:.3f} | {s.fpr:.3f} | {gain} |")
    return "\n".join(lines)


def detail_tables(evaluation: Evaluation) -> str:
    """Each disguise and harmless addition, and the false alarms of each profile by source."""
    lines = ["| disguise | F1 | change | AUC |", "|---|---|---|---|"]
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
    lines += ["", "| source | " + " | ".join(f"`{name}`" for name in evaluation.profiles) + " |"]
    lines.append("|---" * (1 + len(evaluation.profiles)) + "|")
    for source in evaluation.by_source:
        shares = [of.by_source.get(source) for of in evaluation.profiles.values()]
        cells = ["" if share is None else f"{share:.3f}" for share in shares]
        lines.append(f"| {source} | {' | '.join(cells)} |")
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
