"""Which features moved a verdict, in words."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from spamdetect.engine.characters import class_of, code_points
from spamdetect.engine.classifier import SpamModel, unique_buckets
from spamdetect.engine.features import CHAR_NGRAMS, folded, mix, ngram_hashes, text_buckets
from spamdetect.engine.naming import DENSE, DENSE_RANGES
from spamdetect.engine.normalise import MAIL, MENTION, URL, Normalised
from spamdetect.engine.odd import MARKS
from spamdetect.engine.results import Reason
from spamdetect.engine.structure import GROUPS, LINK_GROUPS
from spamdetect.engine.traits import NAMED_EDGES, trait_names

_PIECE: Final = re.compile(r"\S+")
_NAMED: Final = {URL: "<url>", MAIL: "<mail>", MENTION: "<mention>"}
_PIECES_READ: Final = 2000
_DENSE: Final = f"{class_of(DENSE_RANGES)}{class_of(MARKS)}"
_DENSE_OR_NOT: Final = re.compile(f"[{_DENSE}]+|[^{_DENSE}]+")
_MARK: Final = re.compile(f"[{class_of(MARKS)}]")
_WHOLE: Final = 3  # characters; a run of so few is a word
_LONGEST_PIECE: Final = 12
_EDGES: Final = {**dict(GROUPS), **dict(LINK_GROUPS), "concepts named": NAMED_EDGES}


def explain(model: SpamModel, normalised: Normalised, on: list[int], *, top: int) -> list[Reason]:
    """The strongest reasons first.

    The weight of a word is what the score loses without the word's own n-grams; n-grams that span
    two words count for neither. Where a script has no spaces between words, the pieces that speak
    for the same side stand for words.

    Args:
        model: the classifier.
        normalised: the text.
        on: its active traits.
        top: the maximum number of reasons.
    """
    buckets = unique_buckets(text_buckets(code_points(normalised.readable), model.bits))
    slope, worth = model.blend.grams, model.blend.meaning
    names = trait_names(model.lexicon.names)
    reasons = []
    for index, (meaning, structural) in zip(on, model.network.losses(on), strict=True):
        weight = structural * slope + meaning * worth
        reasons.append(Reason(names[index], weight, describe_trait(names[index], weight)))
    unit = model.scale * slope / max(1, buckets.size) ** model.power
    seen: dict[str, float] = {}
    for match in _PIECE.finditer(normalised.marked):
        for word in pieces(model, match.group()):
            if word not in seen and len(seen) < _PIECES_READ:
                own = unique_buckets(text_buckets(code_points(f" {word} "), model.bits))
                own = np.intersect1d(own, buckets, assume_unique=True)
                seen[word] = int(model.weights[own].sum(dtype=np.int64)) * unit
    for word, weight in seen.items():
        shown = _NAMED.get(word, word)
        reasons.append(Reason(f'words:"{shown}"', weight, describe_word(shown, weight)))
    reasons.sort(key=lambda reason: (-abs(reason.weight), reason.feature))
    return [reason for reason in reasons if reason.weight][: max(0, top)]


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


def describe_word(word: str, weight: float) -> str:
    """A sentence about a word of the text."""
    return f'"{word}" is more usual in {_side(weight)}'


def describe_trait(name: str, weight: float) -> str:
    """A sentence about a trait."""
    group, _, bucket = name.partition(":")
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
