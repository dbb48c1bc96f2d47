"""The shipped model on a hundred messages that it was never tuned to.

The counts below are what the shipped model reaches; the aim is in `AIM`. A model that reaches
more raises its count; nobody changes a message, a recipe or a threshold because of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from spamdetect.engine import Analysis, Engine
from tests.spamdetect.engine.hundred import ORDINARY, SCAMS

AIM: Final = {"ordinary": 47, "scams": 42}
REACHED: Final = {"ordinary": 49, "scams": 44}
MESSAGES: Final = {"ordinary": ORDINARY, "scams": SCAMS}


def missed(engine: Engine, messages: Mapping[str, tuple[str, ...]], *, spam: bool) -> list[str]:
    found: list[tuple[str, Analysis]] = [
        (language, engine.predict(text)) for language, texts in messages.items() for text in texts
    ]
    return [
        f"{language} {analysis.prediction.spam_score:.2f} {analysis.input_text}"
        for language, analysis in found
        if analysis.prediction.is_spam is not spam
    ]


@pytest.mark.parametrize("kind", MESSAGES)
def test_the_model_reaches_what_it_reached(engine: Engine, kind: str) -> None:
    wrong = missed(engine, MESSAGES[kind], spam=kind == "scams")
    right = 50 - len(wrong)
    print(f"{kind}: {right} of 50 right, the aim is {AIM[kind]}; missed:", *wrong, sep="\n  ")
    assert right >= REACHED[kind], "\n".join(wrong)


def test_there_are_a_hundred_in_ten_languages() -> None:
    assert len(ORDINARY) == len(SCAMS) == 10
    texts = [text for kind in MESSAGES.values() for part in kind.values() for text in part]
    assert len(set(texts)) == 100
