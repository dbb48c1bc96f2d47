"""What a run that is ended says to its operator works when it is typed."""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest

from tests.support.runs import AGENT, LIMIT, Runs

BUDGETS = {
    "organisation": ("--window", "day"),
    "workflow": ("--scope", "workflow", "--id", "paid*", "--window", "month"),
    "model": ("--scope", "model", "--id", "gpt-4o", "--window", "hour"),
}


def advice_of(stderr: str, lead: str) -> list[str]:
    """Return the words of the command that a report says after ``lead``."""
    found = re.search(rf"{lead}: guard (.*?)(?:, or |$)", stderr, re.MULTILINE)
    assert found is not None, stderr
    return shlex.split(found[1])


@pytest.mark.parametrize("scope", BUDGETS)
def test_a_budget_of_the_gateway_is_raised_by_what_the_report_says(
    guard: Runs, vendor: str, scope: str
) -> None:
    run = ("run", "--workflow", "paid-1", "--", sys.executable, "-c", AGENT, vendor, "1")
    guard("gateway", "budgets", "set", "--local", *BUDGETS[scope], "--limit-cents", "0.05")
    try:
        refused = guard(*run)
        assert refused.returncode == 77
        assert f"{BUDGETS[scope][-1]} budget" in refused.stderr
        assert "contact" not in refused.stderr
        for _ in range(12):  # each doubles it, as a request costs more than what was spent
            raised = guard(*advice_of(refused.stderr, "raise it with"))
            assert raised.returncode == 0, raised.stderr
            refused = guard(*run)
            if refused.returncode == 0:
                break
        assert refused.stdout == "0 200\n", refused.stderr
        removed = advice_of(guard_refused(guard, run, scope), "remove it")
        assert guard(*removed).returncode == 0
        assert guard(*run).stdout == "0 200\n"
    finally:
        with guard.operator() as admin:
            for budget in admin.budgets():
                admin.delete_budget(budget["budget_id"])


def guard_refused(guard: Runs, run: tuple[str, ...], scope: str) -> str:
    guard("gateway", "budgets", "set", "--local", *BUDGETS[scope], "--limit-cents", "0.05")
    done = guard(*run)
    assert done.returncode == 77
    return done.stderr


def test_the_limit_of_the_run_is_told_from_other_budgets(guard: Runs, vendor: str) -> None:
    done = guard("run", "--limit", LIMIT, "--json", "--", sys.executable, "-c", AGENT, vendor, "9")
    refused = json.loads(done.stdout.splitlines()[-1])["refused"]
    assert refused["message"] == f"this run's --limit of {LIMIT} is reached"
    assert "guard run --limit '$0.004'" in refused["advice"]


def test_a_rule_of_the_run_is_named(guard: Runs, vendor: str) -> None:
    done = guard("run", "--allow-model", "claude-*", "--", sys.executable, "-c", AGENT, vendor, "1")
    assert "the rules of this run: --allow-model 'claude-*'" in done.stderr
