"""The notices of this project as training texts."""

from __future__ import annotations

import zlib
from typing import Final

from spamdetect.training.dataset import FOLDS, SpamRow
from spamdetect.training.notices import generate
from spamdetect.training.spam_fit import NOTICES

PER_TEMPLATE: Final = 2


def made_rows(seed: int, per_template: int = PER_TEMPLATE) -> list[SpamRow]:
    """Made notices, each language a source of its own.

    The fold is that of the template in all languages, so that no fit has seen the pattern of a
    held-out text.

    Args:
        seed: of what the slots of the templates hold.
        per_template: how many texts of each template.
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
    return rows
