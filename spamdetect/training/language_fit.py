"""Training the language detector: from labelled texts to a model file."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine import language
from spamdetect.engine.container import pack
from spamdetect.engine.language import LanguageModel, ScriptModel
from spamdetect.training import softmax
from spamdetect.training.corpus import Progress, silent
from spamdetect.training.dataset import DataError, LanguageRow, read_language

VERSION: Final = "1.0.0"
# Languages that most short messages are written in; the others weigh less in the fit, since
# a detector that guesses a rare language for every odd word is wrong most of the time.
_COMMON: Final = (
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja ko lt lv mk ml mr nl "
    "nb pa pl pt ro ru sk sl sq sv ta te th tl tr uk ur vi zh"
)
COMMON: Final = frozenset(_COMMON.split())
RARE_WEIGHT: Final = 0.15
MIN_TEXTS: Final = 250
MIN_TEXTS_ALONE: Final = 100
BITS: Final = {"LATIN": 16, "CYRILLIC": 14, "CJK": 14, "ARABIC": 13, "DEVANAGARI": 13}
OTHER_BITS: Final = 11
SPANS: Final = 4  # single words and pairs cut from each longer text
LEVELS: Final = 40  # steps of a weight on each side of zero; more only make the file larger
HELD_OUT: Final = 20  # one text in this many sets the temperature
RELIABLE_FROM: Final = 0.67
MIN_LETTERS: Final = 5
SETTINGS: Final = softmax.SoftmaxSettings(epochs=4, rate=0.5)


@attrs.frozen
class Sample:
    """The letters of one text, its language, and whether it was cut from a longer one."""

    letters: NDArray[np.uint32]
    language: str
    is_span: bool


def train_language(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    seed: int = 0,
    progress: Progress = silent,
) -> LanguageModel:
    """Train the detector and write its model file.

    Args:
        paths: files, or folders that hold ``lang_train`` files; see `read_language`.
        out: the file to write.
        seed: seeds everything random.
        progress: receives the progress.

    Raises:
        DataError: the data cannot be used.
    """
    model = fit_language(read_language(paths, "train"), seed, progress)
    Path(out).write_bytes(pack(*language.dump(model)))
    return model


def fit_language(
    rows: Sequence[LanguageRow], seed: int, progress: Progress = silent
) -> LanguageModel:
    """Fit the detector to labelled texts."""
    total = Counter(row.language for row in rows)
    by_script: dict[str, list[Sample]] = defaultdict(list)
    for number, row in enumerate(rows):
        letters, script, size = language.read_letters(row.text)
        if size:
            by_script[script].append(Sample(letters, row.language, is_span=False))
        if number % 5000 == 0:
            progress("reading texts", number / len(rows))
    scripts: dict[str, ScriptModel] = {}
    single: dict[str, tuple[str, float]] = {}
    for script in sorted(by_script):
        samples = by_script[script]
        counts = Counter(sample.language for sample in samples)
        written = [name for name, count in counts.items() if count > total[name] * 0.2]
        languages = sorted(name for name in written if counts[name] >= MIN_TEXTS)
        if len(languages) > 1:
            samples = [sample for sample in samples if sample.language in set(languages)]
            scripts[script] = _fit_script(script, samples, languages, seed, progress)
        elif any(counts[name] >= MIN_TEXTS_ALONE for name in written):
            name = max(written, key=lambda name: (counts[name], name))
            single[script] = (name, round(counts[name] / (len(samples) + 1), 4))
    if not scripts and not single:
        raise DataError(
            f"no language has the {MIN_TEXTS_ALONE} texts that it needs: add texts of at least one"
        )
    return LanguageModel(scripts, single, RELIABLE_FROM, MIN_LETTERS, VERSION)


def _fit_script(
    script: str, samples: list[Sample], languages: list[str], seed: int, progress: Progress
) -> ScriptModel:
    bits = BITS.get(script, OTHER_BITS)
    held = samples[::HELD_OUT]
    kept = [sample for number, sample in enumerate(samples) if number % HELD_OUT]
    kept += spans(kept, Random(seed))
    index = {name: number for number, name in enumerate(languages)}
    counts = Counter(sample.language for sample in kept)
    texts = [language.letter_buckets(sample.letters, bits) for sample in kept]
    labels = np.array([index[sample.language] for sample in kept])
    weights = np.array([_weight(sample.language, counts) for sample in kept], np.float32)
    table = softmax.fit(
        texts, labels, weights, (1 << bits, len(languages)), SETTINGS, seed,
        lambda _, share: progress(f"fitting {script.lower()}", share),
    )  # fmt: skip
    table -= table.mean(axis=1, keepdims=True)
    scale = float(np.quantile(np.abs(table[table != 0]), 0.9995)) / LEVELS
    weights8 = np.clip(np.rint(table / scale), -LEVELS, LEVELS).astype(np.int8)
    model = ScriptModel(
        tuple(languages), bits, weights8, scale, np.zeros(len(languages)),
        SETTINGS.power, (0.0, 0.0),
    )  # fmt: skip
    return attrs.evolve(model, temperature=_temperature(model, held, index))


def spans(samples: Sequence[Sample], random: Random) -> list[Sample]:
    """Single words and pairs of words from the longer texts."""
    found = []
    for sample in samples:
        edges = np.flatnonzero(sample.letters == 32)
        if edges.size < 4:
            continue
        for _ in range(SPANS):
            width = random.choice((1, 2))
            start = random.randrange(edges.size - width)
            letters = sample.letters[edges[start] : edges[start + width] + 1]
            if letters.size >= 4:
                found.append(Sample(letters, sample.language, is_span=True))
    return found


def _weight(name: str, counts: Counter[str]) -> float:
    """The weight of a text: less for rare languages, more for languages with few texts."""
    return (1.0 if name in COMMON else RARE_WEIGHT) * min(
        3.0, float((10_000 / counts[name]) ** 0.3)
    )


def _temperature(
    model: ScriptModel, held: Sequence[Sample], index: dict[str, int]
) -> tuple[float, float]:
    """Search for the slope and intercept of the sharpness that best suit held-out texts.

    Common languages count fully, rare ones as in the fit.
    """
    rows, sizes, labels, weights = [], [], [], []
    cut = [*held, *spans(held, Random(0))]
    for sample in cut:
        buckets = language.letter_buckets(sample.letters, model.bits)
        total = np.ones(buckets.size, np.float32) @ model.weights.take(buckets, axis=0)
        rows.append(total * (model.scale * buckets.size**-model.power))
        sizes.append(math.log(buckets.size))
        labels.append(index[sample.language])
        weights.append(1.0 if sample.language in COMMON else RARE_WEIGHT)
    logits, size = np.array(rows, np.float64), np.array(sizes)
    right, weight = np.array(labels), np.array(weights)

    def loss(slope: float, intercept: float) -> float:
        sharp = logits * np.exp(slope * size + intercept)[:, None]
        top = sharp.max(axis=1)
        norm = top + np.log(np.exp(sharp - top[:, None]).sum(axis=1))
        return float((weight * (norm - sharp[np.arange(right.size), right])).sum())

    best, step = (0.0, 0.0), 0.4
    lowest = loss(*best)
    while step > 0.01:
        slope, intercept = best
        tries = [
            (slope + a * step / 3, intercept + b * step)
            for a in (-1, 0, 1)
            for b in (-1, 0, 1)
            if a or b
        ]
        found = min((loss(*point), point) for point in tries)
        if found[0] < lowest:
            lowest, best = found
        else:
            step /= 2
    return best
