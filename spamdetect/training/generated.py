"""This project's notices, and letters composed of them, as training texts."""

from __future__ import annotations

import zlib
from typing import Final

from spamdetect.training.corpus import NOTICES
from spamdetect.training.dataset import FOLDS, SpamRow
from spamdetect.training.letters import letters
from spamdetect.training.notices import generate

PER_TEMPLATE: Final = 2


def made_rows(seed: int, per_template: int = PER_TEMPLATE) -> list[SpamRow]:
    """Made notices and letters; each language is a separate source.

    A template has the same fold in all languages, so that no fit has seen the pattern of a
    held-out text.

    Args:
        seed: seeds the values in the templates' slots.
        per_template: how many texts to make from each template.
    """
    rows = []
    for notice in generate(seed, per_template):
        _, _, pattern = notice.template.partition("/")
        rows.append(
            SpamRow(
                notice.text,
                notice.label == "spam",
                f"{NOTICES} {notice.language}",
                zlib.crc32(pattern.encode()) % FOLDS,
                notice.language,
                notice.kind,
            )
        )
    return rows + letters(rows, seed)
