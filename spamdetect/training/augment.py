"""Additions to the training texts: disguised copies of both classes, ordinary additions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Final

import attrs

from spamdetect.training.attacks import disguise
from spamdetect.training.dataset import SpamRow
from spamdetect.training.mirror import COPIES, MIRROR

MAX_COPY: Final = 1500  # characters; the rest of a long text would add nothing but time
LONG: Final = 400  # characters; longer texts offer fragments
FRAGMENT: Final = 300  # characters, at most
LEAST_WORDS, MOST_WORDS = 2, 8  # in a phrase
SHORTEST: Final = 12  # characters
_END: Final = re.compile(r"(?<=[.!?\u2026\u3002\uff01\uff1f])\s+|\n[ \t]*\n")


@attrs.frozen
class Plan:
    """How much is added.

    Attributes:
        disguised: share of all texts that get a disguised copy.
        ordinary: share of ham that gets a copy with something harmless added.
        copied: share of all texts that get a forwarded, quoted, trimmed or doubled copy.
        weight: the weight of a copy; an original has 1.
        fragments: how many groups of sentences of each long text are offered; the fit chooses.
        phrases: how many runs of a few words of each long text are offered.
        fragment_weight: the weight of a chosen group of sentences.
        phrase_weight: the weight of a chosen run of words.
        fragmented: the share of the fit with fragments and phrases in the mean, from 0 to 1.
        mixture: how often each harmless addition is chosen.
    """

    disguised: float = 0.35
    ordinary: float = 0.3
    copied: float = 0.05
    weight: float = 0.5
    fragments: int = 8
    phrases: int = 8
    fragment_weight: float = 0.3
    phrase_weight: float = 0.15
    fragmented: float = 0.5
    mixture: tuple[tuple[str, float], ...] = (
        ("a link", 0.45),
        ("a price", 0.2),
        ("a number", 0.15),
        ("capitals", 0.06),
        ("code", 0.06),
        ("emoji", 0.08),
    )


def copies(rows: Sequence[SpamRow], plan: Plan, seed: int) -> tuple[list[str], list[int]]:
    """The copies of some texts, and the number of each copy's original.

    Each text has its own random generator, so leaving one out changes no other.
    """
    texts: list[str] = []
    owners: list[int] = []
    names = [name for name, _ in plan.mixture]
    shares = [share for _, share in plan.mixture]
    for number, row in enumerate(rows):
        random = Random(f"{seed}:{number}")
        text = row.text[:MAX_COPY]
        made = []
        if random.random() < plan.disguised:
            made.append(disguise(text, random))
        if not row.is_spam and random.random() < plan.ordinary:
            made.append(MIRROR[random.choices(names, shares)[0]](text, random))
        if random.random() < plan.copied:
            made.append(COPIES[random.choice(sorted(COPIES))](text, random))
        texts += made
        owners += [number] * len(made)
    return texts, owners


def fragments(rows: Sequence[SpamRow], plan: Plan, seed: int) -> tuple[list[str], list[int]]:
    """Runs of one to three sentences of each long text, and the number of each run's text.

    They teach kinds of short messages that the data contain only inside long ones.
    """
    texts: list[str] = []
    owners: list[int] = []
    for number, row in enumerate(rows):
        pieces = sentences(row.text) if len(row.text) > LONG else []
        if not pieces:
            continue
        random = Random(f"{seed}:fragments:{number}")
        found: dict[str, None] = {}
        for _ in range(plan.fragments):
            first = random.randrange(len(pieces))
            text = " ".join(" ".join(pieces[first : first + random.randint(1, 3)]).split())
            if len(text) > SHORTEST:
                found[text[:FRAGMENT]] = None
        texts += found
        owners += [number] * len(found)
    return texts, owners


def phrases(rows: Sequence[SpamRow], plan: Plan, seed: int) -> tuple[list[str], list[int]]:
    """Runs of a few words of each long text, and the number of each run's text."""
    texts: list[str] = []
    owners: list[int] = []
    for number, row in enumerate(rows):
        words = row.text[: 4 * MAX_COPY].split() if len(row.text) > LONG else []
        if len(words) < MOST_WORDS:
            continue
        random = Random(f"{seed}:phrases:{number}")
        found: dict[str, None] = {}
        for _ in range(plan.phrases):
            length = random.randint(LEAST_WORDS, MOST_WORDS)
            first = random.randint(0, len(words) - length)
            found[" ".join(words[first : first + length])[:FRAGMENT]] = None
        texts += found
        owners += [number] * len(found)
    return texts, owners


def sentences(text: str) -> list[str]:
    """The sentences and headings of a text that contain at least two words."""
    return [part for part in _END.split(text[: 4 * MAX_COPY]) if part and " " in part.strip()]
