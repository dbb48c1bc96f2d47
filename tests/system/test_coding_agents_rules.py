"""The same coding agents under the rules of a run, stopped by a person, and at a slow vendor."""

from __future__ import annotations

import time
from typing import Final

import pytest

from tests.support.agent_answers import Turn
from tests.support.agent_vendor import Asked
from tests.support.coding_agents import MISSING, are_installed
from tests.support.runs import Runs
from tests.support.waiting import until
from tests.system.test_coding_agents import (  # noqa: F401  # fixtures
    LIMIT,
    Desk,
    agent,
    desk,
    vendor,
)

pytestmark = [pytest.mark.matrix, pytest.mark.skipif(not are_installed(), reason=MISSING)]

TOKENS: Final = 1_000_000
FIRST_BYTE_S: Final = 25.0
THINKS_S: Final = 12.0
"""Of the person who is asked: longer than the proxy leaves a stream without a ping."""


def steps(desk: Desk) -> int:  # noqa: F811
    """Return how often its tool has run."""
    path = desk.work / "ran.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def step_for_ever(desk: Desk, thought: int = 300) -> None:  # noqa: F811
    """Have its model ask for the shell again and again, and say where it stands at last."""

    def script(asked: Asked) -> Turn:
        if asked.says("this is the last answer"):
            return Turn("Here it stands.")
        # Some agents end by themselves after five calls that are the same.
        call = desk.agent.run_shell(f"echo {asked.turns} >> ran.txt")
        return Turn("I go on.", (call,), thought=thought)

    desk.vendor.script = script


def step_once(desk: Desk) -> None:  # noqa: F811
    step = Turn("I do it.", (desk.agent.run_shell("echo ran >> ran.txt"),), thought=300)
    desk.vendor.script = lambda asked: Turn("All is well.") if asked.results else step


def test_a_limit_of_tokens(desk: Desk) -> None:  # noqa: F811
    step_for_ever(desk, thought=30_000)
    facts, screen = desk.end(desk.start("Go on.", "--limit-tokens", f"{TOKENS}", limit=50 * LIMIT))
    assert facts["exit_code"] == 77, screen
    [tokens] = facts["counted"]
    used = sum(bill.fresh + bill.cached + bill.output for bill in desk.vendor.bills)
    assert tokens["used"] == used <= TOKENS
    assert used >= 0.7 * TOKENS, screen
    assert "tokens is reached" in screen


def test_a_limit_of_calls_of_its_tool(desk: Desk) -> None:  # noqa: F811
    step_for_ever(desk)
    facts, screen = desk.end(desk.start("Go on.", "--max-calls", f"{desk.agent.shell}=2"))
    assert facts["exit_code"] == 77, screen
    assert f"2 calls of {desk.agent.shell}" in facts["refused"]["message"]
    assert steps(desk) == 2
    assert facts["spent_nanousd"] >= desk.billed > 0


def test_a_tool_that_is_blocked(desk: Desk) -> None:  # noqa: F811
    step_for_ever(desk)
    facts, screen = desk.end(desk.start("Go on.", "--block-tool", desk.agent.shell))
    assert (facts["exit_code"], facts["refused"]["error_code"]) == (77, "GD-T001"), screen
    assert desk.agent.shell in facts["refused"]["reason"]
    assert steps(desk) == 0


@pytest.mark.parametrize("approved", [True, False], ids=["granted", "refused"])
def test_a_tool_that_a_person_approves(desk: Desk, guard: Runs, approved: bool) -> None:  # noqa: F811
    name = f"asks-{desk.agent.name}"
    step_once(desk)
    with guard.operator() as admin:
        admin.set_policy(name, scope_kind="workflow", scope_id=name, anyway=True,
                         approval_tools=[desk.agent.shell])  # fmt: skip
        process = desk.start("Do it.", "--workflow", name)
        [asked] = until(admin.approvals)
        time.sleep(THINKS_S if approved else 0)
        assert steps(desk) == 0
        admin.answer_approval(asked["approval_id"], approved=approved, reason="we said so")
        facts, screen = desk.end(process)
        admin.delete_policy(name)
    assert facts["exit_code"] == (0 if approved else 77), screen
    assert steps(desk) == int(approved)
    assert ("All is well." in screen) == approved
    assert ("an operator refused the call" in screen) != approved


def test_what_is_kept_pays_for_a_last_answer(desk: Desk) -> None:  # noqa: F811
    step_for_ever(desk, thought=8000)
    facts, screen = desk.end(desk.start("Go on.", "--keep", "25%"))
    last = [asked for asked in desk.vendor.asked if asked.says("this is the last answer")]
    assert len(last) == 1, screen
    assert "Here it stands." in screen
    assert facts["spent_nanousd"] == desk.billed <= LIMIT
    assert facts["exit_code"] == 0, screen


def test_a_pause_ends_it_and_it_goes_on_once_that_is_lifted(
    desk: Desk, guard: Runs  # noqa: F811
) -> None:  # fmt: skip
    name = f"held-{desk.agent.name}"
    step_once(desk)
    plain = desk.vendor.script
    with guard.operator() as admin:

        def script(asked: Asked) -> Turn:
            admin.directive("pause", name, reason="lunch")
            return plain(asked)

        desk.vendor.script = script
        facts, screen = desk.end(desk.start("Do it.", "--workflow", name))
        assert (facts["exit_code"], facts["refused"]["error_code"]) == (77, "GD-W003"), screen
        assert "lunch" in screen
        admin.directive("resume", name)
        desk.vendor.script = plain
        again = desk.start("Go on.", "--workflow", name, resume=bool(desk.agent.resumed))
        facts, screen = desk.end(again)
    assert (facts["exit_code"], facts["refused"]) == (0, None), screen
    assert "All is well." in screen


def test_a_vendor_that_is_slow(desk: Desk) -> None:  # noqa: F811
    """Nothing for a long time, and then a word now and then, with the vendor's own pings."""
    desk.vendor.script = lambda asked: Turn(
        "At last all is well.", first_s=FIRST_BYTE_S, between_s=3.0
    )
    began_s = time.monotonic()
    facts, screen = desk.end(desk.start("Say hello."))
    assert time.monotonic() - began_s > FIRST_BYTE_S
    assert (facts["exit_code"], facts["refused"]) == (0, None), screen
    assert "At last all is well." in screen
    assert all(bill.is_whole for bill in desk.vendor.bills)
    assert facts["spent_nanousd"] == desk.billed > 0
