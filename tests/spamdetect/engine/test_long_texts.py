"""Long texts are judged by their parts."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamdetect.engine import Engine
from spamdetect.engine.long_texts import LONG, parts, with_parts

ORDINARY = (
    "Thanks for the minutes of the last meeting. I have read them on the train and have only two "
    "small remarks, which I have written into the margin of the second page for you. The builders "
    "will come back on Thursday to finish the roof, and Anna has promised to let them in."
)
SCAM = (
    "URGENT! You have won a £5000 cash prize. Call 09061234567 now or click http://prize-claim.top "
    "to claim your reward before it expires."
)


def test_a_short_text_has_no_parts() -> None:
    assert parts("a b\n\n" * 500) == []


@given(st.text("ab \n\t", min_size=LONG + 1, max_size=2 * LONG))
def test_parts_hold_the_whole_text(text: str) -> None:
    found = parts(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert max(map(len, found), default=0) <= 300 + 2 + 1200


def test_parts_of_paragraphs() -> None:
    text = "\n\n".join(["A subject", *[ORDINARY] * 12])
    found = parts(text)
    assert found[0].startswith(f"A subject\n\n{ORDINARY[:40]}")
    assert len(found) >= 6
    assert len(parts("x" * 100_000)) == math.ceil(100_000 / 1200)


def test_the_mean_of_the_whole_and_its_worst_part() -> None:
    assert with_parts(-2.0, []) == -2.0
    assert with_parts(-2.0, [1.0, 3.0]) == pytest.approx((1.0 - math.log(2)) / 2)


def test_one_bad_paragraph_does_not_drown(engine: Engine) -> None:
    many = [ORDINARY] * 14
    plain = engine.predict("\n\n".join(many)).prediction
    found = engine.predict("\n\n".join([*many[:7], SCAM, *many[7:]]))
    short = engine.predict("\n\n".join([*many[:3], SCAM, *many[3:6]])).prediction
    assert not plain.is_spam
    assert found.prediction.spam_score > 5 * plain.spam_score
    assert found.prediction.spam_score > short.spam_score / 5
    assert engine.predict_many([found.input_text] * 3) == [found] * 3


def test_reasons_of_the_worst_part_are_told(engine: Engine) -> None:
    text = "\n\n".join([*[ORDINARY] * 12, SCAM])
    told = [reason.feature for reason in engine.explain(text, top=40) if reason.weight > 0]
    assert 'words:"prize."' in told or 'words:"urgent!"' in told
    alone = engine.explain(text, top=10_000)
    assert len({reason.feature for reason in alone}) == len(alone)


def test_the_time_is_linear() -> None:
    def seconds(text: str) -> float:
        start = time.thread_time()  # other threads of this process work too
        parts(text)
        return time.thread_time() - start

    for text in ("\n" * 90_000, "\n \t" * 30_000, "a\n " * 30_000, " " * 90_000):
        assert seconds(text) < 2.0  # a square of the length would be minutes
