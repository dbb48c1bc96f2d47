"""The shipped model fits the code: verdicts on messages of our own, plain and disguised."""

from __future__ import annotations

from random import Random

import pytest

from spamdetect.engine import Engine
from spamdetect.training.attacks import ATTACKS
from spamdetect.training.mirror import COPIES, MIRROR

SPAM = [
    "Congratulations! You have won a £1000 prize. Call 09061234567 now to claim your reward.",
    "URGENT! Your mobile number was awarded a free holiday. Txt CLAIM to 80062, T&C apply 18+",
    "Earn $5000 weekly with bitcoin trading, contact my manager on WhatsApp to start investing",
    "FREE MONEY! Guaranteed loan approval, no credit check, click here http://loans.example.biz",
    "Заработок от 500$ в неделю, удаленно, 18+, пишите в личные сообщения",
]
HAM = [
    "Are you still coming tonight? I made too much soup.",
    "I left the keys under the mat, see you on Sunday.",
    "The second patch breaks the build on my machine, can you have a look at the log?",
    "Happy birthday! Hope you have a lovely day with the kids.",
    "Ich bin in zehn Minuten da, warte bitte am Bahnhof.",
    "Давай завтра созвонимся после обеда, сегодня уже поздно",
    "ok, thanks, talk later",
]


@pytest.mark.parametrize("text", SPAM)
def test_spam(engine: Engine, text: str) -> None:
    assert engine.predict(text).prediction.is_spam


@pytest.mark.parametrize("text", HAM)
def test_ham(engine: Engine, text: str) -> None:
    assert not engine.predict(text).prediction.is_spam


@pytest.mark.parametrize("name", ATTACKS)
def test_disguise_hides_little(engine: Engine, name: str) -> None:
    caught = [
        engine.predict(ATTACKS[name](text, Random(seed))).prediction.is_spam
        for text in SPAM
        for seed in range(4)
    ]
    assert sum(caught) >= 0.8 * len(caught)


@pytest.mark.parametrize("name", [*MIRROR, *COPIES])
def test_ordinary_additions_convict_nobody(engine: Engine, name: str) -> None:
    change = (MIRROR | COPIES)[name]
    refused = [
        engine.predict(change(text, Random(seed))).prediction.is_spam
        for text in HAM
        for seed in range(4)
    ]
    assert sum(refused) <= 0.15 * len(refused)


@pytest.mark.parametrize("name", ["forwarded", "quoted", "doubled"])
def test_copies_keep_their_verdict(engine: Engine, name: str) -> None:
    for text in SPAM:
        assert engine.predict(COPIES[name](text, Random(0))).prediction.is_spam


def test_reasons_are_words_that_convict(engine: Engine) -> None:
    reasons = engine.explain(SPAM[0], top=8)
    assert 0 < len(reasons) <= 8
    assert [abs(r.weight) for r in reasons] == sorted(
        (abs(r.weight) for r in reasons), reverse=True
    )
    words = {reason.feature for reason in reasons if reason.weight > 0}
    assert words & {'words:"prize."', 'words:"claim"', 'words:"won"', 'words:"call"'}
    assert all(reason.explanation for reason in reasons)


def test_explain_of_nothing(engine: Engine) -> None:
    assert engine.explain("") == []
    assert engine.explain("some words", top=0) == []
