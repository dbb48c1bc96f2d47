"""Evaluates the recipe without each of its ingredients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from spamdetect.training.augment import Plan
from spamdetect.training.dataset import SpamRow
from spamdetect.training.evaluate import Evaluation, check, suite
from spamdetect.training.fits import ALONE, Fits
from spamdetect.training.linear import Settings
from spamdetect.training.matrix import Progress, silent
from spamdetect.training.spam_fit import DEFAULT_PLAN, DEFAULTS, corpus

VARIANTS: Final[Mapping[str, tuple[Settings, Plan]]] = {
    "as shipped": (DEFAULTS, DEFAULT_PLAN),
    "n-grams only by log-count ratio": (DEFAULTS, attrs.evolve(DEFAULT_PLAN, fragmented=0.0)),
    "n-grams only by rarity": (DEFAULTS, attrs.evolve(DEFAULT_PLAN, fragmented=1.0)),
    "no structural features": (attrs.evolve(DEFAULTS, structure_value=0.0), DEFAULT_PLAN),
    "no words": (attrs.evolve(DEFAULTS, word_value=0.0), DEFAULT_PLAN),
    "both fits by log-count ratio": (attrs.evolve(DEFAULTS, rarity=0.0), DEFAULT_PLAN),
    "unscaled, not by log-count ratio": (
        attrs.evolve(DEFAULTS, ratio_power=0.0),
        DEFAULT_PLAN,
    ),
    "drawn towards zero": (attrs.evolve(DEFAULTS, prior=0.0), DEFAULT_PLAN),
    "no disguised or ordinary copies": (
        DEFAULTS,
        attrs.evolve(DEFAULT_PLAN, disguised=0.0, ordinary=0.0, copied=0.0),
    ),
}


MOST_SOURCES: Final = 3
MOST_FOLDS: Final = 2


def ablation(
    rows: Sequence[SpamRow],
    seed: int,
    sources: Sequence[str],
    progress: Progress = silent,
    known: Mapping[str, Evaluation] | None = None,
    fits: Fits = ALONE,
) -> dict[str, Evaluation]:
    """Evaluate each variant over the first folds, under disguise and on some left-out sources.

    Args:
        rows: labelled texts.
        seed: seeds the training and the disguises.
        sources: left out one at a time.
        progress: receives the progress.
        known: variants that are already evaluated.
        fits: makes the fits.
    """
    data = corpus(rows, seed, DEFAULTS, DEFAULT_PLAN, progress)
    tests = suite(rows, seed, DEFAULTS.bits, progress, data.lexicon)

    def evaluated(name: str) -> Evaluation:
        def told(stage: str, share: float) -> None:
            progress(f"{name}: {stage}", share)

        settings, plan = VARIANTS[name]
        same = plan == attrs.evolve(DEFAULT_PLAN, fragmented=plan.fragmented)
        of = attrs.evolve(data, plan=plan) if same else corpus(rows, seed, settings, plan, told)
        return check(of, tests, settings, told, sources, MOST_FOLDS, ("fold",), fits)

    found = known or {}
    return {name: found.get(name) or evaluated(name) for name in VARIANTS}
