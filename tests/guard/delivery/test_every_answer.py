"""Each kind of answer to a batch, at each delivery that somebody waits for.

The generator. Whatever a server answers, each event is at the server, or waits, or counts as lost:
one of them, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest

import guard
from guard.breaker.exceptions import BreakerTransportError
from guard.runtime.runtime import GuardRuntime
from tests.guard.delivery.conftest import EVENTS, Answer, Scripted, Spawn, problem

Against = Callable[..., GuardRuntime]
MADE: Final = 30
SILENCE_S: Final = 1.0


@attrs.frozen
class Kind:
    """What a server answers.

    Attributes:
        takes: whether it has taken the events of the batch that it answers so.
        times: to how many batches; all others are accepted.
        all_arrive: whether all events are there in the end.
    """

    answer: Answer | None
    takes: bool = False
    times: int = 1_000_000
    all_arrive: bool = False


KINDS: Final = {
    "202": Kind(None, times=0, all_arrive=True),
    "200, no JSON": Kind(Answer(200, body=b"all good"), takes=True),
    "200, HTML": Kind(Answer(200, body=b"<html>"), takes=True),
    "200, another document": Kind(Answer(200, body=b"[1]"), takes=True),
    "200, a number as text": Kind(Answer(200, body=b'{"accepted": "three"}'), takes=True),
    "200, empty": Kind(Answer(200), takes=True),
    "204": Kind(Answer(204), takes=True),
    "202, cut": Kind(Answer(202, body=b'{"accepted": '), takes=True),
    "202, torn": Kind(Answer(202, body=b'{"accepted": 10}', torn=True), takes=True),
    "202, torn once": Kind(
        Answer(202, body=b'{"accepted": 10}', torn=True), takes=True, times=1, all_arrive=True
    ),
    "200, no JSON, once": Kind(Answer(200, body=b"ok"), takes=True, times=1, all_arrive=True),
    "no JSON for none": Kind(Answer(200, body=b"ok"), times=1, all_arrive=True),
    "slow": Kind(
        Answer(202, body=b'{"accepted": 10}', late_s=0.6), takes=True, times=4, all_arrive=True
    ),
    "429 once": Kind(Answer(429, {"Retry-After": "0.2"}, b"{}"), times=1, all_arrive=True),
    "429": Kind(Answer(429, {"Retry-After": "300"}, b"{}")),
    "503 for a while": Kind(Answer(503, body=b"no"), times=2, all_arrive=True),
    "500": Kind(Answer(500, body=b"no")),
    "500, torn": Kind(Answer(500, body=b"no", torn=True)),
    "404": Kind(Answer(404, body=b"{}")),
    "401": Kind(problem(401, "GD-A003")),
    "413": Kind(problem(413, "GD-P003")),
    "no answer": Kind(Answer(hang=True)),
}
each_kind = pytest.mark.parametrize("name", KINDS)
generator = pytest.mark.generator("kinds of answers to a batch")


def answering(scripted: Scripted, kind: Kind) -> None:
    """Have a server answer so."""
    left = kind.times

    def answer(path: str, body: Any) -> Answer | None:
        nonlocal left
        if path != EVENTS or not left:
            return None
        left -= 1
        if kind.takes:
            scripted.taken(body)
        return kind.answer

    scripted.answer = answer


def check(kind: Kind, scripted: Scripted, *, lost: int, waiting: int = 0) -> None:
    there = sum(1 for each in scripted.bodies if each["type"] == "llm")
    if not waiting or not kind.takes:  # an event that waits after a doubtful answer is there too
        assert there + lost + waiting == MADE
    if kind.all_arrive:
        assert (there, lost) == (MADE, 0)


@generator
@each_kind
def test_flush(name: str, against: Against, scripted: Scripted) -> None:
    kind = KINDS[name]
    runtime = against(flush_interval_ms=3_600_000, batch_size=10, timeout_ms=60_000)
    answering(scripted, kind)
    for number in range(MADE):
        guard.track_llm(number, 1)
    with contextlib.suppress(BreakerTransportError):
        runtime.flush(SILENCE_S)
    status = runtime.status()
    assert status.events_sent + status.events_lost + status.buffered == MADE
    check(kind, scripted, lost=status.events_lost, waiting=status.buffered)
    if kind.all_arrive and kind.times < 1_000_000:
        assert status.events_sent == MADE


@generator
@each_kind
def test_shutdown(name: str, against: Against, scripted: Scripted) -> None:
    kind = KINDS[name]
    runtime = against(flush_interval_ms=3_600_000, batch_size=10, timeout_ms=60_000)
    answering(scripted, kind)
    for number in range(MADE):
        guard.track_llm(number, 1)
    told, text = 0, "cannot be read"
    try:
        runtime.shutdown(SILENCE_S)
    except BreakerTransportError as exc:
        told, text = exc.events_lost, str(exc)
    assert told or "cannot be read" in text
    status = runtime.status()
    assert told <= status.events_lost  # some may have been refused before
    assert status.events_sent + status.events_lost == MADE
    check(kind, scripted, lost=status.events_lost)


PROGRAM: Final = f"""
import atexit, os
import guard
atexit.register(lambda: print(guard.status().events_sent, guard.status().events_lost))
guard.init()
for number in range({MADE}):
    guard.track_llm(number, 1)
"""


@generator
@each_kind
def test_the_end_of_a_program(name: str, scripted: Scripted, spawn: Spawn) -> None:
    kind = KINDS[name]
    answering(scripted, kind)
    env = {
        "GUARD_API_KEY": "k" * 24, "GUARD_API_URL": scripted.url, "GUARD_BATCH_SIZE": "10",
        "GUARD_TRANSPORT_MODE": "http", "GUARD_TIMEOUT_MS": "60000",
    }  # fmt: skip
    out, err = spawn(PROGRAM, env=env).communicate(timeout=120)
    sent, lost = map(int, out.split())
    assert sent + lost == MADE, err
    check(kind, scripted, lost=lost)
    assert "Traceback" not in err
