"""Names that the gateway would not take are refused where they are given, or made to fit."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guard
from guard.core import wire
from guard.core.notes import note_of
from guard.core.wire import text as rule
from guard.gateway.domain import message_text

BAD = {
    "nul": "a\0b",
    "stands for nul": "a\ufdd0",
    "half a pair": "a\ud800",
    "bytes": "\U0001f600" * 193,
}


@pytest.mark.parametrize("module", [rule, message_text], ids=lambda m: m.__name__)
def test_the_examples_in_the_docstrings(module: Any) -> None:
    outcome = doctest.testmod(module)
    assert (outcome.failed, outcome.attempted > 0) == (0, True)


GIVEN: dict[str, Callable[[str], object]] = {
    "workflow": guard.workflow,
    "chain": guard.chain,
    "span": guard.span,
    "agent": guard.agent,
    "user": guard.context.user,
    "tag": lambda name: guard.context.tags(team=name),
    "tag's name": lambda name: guard.context.tags(**{name[:64]: "billing"}),
    "model": lambda name: guard.set_call_context(model=name),
    "tools": lambda name: guard.set_call_context(tools=[name]),
    "tool_name": guard.track_tool,
    "event_type": guard.track_event,
    "llm": lambda name: guard.track_llm(1, model=name),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("what", GIVEN)
def test_a_name_that_is_given_is_refused_with_the_reason(what: str, kind: str) -> None:
    if (what, kind) == ("tag's name", "bytes"):
        pytest.skip("64 characters fit")
    with pytest.raises(ValueError, match=r"has (the character U\+|77\d bytes)") as caught:
        GIVEN[what](BAD[kind])
    assert BAD[kind] not in str(caught.value)


@pytest.mark.parametrize("kind", ["nul", "stands for nul", "half a pair"])
def test_a_note_for_a_person_is_text(kind: str) -> None:
    with pytest.raises(ValueError, match=r"message has the character U\+"):
        note_of(BAD[kind], None)


@given(st.text(st.characters(exclude_categories=[]), max_size=600), st.integers(1, 512))
def test_what_is_made_to_fit_is_taken(text: str, length: int) -> None:
    found = wire.truncated(text, length, 3 * length)
    assert rule.flaw_in_text(found, 3 * length) is None
    assert len(found) <= length
    assert wire.truncated(found, length, 3 * length) == found
    if rule.flaw_in_text(text, 3 * length) is None and len(text) <= length:
        assert found == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_json_in_which_nothing_is_looked_at_has_no_flaw(text: str) -> None:
    """The gateway looks at the fields of a message only where its JSON is not plain."""
    for body in (wire.encode({"a": text}), msgspec.json.format(wire.encode({"a": text}))):
        if message_text.is_plain(body):
            assert rule.flaw_in_text(text, 300) is None
