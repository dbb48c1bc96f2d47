"""The shipped model on hundreds of messages that it was never tuned to.

The counts below are what the shipped model reaches; the aim is in `AIM`. A model that reaches
more raises its count; nobody changes a message, a recipe or a threshold because of one of them.
A model that misses the aim is not shipped. The sixth hundred has none: it holds what is hardest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from spamdetect.engine import Analysis, Engine
from tests.spamdetect.engine import (
    fifth_hundred,
    fourth_hundred,
    second_hundred,
    sixth_hundred,
    third_hundred,
)
from tests.spamdetect.engine.hundred import ORDINARY, SCAMS

AIM: Final = {"ordinary": 48, "scams": 45}
JUDGES: Final[Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]]] = {
    "first": {"ordinary": ORDINARY, "scams": SCAMS},
    "second": {"ordinary": second_hundred.ORDINARY, "scams": second_hundred.SCAMS},
    "third": {"ordinary": third_hundred.ORDINARY, "scams": third_hundred.SCAMS},
    "fourth": {"ordinary": fourth_hundred.ORDINARY, "scams": fourth_hundred.SCAMS},
    "fifth": {"ordinary": fifth_hundred.ORDINARY, "scams": fifth_hundred.SCAMS},
    "sixth": {"ordinary": sixth_hundred.ORDINARY, "scams": sixth_hundred.SCAMS},
}
REACHED: Final = {
    "first": {"ordinary": 50, "scams": 46},
    "second": {"ordinary": 48, "scams": 48},
    "third": {"ordinary": 49, "scams": 49},
    "fourth": {"ordinary": 50, "scams": 50},
    "fifth": {"ordinary": 49, "scams": 48},
    "sixth": {"ordinary": 50, "scams": 16},
}


def missed(engine: Engine, messages: Mapping[str, tuple[str, ...]], *, spam: bool) -> list[str]:
    found: list[tuple[str, Analysis]] = [
        (language, engine.predict(text)) for language, texts in messages.items() for text in texts
    ]
    return [
        f"{language} {analysis.prediction.spam_score:.2f} {analysis.input_text}"
        for language, analysis in found
        if analysis.prediction.is_spam is not spam
    ]


@pytest.mark.parametrize("judge", REACHED)
@pytest.mark.parametrize("kind", AIM)
def test_the_model_reaches_what_it_reached(engine: Engine, judge: str, kind: str) -> None:
    wrong = missed(engine, JUDGES[judge][kind], spam=kind == "scams")
    right = 50 - len(wrong)
    aim = 0 if judge == "sixth" else AIM[kind]
    print(f"{kind}: {right} of 50 right, the aim is {aim}; missed:", *wrong, sep="\n  ")
    assert right >= max(REACHED[judge][kind], aim), "\n".join(wrong)


@pytest.mark.parametrize("judge", JUDGES)
def test_there_are_a_hundred_in_ten_languages_or_more(judge: str) -> None:
    kinds = JUDGES[judge]
    assert [len(languages) for languages in kinds.values()] == [15 if judge == "fifth" else 10] * 2
    texts = {kind: [text for part in kinds[kind].values() for text in part] for kind in kinds}
    assert {kind: len(set(found)) for kind, found in texts.items()} == {"ordinary": 50, "scams": 50}


def test_the_judges_share_no_message() -> None:
    texts = [
        text
        for judge in JUDGES.values()
        for languages in judge.values()
        for part in languages.values()
        for text in part
    ]
    assert len(set(texts)) == 100 * len(JUDGES)
