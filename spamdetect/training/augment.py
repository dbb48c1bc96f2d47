"""Additions to the training texts: disguised copies of both classes, ordinary additions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from spamdetect.training.attacks import disguise
from spamdetect.training.dataset import SpamRow
from spamdetect.training.mirror import COPIES, MIRROR

MAX_COPY: Final = 1500  # characters; the rest of a long text would add nothing but time
DISGUISED: Final = 0.35  # share of all texts that get a disguised copy
ORDINARY: Final = 0.3  # share of ham that gets a copy with something harmless added
COPIED: Final = 0.05  # share of all texts that get a forwarded, quoted, trimmed or doubled copy
MIXTURE: Final = {
    "a link": 0.45,
    "a price": 0.2,
    "a number": 0.15,
    "capitals": 0.06,
    "code": 0.06,
    "emoji": 0.08,
}
"""How often each harmless addition is chosen."""


def copies(rows: Sequence[SpamRow], seed: int) -> tuple[list[str], list[int]]:
    """The copies of some texts, and the number of each copy's original.

    Each text has its own random generator, so leaving one out changes no other.
    """
    texts: list[str] = []
    owners: list[int] = []
    for number, row in enumerate(rows):
        random = Random(f"{seed}:{number}")
        text = row.text[:MAX_COPY]
        made = []
        if random.random() < DISGUISED:
            made.append(disguise(text, random))
        if not row.is_spam and random.random() < ORDINARY:
            name = random.choices(list(MIXTURE), list(MIXTURE.values()))[0]
            made.append(MIRROR[name](text, random))
        if random.random() < COPIED:
            made.append(COPIES[random.choice(sorted(COPIES))](text, random))
        texts += made
        owners += [number] * len(made)
    return texts, owners
