"""The engine's targets beside what it reaches, including where it falls short."""

from __future__ import annotations

from spamdetect.training.evaluate import MADE, Evaluation
from spamdetect.training.footprint import Footprint
from spamdetect.training.language_report import LanguageScores


def targets_table(evaluation: Evaluation, cost: Footprint, detector: LanguageScores) -> str:
    """Each figure with its target and whether it is met.

    Args:
        evaluation: the evaluation of the recipe.
        cost: what the engine costs.
        detector: how good the language detector is.
    """
    inside, unseen, clean = evaluation.in_domain, evaluation.unseen, evaluation.clean
    family, notice = evaluation.without("family"), evaluation.without("kind", MADE)
    name, worst = min(evaluation.attacks.items(), key=lambda item: item[1].f1)
    figures: list[tuple[str, float, float, bool, str]] = [
        ("in: F1", inside.f1, 0.935, True, ".3f"),
        ("in: AUC", inside.auc, 0.992, True, ".3f"),
        ("in: recall at 1 % FPR", inside.recall_at_1, 0.870, True, ".3f"),
        ("in: ECE", inside.ece, 0.010, False, ".3f"),
        ("unseen language family: F1", family.f1, 0.66, True, ".3f"),
        ("unseen language family: AUC", family.auc, 0.90, True, ".3f"),
        ("unseen language family: FPR", family.fpr, 0.08, False, ".3f"),
        ("unseen language family: ECE", family.ece, 0.15, False, ".3f"),
        ("unseen kind of notice: recall", notice.recall, 0.75, True, ".3f"),
        ("unseen kind of notice: FPR on its ordinary mirror", notice.fpr, 0.05, False, ".3f"),
        ("disguised: F1", evaluation.attacked.f1, 0.92, True, ".3f"),
        (f"F1 lost to the worst disguise ({name})", clean.f1 - worst.f1, 0.02, False, ".3f"),
        ("ham with a link: FPR", evaluation.mirror["a link"], 0.04, False, ".3f"),
        ("import and load, ms", cost.load_ms, 250, False, ".0f"),
        ("resident memory, engine, MB", cost.rss_mb, 60, False, ".0f"),
        ("resident memory, detector alone, MB", cost.detector_rss_mb, 30, False, ".0f"),
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
    if evaluation.by_source:
        figures += [
            (
                f"unseen source (mean of {len(evaluation.by_source)}): F1",
                unseen.f1,
                0.66,
                True,
                ".3f",
            ),
            ("unseen source: AUC", unseen.auc, 0.88, True, ".3f"),
            ("unseen source: recall", unseen.recall, 0.42, True, ".3f"),
            ("unseen source: FPR", unseen.fpr, 0.08, False, ".3f"),
            ("unseen source: ECE", unseen.ece, 0.15, False, ".3f"),
        ]
    lines = ["| figure | reached | target | |", "|---|---|---|---|"]
    for title, value, target, more, style in figures:
        limit = f"{'≥' if more else '≤'} {target:{',.0f' if target >= 1000 else 'g'}}"
        met = value >= target if more else value <= target
        lines.append(f"| {title} | {value:{style}} | {limit} | {'met' if met else 'missed'} |")
    return "\n".join(lines)
