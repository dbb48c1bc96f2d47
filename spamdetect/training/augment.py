"""What is added to the training texts: disguised copies of both classes, ordinary additions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import attrs

from spamdetect.training.attacks import disguise
from spamdetect.training.dataset import SpamRow
from spamdetect.training.mirror import COPIES, MIRROR

MAX_COPY: Final = 1500  # characters; the rest of a long text would add nothing but time


@attrs.frozen
class Plan:
    """How much is added.

    Attributes:
        disguised: share of all texts that get a disguised copy.
        ordinary: share of ham that gets a copy with something harmless added.
        copied: share of all texts that get a forwarded, quoted, trimmed or doubled copy.
        weight: of a copy, where an original has 1.
        mixture: how often each harmless addition is chosen.
    """

    disguised: float = 0.35
    ordinary: float = 0.3
    copied: float = 0.05
    weight: float = 0.5
    mixture: tuple[tuple[str, float], ...] = (
        ("a link", 0.45),
        ("a price", 0.2),
        ("a number", 0.15),
        ("capitals", 0.06),
        ("code", 0.06),
        ("emoji", 0.08),
    )


def copies(rows: Sequence[SpamRow], plan: Plan, seed: int) -> tuple[list[str], list[int]]:
    """The copies of some texts, and the number of the text that each is a copy of.

    Each text draws from a generator of its own, so that leaving one out changes no other.
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
