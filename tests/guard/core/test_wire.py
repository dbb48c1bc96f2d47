"""Protocol v3's messages: what round-trips, what is ignored, what is refused, what is not said."""

from __future__ import annotations

import json
import traceback
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core import wire

names = st.text(max_size=wire.NAME_LENGTH_MAX).filter(str.isprintable)
tokens = st.integers(0, wire.TOKENS_MAX)
moments_ms = st.integers(0, 2**53)
plain_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)

events = st.builds(
    wire.Event,
    event_id=names,
    type=names,
    at_ms=moments_ms,
    workflow_id=st.none() | names,
    run_id=st.none() | names,
    trace_id=st.none() | names,
    call_id=st.none() | names,
    data=st.dictionaries(names, plain_json, max_size=3),
)
requests = st.builds(
    wire.GateRequest,
    call_id=names,
    kind=st.sampled_from(["llm", "tool", "call"]),
    function=names,
    model=names,
    tools=st.lists(names, max_size=3),
    sensitive=st.booleans(),
    chain=st.none()
    | st.builds(wire.Chain, id=names, op=st.sampled_from(["start", "continue", "end"])),
    max_input_tokens=st.none() | tokens,
    events=st.lists(events, max_size=2),
)
budgets = st.builds(
    wire.Budget.of,
    limit=st.integers(0, wire.NANOUSD_MAX),
    spent=st.integers(0, wire.NANOUSD_MAX),
    reserved=st.integers(0, wire.NANOUSD_MAX),
)
replies = st.builds(
    wire.GateReply,
    decision=st.sampled_from(["allow", "pending"]),
    call_id=names,
    reserved_nanousd=st.integers(0, wire.NANOUSD_MAX),
    budget=st.none() | budgets,
    warnings=st.lists(names, max_size=2),
)
controls = st.builds(
    wire.ControlMessage,
    seq=st.integers(0, 2**53),
    type=st.sampled_from(["hello", "kill", "pause", "resume", "revive", "budget", "ping"]),
    workflow_id=st.none() | names,
    resume_after_ms=st.none() | moments_ms,
    at_ms=moments_ms,
)


@given(st.one_of(events, requests, replies, controls))
def test_every_message_comes_back_as_it_was_sent(message: Any) -> None:
    assert wire.decode(wire.encode(message), type(message)) == message


@given(replies, st.dictionaries(names.map("x_".__add__), plain_json, min_size=1, max_size=4))
def test_unknown_fields_are_ignored(reply: wire.GateReply, extra: dict[str, Any]) -> None:
    document = json.loads(wire.encode(reply)) | extra
    assert wire.decode(json.dumps(document).encode(), wire.GateReply) == reply


def test_unknown_fields_are_ignored_in_nested_messages() -> None:
    document = {
        "protocol": 3,
        "min_sdk_version": "0.6.0",
        "server": "guard/1",
        "limits": {"max_batch_events": 7, "max_moon_phase": 3},
        "control": {"poll_interval_ms": 250, "carrier": "pigeon"},
    }
    found = wire.decode(json.dumps(document).encode(), wire.Capabilities)
    assert found.limits.max_batch_events == 7
    assert found.control.poll_interval_ms == 250
    assert found.limits.max_event_bytes == wire.Limits().max_event_bytes


def test_control_messages_of_a_type_that_is_not_known_yet_decode() -> None:
    """A newer gateway may push more than this SDK knows; the channel must survive it."""
    message = wire.decode(b'{"seq": 4, "type": "confetti", "colour": "red"}', wire.ControlMessage)
    assert (message.seq, message.type) == (4, "confetti")


ALLOW = {"decision": "allow", "call_id": "c1"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"decision": "ALLOW"}, "decision"),
        ({"decision": True}, "decision"),
        ({"decision": None}, "decision"),
        ({"decision": ["allow"]}, "decision"),
        ({"call_id": 5}, "call_id"),
        ({"call_id": None}, "call_id"),
        ({"reserved_nanousd": "12"}, "reserved_nanousd"),
        ({"reserved_nanousd": 1.5}, "reserved_nanousd"),
        ({"reserved_nanousd": True}, "reserved_nanousd"),
        ({"budget": []}, "budget"),
        ({"budget": {"limit_nanousd": 1}}, "budget"),
        ({"warnings": "careful"}, "warnings"),
        ({"warnings": [1]}, "warnings"),
        ({"expires_at_ms": "soon"}, "expires_at_ms"),
    ],
)
def test_a_wrong_type_is_refused_and_the_field_is_named(
    change: dict[str, object], field: str
) -> None:
    assert wire.decode(json.dumps(ALLOW).encode(), wire.GateReply).decision == "allow"
    with pytest.raises(wire.WireError, match=field):
        wire.decode(json.dumps(ALLOW | change).encode(), wire.GateReply)


@pytest.mark.parametrize("missing", ["decision", "call_id"])
def test_a_missing_field_is_refused_and_named(missing: str) -> None:
    document = {name: value for name, value in ALLOW.items() if name != missing}
    with pytest.raises(wire.WireError, match=missing):
        wire.decode(json.dumps(document).encode(), wire.GateReply)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"true",
        b"allow",
        b'"allow"',
        b"[]",
        b'["allow"]',
        b"<html><body>allow</body></html>",
        b'{"decision": "allow", "call_id": "c1"',
        b'{"decision": "allow", "call_id": "c1"}{}',
        b'{"decision": "allow", "call_id": "c1",}',
        b"{'decision': 'allow', 'call_id': 'c1'}",
        b'\xef\xbb\xbf{"decision": "allow", "call_id": "c1"}',
        b'{"decision": "allow", "call_id": "\xff\xfe"}',
        b'{"decision": "allow", "call_id": "\\ud800"}',
        json.dumps(ALLOW).encode("utf-16"),
    ],
)
def test_what_is_not_the_promised_message_is_refused(body: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(body, wire.GateReply)


@given(st.binary(max_size=200))
def test_any_bytes_either_decode_or_raise_a_wire_error(body: bytes) -> None:
    try:
        wire.decode(body, wire.Problem)
    except wire.WireError:
        return


@pytest.mark.parametrize("depth", [50_000, 200_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_a_wire_error_and_not_a_crash(depth: int, opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    nested = opening * depth + b"0" + closing * depth
    body = b'{"decision":"allow","call_id":"c1","lease":{"x":' + nested + b"}}"
    with pytest.raises(wire.WireError, match="deep"):
        wire.decode(body, wire.GateReply)


def test_encoding_what_json_cannot_carry_is_a_wire_error() -> None:
    loop: list[object] = []
    loop.append(loop)
    for hopeless in (loop, object(), {"a": {1, object()}}, "\ud800", {("a", 1): 2}):
        with pytest.raises(wire.WireError) as caught:
            wire.encode(hopeless)
        assert "object at" not in str(caught.value)


CANARY = "sk-live-canary-7731"


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (wire.GateReply, {"decision": CANARY, "call_id": "c"}),
        (wire.GateReply, {"decision": f"x' - at `{CANARY}", "call_id": "c"}),
        (wire.GateReply, {"decision": f"a\n{CANARY}", "call_id": "c"}),
        (wire.GateReply, {"decision": "allow", "call_id": {CANARY: CANARY}}),
        (wire.GateReply, {"decision": "allow", "call_id": "c", "reserved_nanousd": CANARY}),
        (wire.GateReply, {"decision": "allow", "call_id": "c", "lease": CANARY}),
        (wire.GateRequest, {"call_id": "c", "kind": CANARY, "function": "f"}),
        (wire.GateRequest, {"call_id": CANARY * 100, "kind": "llm", "function": "f"}),
        (wire.Chain, {"id": "c", "op": CANARY}),
        (wire.Event, {"event_id": "e", "type": "t", "at_ms": CANARY}),
        (wire.Event, {"event_id": "e", "type": "t", "at_ms": 0, "data": [CANARY]}),
        (wire.LlmData, {"source": CANARY}),
    ],
)
def test_no_value_is_repeated_in_the_error(kind: type[Any], document: dict[str, Any]) -> None:
    """Bodies carry tool arguments and metadata; the text of an error goes to logs."""
    with pytest.raises(wire.WireError) as caught:
        wire.decode(json.dumps(document).encode(), kind)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert CANARY not in shown.replace(json.dumps(document), "")
    assert str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_tokens", -1),
        ("output_tokens", wire.TOKENS_MAX + 1),
        ("cache_read_tokens", 0.5),
        ("reasoning_tokens", "7"),
        ("cost_nanousd", -1),
        ("cost_nanousd", wire.NANOUSD_MAX + 1),
        ("model", "m" * (wire.NAME_LENGTH_MAX + 1)),
        ("source", "guess"),
        ("streamed", 1),
        ("metadata", []),
    ],
)
def test_llm_payloads_have_bounds(field: str, value: object) -> None:
    with pytest.raises(wire.WireError, match=field):
        wire.decode(json.dumps({field: value}).encode(), wire.LlmData)


@pytest.mark.parametrize("value", [-1, 2**53 + 1, 10**400, 1.5])
@pytest.mark.parametrize("field", ["at_ms", "resume_after_ms"])
def test_times_on_the_control_channel_are_whole_and_bounded(field: str, value: float) -> None:
    document = f'{{"seq": 1, "type": "pause", "{field}": {value}}}'
    with pytest.raises(wire.WireError, match=field):
        wire.decode(document, wire.ControlMessage)


def test_names_are_counted_in_characters_not_bytes() -> None:
    longest = "ж" * wire.NAME_LENGTH_MAX
    assert wire.decode(wire.encode({"id": longest}), wire.Chain).id == longest


def test_a_gate_request_without_a_call_context_names_the_placeholder_model_and_no_tools() -> None:
    """Spec part 2: without the call context, a placeholder model and an empty tool list."""
    request = wire.decode(
        wire.encode(wire.GateRequest("c", "call", "module.function")), wire.GateRequest
    )
    assert (request.model, request.tools) == ("unknown", [])


def test_two_messages_do_not_share_their_defaults() -> None:
    first, second = (wire.GateRequest("c", "call", "f") for _ in range(2))
    first.tools.append("shell")
    assert second.tools == []


@given(st.integers(0, wire.NANOUSD_MAX), st.integers(0, 2**50), st.integers(0, 2**50))
def test_a_budgets_remainder_is_what_nobody_holds(limit: int, spent: int, reserved: int) -> None:
    budget = wire.Budget.of(limit=limit, spent=spent, reserved=reserved)
    assert budget.remaining_nanousd + budget.spent_nanousd + budget.reserved_nanousd == limit
    assert budget.limit_cents == pytest.approx(limit / 10_000_000)


def test_a_cent_is_ten_million_nanodollars() -> None:
    assert wire.cents(wire.NANOUSD_PER_DOLLAR) == 100.0
    assert wire.cents(1) == 1e-7


class TestSalvage:
    """A damaged problem document still says what it can."""

    def test_good_documents_are_decoded_whole(self) -> None:
        problem = wire.Problem(status=403, error_code="GD-W002", details={"a": 1})
        assert wire.salvage(wire.encode(problem), wire.Problem) == problem

    @pytest.mark.parametrize(
        "damage",
        [{"details": None}, {"details": "?"}, {"title": 3}, {"status": "403"}, {"reason": []},
         {"retry_after_ms": -5}, {"retry_after_ms": 10**400}, {"budget": {}}, {"events": 1}],
    )  # fmt: skip
    def test_one_bad_member_does_not_hide_the_others(self, damage: dict[str, object]) -> None:
        document = {"error_code": "GD-W002", "workflow_id": "w"} | damage
        problem = wire.salvage(json.dumps(document).encode(), wire.Problem)
        assert (problem.error_code, problem.workflow_id) == ("GD-W002", "w")
        for name in damage:
            assert getattr(problem, name) == getattr(wire.Problem(), name)

    @given(st.binary(max_size=100) | plain_json.map(lambda value: json.dumps(value).encode()))
    def test_it_never_raises(self, body: bytes) -> None:
        assert isinstance(wire.salvage(body, wire.Problem), wire.Problem)

    def test_deep_nesting_is_survived(self) -> None:
        body = b'{"error_code":"GD-W002","details":{"a":' + b"[" * 9999 + b"]" * 9999 + b"}}"
        assert wire.salvage(body, wire.Problem) == wire.Problem()


def test_every_message_type_has_json_schema() -> None:
    """The OpenAPI document is made from these types, so each must have a schema."""
    kinds = [
        value
        for value in vars(wire).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value is not msgspec.Struct
    ]
    assert len(kinds) > 15
    _, components = msgspec.json.schema_components(kinds)
    assert {kind.__name__ for kind in kinds} <= components.keys()
