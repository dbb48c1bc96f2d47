"""Each answer over a WebSocket is held before its frame is sent, and charged once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from guard.breaker.refusals import Refusal
from guard.core.wire import LlmData
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.frames import (
    APPEND,
    COMMIT,
    KINDS,
    LIVE,
    REALTIME,
    RESPONSES,
    Kind,
    Open,
    create,
    opened_at,
    respond,
    to_the_end,
)
from tests.guard.instrumentation.lines import LINES, AsyncLine, SyncLine
from tests.guard.instrumentation.standin.sockets import PROMPT_TOKENS, SocketVendor, socket_vendor
from tests.support.waiting import until


@pytest.fixture
def vendor() -> Iterator[SocketVendor]:
    with socket_vendor() as running:
        yield running


def _charged(events: list[LlmData]) -> list[tuple[str, int, int]]:
    return [(each.model, each.input_tokens, each.output_tokens) for each in events]


def _billed(vendor: SocketVendor) -> list[tuple[str, int, int]]:
    return [(each.model, each.input_tokens, each.output_tokens) for each in vendor.bill]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened", LINES)
@pytest.mark.parametrize("covered", [True, False])
def test_each_answer_is_held_and_charged_once(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, opened: Open, kind: Kind, covered: bool
) -> None:
    gate.covered = covered
    line = opened_at(opened, vendor, kind)
    for say in ("5", "6", "7"):
        line.send(kind.ask(say))
        to_the_end(line, kind)
    line.close()
    assert _charged(gated.events) == _billed(vendor)
    assert [each.output_tokens for each in gate.ends] == [5, 6, 7]
    assert not any(each.estimated for each in gated.events)
    assert gated.instrumentation.unseen.counts() == ()
    assert gated.instrumentation.failures == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened", LINES)
def test_what_is_refused_is_not_sent(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, opened: Open, kind: Kind
) -> None:
    gate.left = 1
    line = opened_at(opened, vendor, kind)
    line.send(kind.ask("5"))
    to_the_end(line, kind)
    with pytest.raises(Refusal):
        line.send(kind.ask("6"))
    line.close()
    assert len(vendor.bill) == 1
    assert len(gated.events) == 1
    assert len(gate.ends) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened", LINES)
@pytest.mark.parametrize("how", ["cut", "left"])
def test_an_answer_that_is_cut_is_charged_in_doubt(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, opened: Open, kind: Kind, how: str
) -> None:
    line = opened_at(opened, vendor, kind)
    line.send(kind.ask("50 cut" if how == "cut" else "50 stall"))
    if how == "cut":
        to_the_end(line, kind)
    else:
        until(lambda: vendor.bill)
        vendor.go_on.set()
    line.close()
    (event,) = gated.events
    assert event.estimate in ("bound", "speed")
    assert event.estimated
    assert len(gate.ends) == 1


@pytest.mark.parametrize("kind", [RESPONSES, REALTIME], ids=["responses", "realtime"])
@pytest.mark.parametrize("opened", LINES)
def test_what_the_vendor_refuses_costs_nothing(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, opened: Open, kind: Kind
) -> None:
    line = opened_at(opened, vendor, kind)
    line.send({**kind.ask("refuse"), "event_id": "event_1"})
    while (event := line.receive()) is not None and event["type"] != "error":
        pass
    line.close()
    assert gate.ends == ["back"]
    assert gated.events == []


FREE = [
    {"type": "session.update", "session": {"instructions": "Be brief."}},
    {"type": "conversation.item.create", "item": {"type": "message", "role": "user"}},
    {"type": "response.cancel"},
    {"type": "output_audio_buffer.clear"},
]


@pytest.mark.parametrize("opened", LINES)
def test_what_is_listed_is_free(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, opened: Open
) -> None:
    line = opened_at(opened, vendor, REALTIME)
    for frame in FREE:
        line.send(frame)
    until(lambda: len(vendor.frames) == len(FREE))
    line.close()
    assert gate.holds == []
    assert gated.events == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_is_not_known_may_ask(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, kind: Kind
) -> None:
    host = "generativelanguage.googleapis.com" if kind is LIVE else "api.openai.com"
    line = opened_at(lambda url: SyncLine(url, known_as=host), vendor, kind)
    odd = {"dream": {}} if kind is LIVE else {"type": "dream"}
    line.send(kind.ask("5"))
    to_the_end(line, kind)
    gate.left = 0
    with pytest.raises(Refusal):
        line.send(odd)
    name = "frame:dream"
    assert dict(gated.instrumentation.unseen._all()) == {f"dear:{name}": 1}
    gated.instrumentation.trusted = frozenset({name})
    line.send(odd)
    until(lambda: "dream" in vendor.frames)
    line.close()
    assert len(gate.holds) == 1


def test_a_server_of_ones_own_has_frames_of_its_own(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    line = opened_at(SyncLine, vendor, REALTIME)
    line.send({"type": "dream"})
    line.close()
    assert gate.holds == []
    assert gated.instrumentation.unseen._all() == []


@pytest.mark.parametrize("text", ["[1]", "dream", '{"type": "session.update", "type": "x"}'])
def test_a_frame_that_cannot_be_read_may_ask(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, text: str
) -> None:
    line = SyncLine(vendor.url + REALTIME.path)
    gate.left = 0
    with pytest.raises(Refusal):
        line.connection.send(text)
    line.close()


@pytest.mark.parametrize("opened", LINES)
def test_what_the_vendor_answers_by_itself_is_held_ahead(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, opened: Open
) -> None:
    line = opened_at(opened, vendor, REALTIME)
    for number in (1, 2):
        line.send(APPEND)
        assert len(gate.holds) == number  # before anything has made the vendor answer
        line.send(APPEND)
        line.send(COMMIT)
        to_the_end(line, REALTIME)
    gate.left = 0
    with pytest.raises(Refusal):
        line.send(APPEND)
    line.close()
    assert _charged(gated.events) == _billed(vendor)
    assert len(gate.ends) == 2


def test_without_turn_detection_sound_is_free(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    vendor.answers_itself = False
    line = opened_at(SyncLine, vendor, REALTIME)
    line.receive()
    line.send(APPEND)
    line.send(COMMIT)
    assert gate.holds == []
    turns = {"turn_detection": {"type": "server_vad"}}
    line.send({"type": "session.update", "session": {"audio": {"input": turns}}})
    line.send(APPEND)
    assert len(gate.holds) == 1
    line.close()


def test_turn_detection_that_ends_gives_back_what_was_held_ahead(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    line = opened_at(SyncLine, vendor, REALTIME)
    line.send(APPEND)
    line.send({"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}})
    while (line.receive() or {}).get("type") != "session.updated":
        pass
    assert gate.ends == ["back"]
    line.close()


@pytest.mark.parametrize("opened", LINES)
@pytest.mark.parametrize("left", [5, 1])
def test_an_answer_that_nothing_has_asked_for(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, opened: Open, left: int
) -> None:
    """It is held as it begins; without money the connection is closed, and what ran is charged."""
    gate.left = left
    line = opened_at(opened, vendor, REALTIME)
    line.send(APPEND)
    for _ in range(2):  # both turns leave before an answer is read
        line.send(COMMIT)
    to_the_end(line, REALTIME)
    if left == 1:
        with pytest.raises(Refusal):
            to_the_end(line, REALTIME)
        while line.receive() is not None:  # what has arrived before
            pass
        until(lambda: vendor.closed)
        assert len(gated.events) == 2
    else:
        to_the_end(line, REALTIME)
        assert _charged(gated.events) == _billed(vendor)
        assert len(gate.ends) == 2
    line.close()


def test_lanes_run_beside_each_other(vendor: SocketVendor, gated: Observed, gate: FakeGate) -> None:
    line = opened_at(SyncLine, vendor, RESPONSES)
    line.send(create("refuse", stream_id="a"))
    line.send(create("6", stream_id="b"))
    line.send(create("7", stream_id="c", model="gpt-5-mini"))
    to_the_end(line, RESPONSES)
    to_the_end(line, RESPONSES)
    line.close()
    assert _charged(gated.events) == _billed(vendor)
    assert [each if each == "back" else each.output_tokens for each in gate.ends] == ["back", 6, 7]


def test_connections_share_nothing(vendor: SocketVendor, gated: Observed, gate: FakeGate) -> None:
    lines = [opened_at(opened, vendor, RESPONSES) for opened in LINES]
    for number, line in enumerate(lines):
        line.send(create(f"{10 + number}"))
    for line in reversed(lines):
        to_the_end(line, RESPONSES)
        line.close()
    gated.instrumentation.read_answers()
    assert [each.output_tokens for each in gate.ends] == [10 + each for each in range(len(LINES))]


def test_fragments_are_one_frame(vendor: SocketVendor, gated: Observed, gate: FakeGate) -> None:
    text = json.dumps(create("5"))
    parts = [text[:10], text[10:30], text[30:]]
    line = SyncLine(vendor.url + RESPONSES.path)
    line.connection.send(parts)
    received = [json.loads("".join(line.connection.recv_streaming())) for _ in range(5)]
    assert received[-1]["type"] == "response.completed"
    line.close()
    other = AsyncLine(vendor.url + RESPONSES.path)

    async def pieces() -> Any:
        for part in parts:
            yield part

    other._run(other.connection.send, pieces())
    to_the_end(other, RESPONSES)
    other.close()
    gated.instrumentation.read_answers()
    assert [each.output_tokens for each in gate.ends] == [5, 5]


def test_a_realtime_prompt_is_what_was_reported_and_what_was_sent_since(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    line = opened_at(SyncLine, vendor, REALTIME)
    line.send(respond("5"))
    to_the_end(line, REALTIME)
    text = {"type": "input_text", "text": "word " * 100}
    item = {"type": "message", "role": "user", "content": [text]}
    line.send({"type": "conversation.item.create", "item": item})
    line.send(respond("6"))
    to_the_end(line, REALTIME)
    line.close()
    first, second = (each.bound for each in gate.holds)
    assert first.input_tokens is None  # the vendor's own instructions are not known yet
    assert second.input_tokens is not None
    assert PROMPT_TOKENS + 5 + 100 < second.input_tokens < 1000
    assert second.terms.sound


def test_the_limits_of_a_realtime_session_bound_its_answers(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    line = opened_at(SyncLine, vendor, REALTIME)
    line.receive()
    line.send({"type": "session.update", "session": {"max_output_tokens": 100}})
    line.send(respond("5"))  # the server may refuse the settings, which had no limit before
    line.send({"type": "response.create", "response": {"max_output_tokens": 50}})
    line.close()
    assert [each.bound.output_tokens for each in gate.holds] == [None, 50]


def test_settings_that_are_not_known_make_answers_dear(
    vendor: SocketVendor, gated: Observed, gate: FakeGate
) -> None:
    known = {"instructions": "Be brief.", "max_output_tokens": 50, "output_modalities": ["text"]}
    for odd in ({}, {"dream_tokens": 5}):
        line = SyncLine(vendor.url + REALTIME.path, known_as="api.openai.com")
        line.receive()
        line.send({"type": "session.update", "session": {**known, **odd}})
        line.send(respond("5"))
        to_the_end(line, REALTIME)
        line.close()
    plain, dear = (each.bound for each in gate.holds)
    assert plain.unknown == plain.unjudged == ()
    assert plain.input_tokens is not None
    assert dear.unknown == ("member:session.dream_tokens",)
    assert dear.input_tokens is None


def _random_session(seed: int, vendor: SocketVendor, opened: Open) -> None:
    chosen = random.Random(seed)
    kind = chosen.choice([RESPONSES, REALTIME, LIVE])
    line = opened_at(opened, vendor, kind)
    for _ in range(chosen.randint(1, 6)):
        if kind is REALTIME and chosen.random() < 0.5:
            for _ in range(chosen.randint(1, 3)):
                line.send(APPEND)
            line.send(COMMIT)
        elif kind is LIVE and chosen.random() < 0.5:
            line.send({"realtimeInput": {"text": "Hello"}})
        else:
            line.send(kind.ask(str(chosen.randint(1, 40))))
        to_the_end(line, kind)
    line.close()


@pytest.mark.parametrize("seed", range(30))
def test_charges_are_the_bill(
    vendor: SocketVendor, gated: Observed, gate: FakeGate, seed: int
) -> None:
    gate.covered = seed % 2 == 0
    _random_session(seed, vendor, LINES[seed % len(LINES)])
    assert _charged(gated.events) == _billed(vendor)
    assert len(gate.ends) == len(gate.holds)
    assert gated.instrumentation.failures == 0
