"""The recipe without each of its ingredients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from spamdetect.training.augment import Plan
from spamdetect.training.dataset import SpamRow
from spamdetect.training.evaluate import Evaluation, check, suite
from spamdetect.training.linear import Settings
from spamdetect.training.matrix import Progress, silent
from spamdetect.training.spam_fit import DEFAULT_PLAN, DEFAULTS, corpus

VARIANTS: Final[Mapping[str, tuple[Settings, Plan]]] = {
    "as shipped": (DEFAULTS, DEFAULT_PLAN),
    "only the fit without fragments": (DEFAULTS, attrs.evolve(DEFAULT_PLAN, fragmented=0.0)),
    "only the fit with fragments": (DEFAULTS, attrs.evolve(DEFAULT_PLAN, fragmented=1.0)),
    "no structural features": (attrs.evolve(DEFAULTS, structure_value=0.0), DEFAULT_PLAN),
    "no words": (attrs.evolve(DEFAULTS, word_value=0.0), DEFAULT_PLAN),
    "no log-count ratio": (attrs.evolve(DEFAULTS, ratio_power=0.0), DEFAULT_PLAN),
    "drawn towards zero": (attrs.evolve(DEFAULTS, prior=0.0), DEFAULT_PLAN),
    "no disguised or ordinary copies": (
        DEFAULTS,
        attrs.evolve(DEFAULT_PLAN, disguised=0.0, ordinary=0.0, copied=0.0),
    ),
}


def ablation(
    rows: Sequence[SpamRow],
    seed: int,
    sources: Sequence[str],
    progress: Progress = silent,
    known: Mapping[str, Evaluation] | None = None,
) -> dict[str, Evaluation]:
    """Evaluate each variant over the folds, under disguise and on some left-out sources.

    Args:
        rows: labelled texts.
        seed: of the training and of the disguises.
        sources: left out one at a time.
        progress: told how far it is.
        known: variants that have been evaluated already.
    """
    tests = suite(rows, seed, DEFAULTS.bits, progress)
    data = corpus(rows, seed, DEFAULTS, DEFAULT_PLAN, progress)
    found = dict(known or {})
    for name, (settings, plan) in VARIANTS.items():
        if name in found:
            continue

        def told(stage: str, share: float, name: str = name) -> None:
            progress(f"{name}: {stage}", share)

        same = plan == attrs.evolve(DEFAULT_PLAN, fragmented=plan.fragmented)
        of = attrs.evolve(data, plan=plan) if same else corpus(rows, seed, settings, plan, told)
        found[name] = check(of, tests, settings, told, sources)
    return {name: found[name] for name in VARIANTS}
