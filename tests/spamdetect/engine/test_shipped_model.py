"""The shipped model fits the code: verdicts on messages of our own, plain and disguised."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from spamdetect.engine import Engine
from spamdetect.training.attacks import ATTACKS
from spamdetect.training.mirror import COPIES, MIRROR
from tests.spamdetect.engine.messages import HAM, SPAM

# Disguises and copies are tried on what is found undisguised.
PLAIN = [
    "Congratulations! You have won a £1000 prize. Call 09061234567 now to claim your reward.",
    "URGENT! Your mobile number was awarded a free holiday. Txt CLAIM to 80062, T&C apply 18+",
    "Earn $5000 weekly with bitcoin trading, contact my manager on WhatsApp to start investing",
    "FREE MONEY! Guaranteed loan approval, no credit check, click here http://loans.example.biz",
    "Заработок от 500$ в неделю, удаленно, 18+, пишите в личные сообщения",
]
# How many of each kind the shipped model is known to miss; fewer is better.
MISSED = {"pharmacy": 8, "casino": 3, "loan": 4, "phishing": 1, "money": 4}


def found(engine: Engine, texts: Iterable[str]) -> list[bool]:
    return [engine.predict(text).prediction.is_spam for text in texts]


@pytest.mark.parametrize("text", PLAIN)
def test_spam(engine: Engine, text: str) -> None:
    assert engine.predict(text).prediction.is_spam


@pytest.mark.parametrize("kind", SPAM)
def test_plain_spam_of_each_kind(engine: Engine, kind: str) -> None:
    caught = found(engine, SPAM[kind])
    missed = [text for text, hit in zip(SPAM[kind], caught, strict=True) if not hit]
    assert len(missed) <= MISSED.get(kind, 0), missed


@pytest.mark.parametrize("text", HAM)
def test_ham(engine: Engine, text: str) -> None:
    assert not engine.predict(text).prediction.is_spam


@pytest.mark.parametrize("name", ATTACKS)
def test_disguise_hides_little(engine: Engine, name: str) -> None:
    caught = [
        engine.predict(ATTACKS[name](text, Random(seed))).prediction.is_spam
        for text in PLAIN
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
    for text in PLAIN:
        assert engine.predict(COPIES[name](text, Random(0))).prediction.is_spam


def test_reasons_are_words_that_convict(engine: Engine) -> None:
    reasons = engine.explain(PLAIN[0], top=8)
    assert 0 < len(reasons) <= 8
    assert [abs(r.weight) for r in reasons] == sorted(
        (abs(r.weight) for r in reasons), reverse=True
    )
    words = {reason.feature for reason in reasons if reason.weight > 0}
    assert words & {'words:"prize."', 'words:"claim"', 'words:"won"', 'words:"call"'}
    assert all(reason.explanation for reason in reasons)


@pytest.mark.parametrize(
    "text",
    [
        "お客様のアカウントが停止されました。こちらから確認してください http://a.example.top",
        "您的包裹被海关扣留,请点击链接支付手续费 http://a.example.top",
        "ยินดีด้วย คุณได้รับรางวัล คลิกลิงก์เพื่อรับเงินสด http://a.example.top",
    ],
    ids=["ja", "zh", "th"],
)
def test_reasons_are_pieces_where_no_spaces_are_written(engine: Engine, text: str) -> None:
    found = engine.explain(text, top=200)
    words = [reason.feature[7:-1] for reason in found if reason.feature.startswith('words:"')]
    pieces = [word for word in words if not word.isascii()]
    assert len(pieces) >= 3
    assert all(1 <= len(piece) <= 14 and piece in text for piece in pieces)
    assert max(map(len, pieces)) > 1


def test_explain_of_nothing(engine: Engine) -> None:
    assert engine.explain("") == []
    assert engine.explain("some words", top=0) == []
