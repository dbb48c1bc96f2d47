"""Small data made on the spot, and the real data where the environment names it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest

_GOOD = "meeting lunch tomorrow thanks train garden dinner report weather school music walk"
_BAD = "winner prize claim cash urgent bonus casino free offer guaranteed crypto loan"
GOOD, BAD = _GOOD.split(), _BAD.split()


def message(random: Random, *, spam: bool) -> str:
    words = random.choices(BAD if spam else GOOD, k=random.randint(4, 12))
    words += random.choices(GOOD + BAD, k=2)
    random.shuffle(words)
    return " ".join(words) + (
        " http://x.example.top/claim" if spam and random.random() < 0.2 else ""
    )


@pytest.fixture(scope="session")
def small_spam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 made-up messages in a JSONL file, from three sources."""
    random = Random(7)
    path = tmp_path_factory.mktemp("data") / "spam_small.jsonl"
    with path.open("w", encoding="utf-8") as out:
        for number in range(400):
            spam = number % 3 == 0
            row = {
                "text": message(random, spam=spam),
                "label": "spam" if spam else "ham",
                "source": f"s{number % 4 % 3}",
                "fold": number % 5,
            }
            out.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder that holds ``spam/`` and ``lang/``."""
    place = os.environ.get("SPAMDETECT_DATA")
    if not place:
        pytest.skip("SPAMDETECT_DATA does not name the data")
    return Path(place)
