"""What may be shown to a person who approves, and how errors say what may not."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core import wire
from guard.core.notes import note_of
from guard.gateway.domain.nesting import nested_deeper

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)  # fmt: skip


@given(st.text(st.characters(codec="utf-8")), st.dictionaries(st.text(max_size=9), JSON))
def test_whatever_is_taken_arrives(message: str, details: dict[str, Any]) -> None:
    try:
        note = note_of(message, details)
    except ValueError:
        return
    if note is None:
        assert not message
        assert not details
        return
    sent = note.sent()
    document = wire.encode(sent)
    assert len(document) <= wire.NOTE_BYTES_MAX
    assert not nested_deeper(document, wire.NOTE_DEPTH_MAX)
    assert wire.decode(document, wire.ApprovalNote) == sent
    assert json.loads(document).get("details", {}) == details


def nested(levels: int) -> Any:
    return {"x": nested(levels - 1)} if levels else 1


class Whole:
    """Like one of numpy's integers."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("details", "error", "why"),
    [
        ([1], TypeError, "details is a mapping, not list"),
        ({1: "x"}, TypeError, "details has a key that is int, not text"),
        ({"a": {"b": [0, {1}]}}, TypeError, r"details\['a'\]\['b'\]\[1\] is a set"),
        ({"a": b"x"}, TypeError, r"details\['a'\] is a bytes"),
        ({"a": float("nan")}, ValueError, "not a finite number"),
        ({"a": 2**63}, ValueError, "more than 64 bits"),
        ({"a": "\ud800"}, ValueError, "UTF-8"),
        ({"a": "x" * 8192}, ValueError, "at most 8192 bytes as JSON, not 82"),
        (nested(16), ValueError, "nested at most 15 levels"),
    ],
)
def test_what_is_not_taken(details: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        note_of("m", details)


def test_messages_that_are_not_taken() -> None:
    with pytest.raises(TypeError, match="message is text, not int"):
        note_of(1, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 1000 characters, not 1001"):
        note_of("x" * 1001, None)


def test_limits_are_taken_to_the_last() -> None:
    assert note_of("x" * 1000, nested(15)) is not None
    note = note_of(None, {"a": (Whole(), Fraction(1, 2))})
    assert note is not None
    assert note.details == {"a": [7, 0.5]}


def test_details_are_copied_and_not_in_reprs() -> None:
    details = {"list": ["canary-9d"]}
    note = note_of("canary-9d", details)
    details["list"].append("later")
    assert note is not None
    assert note.details == {"list": ["canary-9d"]}
    assert "canary" not in repr(note)
    assert "canary" not in repr(wire.GateRequest("c", "call", "f", note=note))
