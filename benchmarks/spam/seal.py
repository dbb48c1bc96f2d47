"""The seal: a model is shipped only if it loses on no sealed set to the model before.

The sets are looked at when a model is decided, never while it is made: the folds, the strangers,
the disguises, the invented messages of the data (``spam/strangers.jsonl.gz``), which are never
trained on, and this project's own hundreds. What the shipped model reached on each is kept in
``sealed.json`` beside this module.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.spam.evaluation import Evaluation, mean
from spamdetect.engine import Engine
from spamdetect.training.dataset import read_spam
from spamdetect.training.evaluate import Scores, scores
from tests.spamdetect.engine.test_hundred import JUDGES

Floats = NDArray[np.float64]

KEPT: Final = Path(__file__).with_name("sealed.json")
FIGURES: Final = ("f1", "auc")
NOISE: Final = 0.002
"""What another seed changes: a figure that is lower by no more is no loss."""
INVENTED: Final = "strangers.jsonl.gz"


def sealed(evaluation: Evaluation, engine: Engine, data: Path) -> dict[str, Scores]:
    """What a model reaches on each sealed set.

    Args:
        evaluation: of its recipe.
        engine: with the model.
        data: the folder that holds ``spam/``.
    """
    return {
        "in": evaluation.in_domain,
        "strangers": mean(list(evaluation.by_source.values())),
        "disguised": mean(list(evaluation.attacks.values())),
        **judged(messages(data), functools.partial(_chances, engine), engine.threshold),
    }


def messages(data: Path) -> dict[str, list[tuple[str, bool]]]:
    """The sealed messages, each with whether it is spam, by the name of their set."""
    return {
        "invented": [(row.text, row.is_spam) for row in read_spam([data / "spam" / INVENTED])],
        "own hundreds": [
            (text, kind == "scams")
            for kinds in JUDGES.values()
            for kind, languages in kinds.items()
            for texts in languages.values()
            for text in texts
        ],
    }


def judged(
    sets: Mapping[str, Sequence[tuple[str, bool]]],
    predict: Callable[[Sequence[str]], Floats],
    threshold: float = 0.5,
) -> dict[str, Scores]:
    """The scores of a classifier on sets of messages.

    Args:
        sets: as `messages` returns them.
        predict: returns the probability of spam of each text.
        threshold: from which on a text is taken for spam.
    """
    found = {}
    for name, each in sets.items():
        texts, labels = zip(*each, strict=True)
        found[name] = scores(np.array(labels), predict(texts), threshold)
    return found


def _chances(engine: Engine, texts: Sequence[str]) -> Floats:
    return np.array([found.prediction.spam_score for found in engine.predict_many(texts)])


def compare(found: Mapping[str, Scores], version: str) -> tuple[str, bool]:
    """A table of what a model and the one before reach, and whether it may be shipped.

    Of a model that loses nowhere the figures are kept, where they are no lower than those before:
    else models could lose a little each time.

    Args:
        found: what the model reaches, see `sealed`.
        version: of the model.
    """
    before = json.loads(KEPT.read_text(encoding="utf-8"))
    after = {
        name: {figure: round(getattr(each, figure), 4) for figure in FIGURES}
        for name, each in found.items()
    }
    lines = [f"| set | figure | {before['version']} | {version} | |", "|---|---|---|---|---|"]
    loses = False
    for name, figures in after.items():
        for figure, value in figures.items():
            old = before["sets"][name][figure]
            lost = value < old - NOISE
            loses |= lost
            verdict = "loses" if lost else ""
            figures[figure] = max(value, old)
            lines.append(f"| {name} | {figure} | {old:.3f} | {value:.3f} | {verdict} |")
    if not loses:
        kept = {"version": version, "sets": after}
        KEPT.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return "\n".join(lines), not loses
