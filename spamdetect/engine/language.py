"""The language detector: the script decides the candidates, hashed n-grams choose among them."""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine import native
from spamdetect.engine.characters import SCRIPTS, character_tables, code_points
from spamdetect.engine.container import Container, read, unpack
from spamdetect.engine.features import between_hashes, mix, rolled_hashes
from spamdetect.engine.links import may_link, replace_links
from spamdetect.engine.results import Language, ModelError

Doubles = NDArray[np.float64]

FILE_NAME = "language.model"
KIND = "language"
FORMAT = 1
WINDOW = 800  # code points read
LETTERS_READ = 400
UNKNOWN: Final = Language("und", 0.0, is_reliable=False)

# How many letters of text one character of a script is worth.
_WORTH = np.ones(len(SCRIPTS))
for _script, _worth in (("CJK", 3.0), ("HIRAGANA", 3.0), ("KATAKANA", 3.0), ("HANGUL", 2.0)):
    _WORTH[SCRIPTS.index(_script)] = _worth
_WORTH[0] = 0.0
# Scripts that are written together.
MERGED: Final = {"HIRAGANA": "CJK", "KATAKANA": "CJK"}
_GROUP_OF: Final = tuple(MERGED.get(script, script) for script in SCRIPTS)
JOIN = np.zeros((len(SCRIPTS), len(SCRIPTS)))
for _index, _group in enumerate(_GROUP_OF):
    JOIN[_index, SCRIPTS.index(_group)] = _WORTH[_index]

# Anything but a letter becomes a space.
_ASCII_LETTERS: Final = bytes(c if chr(c).isalpha() else 32 for c in range(128)) + b" " * 128
_HOPELESS: Final = -40.0
_NO_LETTERS: Final = np.array([], np.uint32)

# For n-grams of 1 to 5 letters, then for words.
_SALTS: Final = np.array(
    [0x51ED270B, 0x2545F491, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x7F4A7C15], np.uint32
)
SPACE: Final = np.uint32(32)
MAX_NGRAM: Final = 5
_PADDING: Final = np.full(MAX_NGRAM, SPACE)


@attrs.frozen
class ScriptModel:
    """The languages of one script and how to tell them apart.

    Attributes:
        languages: ISO codes.
        bits: logarithm of the number of buckets.
        weights: int8, one row for each bucket, one column for each language.
        scale: the value of one unit of ``weights``.
        bias: one constant for each language.
        power: a text of ``n`` n-grams divides their sum by ``n ** power``.
        temperature: (slope, intercept) of the sharpness over the logarithm of the n-gram count.
    """

    languages: tuple[str, ...]
    bits: int
    weights: NDArray[np.int8]
    scale: float
    bias: Doubles
    power: float
    temperature: tuple[float, float]

    def best(self, letters: NDArray[np.uint32]) -> tuple[int, float]:
        """The index of a text's likeliest language, and its probability."""
        if native.compiled is not None:
            found: tuple[int, float] = native.compiled.best_language(
                self.weights, self.bias, letters, self.scale, self.power, *self.temperature
            )
            return found
        buckets = letter_buckets(letters, self.bits)
        # As float32 the sum is exact, and many times faster than over int8.
        totals = np.ones(buckets.size, np.float32) @ self.weights.take(buckets, axis=0)
        logits = totals.astype(np.float64)
        logits *= self.sharpness(buckets.size)
        logits += self.bias
        first = int(logits.argmax())
        logits -= logits[first]
        # What is out of the question does not count; the others are added in order, so that the
        # compiled twin gives the same bits.
        total = 0.0
        for logit in logits[logits > _HOPELESS].tolist():
            total += math.exp(logit)
        return first, 1.0 / total

    def sharpness(self, size: int) -> float:
        """The factor for the sum of the weights of ``size`` n-grams."""
        slope, intercept = self.temperature
        return float(self.scale * size**-self.power * math.exp(slope * math.log(size) + intercept))


@attrs.frozen
class LanguageModel:
    """A language detector for the scripts that it was trained on.

    Attributes:
        scripts: the model of each script by its name.
        single: for scripts with a single language, that language and its probability.
        reliable_from: the probability from which an answer is reliable.
        min_letters: fewer letters than this are never reliable.
        version: of the model.
    """

    scripts: Mapping[str, ScriptModel]
    single: Mapping[str, tuple[str, float]]
    reliable_from: float
    min_letters: int
    version: str

    @property
    def languages(self) -> frozenset[str]:
        """The languages that it knows."""
        several = (name for script in self.scripts.values() for name in script.languages)
        return frozenset(several) | {name for name, _ in self.single.values()}

    def detect(self, text: str) -> Language:
        """The language of a text; links and digits are not read."""
        letters, group, size = read_letters(text)
        model = self.scripts.get(group)
        if not size or (model is None and group not in self.single):
            return UNKNOWN
        if model is None:
            name, probability = self.single[group]
        else:
            best, probability = model.best(letters)
            name = model.languages[best]
        reliable = probability >= self.reliable_from and size >= self.min_letters
        return Language(name, round(probability, 6), reliable)


def read_letters(text: str) -> tuple[NDArray[np.uint32], str, int]:
    """The letters of a text with single spaces between words, its script, and its size.

    Returns:
        The code points (a space at both ends), the name of the main script, and the amount of
        text counted in letters of an alphabet; 0 when there is none.
    """
    tables = character_tables()
    if len(text) > WINDOW:
        is_letter = tables.script[code_points(text)] != 0
        first = int(is_letter.argmax())
        text = text[first : first + WINDOW]
    text = spoken(text)
    if text.isascii():
        words = text.encode().translate(_ASCII_LETTERS).split()
        if not words:
            return _NO_LETTERS, "COMMON", 0
        joined = b" %b " % b" ".join(words)
        size = len(joined) - len(words) - 1
        if len(joined) > LETTERS_READ:
            joined = joined[:LETTERS_READ] + b" "
        return np.frombuffer(joined, np.uint8).astype(np.uint32), "LATIN", size
    codes = code_points(f" {text} ")
    scripts = tables.script[codes]
    worth = np.bincount(scripts, minlength=len(SCRIPTS)) @ JOIN
    main = int(worth.argmax())
    if not worth[main]:
        return codes[:0], "COMMON", 0
    is_letter = scripts != 0
    keep = is_letter.copy()
    keep[1:] |= is_letter[:-1]  # one separator after each word
    keep[0] = True
    letters = np.where(is_letter, codes, np.uint32(32))[keep]
    if letters.size > LETTERS_READ:
        letters = np.append(letters[:LETTERS_READ], np.uint32(32))
    return letters, SCRIPTS[main], int(worth.sum())


def certain(found: Language) -> str:
    """The language of a text if it is reliably known, else empty."""
    return found.language if found.is_reliable else ""


def spoken(text: str) -> str:
    """A text in lower case NFKC without addresses and mentions."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    text = text.lower()
    if may_link(text):
        text = replace_links(text, lambda _kind, _link: " ")
    return text


def letter_buckets(letters: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """The buckets of all whole words and of all n-grams of 1 to 5 letters within words.

    Args:
        letters: words with single spaces between them and one at both ends.
        bits: logarithm of the number of buckets.

    Returns:
        The buckets of the n-grams of one letter, then of two, and so on, then of the words.
    """
    size = letters.size
    padded = np.concatenate((letters, _PADDING))
    edges = (padded[: size + 1] == SPACE).nonzero()[0]
    before, after = edges[:-1], edges[1:]
    words, last = before[:-1], after[:-1]  # a text that was cut at a space ends with two
    # How far the n-grams of a position may reach: up to the next space.
    reach = np.concatenate((last, before[-1:])).repeat(after - before) - np.arange(size)
    rolled = rolled_hashes(padded, MAX_NGRAM)
    hashes = [rolled[n][:size][reach >= n] + _SALTS[n] for n in range(MAX_NGRAM)]
    hashes.append(between_hashes(letters, words, last) + _SALTS[MAX_NGRAM])
    return mix(np.concatenate(hashes), bits)


def dump(model: LanguageModel) -> tuple[str, dict[str, Any], dict[str, NDArray[Any]]]:
    """The arguments of `spamdetect.engine.container.pack` for a model."""
    arrays: dict[str, NDArray[Any]] = {}
    scripts = {}
    for name, script in model.scripts.items():
        arrays[f"{name}.weights"] = script.weights
        arrays[f"{name}.bias"] = script.bias.astype(np.float32)
        scripts[name] = {
            "languages": script.languages,
            "bits": script.bits,
            "scale": script.scale,
            "power": script.power,
            "temperature": script.temperature,
        }
    meta = {
        "format": FORMAT,
        "scripts": scripts,
        "single": dict(model.single),
        "reliable_from": model.reliable_from,
        "min_letters": model.min_letters,
        "version": model.version,
    }
    return KIND, meta, arrays


def load(path: str | os.PathLike[str] | None = None) -> LanguageModel:
    """Read a model file, the shipped one by default.

    Raises:
        ModelError: missing, damaged or of another format.
    """
    if path is None:
        data = resources.files("spamdetect.engine").joinpath(FILE_NAME).read_bytes()
        return from_container(unpack(data, kind=KIND, origin=FILE_NAME), FILE_NAME)
    return from_container(read(path, kind=KIND), os.fspath(path))


def from_container(container: Container, origin: str) -> LanguageModel:
    """The model in a container.

    Raises:
        ModelError: of another format, or inconsistent.
    """
    meta = container.meta
    if meta.get("format") != FORMAT:
        raise ModelError(f"{origin} has another model format: train it again with this version")
    try:
        return LanguageModel(
            scripts={
                name: _script_model(entry, container.arrays, name)
                for name, entry in meta["scripts"].items()
            },
            single={
                name: (str(language), float(probability))
                for name, (language, probability) in meta["single"].items()
            },
            reliable_from=float(meta["reliable_from"]),
            min_letters=int(meta["min_letters"]),
            version=str(meta["version"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(
            f"{origin} does not fit this version: train it again with this version"
        ) from None


def _script_model(
    entry: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], name: str
) -> ScriptModel:
    slope, intercept = entry["temperature"]
    languages = tuple(str(language) for language in entry["languages"])
    weights = arrays[f"{name}.weights"]
    if weights.shape != (1 << int(entry["bits"]), len(languages)):
        raise ValueError("weights of another shape")
    return ScriptModel(
        languages=languages,
        bits=int(entry["bits"]),
        weights=weights,
        scale=float(entry["scale"]),
        power=float(entry["power"]),
        bias=np.asarray(arrays[f"{name}.bias"], np.float64),
        temperature=(float(slope), float(intercept)),
    )
