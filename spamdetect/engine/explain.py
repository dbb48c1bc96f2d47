"""Which features moved a verdict, in words."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from spamdetect.engine.characters import code_points
from spamdetect.engine.classifier import SpamModel, unique_buckets
from spamdetect.engine.features import text_buckets
from spamdetect.engine.normalise import MAIL, MENTION, URL, Normalised
from spamdetect.engine.results import Reason
from spamdetect.engine.structure import GROUPS, STRUCTURE_NAMES

_PIECE: Final = re.compile(r"\S+")
_NAMED: Final = {URL: "<url>", MAIL: "<mail>", MENTION: "<mention>"}
_PIECES_READ: Final = 2000
_EDGES: Final = dict(GROUPS)


def explain(model: SpamModel, normalised: Normalised, on: list[int], *, top: int) -> list[Reason]:
    """The strongest reasons first.

    The weight of a word is what the score loses when the word's own n-grams go; n-grams that
    reach over two words are shared between them by what they add as a pair.

    Args:
        model: the classifier.
        normalised: the text.
        on: its structural features.
        top: how many reasons at most.
    """
    reasons = [
        Reason(STRUCTURE_NAMES[index], weight, describe_structure(STRUCTURE_NAMES[index], weight))
        for index in on
        if (weight := float(model.structure[index]) * model.slope)
    ]
    buckets = unique_buckets(text_buckets(normalised.readable_codes, model.bits))
    unit = model.scale * model.slope / max(1, buckets.size) ** model.power
    seen: dict[str, float] = {}
    for match in _PIECE.finditer(normalised.marked):
        word = match.group()
        if word not in seen and len(seen) < _PIECES_READ:
            own = unique_buckets(text_buckets(code_points(f" {word} "), model.bits))
            own = np.intersect1d(own, buckets, assume_unique=True)
            seen[word] = float(model.weights[own].sum(dtype=np.int64)) * unit
    for word, weight in seen.items():
        shown = _NAMED.get(word, word)
        reasons.append(Reason(f'words:"{shown}"', weight, describe_word(shown, weight)))
    reasons.sort(key=lambda reason: (-abs(reason.weight), reason.feature))
    return [reason for reason in reasons if reason.weight][: max(0, top)]


def describe_word(word: str, weight: float) -> str:
    """A sentence about a word of the text."""
    return f'"{word}" is more usual in {_side(weight)}'


def describe_structure(name: str, weight: float) -> str:
    """A sentence about a structural feature."""
    group, _, bucket = name.partition(":")
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
