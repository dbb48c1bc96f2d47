"""Tool rules in the local snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from guard.core import tool_rules, wire
from guard.core.control import ControlState
from guard.core.tool_rules import CompiledToolRules, ScopeToolRules


def message(version: str, *block: str, seq: int = 0, kind: str = "policy") -> wire.ControlMessage:
    rules = [wire.ToolRule("p", 1, block=list(block))] if block else []
    return wire.ControlMessage(seq, kind, tools=wire.ToolRules(version, rules))


def kind_of(state: ControlState, tool: str) -> str | None:
    rules = None if state.tools is None else state.tools.for_scope("w", None)
    verdict = None if rules is None else rules.verdict(tool)
    return None if verdict is None else verdict.kind


def test_rules_replace_each_other_whatever_their_number() -> None:
    state = ControlState().apply(wire.ControlMessage(7, "kill", workflow_id="x"))
    assert (state.tools, state.known) == (None, "tools=none&facts=none")
    state = state.apply(message("v1", "rm"))
    assert (state.seq, kind_of(state, "rm"), kind_of(state, "mv")) == (7, "block", None)
    state = state.apply(message("v2", "mv"))
    assert (kind_of(state, "rm"), kind_of(state, "mv")) == (None, "block")
    assert state.known == "tools=v2&facts=none"
    assert state.apply(message("v2", "mv")) is state
    assert state.apply(message("none")).tools is None


def test_a_hello_brings_rules_also_when_the_numbers_restart() -> None:
    state = ControlState().apply(
        wire.ControlMessage(7, "kill", workflow_id="w"), message("v1", "rm")
    )
    restarted = state.apply(wire.ControlMessage(-1, "hello"))
    assert (restarted.seq, kind_of(restarted, "rm")) == (0, "block")
    greeted = state.apply(message("v2", "mv", seq=3, kind="hello"))
    assert (greeted.seq, kind_of(greeted, "rm"), kind_of(greeted, "mv")) == (0, None, "block")
    assert greeted.halt("w", None, 0) is not None


def test_a_name_is_cut_as_the_gateway_wants_it() -> None:
    rules = CompiledToolRules(wire.ToolRules("v", [wire.ToolRule("p", 1, block=["x" * 256])]))
    scope = rules.for_scope(None, None)
    assert scope is not None
    verdict = scope.verdict("x" * 1_000_000)
    assert verdict is not None
    assert max(len(name) for name in scope._verdicts) == wire.NAME_LENGTH_MAX


def test_what_is_cached_is_bounded() -> None:
    rules = CompiledToolRules(wire.ToolRules("v", [wire.ToolRule("p", 1, block=["rm"])]))
    for number in range(tool_rules.SCOPES_KEPT * 2 + 1):
        scope = rules.for_scope(f"w{number}", None)
    assert len(rules._scopes) <= tool_rules.SCOPES_KEPT
    assert scope is not None
    for number in range(tool_rules.NAMES_KEPT * 2 + 1):
        scope.verdict(f"t{number}")
    assert len(scope._verdicts) <= tool_rules.NAMES_KEPT


def test_a_rule_of_a_kind_that_is_not_known_is_left_out() -> None:
    later = b'{"policy":"p","policy_version":1,"scope_kind":"team","scope_id":"*","block":["rm"]}'
    rules = CompiledToolRules(wire.ToolRules("v", [wire.decode(later, wire.ToolRule)]))
    assert rules.for_scope("w", "a") is None


@pytest.mark.parametrize(
    ("rule", "refuses"),
    [
        ({"block": ["rm"]}, True),
        ({"allow": []}, True),
        ({"ask": ["pay*"]}, True),
        ({"repeat_tools": ["*"], "repeat_asks": True}, False),
        ({"blocks_sensitive": True}, False),
    ],
)
def test_an_unreadable_answer_is_refused_where_a_tool_may_be(
    rule: dict[str, Any], refuses: bool
) -> None:
    rules = CompiledToolRules(wire.ToolRules("v", [wire.ToolRule("p", 1, **rule)]))
    found = rules.for_scope(None, None)
    assert found is not None
    assert (found.unreadable is not None) is refuses


def test_rules_but_for_allow_lists_hold_for_the_parts_of_a_name() -> None:
    tool = "mcp__files__delete_all"

    def of(**says: Any) -> ScopeToolRules:
        rules = CompiledToolRules(wire.ToolRules("v", [wire.ToolRule("p", 1, **says)]))
        found = rules.for_scope(None, None)
        assert found is not None
        return found

    verdict = of(block=["delete_*"]).verdict(tool)
    assert verdict is not None
    assert verdict.reason == (
        "the tool is blocked by 'delete_*', which its part 'delete_all' matches"
    )
    asked = of(ask=["delete_*"]).verdict(tool)
    assert asked is not None
    assert asked.kind == "ask"
    assert of(repeat_tools=["delete_all"]).counts_tool(tool) == "note"
    refused = of(allow=["delete_*"]).verdict(tool)
    assert refused is not None
    assert refused.kind == "block"
