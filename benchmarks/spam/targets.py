"""The engine's targets beside what it reaches, including where it falls short."""

from __future__ import annotations

from benchmarks.spam.detectors import LanguageScores
from benchmarks.spam.evaluation import Evaluation, mean
from benchmarks.spam.footprint import Footprint


def targets_table(evaluation: Evaluation, cost: Footprint, detector: LanguageScores) -> str:
    """Each figure with its target and whether it is met.

    Args:
        evaluation: the evaluation of the recipe.
        cost: what the engine costs.
        detector: how good the language detector is.
    """
    inside, attacked = evaluation.in_domain, mean(list(evaluation.attacks.values()))
    name, disguised = min(evaluation.attacks.items(), key=lambda item: item[1].f1)
    figures: list[tuple[str, float, float, bool, str]] = []
    if sources := evaluation.by_source:
        unseen = mean(list(sources.values()))
        worst = max(sources, key=lambda source: sources[source].fpr)
        figures += [
            ("strangers: F1", unseen.f1, 0.68, True, ".3f"),
            ("strangers: AUC", unseen.auc, 0.89, True, ".3f"),
            ("strangers: FPR", unseen.fpr, 0.08, False, ".3f"),
            (f"strangers: FPR of the worst ({worst})", sources[worst].fpr, 0.25, False, ".3f"),
        ]
    figures += [
        ("in: AUC", inside.auc, 0.990, True, ".3f"),
        ("disguised: F1", attacked.f1, 0.92, True, ".3f"),
        (
            f"F1 lost to the worst disguise ({name})",
            evaluation.clean.f1 - disguised.f1,
            0.02,
            False,
            ".3f",
        ),
        ("ham with a link: FPR", evaluation.mirror["a link"], 0.04, False, ".3f"),
        ("import and load, ms", cost.load_ms, 250, False, ".0f"),
        ("resident memory, engine, MB", cost.rss_mb, 60, False, ".0f"),
        ("spam.model, kB", cost.model_kb["spam.model"], 3000, False, ".0f"),
    ]
    for kind, least in (("short one", 8_000.0), ("short many", 24_000.0), ("long one", 1_000.0)):
        if kind in cost.per_second:
            figures.append((f"{kind}, texts/s", cost.per_second[kind], least, True, ",.0f"))
    figures += [
        ("language: mean of words, pairs, sentences", detector.average, 0.935, True, ".3f"),
        ("language: chat", detector.chat, 0.951, True, ".3f"),
        ("language: right where reliable", detector.reliable, 0.978, True, ".3f"),
        ("language: share that is reliable", detector.coverage, 0.89, True, ".3f"),
        ("language: ECE", detector.ece, 0.01, False, ".3f"),
        ("language.model, kB", cost.model_kb["language.model"], 3000, False, ".0f"),
    ]
    if "short language" in cost.per_second:
        rate = cost.per_second["short language"]
        figures.append(("language of short texts, texts/s", rate, 8_000, True, ",.0f"))
    lines = ["| figure | reached | target | |", "|---|---|---|---|"]
    for title, value, target, more, style in figures:
        limit = f"{'≥' if more else '≤'} {target:{',.0f' if target >= 1000 else 'g'}}"
        met = value >= target if more else value <= target
        lines.append(f"| {title} | {value:{style}} | {limit} | {'met' if met else 'missed'} |")
    return "\n".join(lines)
