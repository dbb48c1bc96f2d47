"""What ``guard run`` says of a refusal: to the operator, who can do something about it."""

from __future__ import annotations

import itertools
import re
from typing import Any, Final

import pytest

from guard.core.catalogue import CATALOGUE
from guard.running.plan import RunLimits
from guard.running.words import OperatorStop, RunFacts, killed_before, of_refusal

LIMITS: Final = {
    "none": RunLimits(),
    "all": RunLimits(
        2 * 10**9, ("delete_*",), ("gpt-*",), (60, 60_000), 100, True, 1000, seen_only=True
    ),
}
BUDGETS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "own": {"scope": "key k (total)", "limit_nanousd": 2 * 10**9},
    "outer": {"scope": "key outer (total)", "limit_nanousd": 10**9},
    **{
        f"{kind} {window}": {
            "scope": f"{kind} {scope_id} ({window})".replace("  ", " "),
            "limit_nanousd": 10**9,
            "spent_nanousd": 3 * 10**9,
            "resets_at_ms": None if window == "total" else 1_767_225_600_000,
        }
        for kind, scope_id in (
            ("organisation", ""), ("workflow", "a b (c)"), ("user", "u"), ("model", "gpt-4o"),
            ("agent", "a"), ("key", "another"),
        )
        for window in ("total", "hour", "day", "month")
    },
}  # fmt: skip
STOPS: Final = {
    "none": None,
    "killed": OperatorStop("killed", "enough", "*"),
    "paused": OperatorStop("paused", "", "w"),
}
FOR_END_USERS: Final = re.compile(r"[Pp]lease|contact|operator|this application", re.IGNORECASE)
TO_TYPE: Final = re.compile(r"guard [a-z]|--[a-z]|df -h|tail ")


@pytest.mark.parametrize("code", [*CATALOGUE, "GD-NEW", ""])
def test_every_refusal_names_what_to_type_and_nobody_to_ask(code: str) -> None:
    cases = itertools.product(
        LIMITS.values(), BUDGETS.values(), STOPS.values(), ("", "delete_all", "search"),
        ("", "the gateway's disk is full", "--allow-unseen lets it go"),
    )  # fmt: skip
    for limits, budget, stop, tool, reason in cases:
        facts = RunFacts("w", limits, "outer.k", "/d/local", stop, "b-1", "")
        refusal = {"error_code": code, "reason": reason, "budget": budget, "tool_name": tool}
        said = of_refusal(refusal, facts)
        for text in (said.headline, said.advice):
            assert text.strip(), refusal
            assert FOR_END_USERS.search(text) is None, text
        assert TO_TYPE.search(said.advice), said.advice


def budget_words(budget: str, rule_id: str = "") -> tuple[str, str]:
    facts = RunFacts("w", RunLimits(), "outer.k", "/d", None, "b-1", rule_id)
    said = of_refusal({"error_code": "GD-B004", "budget": BUDGETS[budget]}, facts)
    return said.headline, said.advice


def test_a_budget_is_named_with_the_command_that_raises_it() -> None:
    headline, advice = budget_words("organisation day")
    assert headline == "the local gateway's day budget, $1 for all runs, is reached"
    assert advice == (
        "raise it with: guard gateway budgets set --local --window day --limit '$6', or "
        "remove it: guard gateway budgets delete b-1 --local, or wait until 2026-01-01 00:00 UTC"
    )
    headline, advice = budget_words("workflow total", "a*")
    assert headline == "the local gateway's budget of workflow a b (c), $1 for all runs, is reached"
    assert "--scope workflow --id 'a*' --window total" in advice
    assert "wait" not in advice
    facts = RunFacts("w", RunLimits(), "outer.k", "/d")
    own = of_refusal({"error_code": "GD-B004", "budget": {**BUDGETS["own"],
                      "scope": "key outer.k (total)"}}, facts)  # fmt: skip
    assert own.headline == "this run's --limit of $2 is reached"
    assert "guard run --limit '$4'" in own.advice
    assert budget_words("outer")[0] == "the outer run's --limit of $1 is reached"


def test_rules_of_the_run_are_told_from_those_of_the_gateway() -> None:
    def advice(code: str, limits: str, **refusal: str) -> str:
        facts = RunFacts("w", LIMITS[limits], "k", "/d")
        return of_refusal({"error_code": code, **refusal}, facts).advice

    assert "--block-tool 'delete_*'" in advice("GD-T001", "all", tool_name="Delete_all")
    assert advice("GD-T001", "all", tool_name="mcp__files__delete_all") == (
        "by this run's --block-tool 'delete_*', which its part delete_all matches: run it without "
        "that to allow the tool"
    )
    assert "policies list --local" in advice("GD-T001", "all", tool_name="search")
    assert "--allow-model 'gpt-*' --strict" in advice("GD-X001", "all")
    assert "policies list --local" in advice("GD-X001", "none")
    assert "--rate" in advice("GD-R001", "all")
    assert "policies list --local" in advice("GD-R001", "none")


def test_a_run_that_does_not_begin_says_what_lifts_the_kill() -> None:
    assert killed_before("w", OperatorStop("killed", "enough", "w")) == (
        "the workflow w is killed: enough; lift that with: guard revive w --local, or choose "
        "another --workflow"
    )
    assert killed_before("w", OperatorStop("killed", "", "w*")) == (
        "the workflow w is killed by 'w*'; lift that with: guard revive 'w*' --local"
    )
