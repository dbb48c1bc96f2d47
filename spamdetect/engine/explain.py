"""Which features moved a verdict, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from spamdetect.engine.characters import class_of, code_points
from spamdetect.engine.classifier import SpamModel, unique_buckets
from spamdetect.engine.features import CHAR_NGRAMS, folded, mix, ngram_hashes, text_buckets
from spamdetect.engine.normalise import MAIL, MENTION, URL, Normalised
from spamdetect.engine.results import Reason
from spamdetect.engine.structure import GROUPS, LINK_GROUPS
from spamdetect.engine.traits import NAMED_EDGES, trait_names
from spamdetect.engine.unusual_characters import MARKS
from spamdetect.engine.word_characters import DENSE, DENSE_RANGES

_PIECE: Final = re.compile(r"\S+")
_NAMED: Final = {URL: "<url>", MAIL: "<mail>", MENTION: "<mention>"}
_PIECES_READ: Final = 2000
_DENSE: Final = f"{class_of(DENSE_RANGES)}{class_of(MARKS)}"
_DENSE_OR_NOT: Final = re.compile(f"[{_DENSE}]+|[^{_DENSE}]+")
_MARK: Final = re.compile(f"[{class_of(MARKS)}]")
_WHOLE: Final = 3  # characters; a run of so few is a word
_LONGEST_PIECE: Final = 12
_EDGES: Final = {**dict(GROUPS), **dict(LINK_GROUPS), "concepts named": NAMED_EDGES}


def explain(
    model: SpamModel, read: Sequence[tuple[Normalised, list[int]]], *, top: int
) -> list[Reason]:
    """The strongest reasons first.

    The weight of a word is what the score loses without the word's own n-grams; n-grams that span
    two words count for neither. Where a script has no spaces between words, the pieces that speak
    for the same side stand for words.

    Args:
        model: the classifier.
        read: the text and its active traits, and for a long text its worst part and its own; the
            reasons of these count half each.
        top: the maximum number of reasons.
    """
    weights: dict[str, float] = {}
    for normalised, on in read:
        for feature, weight in _weights(model, normalised, on).items():
            weights[feature] = weights.get(feature, 0.0) + weight / len(read)
    strongest = sorted(weights.items(), key=lambda item: (-abs(item[1]), item[0]))
    return [
        Reason(feature, weight, described(feature, weight))
        for feature, weight in strongest[: max(0, top)]
        if weight
    ]


def _weights(model: SpamModel, normalised: Normalised, on: list[int]) -> dict[str, float]:
    """By how much each trait and each word moves the log-odds."""
    buckets = unique_buckets(text_buckets(code_points(normalised.readable), model.bits))
    slope, worth = model.blend.grams, model.blend.meaning
    names = trait_names(model.lexicon.names)
    found = {
        names[index]: structural * slope + meaning * worth
        for index, (meaning, structural) in zip(on, model.network.losses(on), strict=True)
    }
    unit = model.scale * slope / max(1, buckets.size) ** model.power
    seen: dict[str, float] = {}
    for match in _PIECE.finditer(normalised.marked):
        for word in pieces(model, match.group()):
            if word not in seen and len(seen) < _PIECES_READ:
                own = unique_buckets(text_buckets(code_points(f" {word} "), model.bits))
                own = np.intersect1d(own, buckets, assume_unique=True)
                seen[word] = int(model.weights[own].sum(dtype=np.int64)) * unit
    return found | {f'words:"{_NAMED.get(word, word)}"': weight for word, weight in seen.items()}


def pieces(model: SpamModel, word: str) -> list[str]:
    """A word, or the pieces of a run of a script without spaces between words.

    Each character has the weights of the n-grams that it is part of; where their sum changes its
    sign, a piece ends. Marks stay with their letters.
    """
    found: list[str] = []
    for part in _DENSE_OR_NOT.findall(word):
        if not DENSE.match(part) or len(part) <= _WHOLE:
            found.append(part)
            continue
        codes = folded(code_points(part))
        said = np.zeros(codes.size)
        for size, hashes in zip(CHAR_NGRAMS, ngram_hashes(codes), strict=True):
            worth = model.weights[mix(hashes, model.bits)].astype(float) / size
            for offset in range(size):
                said[offset : offset + worth.size] += worth
        start = 0
        for at in range(1, codes.size):
            turns = (said[at] > 0) != (said[at - 1] > 0) or at - start >= _LONGEST_PIECE
            if turns and at - start > 1 and not _MARK.match(part, at):
                found.append(part[start:at])
                start = at
        found.append(part[start:])
    return found


def described(feature: str, weight: float) -> str:
    """A sentence about a trait or a word of the text."""
    group, _, bucket = feature.partition(":")
    if group == "words":
        return f"{bucket} is more usual in {_side(weight)}"
    if group == "concept":
        return f"the text speaks of: {bucket.replace('_', ' ')}, more usual in {_side(weight)}"
    if group == "link to":
        what = {
            "empty": "an address without a host", "address": "a numeric address",
            "shortener": "a link shortener", "messenger": "a messenger",
            "familiar": "a well-known site", "risky": "a cheap top-level domain",
            "ordinary": "an ordinary site", "other": "a site of a less usual domain",
        }[bucket]  # fmt: skip
        return f"a link to {what} is more usual in {_side(weight)}"
    if group == "script":
        script = "no letters" if bucket == "none" else f"{bucket.capitalize()} letters"
        return f"the text is mostly written in {script}: slightly more usual in {_side(weight)}"
    edges, index = _EDGES[group], int(bucket)
    if index == 0:
        amount = f"below {edges[0]:g}" if edges[0] != 1 else "none"
    elif index == len(edges):
        amount = f"{edges[-1]:g} or more"
    else:
        amount = f"{edges[index - 1]:g} to below {edges[index]:g}"
    return f"{group}: {amount}, more usual in {_side(weight)}"


def _side(weight: float) -> str:
    return "spam" if weight > 0 else "ordinary messages"
